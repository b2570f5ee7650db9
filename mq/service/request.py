"""Requests of MQService: from bytes to commands, with every rule of the edge checked. Pure; no transport, no broker."""

from __future__ import annotations

import google_crc32c

from mq import command
from mq.errors import InvalidArgument, MessageTooLarge
from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw
from mq.service import batch, checks, plain
from mq.service.checks import parse
from mq.service.convert import channel_settings
from mq.service.edge import Edge

SMALL_BYTES = 4 << 10  # parsed whole, batch and all, sooner than taken apart


def create_channel(request: bytes, edge: Edge) -> command.CreateChannel:
    message = parse(pb.CreateChannelRequest, request)
    return command.CreateChannel(
        checks.new_channel(message.channel),
        message.partitions,
        channel_settings(message.settings) if message.HasField("settings") else None,
        message.fail_if_exists,
    )


def publish(request: bytes, edge: Edge) -> command.Publish:
    return plain.read(request, edge) or _any_publish(request, edge)


def _any_publish(request: bytes, edge: Edge) -> command.Publish:
    _check_size(request, edge)
    message = parse(raw.PublishRequest, request)
    plain.remember(request, checks.channel(message.channel))
    if not message.content:
        raise InvalidArgument("content is missing")
    headers = message.headers
    if len(headers) > edge.headers:
        raise InvalidArgument(f"a message has at most {edge.headers} headers; this one has {len(headers)}")
    key = message.key if message.HasField("key") else None
    single = batch.of_one(message.content, key, list(headers), edge)
    if headers:
        batch.check(single, edge)
    return _publish(message, single, 1)


def publish_batch(request: bytes, edge: Edge) -> command.Publish:
    _check_size(request, edge)
    head, content = request, b""
    if len(request) > SMALL_BYTES:
        head, content = batch.split(request) or (request, b"")
    message = parse(raw.PublishBatchRequest, head)
    checks.channel(message.channel)
    content = content or message.batch
    return _publish(message, content, batch.check(content, edge))


def _publish(message: raw.PublishRequest | raw.PublishBatchRequest, content: bytes, count: int) -> command.Publish:
    producer = _producer(message.producer_id, message.sequence)
    if message.deliver_at_us < 0:
        raise InvalidArgument("deliver_at_us is negative")
    if message.deliver_at_us and message.delay_ms:
        raise InvalidArgument("deliver_at_us and delay_ms exclude each other")
    return command.Publish(
        message.channel,
        content,
        count,
        message.partition if message.HasField("partition") else None,
        producer,
        message.sequence,
        google_crc32c.value(content) if producer else 0,
        message.deliver_at_us,
        message.delay_ms and checks.milliseconds("delay_ms", message.delay_ms),
        message.ttl_ms and checks.milliseconds("ttl_ms", message.ttl_ms),
        message.durability and checks.durability(message.durability),
    )


def _producer(name: str, sequence: int) -> str:
    if name:
        checks.producer(name)
    elif sequence:
        raise InvalidArgument("sequence needs a producer_id")
    return name


def pull(request: bytes, edge: Edge) -> command.Pull:
    message = parse(pb.PullRequest, request)
    checks.channel(message.channel)
    if message.group:
        checks.group(message.group)
        checks.member(message.member)
        if message.positions:
            raise InvalidArgument("a group has its own positions: seek it instead")
    elif message.member or message.turn or message.group_id:
        raise InvalidArgument("member, turn and group_id need a group")
    if (message.afresh or message.since) and not message.turn:
        raise InvalidArgument("afresh and since need a turn")
    return command.Pull(
        message.channel,
        message.group,
        message.member,
        message.max_messages,
        message.max_bytes,
        min(message.max_wait_ms, edge.wait_ms),
        message.partition if message.HasField("partition") else None,
        checks.start(message.start) if message.HasField("start") else None,
        checks.positions(message.positions),
        message.channel_id,
        message.group_id,
        message.turn,
        message.afresh,
        message.since,
    )


def ack(request: bytes, edge: Edge) -> command.Ack:
    return _ack(parse(pb.AckRequest, request), edge)


