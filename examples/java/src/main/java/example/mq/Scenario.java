package example.mq;

import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.mq.proto.MQServiceGrpc;
import io.mq.proto.MQServiceGrpc.MQServiceBlockingStub;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** One of the two programs. */
@FunctionalInterface
interface Scenario {
    /** A call that takes longer has no broker at its other end. */
    long DEADLINE_SECONDS = 10;

    /** The stub that it is given has a fresh deadline each time it is asked for: deadlines are points in time. */
    void play(Supplier<MQServiceBlockingStub> broker, Settings settings, Stop stop) throws InterruptedException;

    /** Runs until the scenario ends or a signal stops it; a failure is one line and exit code 1. */
    default void run(int count) throws InterruptedException {
        Stop stop = new Stop();
        int status = 1;
        try {
            play(Settings.fromEnvironment(count), stop);
            status = 0;
        } catch (Failure failure) {
            System.err.println("mq: " + failure.getMessage());
        } finally {
            stop.finish(status);
        }
    }

    private void play(Settings settings, Stop stop) throws InterruptedException {
        ManagedChannel connection =
                Grpc.newChannelBuilder(settings.address(), InsecureChannelCredentials.create()).build();
        MQServiceBlockingStub stub = MQServiceGrpc.newBlockingStub(connection);
        try {
            play(() -> stub.withDeadlineAfter(DEADLINE_SECONDS, TimeUnit.SECONDS), settings, stop);
        } catch (StatusRuntimeException error) {
            throw new Failure(switch (error.getStatus().getCode()) {
                case UNAVAILABLE, DEADLINE_EXCEEDED -> "no broker answers at " + settings.address();
                default -> error.getStatus().getDescription();
            });
        } finally {
            connection.shutdownNow();
        }
    }

    /** What a user is told in one line. */
    final class Failure extends RuntimeException {
        Failure(String message) {
            super(message);
        }
    }
}
