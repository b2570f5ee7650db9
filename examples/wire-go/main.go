// Makes a channel, publishes messages pipelined on one connection, pulls them back and counts them.
//
//	go run . -addr 127.0.0.1:50052 -channel orders -count 1000
package main

import (
	"flag"
	"fmt"
	"os"
)

func run(addr, channel string, count int) error {
	c, err := dial(addr)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	name := text(1, []byte(channel))
	if _, err := c.call(create, name); err != nil {
		return err
	}
	answers := make([]chan answer, count)
	for i := range answers {
		content := fmt.Sprintf("message %d", i)
		answers[i] = c.send(publish, join(name, text(2, []byte(content))), i == count-1)
	}
	for _, done := range answers {
		if got := <-done; got.err != nil {
			return got.err
		}
	}
	fmt.Printf("published %d\n", count)
	offset, pulled := uint64(0), 0
	for pulled < count {
		position := join(number(1, 0), number(2, offset))
		got, err := c.call(pull, join(name, text(9, position)))
		if err != nil {
			return err
		}
		for _, batch := range got.bytes[1] {
			head, err := parse(batch)
			if err != nil {
				return err
			}
			pulled += int(head.numbers[3])
		}
		if got.numbers[2] <= offset {
			return fmt.Errorf("only %d of %d are there", pulled, count)
		}
		offset = got.numbers[2]
	}
	fmt.Printf("pulled %d\n", pulled)
	_, err = c.call(publish, join(text(1, []byte("nosuch")), text(2, []byte("x"))))
	fmt.Printf("refused %v\n", err)
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:50052", "the wire's address")
	channel := flag.String("channel", "orders", "a channel, made if it is not there")
	count := flag.Int("count", 1000, "messages")
	flag.Parse()
	if err := run(*addr, *channel, *count); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
