// Package scenario is what publisher and subscriber share: the settings, the signal, and how a failure is told.
package scenario

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example/mq/pb"
)

// A call that takes longer has no broker at its other end.
const callDeadline = 10 * time.Second

// Settings are what the environment says.
type Settings struct {
	Address      string
	Channel      string
	Group        string
	Count        int
	BatchSize    int
	PullInterval time.Duration
}

// Scenario is one of the two programs; it returns early, without an error, where its context is done.
type Scenario func(ctx context.Context, broker pb.MQServiceClient, settings Settings) error

// Run runs a scenario until it ends or SIGTERM or SIGINT stops it; a failure is one line and exit code 1.
func Run(scenario Scenario, count int) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if err := run(ctx, scenario, count); err != nil {
		fmt.Fprintln(os.Stderr, "mq:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, scenario Scenario, count int) error {
	settings, err := fromEnv(count)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(settings.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(withDeadline))
	if err != nil {
		return err
	}
	defer connection.Close()
	err = scenario(ctx, pb.NewMQServiceClient(connection), settings)
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unavailable, codes.DeadlineExceeded:
		return fmt.Errorf("no broker answers at %s", settings.Address)
	default:
		return fmt.Errorf("%s", status.Convert(err).Message())
	}
}

// withDeadline gives every call its deadline. The signal does not reach into calls: one that is under way is finished.
func withDeadline(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callDeadline)
	defer cancel()
	return invoke(ctx, method, request, reply, connection, options...)
}

func fromEnv(count int) (Settings, error) {
	numbers := []struct {
		name            string
		standard, least int
	}{{"BROKER_PORT", 50051, 0}, {"COUNT", count, 0}, {"BATCH_SIZE", 10, 1}, {"PULL_INTERVAL", 100, 1}}
	values := make(map[string]int)
	for _, each := range numbers {
		word := text(each.name, strconv.Itoa(each.standard))
		value, err := strconv.ParseUint(word, 10, 64)
		if err != nil || value < uint64(each.least) || value > math.MaxInt32 {
			return Settings{}, fmt.Errorf("%s must be a whole number from %d on, not '%s'", each.name, each.least, word)
		}
		values[each.name] = int(value)
	}
	return Settings{
		Address:      net.JoinHostPort(text("BROKER_HOST", "localhost"), strconv.Itoa(values["BROKER_PORT"])),
		Channel:      text("CHANNEL", "orders"),
		Group:        text("GROUP", "billing"),
		Count:        values["COUNT"],
		BatchSize:    values["BATCH_SIZE"],
		PullInterval: time.Duration(values["PULL_INTERVAL"]) * time.Millisecond,
	}, nil
}

func text(name, standard string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return standard
}
