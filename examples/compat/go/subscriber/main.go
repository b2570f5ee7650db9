// Streams a channel from its beginning, as clients of the first mq broker do.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example/mq-compat/pb"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("mq: ")
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if err := subscribe(ctx); err != nil {
		log.Fatal(err)
	}
}

func subscribe(ctx context.Context) error {
	count, err := strconv.Atoi(env("COUNT", "0"))
	if err != nil {
		return err
	}
	interval, err := strconv.ParseUint(env("PULL_INTERVAL", "100"), 10, 64)
	if err != nil {
		return err
	}
	address := env("BROKER_HOST", "localhost") + ":" + env("BROKER_PORT", "50051")
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	stream, err := pb.NewMQServiceClient(connection).Subscribe(ctx, &pb.SubscribeRequest{
		Channel:      env("CHANNEL", "orders"),
		Offset:       pb.SubscribeRequest_OFFSET_BEGINNING,
		PullInterval: interval,
	})
	received := 0
	for err == nil && (count == 0 || received < count) {
		var message *pb.Message
		if message, err = stream.Recv(); err == nil {
			fmt.Printf("%s\n", message.Content)
			received++
		}
	}
	if err != nil && status.Code(err) != codes.Canceled {
		return err
	}
	fmt.Printf("%d received\n", received)
	return nil
}

func env(name, standard string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return standard
}
