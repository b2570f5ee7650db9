// Pulls messages as a member of a group, prints and acks them; examples/README.md tells the scenario.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { AckResponse__Output as AckResponse } from "./pb/mq/AckResponse.js";
import type { MQServiceClient } from "./pb/mq/MQService.js";
import type { PullResponse__Output as PullResponse } from "./pb/mq/PullResponse.js";
import type { PulledBatch__Output as PulledBatch } from "./pb/mq/PulledBatch.js";
import { type Settings, call, run } from "./scenario.js";

async function subscribe(broker: MQServiceClient, settings: Settings, stop: AbortSignal): Promise<void> {
  const { channel, group } = settings;
  // A group shares the channel among its members, so each member needs a name of its own.
  const who = { channel, group, member: `node-${randomUUID()}` };
  await call((options, done) => broker.createChannel({ channel }, options, done));
  let left = settings.count || Infinity;
  let acked = 0;
  while (left > 0 && !stop.aborted) {
    // The first pull makes the group; nothing is said about where it starts, so it starts at the earliest.
    const pull = { ...who, maxMessages: Math.min(settings.batchSize, left) };
    const { batches } = await call<PullResponse>((options, done) => broker.pull(pull, options, done));
    batches.forEach(show);
    if (batches.length > 0) {
      // Only now: what is not acked, because this process died above, is delivered again.
      const ack = { ...who, receipts: batches.map(({ receipt }) => ({ receipt })) };
      const { acked: now } = await call<AckResponse>((options, done) => broker.ack(ack, options, done));
      acked += now;
      left -= now;
    }
    if (left > 0) {
      await sleep(settings.pullIntervalMs, undefined, { signal: stop }).catch(() => {});
    }
  }
  await call((options, done) => broker.leave(who, options, done));
  console.log(`${acked} acked`);
}

function show({ partition, baseOffset, offsetDeltas, batch }: PulledBatch): void {
  batch?.messages.forEach(({ content }, i) => {
    // Offsets follow each other, unless the deltas say otherwise.
    const offset = baseOffset + (offsetDeltas[i] ?? i);
    console.log(`partition ${partition} offset ${offset}: ${content}`);
  });
}

await run(subscribe, 0);
