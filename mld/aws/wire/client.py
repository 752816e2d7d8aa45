"""`WireService`: the `Service` port for the calls made all the time, over own sockets; the rest goes to botocore.

A call is one attempt, as with `BotoService`. It is sent a second time only where the first cannot have counted: on a
kept connection that turns out to be closed, for calls that only read; and after the service has refused a signature
because our clock is off, which its `Date` header then corrects.

A call with a small answer stays on the event loop (`wired`). Threads do what may take long or wait for something else:
connections that are yet to be made, the keys of a request every few seconds, large answers, and what botocore makes of
a refusal. Whatever is unusual about a client (a client certificate, a TLS proxy, another path or signature) is left to
botocore; the log says so once. Connections belong to calls in flight (`places`), not to shards.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mld.aws.client import CALL_TIMEOUT_S, BotoService, aws_failure
from mld.aws.servicetime import ServiceTime
from mld.aws.wire import documents
from mld.aws.wire.botocore_side import Canned, UnusualError, tls_context
from mld.aws.wire.connection import Answer, BrokenAnswerError, Connection, NothingSentBackError, Origin
from mld.aws.wire.places import Place, Places, PlacesClosedError
from mld.aws.wire.requests import Requests, Usual
from mld.aws.wire.source import FrameSource
from mld.aws.wire.wired import Large
from mld.aws.wire.workers import Job, Workers
from mld.errors import AwsUnreachableError, StartupError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials

logger = logging.getLogger(__name__)

T = TypeVar("T")
Exchange = Callable[[bytes], Answer]
"""What answers the body of a request."""
Taken = tuple[socket.socket, bytes, bool]
"""A connected socket, what was read ahead from it, and whether what comes is chunked."""

READS = frozenset({"GetRecords", "GetShardIterator", "GetItem", "Query", "Scan"})
"""May be repeated on a new connection: they change nothing."""
OPERATIONS = READS | {"UpdateItem", "PutItem", "DeleteItem"}
"""Those whose parameters and answers are JSON but for bytes and times that `documents` knows."""
GATE_BYTES_MIN = 256 * 1024
"""Bodies above this are taken apart one at a time: threads that all want the interpreter only hinder each other."""
CHECKS_MAX = 2
"""Of events, in threads: one at work, and one that is ready when it ends. The others wait without a thread."""


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
        self._workers = Workers(threads_max=threads_max, name=name)
        self._places = Places(calls_max)
        self._gate = threading.Lock()
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()  # that threads use
        self._canned: Canned | None = None

    async def open(self) -> None:
        """Create the client, and find out whether it may be done without. Raises StartupError."""
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
        if self._canned is not None and operation in OPERATIONS:
            try:
                return await self._send(operation, params, partial(_decoded, operation), timeout_s)
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.call(operation, params, timeout_s=timeout_s)

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """See `mld.aws.service.RawService.fetch`."""
        if self._canned is not None and operation in OPERATIONS:
            try:
                return await self._send(operation, params, read, timeout_s)
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.fetch(operation, params, read, timeout_s=timeout_s)

    @property
    def can_stream(self) -> bool:
        """Whether `open_stream` is to be had; known once the service is open."""
        return self._canned is not None

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> FrameSource:
        """See `mld.aws.service.StreamService.open_stream`."""
        work = partial(self._open_in_thread, operation=operation, params=params)
        try:
            taken, ahead, chunked = await self._run(operation, work, timeout_s, unwanted=_close_socket)
        except UnusualError as why:
            raise AwsUnreachableError(operation, f"not without the wire client: {why}") from why
        return FrameSource(taken, ahead, chunked=chunked)

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """See `mld.aws.service.StreamService.in_thread`; one at a time, as with large bodies."""

        def gated(_: Job) -> T:
            with self._gate:
                return work()

        async with self._checks:
            return await self._run(operation, gated, None)

    def _give_way(self, why: UnusualError) -> None:
        self._canned = None
        logger.info(
            "%s is called through botocore: %s",
            self._name,
            why,
            extra={"action": "wire_client", "service": self._name, "reason": str(why)},
        )

    async def _send(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], timeout_s: float | None
    ) -> T:
        try:
            return await _within(timeout_s, operation, self._placed(operation, params, read))
        except PlacesClosedError:
            raise self._closed(operation) from None

    async def _placed(self, operation: str, params: dict[str, Any], read: Callable[[bytes], T]) -> T:
        usual = self._requests.usual(operation, params)
        place = await self._places.take(None if usual is None else usual.origin)
        begun: Answer | Large | None = None
        lent = False
        try:
            if usual is not None:
                begun = await self._on_loop(operation, params, place, usual)
                if isinstance(begun, Answer) and begun.status < 300:
                    return read(begun.body)
            if self._workers.is_closed:
                raise self._closed(operation)
            place.lend()
            lent = True
        finally:
            if not lent:
                self._places.give_back(place)
        return await self._in_thread(operation, params, read, place, begun)

    async def _on_loop(
        self, operation: str, params: dict[str, Any], place: Place, usual: Usual
    ) -> Answer | Large | None:
        """An answer, or the beginning of one; None if a thread has to send the request, on a new connection."""
        wired = place.wired
        if wired is None or place.origin != usual.origin or not wired.is_good:
            place.drop()
            return None
        keep = False
        try:
            request = self._requests.signed(usual, documents.encode(params))
            found = await wired.exchange(request, timeout_s=self._read_timeout_s)
            if isinstance(found, Large):
                keep = True
                return found
            answer, keep = found
            return answer
        except NothingSentBackError as error:
            if operation not in READS:
                raise _unreachable(operation, error) from error
            return None
        except (OSError, BrokenAnswerError) as error:
            raise _unreachable(operation, error) from error
        finally:
            if not keep:
                place.drop()

    async def _in_thread(
        self,
        operation: str,
        params: dict[str, Any],
        read: Callable[[bytes], T],
        place: Place,
        begun: Answer | Large | None,
    ) -> T:
        job = Job(
            lambda job: self._perform(job, operation, params, read, place, begun),
            at_end=lambda: self._places.give_back(place),
        )
        value: T = await self._outcome(job)
        return value

    def _closed(self, operation: str) -> AwsUnreachableError:
        return AwsUnreachableError(operation, f"the {self._name} client is closed")

    async def _run(
        self,
        operation: str,
        work: Callable[[Job], T],
        timeout_s: float | None,
        unwanted: Callable[[T], None] | None = None,
    ) -> T:
        if self._workers.is_closed:
            raise self._closed(operation)
        value: T = await _within(timeout_s, operation, self._outcome(Job(work, unwanted)))
        return value

    async def _outcome(self, job: Job) -> Any:
        self._workers.submit(job)
        try:
            return await job.outcome
        except asyncio.CancelledError:
            job.give_up()
            raise

    async def close(self) -> None:
        """End the threads and their connections; calls under way fail. May be called again."""
        self._workers.close()
        self._places.close(AwsUnreachableError("close", f"the {self._name} client is closed"))
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            connection.abort()
        await self._plain.close()

    # --- below: in the threads ---------------------------------------------------------------------------------------

    def _prepare(self, client: BaseClient) -> None:
        canned = Canned(client)
        is_tls = client.meta.endpoint_url.startswith("https:")
        context = tls_context(client, self._ca_bundle()) if is_tls else None
        self._requests.prepare(canned, self._credentials_of(), context)
        self._canned = canned

    def _perform(
        self,
        job: Job,
        operation: str,
        params: dict[str, Any],
        read: Callable[[bytes], T],
        place: Place,
        begun: Answer | Large | None,
    ) -> T:
        def exchange(body: bytes) -> Answer:
            return self._exchange(job, operation, params, body, place)

        def first() -> Answer | None:
            if not isinstance(begun, Large):
                return begun
            assert place.connection is not None, "it was lent with what has come"
            return self._talk(job, place, place.connection, lambda connection: connection.resume(begun.ahead))

        answer = _as_ours(operation, lambda: self._answer(operation, params, exchange, first()))
        if len(answer.body) < GATE_BYTES_MIN:
            return read(answer.body)
        with self._gate:
            return read(answer.body)

    def _open_in_thread(self, job: Job, operation: str, params: dict[str, Any]) -> Taken:
        """The connection on which the answer to `operation` comes in, its head read."""
        taken: list[Taken] = []

        def open_one(body: bytes) -> Answer:
            origin, request = self._requests.made(operation, params, body)
            connection = self._connected(operation, origin)
            try:
                job.uses(connection)
                status, headers = connection.begin(request)
                if status >= 300:
                    return connection.rest(status, headers)
                job.uses(None)
                taken.append((*connection.detach(), b"transfer-encoding" in headers))
                return Answer(status, headers, b"")
            finally:
                job.uses(None)
                self._let_go(connection)
                if not taken:
                    connection.close()

        _as_ours(operation, lambda: self._answer(operation, params, open_one))
        return taken[0]

    def _answer(
        self, operation: str, params: dict[str, Any], exchange: Exchange, first: Answer | None = None
    ) -> Answer:
        """A good answer; what botocore raises for a bad one. `first` is one that has come already."""
        canned = self._canned
        if canned is None:
            raise UnusualError("found out a moment ago")
        body = documents.encode(params)
        answer = exchange(body) if first is None else first
        if answer.status < 300:
            return answer
        self._requests.ask_for_keys()  # it may have been about them
        try:
            canned.explain(operation, params, answer)
        except Exception as error:
            if not self._requests.corrected_clock(error, answer):
                raise
        else:
            raise AwsUnreachableError(operation, f"HTTP status {answer.status}")
        answer = exchange(body)
        if answer.status >= 300:
            canned.explain(operation, params, answer)
            raise AwsUnreachableError(operation, f"HTTP status {answer.status}")
        return answer

    def _exchange(self, job: Job, operation: str, params: Mapping[str, Any], body: bytes, place: Place) -> Answer:
        origin, request = self._requests.made(operation, params, body)
        kept = place.connection
        if kept is not None and (kept.origin != origin or kept.is_stale()):
            kept.close()
            place.connection = kept = None
        if kept is not None:
            try:
                return self._talk(job, place, kept, lambda connection: connection.exchange(request))
            except NothingSentBackError:
                if operation not in READS or job.given_up:
                    raise
        made = self._connected(operation, origin)
        return self._talk(job, place, made, lambda connection: connection.exchange(request))

    def _connected(self, operation: str, origin: Origin) -> Connection:
        try:
            connection = Connection(
                origin, connect_timeout_s=self._connect_timeout_s, read_timeout_s=self._read_timeout_s
            )
        except OSError as error:
            reason = f"cannot connect to {origin}: {type(error).__name__}: {error}"
            raise AwsUnreachableError(operation, reason) from error
        self._keep_in_sight(connection)
        return connection

    def _talk(
        self, job: Job, place: Place, connection: Connection, talk: Callable[[Connection], tuple[Answer, bool]]
    ) -> Answer:
        """What `talk` hears, on a connection that then is left at its place, or is closed."""
        place.connection = None
        keep = False
        self._keep_in_sight(connection)
        job.uses(connection)
        try:
            answer, keep = talk(connection)
            return answer
        finally:
            job.uses(None)
            self._let_go(connection)
            if keep and not job.given_up and not self._workers.is_closed:
                place.connection = connection
            else:
                connection.close()

    def _keep_in_sight(self, connection: Connection) -> None:
        with self._lock:
            self._connections.add(connection)

    def _let_go(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)


def _unreachable(operation: str, error: Exception) -> AwsUnreachableError:
    return AwsUnreachableError(operation, f"{type(error).__name__}: {error}")


def _as_ours(operation: str, work: Callable[[], T]) -> T:
    """Raises errors of our own tree for those of sockets, of botocore and of providers of credentials."""
    try:
        return work()
    except (AwsUnreachableError, UnusualError):
        raise
    except (OSError, BrokenAnswerError, NothingSentBackError, ssl.SSLError) as error:
        raise _unreachable(operation, error) from error
    except Exception as error:
        raise aws_failure(operation, error) from error


def _close_socket(taken: Taken) -> None:
    taken[0].close()


def _decoded(operation: str, body: bytes) -> dict[str, Any]:
    try:
        return documents.decode(body)
    except (ValueError, RecursionError) as error:
        raise AwsUnreachableError(operation, f"the answer is no JSON: {error}") from error


async def _within(timeout_s: float | None, operation: str, work: Awaitable[T]) -> T:
    limit_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise AwsUnreachableError(operation, f"no answer within {limit_s:g} s") from None
