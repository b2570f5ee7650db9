// What publisher and subscriber share: the settings, the signal, and how a failure is told.

import { fileURLToPath } from "node:url";
import {
  type CallOptions,
  type requestCallback,
  type ServiceError,
  credentials,
  loadPackageDefinition,
  status,
} from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./pb/mq.js";
import type { MQServiceClient } from "./pb/mq/MQService.js";

/** A call that takes longer has no broker at its other end. */
const DEADLINE_MS = 10_000;
const PROTO = fileURLToPath(new URL("../../../proto/mq.proto", import.meta.url));

export interface Settings {
  address: string;
  channel: string;
  group: string;
  count: number;
  batchSize: number;
  pullIntervalMs: number;
}

/** One of the two programs; it returns early where `stop` is aborted. */
type Scenario = (broker: MQServiceClient, settings: Settings, stop: AbortSignal) => Promise<void>;

class BadSetting extends Error {}

function fromEnvironment(count: number): Settings {
  return {
    address: `${text("BROKER_HOST", "localhost")}:${number("BROKER_PORT", 50051)}`,
    channel: text("CHANNEL", "orders"),
    group: text("GROUP", "billing"),
    count: number("COUNT", count),
    batchSize: number("BATCH_SIZE", 10, 1),
    pullIntervalMs: number("PULL_INTERVAL", 100, 1),
  };
}

function text(name: string, standard: string): string {
  return process.env[name] || standard;
}

function number(name: string, standard: number, least = 0): number {
  const word = text(name, String(standard));
  const value = Number(word);
  if (!/^\d+$/.test(word) || value < least || value >= 2 ** 31) {
    throw new BadSetting(`${name} must be a whole number from ${least} on, not '${word}'`);
  }
  return value;
}

/** Runs a scenario until it ends or SIGTERM or SIGINT stops it; a failure is one line and exit code 1. */
export async function run(scenario: Scenario, count: number): Promise<void> {
  const stop = new AbortController();
  process.once("SIGTERM", () => stop.abort());
  process.once("SIGINT", () => stop.abort());
  let address = "";
  try {
    const settings = fromEnvironment(count);
    address = settings.address;
    const broker = connect(address);
    await scenario(broker, settings, stop.signal).finally(() => broker.close());
  } catch (error) {
    console.error(`mq: ${told(error, address)}`);
    process.exitCode = 1;
  }
}

function connect(address: string): MQServiceClient {
  // The same options as in package.json, where the types are generated. Offsets fit a number up to 2^53.
  const definition = loadSync(PROTO, { longs: Number, defaults: true });
  const { mq } = loadPackageDefinition(definition) as unknown as ProtoGrpcType;
  return new mq.MQService(address, credentials.createInsecure());
}

function told(error: unknown, address: string): string {
  if (error instanceof BadSetting) {
    return error.message;
  }
  const { code, details } = error as ServiceError;
  if (code === status.UNAVAILABLE || code === status.DEADLINE_EXCEEDED) {
    return `no broker answers at ${address}`;
  }
  return details ?? String(error);
}

/** A unary call as a promise: `await call<PullResponse>((options, done) => broker.pull(request, options, done))`. */
export function call<Response>(
  start: (options: CallOptions, done: requestCallback<Response>) => unknown,
): Promise<Response> {
  return new Promise((resolve, reject) => {
    start({ deadline: Date.now() + DEADLINE_MS }, (error, response) => (error ? reject(error) : resolve(response!)));
  });
}
