// Publishes COUNT numbered messages in batches; examples/README.md tells the scenario.
package main

import (
	"context"
	"fmt"

	"example/mq/pb"
	"example/mq/scenario"
)

func publish(ctx context.Context, broker pb.MQServiceClient, settings scenario.Settings) error {
	// Making a channel that is there already is no error.
	if _, err := broker.CreateChannel(ctx, &pb.CreateChannelRequest{Channel: settings.Channel}); err != nil {
		return err
	}
	published := 0
	for published < settings.Count && ctx.Err() == nil {
		first, last := published+1, min(published+settings.BatchSize, settings.Count)
		batch := &pb.Batch{}
		for n := first; n <= last; n++ {
			batch.Messages = append(batch.Messages, &pb.BatchMessage{Content: fmt.Appendf(nil, "message %d", n)})
		}
		// The answer comes when the batch is on disk.
		answer, err := broker.PublishBatch(ctx, &pb.PublishBatchRequest{Channel: settings.Channel, Batch: batch})
		if err != nil {
			return err
		}
		fmt.Printf("published %d-%d at offset %d\n", first, last, answer.BaseOffset)
		published = last
	}
	fmt.Printf("%d published\n", published)
	return nil
}

func main() {
	scenario.Run(publish, 100)
}
