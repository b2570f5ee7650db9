"""The yardstick: a bare grpc.aio server that takes the same requests as the broker and answers at once.

It keeps nothing and looks at nothing, so what it reaches is what gRPC in Python leaves for a broker. Same loop,
same options, same identity serializers as mq/doors/grpc.py.

    python benchmarks/bare.py PULL_ANSWER_FILE SUBSCRIBE_ITEM_FILE      prints its port, serves until killed
"""

import sys
from pathlib import Path

import grpc
import uvloop

from mq.doors.grpc import options
from mq.pb import mq_pb2 as pb

PUBLISHED = pb.PublishResponse(offset=1_000_000, timestamp_us=1_700_000_000_000_000, durable=pb.FSYNC)
PUBLISHED_BATCH = pb.PublishBatchResponse(
    base_offset=1_000_000, count=500, timestamp_us=1_700_000_000_000_000, durable=pb.FSYNC
)


def always(answer: bytes):
    async def handle(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return answer

    return grpc.unary_unary_rpc_method_handler(handle)


def endless(item: bytes):
    async def handle(request: bytes, context: grpc.aio.ServicerContext) -> None:
        while True:
            await context.write(item)

    return grpc.unary_stream_rpc_method_handler(handle)


async def main(pull_answer: bytes, item: bytes) -> None:
    server = grpc.aio.server(options=options(4 << 20))
    methods = {
        "CreateChannel": always(b""),
        "Publish": always(PUBLISHED.SerializeToString()),
        "PublishBatch": always(PUBLISHED_BATCH.SerializeToString()),
        "Pull": always(pull_answer),
        "Subscribe": endless(item),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("mq.MQService", methods),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(*(Path(name).read_bytes() for name in sys.argv[1:])))
