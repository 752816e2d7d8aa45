"""`Places`: how many calls of a service are under way at a time, and the connections that are kept between them.

A call takes a place and gives it back; an idle place mostly has a connection. A few calls go on at once. More may only
once calls have waited for some time, at most twice as many then: sixty renewals that are due at the same moment need no
twenty connections. And as few as at first go on while it is the processor that they wait for (`TurnWatch`): more would
only have more bodies in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial

from mld.aws.threads import THREADS_AT_ONCE, WAIT_MAX_S
from mld.aws.wire.connection import Connection, Origin, Turn, TurnWatch
from mld.aws.wire.loop_connection import LoopConnection

log = logging.getLogger(__name__)

IDLE_MAX_S = 60.0
"""Of a connection before it is closed unused: below what load balancers and NATs keep (Amazon's: 350 s)."""

MORE_BELOW_SHARE, FEWER_ABOVE_SHARE = 0.5, 0.9
"""Of the time in which large bodies were read: callers wait for the network below, above for the processor."""


class WirePlace:
    """Room for one call. `connection` is what a thread may use, and leaves there if it is as good as new.

    `on_loop` is open whenever it is there: nobody but the place closes it. `silent` is the origin to which a kept
    connection led on which a call got no answer.
    """

    __slots__ = ("connection", "idle_since_s", "on_loop", "silent")

    def __init__(self) -> None:
        self.on_loop: LoopConnection | None = None
        self.connection: Connection | None = None
        self.silent: Origin | None = None
        self.idle_since_s = 0.0

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
        if self._is_closed:
            place.drop()
            return
        if place.silent is not None:
            silent, place.silent = place.silent, None
            self.distrust(silent)
        if place.connection is not None:
            self._wire(place)
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
        """Return the free place that was used last; a new one if there may be more; else one to elsewhere."""
        limit_s = time.monotonic() - IDLE_MAX_S
        while self._idle and self._idle[0].idle_since_s < limit_s:
            self._idle.pop(0).drop()
            self._allowed = max(self._allowed_min, min(self._allowed, len(self)))
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

    def _wire(self, place: WirePlace) -> None:
        """Give the connection that a thread has left back to the loop, if it is as good as it should be."""
        connection, place.connection = place.connection, None
        assert connection is not None
        try:
            connection.let_go()
            place.on_loop = LoopConnection(connection, partial(self._lost, place))
        except Exception as error:  # the loop can watch no more descriptors, for example
            log.debug("a connection is not kept: %s", error, extra={"action": "connection_dropped"})
        if place.on_loop is None:
            connection.close()

    def _lost(self, place: WirePlace) -> None:
        """Note that a connection has ended while no call used it; the place may be idle, or in the hands of the
        next caller.
        """
        place.drop()
        if place in self._idle:
            self._idle.remove(place)
