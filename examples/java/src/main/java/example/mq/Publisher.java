package example.mq;

import com.google.protobuf.ByteString;
import io.mq.proto.Batch;
import io.mq.proto.BatchMessage;
import io.mq.proto.CreateChannelRequest;
import io.mq.proto.MQServiceGrpc.MQServiceBlockingStub;
import io.mq.proto.PublishBatchRequest;
import java.util.function.Supplier;

/** Publishes COUNT numbered messages in batches; examples/README.md tells the scenario. */
final class Publisher {
    public static void main(String[] arguments) throws InterruptedException {
        Scenario scenario = Publisher::publish;
        scenario.run(100);
    }

    private static void publish(Supplier<MQServiceBlockingStub> broker, Settings settings, Stop stop) {
        // Making a channel that is there already is no error.
        broker.get().createChannel(CreateChannelRequest.newBuilder().setChannel(settings.channel()).build());
        int published = 0;
        while (published < settings.count() && !stop.isSet()) {
            int first = published + 1;
            int last = Math.min(published + settings.batchSize(), settings.count());
            Batch.Builder batch = Batch.newBuilder();
            for (int n = first; n <= last; n++) {
                batch.addMessages(BatchMessage.newBuilder().setContent(ByteString.copyFromUtf8("message " + n)));
            }
            // The answer comes when the batch is on disk.
            var answer = broker.get().publishBatch(
                    PublishBatchRequest.newBuilder().setChannel(settings.channel()).setBatch(batch).build());
            System.out.printf(
                    "published %d-%d at offset %s%n", first, last, Long.toUnsignedString(answer.getBaseOffset()));
            published = last;
        }
        System.out.printf("%d published%n", published);
    }
}
