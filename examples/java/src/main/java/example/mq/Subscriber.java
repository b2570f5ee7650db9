package example.mq;

import io.mq.proto.AckRequest;
import io.mq.proto.CreateChannelRequest;
import io.mq.proto.LeaveRequest;
import io.mq.proto.MQServiceGrpc.MQServiceBlockingStub;
import io.mq.proto.PullRequest;
import io.mq.proto.PulledBatch;
import io.mq.proto.Receipt;
import java.util.UUID;
import java.util.function.Supplier;

/** Pulls messages as a member of a group, prints and acks them; examples/README.md tells the scenario. */
final class Subscriber {
    public static void main(String[] arguments) throws InterruptedException {
        Scenario scenario = Subscriber::subscribe;
        scenario.run(0);
    }

    private static void subscribe(Supplier<MQServiceBlockingStub> broker, Settings settings, Stop stop)
            throws InterruptedException {
        String channel = settings.channel();
        String group = settings.group();
        // A group shares the channel among its members, so each member needs a name of its own.
        String member = "java-" + UUID.randomUUID();
        broker.get().createChannel(CreateChannelRequest.newBuilder().setChannel(channel).build());
        long left = settings.count() > 0 ? settings.count() : Long.MAX_VALUE;
        long acked = 0;
        while (left > 0 && !stop.isSet()) {
            // The first pull makes the group; nothing is said about where it starts, so it starts at the earliest.
            var pulled = broker.get().pull(PullRequest.newBuilder()
                    .setChannel(channel)
                    .setGroup(group)
                    .setMember(member)
                    .setMaxMessages((int) Math.min(settings.batchSize(), left))
                    .build());
            var ack = AckRequest.newBuilder().setChannel(channel).setGroup(group).setMember(member);
            for (PulledBatch batch : pulled.getBatchesList()) {
                show(batch);
                ack.addReceipts(Receipt.newBuilder().setReceipt(batch.getReceipt()));
            }
            if (pulled.getBatchesCount() > 0) {
                // Only now: what is not acked, because this process died above, is delivered again.
                long done = broker.get().ack(ack.build()).getAcked();
                acked += done;
                left -= done;
            }
            if (left > 0) {
                stop.await(settings.pullInterval());
            }
        }
        broker.get().leave(
                LeaveRequest.newBuilder().setChannel(channel).setGroup(group).setMember(member).build());
        System.out.printf("%d acked%n", acked);
    }

    private static void show(PulledBatch batch) {
        var messages = batch.getBatch().getMessagesList();
        for (int i = 0; i < messages.size(); i++) {
            // Offsets follow each other, unless the deltas say otherwise.
            int delta = batch.getOffsetDeltasCount() > 0 ? batch.getOffsetDeltas(i) : i;
            System.out.printf(
                    "partition %s offset %s: %s%n",
                    Integer.toUnsignedString(batch.getPartition()),
                    Long.toUnsignedString(batch.getBaseOffset() + Integer.toUnsignedLong(delta)),
                    messages.get(i).getContent().toStringUtf8());
        }
    }
}
