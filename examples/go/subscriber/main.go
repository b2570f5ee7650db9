// Pulls messages as a member of a group, prints and acks them; examples/README.md tells the scenario.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"time"

	"example/mq/pb"
	"example/mq/scenario"
)

func subscribe(ctx context.Context, broker pb.MQServiceClient, settings scenario.Settings) error {
	channel, group := settings.Channel, settings.Group
	// A group shares the channel among its members, so each member needs a name of its own.
	member := "go-" + rand.Text()
	if _, err := broker.CreateChannel(ctx, &pb.CreateChannelRequest{Channel: channel}); err != nil {
		return err
	}
	left := settings.Count
	if left == 0 {
		left = math.MaxInt
	}
	acked := 0
	for left > 0 && ctx.Err() == nil {
		// The first pull makes the group; nothing is said about where it starts, so it starts at the earliest.
		pulled, err := broker.Pull(ctx, &pb.PullRequest{
			Channel: channel, Group: group, Member: member, MaxMessages: uint32(min(settings.BatchSize, left)),
		})
		if err != nil {
			return err
		}
		var receipts []*pb.Receipt
		for _, batch := range pulled.Batches {
			show(batch)
			receipts = append(receipts, &pb.Receipt{Receipt: batch.Receipt})
		}
		if len(receipts) > 0 {
			// Only now: what is not acked, because this process died above, is delivered again.
			done, err := broker.Ack(ctx, &pb.AckRequest{Channel: channel, Group: group, Member: member, Receipts: receipts})
			if err != nil {
				return err
			}
			acked += int(done.Acked)
			left -= int(done.Acked)
		}
		if left > 0 {
			select {
			case <-time.After(settings.PullInterval):
			case <-ctx.Done():
			}
		}
	}
	if _, err := broker.Leave(ctx, &pb.LeaveRequest{Channel: channel, Group: group, Member: member}); err != nil {
		return err
	}
	fmt.Printf("%d acked\n", acked)
	return nil
}

func show(batch *pb.PulledBatch) {
	for i, message := range batch.Batch.GetMessages() {
		// Offsets follow each other, unless the deltas say otherwise.
		offset := batch.BaseOffset + uint64(i)
		if len(batch.OffsetDeltas) > 0 {
			offset = batch.BaseOffset + uint64(batch.OffsetDeltas[i])
		}
		fmt.Printf("partition %d offset %d: %s\n", batch.Partition, offset, message.Content)
	}
}

func main() {
	scenario.Run(subscribe, 0)
}
