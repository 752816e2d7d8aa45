"""`WireService`: the `Service` port for the calls made all the time, over own sockets; the rest goes to botocore.

A call is one attempt, as with `BotoService`. It is sent a second time only where the first cannot have counted: on a
kept connection that turns out to be closed, for calls that only read; and after the service has refused a signature
because our clock is off, which its `Date` header then corrects.

Nothing but errors of our tree leaves the methods of the port: `_bounded` is the one place where everything else is
translated. Below it errors are left as they are.

Sockets are used on the event loop only. Threads do what may take long or wait for something else: looking up names, the
keys of a request every few seconds, taking large bodies apart, and what botocore makes of a refusal. Whatever
is unusual about a client (a client certificate, a TLS proxy, another path or signature) is left to botocore; the log
says so once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mld.aws.boundary import OUR_OWN, Surprises, reason_of
from mld.aws.client import CALL_TIMEOUT_S, BotoService, aws_failure, is_surprise
from mld.aws.pool import DaemonPool
from mld.aws.servicetime import ServiceTime
from mld.aws.wire import documents
from mld.aws.wire.answers import Answer, BrokenAnswerError
from mld.aws.wire.botocore_side import OfflineClient, UnusualError, tls_context
from mld.aws.wire.connection import Addresses, Connection, NothingSentBackError, Origin, connect
from mld.aws.wire.connection_pool import CallAdmission, ConnectionPool
from mld.aws.wire.frames import FrameStream
from mld.aws.wire.requests import Requests, SignableCall
from mld.aws.wire.source import WireFrameSource
from mld.errors import AwsUnreachableError, StartupError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials

logger = logging.getLogger(__name__)

T = TypeVar("T")

READS = frozenset({"GetRecords", "GetShardIterator", "GetItem", "Query", "Scan"})
"""May be repeated on a new connection: they change nothing."""
OPERATIONS = READS | {"UpdateItem", "PutItem", "DeleteItem"}
"""Those whose parameters and answers are JSON but for bytes and times that `documents` knows."""
LOOP_BYTES_MAX = 8 * 1024
"""The largest body that is taken apart on the loop: 0.1 ms, and 1.5 ms where each record needs the slow way."""
LARGE_BYTES_MIN = 256 * 1024
"""From this size on, one at a time: threads that all want the interpreter only hinder each other."""
SILENCE_S_MIN = 0.5
"""A caller who gives up sooner says nothing about the connection; a time-out or a reset does."""


class WireService:
    """One service. `plain` makes the client; `credentials` and `ca_bundle` are asked for once it has, in a thread."""

    def __init__(
        self,
        plain: BotoService,
        *,
        credentials: Callable[[], Credentials | None],
        ca_bundle: Callable[[], str | None],
        threads_max: int,
        calls_max: int,
        name: str,
        read_timeout_s: float,
        connect_timeout_s: float,
        service_time: ServiceTime,
    ) -> None:
        self._plain = plain
        self._credentials_of = credentials
        self._ca_bundle = ca_bundle
        self._name = name
        self._read_timeout_s = read_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._requests = Requests(service_time)
        self._threads = DaemonPool(threads_max=threads_max, name=f"wire-{name}")
        self._large = DaemonPool(threads_max=1, name=f"wire-{name}-large")
        self._asking = asyncio.Lock()
        self._opening = asyncio.Semaphore(threads_max)
        self._offline: OfflineClient | None = None
        self._surprises = Surprises()
        self._under_way: set[asyncio.Timeout] = set()
        self._is_closed = False
        self.pool = ConnectionPool(calls_max)

    async def open(self) -> None:
        """Create the client, and find out whether calls can do without it. Raises StartupError."""
        await self._plain.open()
        try:
            await self._plain.with_client(self._prepare)
        except UnusualError as why:
            self._give_way(why)
        except Exception as error:
            raise StartupError(
                f"the {self._name} wire client cannot be made: {type(error).__name__}: {error}"
            ) from error

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """See `mld.aws.service.Service.call`."""
        if self._offline is not None and operation in OPERATIONS:
            try:
                read = partial(_decoded, operation)
                return await self._bounded(operation, timeout_s, partial(self._fetched, operation, params, read))
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.call(operation, params, timeout_s=timeout_s)

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """See `mld.aws.service.RawService.fetch`."""
        if self._offline is not None and operation in OPERATIONS:
            try:
                return await self._bounded(operation, timeout_s, partial(self._fetched, operation, params, read))
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.fetch(operation, params, read, timeout_s=timeout_s)

    @property
    def can_stream(self) -> bool:
        """Whether `open_stream` is available; known once the service is open."""
        return self._offline is not None

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> WireFrameSource:
        """See `mld.aws.service.StreamService.open_stream`."""
        try:
            return await self._bounded(operation, timeout_s, lambda _: self._streamed(operation, params))
        except UnusualError as why:
            raise AwsUnreachableError(operation, f"not without the wire client: {why}") from why

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """See `mld.aws.service.StreamService.in_thread`; one at a time, as with large bodies."""
        return await self._bounded(operation, None, lambda _: _in_thread(self._large, work))

    async def close(self) -> None:
        """End the threads and the connections; calls under way fail. May be called again."""
        self._is_closed = True
        for timer in self._under_way:
            if not timer.expired():
                timer.reschedule(0.0)
        self.pool.close()
        self._threads.close()
        self._large.close()
        await self._plain.close()

    def _give_way(self, why: UnusualError) -> None:
        self._offline = None
        logger.info(
            "%s is called through botocore: %s",
            self._name,
            why,
            extra={"action": "wire_client", "service": self._name, "reason": str(why)},
        )

    async def _bounded(
        self, operation: str, timeout_s: float | None, work: Callable[[asyncio.Timeout], Awaitable[T]]
    ) -> T:
        """What `work` makes within its time. The boundary: raises errors of our tree, or UnusualError."""
        limit_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                if self._is_closed:
                    raise AwsUnreachableError(operation, f"the {self._name} client is closed")
                self._under_way.add(timer)
                return await work(timer)
        except (UnusualError, *OUR_OWN):
            raise
        except Exception as error:
            if self._is_closed:
                raise AwsUnreachableError(operation, f"the {self._name} client is closed") from None
            if timer.expired() and isinstance(error, TimeoutError):
                raise AwsUnreachableError(operation, f"no answer within {limit_s:g} s") from None
            failure = aws_failure(operation, error)
            if is_surprise(error) and not isinstance(error, (BrokenAnswerError, NothingSentBackError)):
                self._surprises.tell(operation, error)
            raise failure from error
        finally:
            self._under_way.discard(timer)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _fetched(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], timer: asyncio.Timeout
    ) -> T:
        """What `read` makes of the answer. The call stays admitted until then, so that few bodies wait in memory."""
        admission = await self.pool.admit((await self._signable(operation, params)).origin)
        try:
            exchange = partial(self._exchange, operation, params, admission, timer)
            answer = await self._good_answer(operation, params, exchange)
            if answer.size <= LOOP_BYTES_MAX:
                return read(answer.body)
            pool = self._threads if answer.size < LARGE_BYTES_MIN else self._large
            return await _in_thread(pool, lambda: read(answer.body))
        finally:
            self.pool.give_back(admission)

    async def _streamed(self, operation: str, params: dict[str, Any]) -> WireFrameSource:
        """The stream that answers, on a connection of its own."""
        opened: list[WireFrameSource] = []

        async def exchange() -> Answer:
            signable = await self._signable(operation, params)
            connection = await self._connected(operation, signable.origin)
            frames = FrameStream()
            request = self._requests.signed(signable, documents.encode(params))
            answer = await connection.exchange(request, timeout_s=self._read_timeout_s, sink=frames)
            if answer.status < 300:
                opened.append(WireFrameSource(connection, frames))
            else:
                connection.close()
            return answer

        async with self._opening:
            await self._good_answer(operation, params, exchange)
        return opened[0]

    async def _good_answer(
        self, operation: str, params: dict[str, Any], exchange: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Raises what botocore raises for a bad answer."""
        answer = await exchange()
        if answer.status < 300:
            return answer
        self._requests.ask_for_keys()  # it may have been about them
        await _in_thread(self._threads, partial(self._explain, operation, params, answer, True))
        answer = await exchange()
        if answer.status >= 300:
            await _in_thread(self._threads, partial(self._explain, operation, params, answer, False))
        return answer

    async def _exchange(
        self, operation: str, params: dict[str, Any], admission: CallAdmission, timer: asyncio.Timeout
    ) -> Answer:
        """One request and its answer, on the kept connection if there is one."""
        signable = await self._signable(operation, params)
        request = self._requests.signed(signable, documents.encode(params))
        kept = admission.connection
        if kept is not None and kept.origin == signable.origin and kept.may_reuse:
            answer = await self._exchange_on_kept(operation, request, kept, timer)
            if answer is not None:
                return answer
        if kept is not None:
            kept.close()
        admission.connection = made = await self._connected(operation, signable.origin)
        return await made.exchange(request, timeout_s=self._read_timeout_s)

    async def _exchange_on_kept(
        self, operation: str, request: bytes, kept: Connection, timer: asyncio.Timeout
    ) -> Answer | None:
        """None if the connection had ended and the request may be repeated."""
        loop = asyncio.get_running_loop()
        sent_at_s = loop.time()
        try:
            return await kept.exchange(request, timeout_s=self._read_timeout_s)
        except BaseException as error:
            gave_up = not isinstance(error, Exception) and not timer.expired()
            if not gave_up or loop.time() - sent_at_s >= SILENCE_S_MIN:
                self.pool.distrust(kept.origin)
            if isinstance(error, NothingSentBackError) and operation in READS:
                return None
            raise

    async def _signable(self, operation: str, params: dict[str, Any]) -> SignableCall:
        """What is known, or what botocore says now. One call at a time asks; the others find what it was told."""
        signable = self._requests.known(operation, params)
        if signable is None:
            async with self._asking:
                signable = self._requests.known(operation, params)
                if signable is None:
                    signable = await _in_thread(self._threads, partial(self._requests.ask, operation, params))
        return signable

    async def _connected(self, operation: str, origin: Origin) -> Connection:
        try:
            return await connect(
                origin,
                self._addresses,
                connect_timeout_s=self._connect_timeout_s,
                read_timeout_s=self._read_timeout_s,
            )
        except OSError as error:
            raise AwsUnreachableError(operation, f"cannot connect to {origin}: {reason_of(error)}") from error

    async def _addresses(self, host: str, port: int) -> Addresses:
        def look_up() -> Addresses:
            return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

        return await _in_thread(self._threads, look_up)

    # --- below: in the threads ---------------------------------------------------------------------------------------

    def _prepare(self, client: BaseClient) -> None:
        offline = OfflineClient(client)
        is_tls = client.meta.endpoint_url.startswith("https:")
        context = tls_context(client, self._ca_bundle()) if is_tls else None
        self._requests.prepare(offline, self._credentials_of(), context)
        self._offline = offline

    def _explain(self, operation: str, params: dict[str, Any], answer: Answer, may_repeat: bool) -> None:
        """Raises what a bad answer means; returns if the call is worth repeating, now that AWS's time is known."""
        offline = self._offline
        if offline is None:
            raise UnusualError("found out a moment ago")
        try:
            offline.explain(operation, params, answer)
        except Exception as error:
            if may_repeat and self._requests.corrected_clock(error, answer):
                return
            raise
        raise AwsUnreachableError(operation, f"HTTP status {answer.status}")


async def _in_thread(pool: DaemonPool, work: Callable[[], T]) -> T:
    return await asyncio.wrap_future(pool.submit(work))


def _decoded(operation: str, body: bytes) -> dict[str, Any]:
    try:
        return documents.decode(body)
    except (ValueError, RecursionError) as error:
        raise AwsUnreachableError(operation, f"the answer is no JSON: {error}") from error
