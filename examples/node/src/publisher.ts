// Publishes COUNT numbered messages in batches; examples/README.md tells the scenario.

import type { MQServiceClient } from "./pb/mq/MQService.js";
import type { PublishBatchResponse__Output as PublishBatchResponse } from "./pb/mq/PublishBatchResponse.js";
import { type Settings, call, run } from "./scenario.js";

async function publish(broker: MQServiceClient, settings: Settings, stop: AbortSignal): Promise<void> {
  const { channel, count, batchSize } = settings;
  // Making a channel that is there already is no error.
  await call((options, done) => broker.createChannel({ channel }, options, done));
  let published = 0;
  while (published < count && !stop.aborted) {
    const first = published + 1;
    const last = Math.min(published + batchSize, count);
    const messages = Array.from({ length: last - first + 1 }, (_, i) => ({
      content: Buffer.from(`message ${first + i}`),
    }));
    // The answer comes when the batch is on disk.
    const answer = await call<PublishBatchResponse>((options, done) =>
      broker.publishBatch({ channel, batch: { messages } }, options, done),
    );
    console.log(`published ${first}-${last} at offset ${answer.baseOffset}`);
    published = last;
  }
  console.log(`${published} published`);
}

await run(publish, 100);
