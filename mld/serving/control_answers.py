"""What a running daemon answers over its control socket, by what is asked; `control` has the connection."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping

from mld.clock import Clock
from mld.serving.control import Answer, ControlRoute, Request
from mld.serving.daemon_status import DaemonStatus
from mld.serving.own_status import DaemonFacts, own_status


class ControlAnswers:
    """The answers of one daemon, made when it starts."""

    def __init__(self, status: DaemonStatus, clock: Clock) -> None:
        self._status = status
        self._clock = clock
        self._started_at = clock.monotonic()

    def routes(self) -> Mapping[str, ControlRoute]:
        """By the word of the request."""
        return {"who": self._who, "live": self._live, "ready": self._ready, "status": self._own, "fleet": self._fleet}

    async def _who(self, _: Request) -> AsyncGenerator[Answer, None]:
        me = self._status.identity
        yield {"application": me.application, "worker": me.worker, "pid": os.getpid()}

    async def _live(self, _: Request) -> AsyncGenerator[Answer, None]:
        yield _verdict(self._status.why_not_alive())

    async def _ready(self, _: Request) -> AsyncGenerator[Answer, None]:
        yield _verdict(self._status.why_not_ready())

    async def _own(self, _: Request) -> AsyncGenerator[Answer, None]:
        facts = DaemonFacts(
            pid=os.getpid(),
            up_s=self._clock.monotonic() - self._started_at,
            mode=self._status.mode,
            log_level=logging.getLevelName(logging.getLogger().level).lower(),
            why_not_alive=self._status.why_not_alive(),
            why_not_ready=self._status.why_not_ready(),
        )
        yield own_status(self._status.snapshot(), facts)

    async def _fleet(self, _: Request) -> AsyncGenerator[Answer, None]:
        yield await self._status.document()


def _verdict(why_not: str | None) -> Answer:
    return {"isMet": why_not is None, "words": why_not or "ok"}
