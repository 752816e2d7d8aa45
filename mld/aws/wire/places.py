"""`Places`: how many calls of a service are under way at a time, and the connections that are kept between them.

A call takes a place and gives it back; an idle place mostly has a connection. A few calls go on at once. More may only
once calls have waited for some time, at most twice as many then: sixty renewals that are due at the same moment need no
twenty connections. And as few as at first go on while it is the processor that they wait for (`TurnWatch`): more would
only have more bodies in memory.

Requests go out and small answers come in on the loop (`LoopConnection`). A large answer, and one whose length is not
announced, is left to a thread and `Connection.receive` as soon as its head is known. A call that crosses to a thread
and back costs two wake-ups: at the tip of a stream, a third of a poll.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from mld.aws.threads import THREADS_AT_ONCE, WAIT_MAX_S
from mld.aws.wire.answers import Answer, BrokenAnswerError, Incoming, NothingSentBackError
from mld.aws.wire.connection import GONE, LATER, Connection, Origin, Turn, TurnWatch
from mld.core.waits import LazyTimer

BODY_BYTES_MAX = 8 * 1024
"""Of an answer that is made into values on the loop: 0.1 ms, and 1.5 ms where each record needs the slow way."""
READ_BYTES = 2 * BODY_BYTES_MAX


class LoopConnection:
    """Has `connection`, and calls `lost` when that ends while it is idle. Used on one loop, for one call at a time."""

    def __init__(self, connection: Connection, lost: Callable[[], None]) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._socket = connection.socket
        self._fd = connection.socket.fileno()
        self._is_tls = isinstance(connection.socket, ssl.SSLSocket)
        self._lost = lost
        self._answer: asyncio.Future[Answer | Incoming] | None = None
        self._incoming = Incoming()
        self._head_only = False
        self._unsent = b""
        self._timeout_s = 0.0
        self._timer = LazyTimer(lambda: self.fail(TimeoutError(f"no answer within {self._timeout_s:g} s")))
        self._has_fd = True
        self._loop.add_reader(self._fd, self._readable)

    @property
    def is_good(self) -> bool:
        """Whether it has not ended since it was used."""
        return self._has_fd and not self.connection.is_stale()

    async def exchange(self, request: bytes, *, timeout_s: float, head_only: bool = False) -> Answer | Incoming:
        """Return an answer, or as much of a large one as has come, with which a thread goes on after `release`.
        `head_only`: no more than its head, whatever its size.

        Raises NothingSentBackError, and whatever else went wrong; after that and a cancellation `close` is due.
        """
        assert self._answer is None, "one call at a time"
        self._incoming, self._head_only = Incoming(), head_only
        self._answer = self._loop.create_future()
        answer = self._answer
        self._timeout_s = timeout_s
        self._timer.begin(timeout_s)
        try:
            self._send(request)
            return await answer
        finally:
            self._timer.end()
            self._answer = None
            if answer.done() and not answer.cancelled():
                answer.exception()  # of one who was cancelled meanwhile; fetched so that nobody reports it

    def fail(self, error: Exception) -> None:
        """Give whoever waits for an answer this error instead."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def release(self) -> Connection:
        """Leave the connection to a thread."""
        self._let_go_of_fd()
        self.connection.take_back()
        return self.connection

    def close(self) -> None:
        self._let_go_of_fd()
        self.connection.close()

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _let_go_of_fd(self) -> None:
        self._timer.close()
        if self._has_fd:
            self._has_fd = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)

    def _send(self, request: bytes) -> None:
        try:
            sent = self._socket.send(request)
        except LATER:
            sent = 0
        except GONE as error:
            self.fail(NothingSentBackError(f"{type(error).__name__}: {error}"))
            return
        if sent < len(request):
            self._unsent = request[sent:]
            self._loop.add_writer(self._fd, self._writable)

    # Callbacks of the loop have nobody above them: whatever is raised in one goes to the one who waits for the answer.

    def _writable(self) -> None:
        try:
            self._loop.remove_writer(self._fd)
            unsent, self._unsent = self._unsent, b""
            if self._answer is not None and not self._answer.done():
                self._send(unsent)
        except Exception as error:
            self.fail(error)

    def _readable(self) -> None:
        answer = self._answer
        try:
            if answer is None:
                self._look_while_idle()
            elif not answer.done():  # else about to be taken, or to be closed
                self._read(answer)
        except Exception as error:
            self.fail(error)

    def _read(self, answer: asyncio.Future[Answer | Incoming]) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except LATER:
            return
        except GONE as error:
            raise self._incoming.cut_off(f"{type(error).__name__}: {error}") from error
        if not data:
            self._incoming.end()
        self._feed(data, answer)
        if self._is_tls and not answer.done() and self._socket.pending():  # type: ignore[attr-defined]
            self._loop.call_soon(self._readable_again, answer)

    def _look_while_idle(self) -> None:
        try:
            self._socket.recv(1)
        except LATER:
            return  # TLS talks to itself
        except Exception:
            self._lost()
            return
        self._lost()

    def _readable_again(self, answer: asyncio.Future[Answer | Incoming]) -> None:
        """Report it readable again: what is decrypted already makes no socket readable."""
        if self._answer is answer and self._has_fd:
            self._readable()

    def _feed(self, data: bytes, answer: asyncio.Future[Answer | Incoming]) -> None:
        incoming = self._incoming
        if self._head_only:
            found, is_small = None, not incoming.feed_head(data)
        else:
            found = incoming.feed(data)
            is_small = incoming.length is not None and incoming.length <= BODY_BYTES_MAX
        if found is None and (is_small or not incoming.status):
            return
        if self._unsent:  # the other end has answered before it has heard all: what follows would be out of step
            raise BrokenAnswerError("an answer to half a request")
        if found is None:
            self._let_go_of_fd()  # before more arrives
        answer.set_result(incoming if found is None else found)


