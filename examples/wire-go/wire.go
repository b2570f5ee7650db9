// A client of the mq wire in Go, written from docs/wire.md with nothing but the standard library. The few protobuf fields
// that it needs are read and written by hand; a larger client would use the code generated from proto/mq.proto.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

const (
	magic    = "mqwire\r\n"
	hello    = 0x8000
	welcome  = 0x8001
	ping     = 0x8002
	pong     = 0x8003
	drain    = 0x8005
	goodbye  = 0x8006
	create   = 1 // mq.MQService/CreateChannel
	publish  = 2 // mq.MQService/Publish
	pull     = 6 // mq.MQService/Pull
	statusOK = 0
)

// Fields of a protobuf message: numbers by field, and bytes by field, in order.
type fields struct {
	numbers map[uint64]uint64
	bytes   map[uint64][][]byte
}

func number(field, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, field<<3), value)
}

func text(field uint64, value []byte) []byte {
	head := binary.AppendUvarint(binary.AppendUvarint(nil, field<<3|2), uint64(len(value)))
	return append(head, value...)
}

func join(parts ...[]byte) (all []byte) {
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

func parse(data []byte) (fields, error) {
	found := fields{map[uint64]uint64{}, map[uint64][][]byte{}}
	for len(data) > 0 {
		tag, size := binary.Uvarint(data)
		if size <= 0 {
			return found, errors.New("a tag is cut")
		}
		value, more := binary.Uvarint(data[size:])
		if more <= 0 {
			return found, errors.New("a value is cut")
		}
		data = data[size+more:]
		switch tag & 7 {
		case 0:
			found.numbers[tag>>3] = value
		case 2:
			if value > uint64(len(data)) {
				return found, errors.New("a field is cut")
			}
			found.bytes[tag>>3] = append(found.bytes[tag>>3], data[:value])
			data = data[value:]
		default:
			return found, fmt.Errorf("wire type %d is not used by mq", tag&7)
		}
	}
	return found, nil
}

func (f fields) first(field uint64) []byte {
	if len(f.bytes[field]) == 0 {
		return nil
	}
	return f.bytes[field][0]
}

// An answer: the response message, or an error.
type answer struct {
	payload []byte
	err     error
}

// A client is one connection, shared by all goroutines.
type client struct {
	conn    net.Conn
	out     *bufio.Writer
	mu      sync.Mutex // of what follows, and of out
	lastID  uint32
	waiting map[uint32]chan answer
	window  chan struct{} // a place for each request that may be in flight
	err     error
}

func dial(addr string) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, out: bufio.NewWriterSize(conn, 64<<10), waiting: map[uint32]chan answer{}}
	c.out.WriteString(magic)
	c.frame(0, hello, join(number(1, 1), text(2, []byte("mq-go-example"))))
	if err := c.out.Flush(); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(conn, 64<<10)
	start := make([]byte, len(magic))
	if _, err := io.ReadFull(in, start); err != nil || string(start) != magic {
		return nil, fmt.Errorf("%s does not speak the mq wire (%q, %v)", addr, start, err)
	}
	_, code, payload, err := read(in)
	if err != nil {
		return nil, err
	}
	said, err := parse(payload)
	if err != nil || code != welcome {
		return nil, fmt.Errorf("the server does not want us: %s %v", said.first(2), err)
	}
	c.window = make(chan struct{}, said.numbers[4])
	go c.readAll(in)
	return c, nil
}

// frame writes one frame; the caller holds mu, or is alone.
func (c *client) frame(id uint32, code uint16, payload []byte) {
	var header [12]byte
	binary.LittleEndian.PutUint32(header[0:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(header[4:], id)
	binary.LittleEndian.PutUint16(header[8:], code)
	c.out.Write(header[:])
	c.out.Write(payload)
}

func read(in *bufio.Reader) (id uint32, code uint16, payload []byte, err error) {
	var header [12]byte
	if _, err = io.ReadFull(in, header[:]); err != nil {
		return
	}
	payload = make([]byte, binary.LittleEndian.Uint32(header[0:]))
	_, err = io.ReadFull(in, payload)
	return binary.LittleEndian.Uint32(header[4:]), binary.LittleEndian.Uint16(header[8:]), payload, err
}

func (c *client) readAll(in *bufio.Reader) {
	for {
		id, code, payload, err := read(in)
		if err == nil && code == goodbye {
			said, _ := parse(payload)
			err = fmt.Errorf("the server said goodbye: %s", said.first(2))
		}
		if err != nil {
			c.fail(err)
			return
		}
		switch {
		case code == ping:
			c.mu.Lock()
			c.frame(id, pong, payload)
			c.out.Flush()
			c.mu.Unlock()
		case code == drain || code >= 0x8000:
			// A larger client would open another connection for what comes next.
		default:
			c.mu.Lock()
			done := c.waiting[id]
			delete(c.waiting, id)
			c.mu.Unlock()
			<-c.window
			if code != statusOK {
				said, _ := parse(payload)
				done <- answer{err: fmt.Errorf("%s: %s", said.first(1), said.first(2))}
			} else {
				done <- answer{payload: payload}
			}
		}
	}
}

// fail ends every request in flight: whether it had its effect is unknown.
func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, done := range c.waiting {
		delete(c.waiting, id)
		<-c.window
		done <- answer{err: err}
	}
}

// send puts a request on its way; flush says that none follows soon.
func (c *client) send(method uint16, request []byte, flush bool) chan answer {
	done := make(chan answer, 1)
	c.window <- struct{}{}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		<-c.window
		done <- answer{err: c.err}
		return done
	}
	c.lastID++
	c.waiting[c.lastID] = done
	c.frame(c.lastID, method, request)
	if flush || len(c.window) == cap(c.window) {
		c.out.Flush()
	}
	return done
}

func (c *client) call(method uint16, request []byte) (fields, error) {
	got := <-c.send(method, request, true)
	if got.err != nil {
		return fields{}, got.err
	}
	return parse(got.payload)
}
