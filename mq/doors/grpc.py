"""The gRPC door: every method of the service under its gRPC path, with health and reflection beside it.

Requests and answers pass as bytes: gRPC is told of no message type, so nothing is parsed here. A door that opens before
the broker has recovered answers UNAVAILABLE until it is given a service; health says NOT_SERVING meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, NoReturn, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mq.errors import MqError, Unavailable
from mq.pb import mq_pb2
from mq.service import METHODS, Answer, Connection, Delivery, Kind, Method, Service

REASON = "mq-reason"  # trailing metadata: the name of the error's class
SERVICES = tuple(service.full_name for service in mq_pb2.DESCRIPTOR.services_by_name.values())

Context = grpc.aio.ServicerContext[bytes, bytes]
Behaviour = Callable[..., Coroutine[Any, Any, Any]]

QUIET_SECONDS = 0.1  # without a new call: then everything that was on its way has been answered

_NOBODY = Connection("")  # whose call it is does not matter where a call can't wait
_STATUS = {code.name: code for code in grpc.StatusCode}


def options(max_request_bytes: int) -> list[tuple[str, int]]:
    """Options of the server, each with the reason it is set."""
    return [
        ("grpc.so_reuseport", 0),  # else a second broker could take the same port in silence
        ("grpc.max_receive_message_length", max_request_bytes),
        ("grpc.max_send_message_length", -1),  # one message is always returned, however large it was allowed to be
        ("grpc.max_metadata_size", 16 << 10),  # soft and hard limit of what a request's headers may cost
        ("grpc.absolute_max_metadata_size", 32 << 10),
        ("grpc.max_concurrent_streams", 4_096),  # above the edge's limits, which answer in words
        # Calls that wait to be taken, of all connections. Above the soft limit, 1,000 by default, gRPC cancels calls at
        # random: one connection that opens calls and resets them at once would have others' calls cancelled.
        ("grpc.server.max_pending_requests", 20_000),
        ("grpc.server.max_pending_requests_hard_limit", 20_000),
        ("grpc.server_handshake_timeout_ms", 5_000),
        ("grpc.max_connection_idle_ms", 3_600_000),  # without a call; clients come back when they have one
        ("grpc.keepalive_time_ms", 60_000),  # finds peers that vanished, so that their leases and waits end
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # old clients ping every 10 s without a call
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ]


class GrpcDoor:
    """One listening gRPC server. `service` is set when the broker is ready, and not before."""

    def __init__(self, *, max_request_bytes: int, max_calls: int = 20_000) -> None:
        self.service: Service | None = None
        self.port = 0
        self._connections: dict[str, Connection] = {}
        self._begun = 0  # calls, since the start
        self._in_flight = 0
        self._streams: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._health = health.aio.HealthServicer()
        self._health_changes: set[asyncio.Task[None]] = set()
        self._server = grpc.aio.server(options=options(max_request_bytes), maximum_concurrent_rpcs=max_calls)
        self._server.add_generic_rpc_handlers(self._handlers())
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def open(self, host: str, port: int, *, is_serving: bool = False) -> None:
        """Listen. Raises OSError where the address can't be had."""
        address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        await self._set_health(is_serving)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            raise OSError(f"can't listen on {address}: it is in use, or not an address of this machine") from None
        await self._server.start()

    def show_health(self, is_serving: bool) -> None:
        """Tell health checks. Also before and after there is a service."""
        task = asyncio.get_running_loop().create_task(self._set_health(is_serving))
        self._health_changes.add(task)
        task.add_done_callback(self._health_changes.discard)

    async def _set_health(self, is_serving: bool) -> None:
        kinds = health_pb2.HealthCheckResponse
        for name in ("", *SERVICES):
            await self._health.set(name, kinds.SERVING if is_serving else kinds.NOT_SERVING)

    async def drain(self) -> None:
        """Say that the end is near and end the streams, which have no end of their own. Calls are still taken."""
        self._is_draining = True
        await self._set_health(False)
        for task in self._streams:
            task.cancel()

    async def close(self, grace_seconds: float) -> None:
        """Wait until no calls are in flight and none come, then stop listening; after the grace they are cut.

        The broker is drained by now and refuses what still comes, in words: what gRPC has taken from the wire and not
        yet given to us, it would only cancel. Those who watch health would stay for ever, so they do not count.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._become_quiet(), grace_seconds)
        await self._server.stop(min(grace_seconds, QUIET_SECONDS))

    async def _become_quiet(self) -> None:
        seen = -1
        while self._in_flight or self._begun != seen:
            seen = self._begun
            await asyncio.sleep(QUIET_SECONDS)

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        for method in METHODS.values():
            service, name = method.name.split("/")
            services.setdefault(service, {})[name] = self._handler(method)
        return tuple(grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items())

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        if method.kind is Kind.SUBSCRIBE:
            return grpc.unary_stream_rpc_method_handler(self._tracked(self._subscribe))
        if method.kind is Kind.PUBLISH_STREAM:
            return grpc.stream_stream_rpc_method_handler(self._tracked(self._publish_stream))
        return grpc.unary_unary_rpc_method_handler(self._unary(method))

    def _unary(self, method: Method) -> Behaviour:
        async def answer(request: bytes, context: Context) -> bytes:
            if self.service is None:
                await _refuse(context, Unavailable("the broker is starting"))
            slot = _Slot(asyncio.get_running_loop().create_future())
            connection = self._enter(context) if method.can_wait else None
            self._begun += 1
            self._in_flight += 1
            waiter = self.service.call(method, connection or _NOBODY, request, slot)
            try:
                answer = await slot.future
            except asyncio.CancelledError:
                if waiter is not None:
                    waiter.cancel()
                slot.give_up()
                raise
            finally:
                self._in_flight -= 1
                if connection is not None:
                    self._leave(connection)
            if isinstance(answer, MqError):
                await _refuse(context, answer)
            if type(answer) is Delivery:
                context.add_done_callback(_unless_sent(answer.release))
            return b"".join(answer)

        return answer

    async def _subscribe(self, request: bytes, context: Context) -> None:
        if self.service is None:
            await _refuse(context, Unavailable("the broker is starting"))
        connection = self._enter(context)
        try:
            async with aclosing(self.service.subscribe(connection, request)) as lists:  # type: ignore[type-var]
                async for items in lists:
                    if not items:
                        # The place is found: from here on nothing is missed, and the client can know.
                        await context.send_initial_metadata(())
                    for item in items:
                        await context.write(item)
        except MqError as error:
            await _refuse(context, error)
        finally:
            self._leave(connection)

    async def _publish_stream(self, _: object, context: Context) -> None:
        if self.service is None:
            await _refuse(context, Unavailable("the broker is starting"))
        connection = self._enter(context)
        try:
            stream = self.service.publish_stream(connection)
        except MqError as error:
            self._leave(connection)
            await _refuse(context, error)

        async def read() -> None:
            try:
                while (request := cast(Any, await context.read())) is not grpc.aio.EOF:
                    stream.feed(request)
                    await stream.room()
            finally:
                stream.finish()

        reader = asyncio.create_task(read())
        try:
            async for answers in stream:
                for answer in answers:
                    await context.write(answer)
        finally:
            reader.cancel()
            self.service.close_stream(connection)
            self._leave(connection)

    def _tracked(self, behaviour: Behaviour) -> Any:
        """A stream has no end of its own: keep hold of its task, so that draining can end it."""

        async def run(request: Any, context: Context) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._streams.add(task)
            self._begun += 1
            self._in_flight += 1
            try:
                await behaviour(request, context)
            except asyncio.CancelledError:
                if not self._is_draining:
                    raise
                await _refuse(context, Unavailable("the broker is shutting down"))
            finally:
                self._in_flight -= 1
                self._streams.discard(task)

        return run

    def _enter(self, context: Context) -> Connection:
        """The connection of a call. gRPC tells when calls end, never when connections do: so they live by calls."""
        peer = context.peer()
        connection = self._connections.setdefault(peer, Connection(peer))
        connection.calls += 1
        return connection

    def _leave(self, connection: Connection) -> None:
        connection.calls -= 1
        if not connection.calls:
            self._connections.pop(connection.peer, None)


class _Slot:
    """Where the answer to one call arrives. It may come after the caller has gone."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future

    def __call__(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)
        elif type(answer) is Delivery:
            answer.release()

    def give_up(self) -> None:
        """The caller has gone, perhaps in the same turn of the loop in which the answer came."""
        if not self.future.cancelled() and self.future.done() and type(answer := self.future.result()) is Delivery:
            answer.release()


def _unless_sent(release: Callable[[], None]) -> Any:
    """It holds no message: gRPC keeps it, in a cycle with its call, until the collector comes by."""
    return lambda context: None if context.done() else release()


async def _refuse(context: Context, error: MqError) -> NoReturn:
    code = _STATUS.get(error.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error), ((REASON, type(error).__name__),))
