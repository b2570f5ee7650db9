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
        long value = text.matches("\\d{1,18}") ? Long.parseLong(text) : -1;
        if (value < least || value > Integer.MAX_VALUE) {
            throw new Scenario.Failure(
                    "%s must be a whole number from %d on, not '%s'".formatted(name, least, text));
        }
        return (int) value;
    }
}
