package example.mq;

import java.time.Duration;

/** What the environment says. */
record Settings(
        String address, String channel, String group, int count, int batchSize, Duration pullInterval) {

    static Settings fromEnvironment(int count) {
        return new Settings(
                text("BROKER_HOST", "localhost") + ":" + number("BROKER_PORT", 50051, 0),
                text("CHANNEL", "orders"),
                text("GROUP", "billing"),
                number("COUNT", count, 0),
                number("BATCH_SIZE", 10, 1),
                Duration.ofMillis(number("PULL_INTERVAL", 100, 1)));
    }

    private static String text(String name, String standard) {
        String value = System.getenv(name);
        return value == null || value.isEmpty() ? standard : value;
    }

    private static int number(String name, int standard, int least) {
        String text = text(name, Integer.toString(standard));
        try {
            int value = Integer.parseInt(text);
            if (value >= least) {
                return value;
            }
        } catch (NumberFormatException error) {
            // told below, as a number that is too small is
        }
        throw new Scenario.Failure(
                "%s must be a whole number from %d on, not '%s'".formatted(name, least, text));
    }
}
