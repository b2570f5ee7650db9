// Publishes COUNT numbered messages one by one, as clients of the first mq broker do.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example/mq-compat/pb"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("mq: ")
	if err := publish(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func publish(ctx context.Context) error {
	count, err := strconv.Atoi(env("COUNT", "100"))
	if err != nil {
		return err
	}
	address := env("BROKER_HOST", "localhost") + ":" + env("BROKER_PORT", "50051")
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	broker, channel := pb.NewMQServiceClient(connection), env("CHANNEL", "orders")
	if _, err := broker.CreateChannel(ctx, &pb.CreateChannelRequest{Channel: channel}); err != nil {
		return err
	}
	for n := 1; n <= count; n++ {
		content := fmt.Appendf(nil, "message %d", n)
		if _, err := broker.Publish(ctx, &pb.PublishRequest{Channel: channel, Content: content}); err != nil {
			return err
		}
	}
	fmt.Printf("%d published\n", count)
	return nil
}

func env(name, standard string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return standard
}
