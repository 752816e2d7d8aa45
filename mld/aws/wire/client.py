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
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mld.aws.aws_failures import aws_failure, is_surprise
from mld.aws.boundary import OUR_OWN, Surprises
from mld.aws.client import CALL_TIMEOUT_S, BotoService
from mld.aws.service import PartwiseRead
from mld.aws.service_time import ServiceTime
from mld.aws.threads import GivenUpError, Job, Workers
from mld.aws.wire.answers import Answer, BrokenAnswerError, Frame, FrameStream, Incoming, NothingSentBackError
from mld.aws.wire.connection import Connection, Origin, Turn
from mld.aws.wire.places import BODY_BYTES_MAX, SILENCE_S_MIN, LoopConnection, Places, PlacesClosedError, WirePlace
from mld.aws.wire.requests import DATE, Canned, Requests, decode_answer, encode_params, tls_context
from mld.aws.wire.unusual import UnusualError
from mld.core.errors import AwsUnreachableError, StartupError
from mld.core.waits import TimeLimit

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials


FIRST_REFUSAL = 300
"""The lowest status of an answer that is none of the wished ones."""
READ_BYTES = 64 * 1024
TURN_BYTES = 256 * 1024
"""Some 0.2 ms, with TLS 0.5 ms."""
AHEAD_BYTES = 64 * 1024
"""Of whole frames that wait; the one under way comes on top of it."""


class WireFrames:
    """The frames of one event stream, read from a socket that it has to itself, on the event loop: nothing blocks here.

    Owns `plain_or_tls`, which is connected; `first` was read from it already. Used on one loop only. Reading stops
    while whole frames wait to be taken (`AHEAD_BYTES`), so that the sender is held up by the connection's own flow
    control. A turn of the loop reads at most `TURN_BYTES`.
    """

    def __init__(self, plain_or_tls: socket.socket, first: bytes, *, chunked: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = plain_or_tls
        self._socket.setblocking(False)
        self._chunked = chunked
        self._stream = FrameStream(chunked=chunked)
        self._failure: Exception | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._is_reading = False
        self._closed = False
        self._feed(first)
        self._read_on()

    async def next(self) -> Frame | None:
        """Return the next frame; None at the end of the answer. Raises OSError or BrokenAnswerError.

        One caller at a time. May be cancelled without loss.
        """
        while True:
            frame = self._stream.take()
            self._read_on()
            if frame is not None:
                return frame
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter

    def close(self) -> None:
        """Close the source. May be called again; a caller of `next` gets an error."""
        if self._closed:
            return
        self._closed = True
        self._over(BrokenAnswerError("the subscription was closed"))
        self._socket.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        if self._is_reading or self._ended or self._is_full:
            return
        self._is_reading = True
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self._look_again()

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())

    @property
    def _is_full(self) -> bool:
        return self._stream.waiting_bytes >= AHEAD_BYTES

    def _readable(self) -> None:
        if not self._is_reading:
            return
        try:
            self._read_turn()
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except Exception as error:  # nobody is above a callback of the loop but the one who waits
            self._over(error)
            return
        if self._is_full:
            self._stop_reading()
        if self._stream.frames:
            self._wake()

    def _read_turn(self) -> None:
        is_tls = isinstance(self._socket, ssl.SSLSocket)
        left = TURN_BYTES
        while left > 0 and not self._is_full and not self._ended:
            data = self._socket.recv(READ_BYTES)
            if not data:
                self._at_eof()
                return
            self._feed(data)
            if not is_tls and len(data) < READ_BYTES:
                return  # there is no more, most likely
            left -= len(data)
        if is_tls:
            self._look_again()

    def _look_again(self) -> None:
        """Look again: what is decrypted already makes no socket readable."""
        if self._is_reading and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._loop.call_soon(self._readable)

    def _feed(self, data: bytes) -> None:
        try:
            self._stream.feed(data)
        except BrokenAnswerError as error:
            self._over(error)
            return
        if self._stream.is_complete:
            self._over(None if self._stream.is_between_frames else BrokenAnswerError("the last event is cut off"))

    def _at_eof(self) -> None:
        """End the body: an answer without announced length ends with its connection; every other one is cut off."""
        if self._chunked or not self._stream.is_between_frames:
            self._over(BrokenAnswerError("the server has closed the connection in the middle of the answer"))
        else:
            self._over(None)

    def _over(self, failure: Exception | None) -> None:
        """Stop reading; frames that are whole can still be taken."""
        if not self._ended:
            self._stop_reading()
            self._ended = True
            self._failure = failure
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


# --- the client -------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

T = TypeVar("T")