# --- places -----------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

IDLE_MAX_S = 60.0
"""Of a connection before it is closed unused: below what load balancers and NATs keep (Amazon's: 350 s)."""

SILENCE_S_MIN = 0.5
"""A caller who gives up sooner says nothing about the connection; a time-out or a reset does."""
MORE_BELOW_SHARE, FEWER_ABOVE_SHARE = 0.5, 0.9
"""Of the time in which large bodies were read: callers wait for the network below, above for the processor."""


class WirePlace:
    """Room for one call. `connection` is what a thread may use, and leaves there if it is as good as new.

    `on_loop` is open whenever it is there: nobody but the place closes it. `silent` is the origin to which a kept
    connection led on which a call got no answer. `asked_s` is when the call was sent that waits for its answer.
    """

    __slots__ = ("asked_s", "connection", "idle_since_s", "on_loop", "silent")

    def __init__(self) -> None:
        self.on_loop: LoopConnection | None = None
        self.connection: Connection | None = None
        self.silent: Origin | None = None
        self.idle_since_s = 0.0
        self.asked_s = math.inf

    @property
    def origin(self) -> Origin | None:
        return None if self.on_loop is None else self.on_loop.connection.origin

    def lend(self) -> None:
        """Lend the connection to a thread."""
        if self.on_loop is not None:
            self.connection, self.on_loop = self.on_loop.release(), None

    def drop(self) -> None:
        """Close what there is."""
        if self.on_loop is not None:
            self.on_loop.close()
        if self.connection is not None:
            self.connection.close()
        self.on_loop = self.connection = None


class PlacesClosedError(Exception):
    """There are no places any more."""


