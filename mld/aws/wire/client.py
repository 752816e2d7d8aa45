"""`WireService`: the `Service` port for the calls made all the time, over own sockets; the rest goes to botocore.

A call is one attempt, as with `BotoService`. It is sent a second time only where the first cannot have counted: on a
kept connection that turns out to be closed, for calls that only read; and after the service has refused a signature
because our clock is off, which its `Date` header then corrects.

Nothing but errors of our tree leaves the methods of the port: `_bounded` is the one place where everything else is
translated. Below it errors are left as they are, and whoever has a place in hand when one passes empties it.

A call with a small answer stays on the event loop (`LoopConnection`). Threads do what may take long or wait for
something else: connections that are yet to be made, the keys of a request every few seconds, large answers, and what
botocore makes of a refusal. Whatever is unusual about a client (a client certificate, a TLS proxy, another path or
signature) is left to botocore; the log says so once. Connections belong to calls in flight (`places`), not to shards.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mld.aws.client import CALL_TIMEOUT_S, BotoService, aws_failure, is_surprise
from mld.aws.service import OUR_OWN, PartwiseRead, Surprises
from mld.aws.servicetime import ServiceTime
from mld.aws.threads import GivenUpError, Job, Workers
from mld.aws.wire.answers import Answer, BrokenAnswerError, Incoming, NothingSentBackError
from mld.aws.wire.connection import Connection, Origin, Turn
from mld.aws.wire.places import BODY_BYTES_MAX, Places, PlacesClosedError, WirePlace
from mld.aws.wire.requests import Canned, Requests, UnusualError, Usual, decode_answer, encode_params, tls_context
from mld.aws.wire.source import WireFrames
from mld.core.errors import AwsUnreachableError, StartupError
from mld.core.waits import TimeLimit

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials

logger = logging.getLogger(__name__)

T = TypeVar("T")
Exchange = Callable[[bytes], Answer]
"""What answers the body of a request."""
Taken = tuple[socket.socket, Incoming]
"""A connected socket, and an answer on it whose head has come."""

READS = frozenset({"GetRecords", "GetShardIterator", "GetItem", "Query", "Scan"})
"""May be repeated on a new connection: they change nothing."""
OPERATIONS = READS | {"UpdateItem", "PutItem", "DeleteItem"}
"""Those whose parameters and answers are JSON but for bytes and times that `encode_params` knows."""
TURN_BYTES_MIN = 256 * 1024
"""Bodies above this are taken apart one at a time (`Turn`)."""
SILENCE_S_MIN = 0.5
"""A caller who gives up sooner says nothing about the connection; a time-out or a reset does."""
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
        self._turn = Turn()
        self._workers = Workers(threads_max=threads_max, name=f"wire-{name}")
        self._places = Places(calls_max, turn=self._turn)
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._limits: list[TimeLimit] = []  # of no call at the moment
        self._canned: Canned | None = None
        self._surprises = Surprises()

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
                return await self._bounded(
                    operation, timeout_s, partial(self._placed, operation, params, partial(_decoded, operation))
                )
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.call(operation, params, timeout_s=timeout_s)

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """See `mld.aws.service.RawService.fetch`."""
        if self._canned is not None and operation in OPERATIONS:
            try:
                return await self._bounded(operation, timeout_s, partial(self._placed, operation, params, read))
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.fetch(operation, params, read, timeout_s=timeout_s)

    @property
    def can_stream(self) -> bool:
        """Whether `open_stream` is to be had; known once the service is open."""
        return self._canned is not None

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> WireFrames:
        """See `mld.aws.service.StreamService.open_stream`."""
        work = partial(self._open_in_thread, operation=operation, params=params)
        try:
            return await self._bounded(operation, timeout_s, lambda _: self._opened(work))
        except UnusualError as why:
            raise AwsUnreachableError(operation, f"not without the wire client: {why}") from why

    async def _opened(self, work: Callable[[Job], Taken]) -> WireFrames:
        taken, incoming = await self._workers.submit(Job(work, unwanted=_close_socket)).value()
        try:
            return WireFrames(taken, incoming.ahead, chunked=b"transfer-encoding" in incoming.headers)
        except BaseException:
            taken.close()
            raise

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """See `mld.aws.service.StreamService.in_thread`; one at a time, as with large bodies."""

        def in_turn(_: Job) -> T:
            with self._turn:
                return work()

        async with self._checks:
            return await self._bounded(operation, None, lambda _: self._in_any_thread(in_turn))

    def _give_way(self, why: UnusualError) -> None:
        self._canned = None
        logger.info(
            "%s is called through botocore: %s",
            self._name,
            why,
            extra={"action": "wire_client", "service": self._name, "reason": str(why)},
        )

    async def _bounded(self, operation: str, timeout_s: float | None, work: Callable[[TimeLimit], Awaitable[T]]) -> T:
        """Return what `work` makes within its time. The boundary: raises errors of our tree, or UnusualError."""
        limit_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        limit = self._limits.pop() if self._limits else TimeLimit()
        try:
            with limit.of(limit_s):
                return await work(limit)
        except TimeoutError:
            raise AwsUnreachableError(operation, f"no answer within {limit_s:g} s") from None
        except (PlacesClosedError, GivenUpError):
            raise AwsUnreachableError(operation, f"the {self._name} client is closed") from None
        except (UnusualError, *OUR_OWN):
            raise
        except Exception as error:
            failure = aws_failure(operation, error)
            if is_surprise(error) and not isinstance(error, (BrokenAnswerError, NothingSentBackError)):
                self._surprises.tell(operation, error)
            raise failure from error
        finally:
            self._limits.append(limit)

    async def _in_any_thread(self, work: Callable[[Job], T]) -> T:
        value: T = await self._workers.submit(Job(work)).value()
        return value

    async def _placed(self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], limit: TimeLimit) -> T:
        """Give the place back in any case, by the job if there is one; with a connection only if all was
        well.
        """
        usual = self._requests.usual(operation, params)
        place = await self._places.take(None if usual is None else usual.origin)
        begun: Answer | Incoming | None = None
        job: Job | None = None
        kept: Origin | None = None
        try:
            if usual is not None:
                begun = await self._on_loop(operation, params, place, usual, limit)
            if not isinstance(begun, Answer) or begun.status >= 300 or len(begun.body) > BODY_BYTES_MAX:
                kept = place.origin
                place.lend()
                work = partial(self._perform, operation=operation, params=params, read=read, place=place, begun=begun)
                job = self._workers.submit(Job(work, at_end=partial(self._places.give_back, place)))
        except BaseException:
            place.drop()
            raise
        finally:
            if job is None:
                self._places.give_back(place)
        if job is None:
            assert isinstance(begun, Answer)
            return read(begun.body)
        try:
            value: T = await job.value()
            return value
        except asyncio.CancelledError:
            if limit.is_over and kept is not None:
                self._places.distrust(kept)  # at once: the next try may come before the thread has noticed
            raise

    async def _on_loop(
        self, operation: str, params: dict[str, Any], place: WirePlace, usual: Usual, limit: TimeLimit
    ) -> Answer | Incoming | None:
        """Return an answer, or the beginning of one; None if a thread has to send the request, on a new connection."""
        line = place.on_loop
        if line is None or place.origin != usual.origin or not line.is_good:
            place.drop()
            return None
        request = self._requests.signed(usual, encode_params(params))
        sent_at = time.monotonic()
        try:
            found = await line.exchange(request, timeout_s=self._read_timeout_s)
        except BaseException as error:
            gave_up = not isinstance(error, Exception) and not limit.is_over
            if not gave_up or time.monotonic() - sent_at >= SILENCE_S_MIN:
                place.silent = usual.origin
            place.drop()
            if isinstance(error, NothingSentBackError) and operation in READS:
                return None
            raise
        if isinstance(found, Answer) and not found.keep:
            place.drop()
        return found

    async def close(self) -> None:
        """End the threads and their connections; calls under way fail. May be called again."""
        self._workers.close()
        self._places.close(AwsUnreachableError("close", f"the {self._name} client is closed"))
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
        place: WirePlace,
        begun: Answer | Incoming | None,
    ) -> T:
        def exchange(body: bytes) -> Answer:
            return self._exchange(job, operation, params, body, place)

        def first(talk: Callable[[Connection], Answer]) -> Answer:
            assert place.connection is not None, "it was lent with what has come"
            return self._talk(job, place, place.connection, talk)

        answer: Answer | None
        if isinstance(begun, Incoming):
            if begun.is_unchecked and isinstance(read, PartwiseRead) and read.wants_parts:
                parts = read.in_parts()
                first(lambda connection: connection.receive_parts(begun, parts.feed))
                value: T = parts.end()
                return value
            answer = first(lambda connection: connection.receive(begun))
        else:
            answer = begun
        answer = self._answer(operation, params, exchange, answer)
        if len(answer.body) < TURN_BYTES_MIN:
            return read(answer.body)
        with self._turn:
            return read(answer.body)

    def _open_in_thread(self, job: Job, operation: str, params: dict[str, Any]) -> Taken:
        """Return the connection on which the answer to `operation` comes in, its head read."""
        taken: list[Taken] = []

        def open_one(body: bytes) -> Answer:
            origin, request = self._requests.made(operation, params, body)
            connection = self._connected(operation, origin)
            try:
                job.uses(connection)
                incoming = connection.begin(request)
                if incoming.status >= 300:
                    return connection.receive(incoming)
                job.uses(None)
                taken.append((connection.socket, incoming))
                return Answer(incoming.status, incoming.headers, b"")
            finally:
                job.uses(None)
                if not taken:
                    connection.close()

        self._answer(operation, params, open_one)
        return taken[0]

    def _answer(
        self, operation: str, params: dict[str, Any], exchange: Exchange, first: Answer | None = None
    ) -> Answer:
        """Return a good answer; what botocore raises for a bad one. `first` is one that has come already."""
        canned = self._canned
        if canned is None:
            raise UnusualError("found out a moment ago")
        body = encode_params(params)
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

    def _exchange(self, job: Job, operation: str, params: Mapping[str, Any], body: bytes, place: WirePlace) -> Answer:
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
            return Connection(
                origin,
                connect_timeout_s=self._connect_timeout_s,
                read_timeout_s=self._read_timeout_s,
                turn=self._turn,
            )
        except OSError as error:
            reason = f"cannot connect to {origin}: {type(error).__name__}: {error}"
            raise AwsUnreachableError(operation, reason) from error

    def _talk(self, job: Job, place: WirePlace, connection: Connection, talk: Callable[[Connection], Answer]) -> Answer:
        """Return what `talk` hears, on a connection that then is left at its place, or is closed."""
        was_kept, place.connection = place.connection is connection, None
        keep = False
        job.uses(connection)
        begun_at = time.monotonic()
        try:
            answer = talk(connection)
            keep = answer.keep
            return answer
        except BaseException:
            if was_kept and (not job.given_up or time.monotonic() - begun_at >= SILENCE_S_MIN):
                place.silent = connection.origin
            raise
        finally:
            job.uses(None)
            if keep and not job.given_up:
                place.connection = connection
            else:
                connection.close()


def _close_socket(taken: Taken) -> None:
    taken[0].close()


def _decoded(operation: str, body: bytes) -> dict[str, Any]:
    try:
        return decode_answer(body)
    except (ValueError, RecursionError) as error:
        raise AwsUnreachableError(operation, f"the answer is no JSON: {error}") from error