READS = frozenset({"GetRecords", "GetShardIterator", "GetItem", "Query", "Scan"})
"""May be repeated on a new connection: they change nothing."""
OPERATIONS = READS | {"UpdateItem", "PutItem", "DeleteItem"}
"""Those whose parameters and answers are JSON but for bytes and times that `encode_params` knows."""
TURN_BYTES_MIN = 256 * 1024
"""Bodies above this are taken apart one at a time (`Turn`)."""
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
        self._service_time = service_time
        self._requests: Requests
        self._turn = Turn()
        self._workers = Workers(threads_max=threads_max, name=f"wire-{name}")
        self._places = Places(calls_max, turn=self._turn)
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._limits: list[TimeLimit] = []  # of no call at the moment
        self.can_stream = False
        """Whether it is the lean client that calls, and `open_stream` is available; known once the service is open."""
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
        if self.can_stream and operation in OPERATIONS:
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
        if self.can_stream and operation in OPERATIONS:
            try:
                return await self._bounded(operation, timeout_s, partial(self._placed, operation, params, read))
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.fetch(operation, params, read, timeout_s=timeout_s)

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> WireFrames:
        """See `mld.aws.service.StreamService.open_stream`."""
        try:
            return await self._bounded(operation, timeout_s, partial(self._opened, operation, params))
        except UnusualError as why:
            raise AwsUnreachableError(operation, f"not without the wire client: {why}") from why

    async def _opened(self, operation: str, params: dict[str, Any], limit: TimeLimit) -> WireFrames:
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
        """See `mld.aws.service.StreamService.in_thread`; one at a time, as with large bodies."""

        def in_turn(_: Job) -> T:
            with self._turn:
                return work()

        async with self._checks:
            return await self._bounded(operation, None, lambda _: self._in_any_thread(in_turn))

    def _give_way(self, why: UnusualError) -> None:
        self.can_stream = False
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
                self._surprises.tell(operation, error)
            raise failure from error
        finally:
            self._limits.append(limit)

    async def _in_any_thread(self, work: Callable[[Job], T], unwanted: Callable[[T], None] | None = None) -> T:
        value: T = await self._workers.submit(Job(work, unwanted)).value()
        return value

    async def _placed(self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], limit: TimeLimit) -> T:
        """Give the place back in any case, by the job if there is one; with a connection only if all was
        well.
        """
        usual = self._requests.usual(operation, params)
        place = await self._places.take(None if usual is None else usual.origin)
        job: Job | None = None
        try:
            found = await self._answered(operation, params, place, limit)
            kept = place.origin
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
            if limit.is_over and kept is not None:
                self._places.distrust(kept)  # at once: the next try may come before the thread has noticed
            raise

    async def _answered(
        self, operation: str, params: dict[str, Any], place: WirePlace, limit: TimeLimit, *, head_only: bool = False
    ) -> Answer | Incoming:
        """Return a good answer, or its beginning. Raises what botocore raises for a bad one. What was refused for our
        clock only is sent once more, with AWS's time.
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
        """Raise what botocore raises for an answer; unless `is_last`, not if it is that our clock was off, and now is
        not.
        """
        self._requests.ask_for_keys()  # it may have been about them

        def explain(job: Job) -> None:
            answer = found if isinstance(found, Answer) else self._whole(job, found, place)
            try:
                self._requests.explain(operation, params, answer)
            except Exception as error:
                if is_last or not self._requests.corrected_clock(error, answer):
                    raise
            else:
                raise AwsUnreachableError(operation, f"HTTP status {answer.status}")

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
        """Return an answer, or the beginning of one that a thread has to read. Without a good connection at the place
        one is made; the place is empty after a failure.
        """
        usual = self._requests.usual(operation, params)
        if usual is None:
            usual = await self._in_any_thread(lambda _: self._requests.asked(operation, params))
        body = encode_params(params)
        while True:
            line = place.on_loop
            is_kept = line is not None and place.origin == usual.origin and line.is_good
            if not is_kept:
                line = await self._connected(operation, place, usual.origin)
            assert line is not None
            request = self._requests.signed(usual, body)
            sent_at = place.asked_s = time.monotonic()
            try:
                found = await line.exchange(request, timeout_s=self._read_timeout_s, head_only=head_only)
            except BaseException as error:
                gave_up = not isinstance(error, Exception) and not limit.is_over
                if is_kept and (not gave_up or time.monotonic() - sent_at >= SILENCE_S_MIN):
                    place.silent = usual.origin
                place.drop()
                if is_kept and isinstance(error, NothingSentBackError) and operation in READS:
                    continue
                raise
            if isinstance(found, Answer) and not found.keep:
                place.drop()
            if found.status < FIRST_REFUSAL:  # a refusal may be for our clock's sake, which is judged with its text
                self._service_time.saw(found.headers.get(DATE))
            return found

    async def _connected(self, operation: str, place: WirePlace, origin: Origin) -> LoopConnection:
        """Return a new connection, which is at the place."""
        place.drop()
        times = {"connect_timeout_s": self._connect_timeout_s, "read_timeout_s": self._read_timeout_s}
        try:
            place.connection = await self._in_any_thread(
                lambda _: Connection(origin, **times, turn=self._turn), Connection.close
            )
        except OSError as error:
            limit = f" within {self._connect_timeout_s:g} s" if isinstance(error, TimeoutError) else ""
            reason = f"cannot connect to {origin}{limit}: {type(error).__name__}: {error}"
            raise AwsUnreachableError(operation, reason) from error
        if self._workers.is_closed:
            place.drop()
            raise GivenUpError
        self._places.wire(place)
        assert place.on_loop is not None
        return place.on_loop

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
        self._requests = Requests(self._service_time, canned, self._credentials_of(), context)
        self.can_stream = True

    def _read(self, job: Job, incoming: Incoming, read: Callable[[bytes], T], place: WirePlace) -> T:
        """Read an answer to its end, and what it says."""
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
        return self._talk(job, place, lambda connection: connection.receive(incoming))

    def _talk(self, job: Job, place: WirePlace, talk: Callable[[Connection], Answer]) -> Answer:
        """Return what `talk` hears on the connection that was lent, which then is left at its place, or is closed."""
        connection, place.connection = place.connection, None
        assert connection is not None, "it was lent with what has come"
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
    try:
        return decode_answer(body)
    except (ValueError, RecursionError) as error:
        raise AwsUnreachableError(operation, f"the answer is no JSON: {error}") from error