class Places:
    """At most `places_max` are taken at a time. Used on one loop only."""

    def __init__(self, places_max: int, *, wait_max_s: float = WAIT_MAX_S, turn: Turn | None = None) -> None:
        self._watch = TurnWatch(turn)
        self._places_max = places_max
        self._allowed = self._allowed_min = min(THREADS_AT_ONCE, places_max)
        """Calls at a time."""
        self._wait_max_s = wait_max_s
        self._idle: list[WirePlace] = []
        self._busy: set[WirePlace] = set()
        self._waiting: deque[tuple[asyncio.Future[WirePlace], float]] = deque()
        self._look: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    async def take(self, origin: Origin | None) -> WirePlace:
        """Return a place, if possible with a connection to `origin` (None: to anywhere). Raises PlacesClosedError."""
        if self._is_closed:
            raise PlacesClosedError
        if len(self._busy) >= self._allowed:
            return await self._next_free()
        place = self._free_one(origin)
        self._busy.add(place)
        return place

    def give_back(self, place: WirePlace) -> None:
        """Free the place: with a good connection in it, `on_loop` or left by a thread, or with none. Never raises."""
        self._busy.discard(place)
        place.asked_s = math.inf
        if self._is_closed:
            place.drop()
            return
        if place.silent is not None:
            silent, place.silent = place.silent, None
            self.distrust(silent)
        if place.connection is not None:
            try:
                self.wire(place)
            except Exception as error:  # the loop can watch no more descriptors, for example
                log.debug("a connection is not kept: %s", error, extra={"action": "connection_dropped"})
        while self._waiting and len(self._busy) < self._allowed:
            waiter, _ = self._waiting.popleft()
            if not waiter.done():
                self._busy.add(place)
                waiter.set_result(place)
                return
        if place.on_loop is not None:
            place.idle_since_s = time.monotonic()
            self._idle.append(place)

    def distrust(self, origin: Origin) -> None:
        """Distrust kept connections, as one has led nowhere: what made it so may have met all that were made before.

        Else every retry would draw the next dead one, each for as long as a time-out.
        """
        distrusted = [place for place in self._idle if place.origin == origin]
        self._idle = [place for place in self._idle if place.origin != origin]
        for place in distrusted:
            place.drop()
        if distrusted:
            log.info(
                "closed %d idle connections to %s after a call without an answer",
                len(distrusted),
                origin.host,
                extra={"action": "connections_distrusted"},
            )

    def close(self, reason: Exception) -> None:
        """Close idle connections; whoever waits for a place or for an answer on the loop gets the reason."""
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()
        for waiter, _ in self._waiting:
            if not waiter.done():
                waiter.set_exception(PlacesClosedError())
        for place in self._idle:
            place.drop()
        for place in self._busy:
            if place.on_loop is not None:
                place.on_loop.fail(reason)
        self._idle = []
        self._waiting.clear()

    def _free_one(self, origin: Origin | None) -> WirePlace:
        """Return the free place that was used last; a new one if there may be more; else one to elsewhere.

        While a call is silent, no connection is used that has not answered since: the silent one may lead nowhere,
        and what made it so may have met all that were made before. A slow service answers on new ones as well.
        """
        now = time.monotonic()
        limit_s = now - IDLE_MAX_S
        while self._idle and self._idle[0].idle_since_s < limit_s:
            self._idle.pop(0).drop()
            self._allowed = max(self._allowed_min, min(self._allowed, len(self)))
        if self._idle and self._idle[-1].idle_since_s < now - SILENCE_S_MIN:
            silent_s = min((place.asked_s for place in self._busy), default=math.inf)
            if silent_s < now - SILENCE_S_MIN and self._idle[-1].idle_since_s < silent_s:
                self._idle.pop(0).drop()
                return WirePlace()
        for index in range(len(self._idle) - 1, -1, -1):
            if origin is None or self._idle[index].origin == origin:
                return self._idle.pop(index)
        if not self._idle or len(self) < self._allowed:
            return WirePlace()
        place = self._idle.pop(0)
        place.drop()
        return place

    async def _next_free(self) -> WirePlace:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[WirePlace] = loop.create_future()
        self._waiting.append((waiter, loop.time()))
        if self._look is None:
            self._watch.begin()
            self._look = loop.call_later(self._wait_max_s, self._look_at_queue)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result())
            raise

    def _look_at_queue(self) -> None:
        """Allow more calls at a time if some have waited too long, for the network; and look again while anybody
        waits.
        """
        self._look = None
        loop = asyncio.get_running_loop()
        limit_s = loop.time() - self._wait_max_s
        late = [waiter for waiter, since_s in self._waiting if since_s <= limit_s and not waiter.done()]
        share = self._watch.share()
        if share > FEWER_ABOVE_SHARE:
            self._allowed = max(self._allowed_min, self._allowed // 2)
        elif share < MORE_BELOW_SHARE:
            self._allowed = min(self._places_max, self._allowed + min(len(late), self._allowed))
        for waiter in late[: max(0, self._allowed - len(self._busy))]:
            place = self._free_one(None)
            self._busy.add(place)
            waiter.set_result(place)
        while self._waiting and self._waiting[0][0].done():
            self._waiting.popleft()
        if self._waiting:
            self._look = loop.call_later(self._wait_max_s, self._look_at_queue)

    def wire(self, place: WirePlace) -> None:
        """Give the loop the connection that a thread has left or made. Raises what the machine says if it cannot."""
        connection, place.connection = place.connection, None
        assert connection is not None
        try:
            connection.let_go()
            place.on_loop = LoopConnection(connection, partial(self._lost, place))
        except BaseException:
            connection.close()
            raise

    def _lost(self, place: WirePlace) -> None:
        """Note that a connection has ended while no call used it; the place may be idle, or in the hands of the
        next caller.
        """
        place.drop()
        if place in self._idle:
            self._idle.remove(place)
