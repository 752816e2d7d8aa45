"""`ConnectionPool`: bounds the calls of a service that are under way, and keeps connections between them.

The first few calls are admitted at once. More than these are admitted only after they have waited for some time, at
most twice as many then: sixty renewals that are due at the same moment need no twenty connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from mld.aws.wire.connection import Connection, Origin

log = logging.getLogger(__name__)

IDLE_MAX_S = 60.0
"""How long a connection is kept unused: less than load balancers and NATs keep it (Amazon's: 350 s)."""
CALLS_AT_ONCE = 4
"""Admitted without waiting."""
WAIT_MAX_S = 0.02
"""How long calls wait before more of them are admitted. A call to AWS takes some 10 ms."""


class CallAdmission:
    """The admission of one call. `connection` is the one to use, kept afterwards if it can be; None: open one."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection | None = None) -> None:
        self.connection = connection


class ConnectionPool:
    """At most `calls_max` calls, under way or with an idle connection. Used on one loop only."""

    def __init__(self, calls_max: int, *, wait_max_s: float = WAIT_MAX_S) -> None:
        self._calls_max = calls_max
        self._wait_max_s = wait_max_s
        self._idle: list[Connection] = []  # the one used last is the last
        self._waiting: deque[tuple[asyncio.Future[CallAdmission], float]] = deque()
        self._look: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.busy = 0

    def __len__(self) -> int:
        return self.busy + len(self.idle)

    @property
    def idle(self) -> list[Connection]:
        """Idle connections that have not ended."""
        return [connection for connection in self._idle if connection.is_open]

    async def admit(self, origin: Origin) -> CallAdmission:
        """An admission, if possible with a good connection to `origin`."""
        admission = self._admission_now(origin)
        if admission is None:
            admission = await self._next_admission()
        else:
            self.busy += 1
        kept = admission.connection
        if kept is not None and (kept.origin != origin or not kept.is_good):
            kept.close()
            admission.connection = None
        return admission

    def give_back(self, admission: CallAdmission) -> None:
        """The call is over. Never raises."""
        connection = admission.connection
        if connection is not None and (self._is_closed or not connection.may_reuse):
            connection.close()
            connection = None
        while self._waiting:
            waiter, _ = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(CallAdmission(connection))
                return
        self.busy -= 1
        if connection is not None:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)

    def distrust(self, origin: Origin) -> None:
        """A kept connection has led nowhere: what made it so may have met all that were made before.

        Otherwise every retry would draw the next dead one, each for as long as a time-out.
        """
        distrusted = [connection for connection in self.idle if connection.origin == origin]
        for connection in distrusted:
            connection.close()
        if distrusted:
            log.info(
                "closed %d idle connections to %s after a call without an answer",
                len(distrusted),
                origin.host,
                extra={"action": "connections_distrusted"},
            )

    def close(self) -> None:
        """Close idle connections; those of calls under way are closed when they are given back."""
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()
        for connection in self._idle:
            connection.close()

    def _admission_now(self, origin: Origin) -> CallAdmission | None:
        """With the connection used last; a new one if there may be more; else in the place of one to elsewhere."""
        limit_s = asyncio.get_running_loop().time() - IDLE_MAX_S
        for connection in self._idle:
            if connection.idle_since_s < limit_s:
                connection.close()
        self._idle = self.idle
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].origin == origin:
                return CallAdmission(self._idle.pop(index))
        if len(self) < min(CALLS_AT_ONCE, self._calls_max):
            return CallAdmission()
        if self._idle:
            self._idle.pop(0).close()
            return CallAdmission()
        return None

    async def _next_admission(self) -> CallAdmission:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[CallAdmission] = loop.create_future()
        self._waiting.append((waiter, loop.time()))
        if self._look is None and len(self) < self._calls_max:
            self._look = loop.call_later(self._wait_max_s, self._look_at_queue)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_back(waiter.result())
            raise

    def _look_at_queue(self) -> None:
        """Admit more of those that have waited too long; and look again while anybody waits."""
        self._look = None
        loop = asyncio.get_running_loop()
        limit_s = loop.time() - self._wait_max_s
        late = [waiter for waiter, since_s in self._waiting if since_s <= limit_s and not waiter.done()]
        for waiter in late[: min(len(self), self._calls_max - len(self))]:
            self.busy += 1
            waiter.set_result(CallAdmission())
        while self._waiting and self._waiting[0][0].done():
            self._waiting.popleft()
        if self._waiting and len(self) < self._calls_max:
            self._look = loop.call_later(self._wait_max_s, self._look_at_queue)
