package example.mq;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Becomes set at SIGTERM or SIGINT. It does not reach into calls: one that is under way is finished. */
final class Stop {
    private final CountDownLatch asked = new CountDownLatch(1);
    private final CountDownLatch finished = new CountDownLatch(1);
    private volatile int status = 1;

    Stop() {
        // A signal makes the JVM run this hook beside the scenario, and go down with the signal's exit code as soon as
        // the hook ends. So the hook waits for the scenario, and halts with the scenario's own exit code.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            asked.countDown();
            try {
                finished.await();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(status);
        }));
    }

    boolean isSet() {
        return asked.getCount() == 0;
    }

    /** Waits for the given time, or less where the signal comes before. */
    void await(Duration time) throws InterruptedException {
        asked.await(time.toMillis(), TimeUnit.MILLISECONDS);
    }

    /** The scenario is over: as soon as main returns, the process ends with this exit code. */
    void finish(int status) {
        this.status = status;
        finished.countDown();
    }
}