def _ack(message: pb.AckRequest, edge: Edge) -> command.Ack:
    return command.Ack(*_holder(message), checks.some_receipts(message.receipts, edge))


def nack(request: bytes, edge: Edge) -> command.Nack:
    message = parse(pb.NackRequest, request)
    delay = checks.milliseconds("delay_ms", message.delay_ms) if message.HasField("delay_ms") else None
    return command.Nack(*_holder(message), checks.some_receipts(message.receipts, edge), delay)


def reject(request: bytes, edge: Edge) -> command.Reject:
    message = parse(pb.RejectRequest, request)
    if len(message.reason) > checks.LONGEST_REASON:
        raise InvalidArgument(f"reason has more than {checks.LONGEST_REASON} characters")
    return command.Reject(*_holder(message), checks.some_receipts(message.receipts, edge), message.reason)


def extend(request: bytes, edge: Edge) -> command.Extend:
    message = parse(pb.ExtendRequest, request)
    wait = checks.milliseconds("ack_wait_ms", message.ack_wait_ms)
    return command.Extend(*_holder(message), checks.receipts(message.receipts, edge), wait)


def commit(request: bytes, edge: Edge) -> command.Commit:
    return _commit(parse(pb.CommitRequest, request))


def _commit(message: pb.CommitRequest) -> command.Commit:
    if not message.positions:
        raise InvalidArgument("positions is empty")
    return command.Commit(*_holder(message), message.generation, checks.positions(message.positions))


def seek(request: bytes, edge: Edge) -> command.Seek:
    message = parse(pb.SeekRequest, request)
    to = message.WhichOneof("to")
    if to is None:
        raise InvalidArgument("neither start nor shift is set")
    return command.Seek(
        checks.channel(message.channel),
        checks.group(message.group),
        message.partition if message.HasField("partition") else None,
        checks.start(message.start) if to == "start" else None,
        message.shift if to == "shift" else None,
        force=message.force,
        dry_run=message.dry_run,
    )


def leave(request: bytes, edge: Edge) -> command.Leave:
    message = parse(pb.LeaveRequest, request)
    return command.Leave(*_holder(message), message.turn)


def transact(request: bytes, edge: Edge) -> command.Transact:
    _check_size(request, edge)
    message = parse(raw.TransactRequest, request)
    counts = len(message.publishes), len(message.acks), len(message.commits)
    if not any(counts):
        raise InvalidArgument("the transaction is empty")
    if max(counts) > edge.transact_items:
        raise InvalidArgument(f"a transaction has at most {edge.transact_items} publishes, acks and commits each")
    if sum(map(len, (*message.acks, *message.commits))) > edge.other_request_bytes:
        raise MessageTooLarge(f"the acks and commits of a transaction have at most {edge.other_request_bytes} bytes")
    publishes = [_inner_publish(item, edge) for item in message.publishes]
    producer = _producer(message.producer_id, message.sequence)
    crc = 0
    if producer:
        for inner in publishes:
            crc = google_crc32c.extend(crc, inner.batch)
    return command.Transact(
        publishes,
        [_ack(parse(pb.AckRequest, item), edge) for item in message.acks],
        [_commit(parse(pb.CommitRequest, item)) for item in message.commits],
        producer,
        message.sequence,
        crc,
    )


def _inner_publish(request: bytes, edge: Edge) -> command.Publish:
    inner = publish_batch(request, edge)
    if inner.producer_id or inner.deliver_at_us or inner.delay_ms or inner.durability:
        raise InvalidArgument("a publish in a transaction has no producer_id, delay or durability of its own")
    return inner


def _holder(
    message: pb.AckRequest | pb.NackRequest | pb.RejectRequest | pb.ExtendRequest | pb.CommitRequest | pb.LeaveRequest,
) -> tuple[str, str, str]:
    return checks.channel(message.channel), checks.group(message.group), checks.member(message.member)


def _check_size(request: bytes, edge: Edge) -> None:
    if len(request) > edge.request_bytes:
        raise MessageTooLarge(f"a request has at most {edge.request_bytes} bytes; this one has {len(request)}")
