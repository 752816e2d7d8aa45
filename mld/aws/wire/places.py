"""`Places`: limits how many calls of a service are under way at a time, and keeps connections for the next calls.

A call takes a place and gives it back; a free place keeps its connection. At first only a few calls may be under way at
a time. If calls have waited for a place for some time, the number is raised, at most to twice as many: sixty renewals
that are due at the same moment do not need twenty connections. If calls wait for the processor and not for the network
(`TurnWatch`), the number is lowered again, because more calls would only hold more bodies in memory.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from functools import partial

from mld.aws.threads import THREADS_AT_ONCE, WAIT_MAX_S
from mld.aws.wire.connection import Connection, Origin
from mld.aws.wire.loop_connection import LoopConnection
from mld.aws.wire.turns import Turn, TurnWatch

log = logging.getLogger(__name__)
IDLE_MAX_S = 60.0
"""How long an unused connection is kept. Load balancers and NATs keep connections for longer (Amazon's for 350 s)."""
SILENCE_S_MIN = 0.5
"""If a caller gives up after less time, that does not show that the connection is dead; a timeout or a reset does."""
MORE_BELOW_SHARE, FEWER_ABOVE_SHARE = 0.5, 0.9
"""Limits for the share of the time in which large bodies were received and parsed. Below the first limit, calls wait
for the network, and more are allowed; above the second, they wait for the CPU, and fewer are allowed.
"""


class WirePlace:
    """Room for one call and its connection.

    While the loop uses the connection, it is in `on_loop`, and it is open, because only the place closes it. While the
    connection is lent to a thread, it is in `connection`; the thread leaves it there if it can be used again. If a call
    got no answer, `silent` is the origin of its connection. While a call waits for its answer, `asked_s` is the time at
    which the call was sent; otherwise it is infinite.
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
        """Take the connection from the loop, for a thread."""
        if self.on_loop is not None:
            self.connection, self.on_loop = self.on_loop.release(), None

    def drop(self) -> None:
        """Close the connection, if there is one."""
        if self.on_loop is not None:
            self.on_loop.close()
        if self.connection is not None:
            self.connection.close()
        self.on_loop = self.connection = None


class PlacesClosedError(Exception):
    """No place is given out, because the service is closed."""


class Places:
    """Gives out places to calls. Used on one loop only."""

    def __init__(self, places_max: int, *, wait_max_s: float = WAIT_MAX_S, turn: Turn | None = None) -> None:
        """Give out at most `places_max` places at a time: only a few at first, and more when calls have waited for
        longer than `wait_max_s`. `turn` is the one that threads take to receive large bodies.
        """
        self._watch = TurnWatch(turn)
        self._places_max = places_max
        self._allowed = self._allowed_min = min(THREADS_AT_ONCE, places_max)
        """How many calls may be under way at a time now."""
        self._wait_max_s = wait_max_s
        self._idle: list[WirePlace] = []  # free places with a connection, the one used last at the end
        self._busy: set[WirePlace] = set()  # places that calls have taken
        self._waiting: deque[tuple[asyncio.Future[WirePlace], float]] = deque()  # callers, and since when each waits
        self._queue_check: asyncio.TimerHandle | None = None  # set while calls wait for a place
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    async def take(self, origin: Origin | None) -> WirePlace:
        """Return a free place; wait for one if necessary. Raises PlacesClosedError.

        If possible it has a connection to `origin` (None: to any origin).
        """
        if self._is_closed:
            raise PlacesClosedError
        if len(self._busy) >= self._allowed:
            return await self._next_free()
        place = self._free_one(origin)
        self._busy.add(place)
        return place

    def give_back(self, place: WirePlace) -> None:
        """Free the place, or pass it to a waiting caller. Never raises.

        The caller has dropped the connection before if it cannot be used again. A connection that a thread has left in
        the place goes back to the loop. A place that nobody waits for is kept only if it has a connection. If the call
        got no answer (`silent`), the idle connections to the same origin are closed.
        """
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
                self.hand_to_loop(place)
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
        """Close the idle connections to `origin`, because a call to it got no answer.

        The other connections may be dead for the same reason. If they were kept, each retry would take the next dead
        one, and wait for its timeout.
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
        """Close idle connections, and give out no more places.

        Callers that wait for a place get PlacesClosedError; callers that wait on the loop for an answer get `reason`.
        """
        self._is_closed = True
        if self._queue_check is not None:
            self._queue_check.cancel()
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
        """Return a free place: of those with a connection to `origin`, the one that was used last.

        Otherwise return a new place or, if there are already as many as allowed, an idle one whose connection to
        another origin is dropped.

        While a call has been waiting for its answer for `SILENCE_S_MIN`, a kept connection is used only if it got an
        answer after that call was sent. Otherwise it may be dead, like the connection of that call; a new one is used
        instead. If the service is only slow, it answers on new connections, too.
        """
        now = time.monotonic()
        limit_s = now - IDLE_MAX_S
        while self._idle and self._idle[0].idle_since_s < limit_s:
            self._idle.pop(0).drop()
            self._allowed = max(self._allowed_min, min(self._allowed, len(self)))  # fewer are used: allow fewer
        if self._idle and self._idle[-1].idle_since_s < now - SILENCE_S_MIN:
            oldest_asked_s = min((place.asked_s for place in self._busy), default=math.inf)
            if oldest_asked_s < now - SILENCE_S_MIN and self._idle[-1].idle_since_s < oldest_asked_s:
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
        """Wait until a place is free, and return it. If the caller is cancelled just when it gets a place, the place is
        given back.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[WirePlace] = loop.create_future()
        self._waiting.append((waiter, loop.time()))
        if self._queue_check is None:
            self._watch.begin()
            self._queue_check = loop.call_later(self._wait_max_s, self._check_queue)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result())
            raise

    def _check_queue(self) -> None:
        """Raise the number of calls that may be under way if some have waited too long for a place and the network is
        the cause; lower it if the processor is the cause. The share of the time in which bodies were received and
        parsed (`TurnWatch.share`) shows which of them it is. While any call waits, this is called again.
        """
        self._queue_check = None
        loop = asyncio.get_running_loop()
        limit_s = loop.time() - self._wait_max_s
        late = [waiter for waiter, since_s in self._waiting if since_s <= limit_s and not waiter.done()]
        busy_share = self._watch.share()
        if busy_share > FEWER_ABOVE_SHARE:
            self._allowed = max(self._allowed_min, self._allowed // 2)
        elif busy_share < MORE_BELOW_SHARE:
            self._allowed = min(self._places_max, self._allowed + min(len(late), self._allowed))
        for waiter in late[: max(0, self._allowed - len(self._busy))]:
            place = self._free_one(None)
            self._busy.add(place)
            waiter.set_result(place)
        while self._waiting and self._waiting[0][0].done():
            self._waiting.popleft()
        if self._waiting:
            self._queue_check = loop.call_later(self._wait_max_s, self._check_queue)

    def hand_to_loop(self, place: WirePlace) -> None:
        """Give the loop the connection that a thread has made, or has left in the place. If that fails, close the
        connection and raise the error.
        """
        connection, place.connection = place.connection, None
        assert connection is not None
        try:
            connection.let_go()
            place.on_loop = LoopConnection(connection, partial(self._lost, place))
        except BaseException:
            connection.close()
            raise

    def _lost(self, place: WirePlace) -> None:
        """Drop a connection that has ended while no call used it. Its place may be idle, or taken by the next call."""
        place.drop()
        if place in self._idle:
            self._idle.remove(place)
