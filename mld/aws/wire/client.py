"""`WireService`: the `Service` port for frequent calls over sockets of its own; other calls go through botocore.

A call is one attempt, as with `BotoService`. It is sent a second time in two cases only: a call that only reads was
sent on a kept connection that turns out to be closed; or a call was refused because of our wrong clock, which the
`Date` header of the refusal has corrected.

The methods of the port raise only errors of `mld.core.errors`. All other errors are translated in `_bounded`, and
nowhere else. If a function that uses a connection fails, it closes the connection and raises the error unchanged.

A call with a small answer is made on the event loop (`LoopConnection`). Threads do what may take long or has to wait:
they connect, get the keys for signatures every few seconds, read large answers, and let botocore explain a refusal. If
anything about a client is unusual (a client certificate, a TLS proxy, another path or signature), all its calls go
through botocore; the log says so once.

A connection belongs to no shard: it is used by one call after the other. A call first takes one of a limited number of
*places* (`places`), which may have a connection that an earlier call has left there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mld.aws.aws_failures import aws_failure, is_surprise
from mld.aws.boundary import OUR_OWN, Surprises, reason_of
from mld.aws.client import CALL_TIMEOUT_S, BotoService
from mld.aws.service import PartwiseRead
from mld.aws.service_time import ServiceTime
from mld.aws.threads import GivenUpError, Job, Workers
from mld.aws.wire.answers import Answer, Incoming, NothingSentBackError
from mld.aws.wire.blueprints import Canned
from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.connection import Connection, Origin
from mld.aws.wire.json_bodies import decode_answer, encode_params
from mld.aws.wire.loop_connection import BODY_BYTES_MAX, LoopConnection
from mld.aws.wire.places import SILENCE_S_MIN, Places, PlacesClosedError, WirePlace
from mld.aws.wire.requests import DATE, Requests
from mld.aws.wire.trust import tls_context
from mld.aws.wire.turns import Turn
from mld.aws.wire.unusual import UnusualError
from mld.aws.wire.wire_frames import WireFrames
from mld.core.errors import AwsUnreachableError, StartupError
from mld.core.waits import TimeLimit

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials


logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_REFUSAL = 300
"""Lowest HTTP status that is not a success."""
READS = frozenset({"GetRecords", "GetShardIterator", "GetItem", "Query", "Scan"})
"""Operations that change nothing, so that they may be repeated on a new connection."""
OPERATIONS = READS | {"UpdateItem", "PutItem", "DeleteItem"}
"""The operations that the wire client handles. `encode_params` and `decode_answer` know all types in their bodies."""
TURN_BYTES_MIN = 256 * 1024
"""Bodies of this size or more are parsed one at a time (`Turn`)."""
CHECKS_MAX = 2
"""Most jobs of `in_thread` that have a thread: one at work, and the next one. Others wait without a thread."""


class WireService:
    """One service, over sockets and over botocore."""

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
        """Make a service that is not open yet. `plain` makes the botocore client, and handles the calls that the wire
        client does not. When the client is made, `credentials` and `ca_bundle` are called in a thread. At most
        `calls_max` calls are under way at a time.
        """
        self._plain = plain
        self._credentials_of = credentials
        self._ca_bundle = ca_bundle
        self._name = name
        self._read_timeout_s = read_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._service_time = service_time
        self._requests: Requests  # made when the service is opened
        self._turn = Turn()
        self._workers = Workers(threads_max=threads_max, name=f"wire-{name}")
        self._places = Places(calls_max, turn=self._turn)
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._limits: list[TimeLimit] = []  # time limits that no call uses at the moment, kept for the next calls
        self.can_stream = False
        """Whether the wire client is in use, so that `open_stream` is available. Known once the service is open."""
        self._surprises = Surprises()

    async def open(self) -> None:
        """Create the botocore client, and find out whether the wire client can be used. Raises StartupError."""
        await self._plain.open()
        try:
            await self._plain.with_client(self._prepare)
        except UnusualError as why:
            self._leave_to_botocore(why)
        except Exception as error:
            raise StartupError(f"the {self._name} wire client cannot be made: {reason_of(error)}") from error

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Call an operation once, by the wire client if it knows the operation and may be used, else by botocore; see
        `mld.aws.service.Service.call`.
        """
        if self.can_stream and operation in OPERATIONS:
            try:
                return await self._bounded(
                    operation, timeout_s, partial(self._placed, operation, params, partial(_decoded, operation))
                )
            except UnusualError as why:
                self._leave_to_botocore(why)
        return await self._plain.call(operation, params, timeout_s=timeout_s)

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """Call an operation as `call` does, and return what `read` makes of the body; see
        `mld.aws.service.RawService.fetch`.
        """
        if self.can_stream and operation in OPERATIONS:
            try:
                return await self._bounded(operation, timeout_s, partial(self._placed, operation, params, read))
            except UnusualError as why:
                self._leave_to_botocore(why)
        return await self._plain.fetch(operation, params, read, timeout_s=timeout_s)

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> WireFrames:
        """Return the event stream that answers an operation, on a connection of its own; see
        `mld.aws.service.StreamService.open_stream`. Raises AwsUnreachableError if the wire client cannot be used.
        """
        try:
            return await self._bounded(operation, timeout_s, partial(self._opened, operation, params))
        except UnusualError as why:
            raise AwsUnreachableError(operation, f"not without the wire client: {why}") from why

    async def _opened(self, operation: str, params: dict[str, Any], limit: TimeLimit) -> WireFrames:
        """Send the request of a stream over a new connection, and return the stream, which owns the connection.

        The place is needed only until the head of the answer has come, so open streams do not count as calls under way.
        """
        place = await self._places.take(None)
        try:
            place.drop()
            head = await self._answered(operation, params, place, limit, head_only=True)
            assert isinstance(head, Incoming) and place.on_loop is not None
            taken = place.on_loop.release().socket
            place.on_loop = None
            try:
                return WireFrames(taken, head.ahead, chunked=b"transfer-encoding" in head.headers)
            except BaseException:
                taken.close()
                raise
        finally:
            place.drop()
            self._places.give_back(place)

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """Return what `work` returns in a thread (`mld.aws.service.StreamService.in_thread`). Only one `work` runs at a
        time, as with large bodies.
        """

        def in_turn(_: Job) -> T:
            """Do the work while this thread holds the turn."""
            with self._turn:
                return work()

        async with self._checks:
            return await self._bounded(operation, None, lambda _: self._in_any_thread(in_turn))

    def _leave_to_botocore(self, why: UnusualError) -> None:
        """Leave all calls to botocore from now on, and log why."""
        self.can_stream = False
        logger.info(
            "%s is called through botocore: %s",
            self._name,
            why,
            extra={"action": "wire_client", "service": self._name, "reason": str(why)},
        )

    async def _bounded(self, operation: str, timeout_s: float | None, work: Callable[[TimeLimit], Awaitable[T]]) -> T:
        """Return what `work` returns, within `timeout_s`. `work` is given the running time limit, to see whether it is
        over. Raises only errors of mld, or UnusualError; `operation` names the call in them.
        """
        limit_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        limit = self._limits.pop() if self._limits else TimeLimit()
        try:
            with limit.of(limit_s):
                return await work(limit)
        except TimeoutError as error:
            why = f"no answer within {limit_s:g} s" if limit.is_over else str(error)
            raise AwsUnreachableError(operation, why) from None
        except (PlacesClosedError, GivenUpError):
            raise AwsUnreachableError(operation, f"the {self._name} client is closed") from None
        except (UnusualError, *OUR_OWN):
            raise
        except Exception as error:
            failure = aws_failure(operation, error)
            if is_surprise(error) and not isinstance(error, (BrokenAnswerError, NothingSentBackError)):
                self._surprises.report(operation, error)
            raise failure from error
        finally:
            self._limits.append(limit)

    async def _in_any_thread(self, work: Callable[[Job], T], unwanted: Callable[[T], None] | None = None) -> T:
        """Return what `work` returns in a thread. If the caller gives up before that, the value goes to `unwanted`."""
        value: T = await self._workers.submit(Job(work, unwanted)).value()
        return value

    async def _placed(self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], limit: TimeLimit) -> T:
        """Take a place, make the call there, and return the result of `read` for the body of the answer.

        The place is always given back: by the job that reads a large answer, if there is one, else here. The connection
        stays in the place only if nothing went wrong.
        """
        usual = self._requests.usual(operation, params)
        place = await self._places.take(None if usual is None else usual.origin)
        job: Job | None = None
        try:
            found = await self._answered(operation, params, place, limit)
            origin = place.origin  # noted now, because a place whose connection is lent has no origin
            if isinstance(found, Incoming):
                work = partial(self._read, incoming=found, read=read, place=place)
                try:
                    place.lend()
                    job = self._workers.submit(Job(work, at_end=partial(self._places.give_back, place)))
                except BaseException:
                    place.drop()
                    raise
        finally:
            if job is None:
                self._places.give_back(place)
        if isinstance(found, Answer):
            body = found.body
            return read(body) if len(body) <= BODY_BYTES_MAX else await self._in_any_thread(lambda _: read(body))
        assert job is not None
        try:
            value: T = await job.value()
            return value
        except asyncio.CancelledError:
            if limit.is_over and origin is not None:
                self._places.distrust(origin)  # at once: the caller may retry before the thread has noticed
            raise

    async def _answered(
        self, operation: str, params: dict[str, Any], place: WirePlace, limit: TimeLimit, *, head_only: bool = False
    ) -> Answer | Incoming:
        """Return a successful answer, or its beginning. For a refusal, raise what botocore raises.

        A call that was refused only because of our clock is sent once more, with AWS's time. `_refused` raises the
        error for any other refusal, and for the second one.
        """
        found = await self._exchange(operation, params, place, limit, head_only)
        if found.status >= FIRST_REFUSAL:
            await self._refused(operation, params, place, found, is_last=False)
            found = await self._exchange(operation, params, place, limit, head_only)
            if found.status >= FIRST_REFUSAL:
                await self._refused(operation, params, place, found, is_last=True)
        return found

    async def _refused(
        self, operation: str, params: dict[str, Any], place: WirePlace, found: Answer | Incoming, *, is_last: bool
    ) -> None:
        """Raise what botocore raises for the refusal `found`, whose body may not be read yet (`Incoming`).

        Return only if the call may be sent again: `is_last` is false, and the call was refused because of our clock,
        which is corrected now.
        """
        self._requests.ask_for_keys()  # the refusal may be about the keys

        def explain(job: Job) -> None:
            """Read the rest of a refusal, and have botocore raise the error for it. Return normally if the refusal has
            corrected our clock, so that the call can be sent again.
            """
            answer = found if isinstance(found, Answer) else self._whole(job, found, place)
            try:
                self._requests.explain(operation, params, answer)
            except Exception as error:
                if is_last or not self._requests.corrected_clock(error, answer):
                    raise
            else:  # botocore sees no error in this answer, although its status is not a success
                raise AwsUnreachableError(operation, f"HTTP status {answer.status}")

        # The body of an `Incoming` is still to come on its connection. A thread reads it from there, and the connection
        # is closed afterwards.
        try:
            if isinstance(found, Incoming):
                place.lend()
            await self._in_any_thread(explain)
        finally:
            if isinstance(found, Incoming):
                place.drop()

    async def _exchange(
        self, operation: str, params: dict[str, Any], place: WirePlace, limit: TimeLimit, head_only: bool
    ) -> Answer | Incoming:
        """Send the call, and return the answer, or the beginning of an answer that a thread has to read.

        Uses the connection in the place if it is still good, else makes a new one. After a failure the place has no
        connection. If a connection that was in the place did not answer, the place notes its origin as silent, because
        other connections that are as old may be dead, too. This is not noted if the caller gave up soon.
        """
        usual = self._requests.usual(operation, params)
        if usual is None:
            usual = await self._in_any_thread(lambda _: self._requests.asked(operation, params))
        body = encode_params(params)
        while True:
            connection = place.on_loop
            is_kept = connection is not None and place.origin == usual.origin and connection.is_good
            if not is_kept:
                connection = await self._connected(operation, place, usual.origin)
            assert connection is not None
            request = self._requests.signed(usual, body)
            sent_at = place.asked_s = time.monotonic()
            try:
                found = await connection.exchange(request, timeout_s=self._read_timeout_s, head_only=head_only)
            except BaseException as error:
                gave_up = not isinstance(error, Exception) and not limit.is_over  # cancelled by the caller itself
                if is_kept and (not gave_up or time.monotonic() - sent_at >= SILENCE_S_MIN):
                    place.silent = usual.origin
                place.drop()
                if is_kept and isinstance(error, NothingSentBackError) and operation in READS:
                    continue
                raise
            if isinstance(found, Answer) and not found.keep:
                place.drop()
            if found.status < FIRST_REFUSAL:  # the date of a refusal is used later, if the refusal is about our clock
                self._service_time.saw(found.headers.get(DATE))
            return found

    async def _connected(self, operation: str, place: WirePlace, origin: Origin) -> LoopConnection:
        """Make a connection to `origin`, put it into the place, and return it. Raises AwsUnreachableError, and
        GivenUpError if this client was closed meanwhile.
        """
        place.drop()

        def connect(job: Job) -> Connection:
            """Connect to the origin. Giving `job` up aborts the connection, even during the handshake."""
            made = Connection(
                origin,
                connect_timeout_s=self._connect_timeout_s,
                read_timeout_s=self._read_timeout_s,
                turn=self._turn,
                on_abortable=job.uses,
            )
            job.uses(None)
            return made

        try:
            place.connection = await self._in_any_thread(connect, Connection.close)
        except OSError as error:
            limit = f" within {self._connect_timeout_s:g} s" if isinstance(error, TimeoutError) else ""
            reason = f"cannot connect to {origin}{limit}: {type(error).__name__}: {error}{self._plain.remedy()}"
            raise AwsUnreachableError(operation, reason) from error
        if self._workers.is_closed:
            place.drop()
            raise GivenUpError
        self._places.hand_to_loop(place)
        assert place.on_loop is not None
        return place.on_loop

    async def close(self) -> None:
        """End the threads, and close all connections. Calls under way fail. May be called again."""
        self._workers.close()
        self._places.close(AwsUnreachableError("close", f"the {self._name} client is closed"))
        await self._plain.close()

    # --- below: in the threads ---------------------------------------------------------------------------------------

    def _prepare(self, client: BaseClient) -> None:
        """Make what the wire client needs from the botocore client. Raises UnusualError if it cannot do its calls."""
        canned = Canned(client)
        is_tls = client.meta.endpoint_url.startswith("https:")
        context = tls_context(client, self._ca_bundle()) if is_tls else None
        self._requests = Requests(self._service_time, canned, self._credentials_of(), context)
        self.can_stream = True

    def _read(self, job: Job, incoming: Incoming, read: Callable[[bytes], T], place: WirePlace) -> T:
        """Read the rest of an answer, and return the result of `read` for its body. If `read` wants parts of the body,
        it gets them as they arrive. Otherwise it gets the whole body; a large one is parsed while no other thread has
        the turn.
        """
        if incoming.is_unchecked and isinstance(read, PartwiseRead) and read.wants_parts:
            parts = read.in_parts()
            self._talk(job, place, lambda connection: connection.receive_parts(incoming, parts.feed))
            value: T = parts.end()
            return value
        body = self._whole(job, incoming, place).body
        if len(body) < TURN_BYTES_MIN:
            return read(body)
        with self._turn:
            return read(body)

    def _whole(self, job: Job, incoming: Incoming, place: WirePlace) -> Answer:
        """Read the rest of an answer, and return the whole answer."""
        return self._talk(job, place, lambda connection: connection.receive(incoming))

    def _talk(self, job: Job, place: WirePlace, talk: Callable[[Connection], Answer]) -> Answer:
        """Return the answer that `talk` reads from the connection that the place has lent to this thread.

        The connection is put back into the place if it can be used again, else closed. After a failure, the place notes
        the origin of the connection as silent, unless the caller gave up soon.
        """
        connection, place.connection = place.connection, None
        assert connection is not None, "`lend` has put a connection into the place"
        keep = False
        job.uses(connection)
        begun_at = time.monotonic()
        try:
            answer = talk(connection)
            keep = answer.keep
            return answer
        except BaseException:
            if not job.given_up or time.monotonic() - begun_at >= SILENCE_S_MIN:
                place.silent = connection.origin
            raise
        finally:
            job.uses(None)
            if keep and not job.given_up:
                place.connection = connection
            else:
                connection.close()


def _decoded(operation: str, body: bytes) -> dict[str, Any]:
    """Return the answer in a body. Raises AwsUnreachableError if the body is no JSON."""
    try:
        return decode_answer(body)
    except (ValueError, RecursionError) as error:
        raise AwsUnreachableError(operation, f"the answer is no JSON: {error}") from error
