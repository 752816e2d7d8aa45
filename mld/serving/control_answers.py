"""What a running daemon answers over its control socket, by what is asked; `control` has the connection.

`log-level` is the one request that changes something, and it changes the log only.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from mld.consumer.protocol_trace import LISTENERS_MAX, ProtocolTrace, ProtocolTraces, TooManyListenersError
from mld.core.clock import Clock, in_turns
from mld.core.positions import keys_meant
from mld.logging.logs import LEVELS, ROOT, LevelChange, LogLevels, UnknownLoggerError, level_name
from mld.serving.control import Answer, ControlRoute, Request, RequestRefused
from mld.serving.daemon_status import DaemonStatus
from mld.serving.status import DaemonFacts, in_pieces, own_status

log = logging.getLogger(__name__)

SHARDS_NAMED_MAX = 20
RESET = "reset"
FOR_S_MAX = 365 * 24 * 3600


class ControlAnswers:
    """The answers of one daemon, made when it starts."""

    def __init__(self, status: DaemonStatus, traces: ProtocolTraces, clock: Clock) -> None:
        self._status = status
        self._traces = traces
        self._clock = clock
        self._levels = LogLevels()
        self._reset_timer: asyncio.TimerHandle | None = None
        self._started_at = clock.monotonic()

    def routes(self) -> Mapping[str, ControlRoute]:
        """Return the routes by the word of the request."""
        return {
            "who": self._who,
            "live": self._live,
            "ready": self._ready,
            "status": self._own,
            "fleet": self._fleet,
            "log-level": self._log_level,
            "tap": self._trace,
        }

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
            log_level=level_name(logging.getLogger().level),
            why_not_alive=self._status.why_not_alive(),
            why_not_ready=self._status.why_not_ready(),
        )
        head = own_status(self._status.metrics, self._status.identity, self._status.instant(), facts)
        shards = iter(head.pop("shards"))
        yield b"".join(await in_turns(in_pieces(head, {"shards": shards}))).rstrip()

    async def _fleet(self, _: Request) -> AsyncGenerator[Answer, None]:
        yield b"".join(await self._status.body(zipped=False)).rstrip()

    # --- the log ------------------------------------------------------------------------------------------------------

    async def _log_level(self, request: Request) -> AsyncGenerator[Answer, None]:
        level, name, for_s = request.get("level"), request.get("logger"), request.get("forSeconds")
        if level not in (*LEVELS, RESET):
            raise RequestRefused(f"there are the levels {', '.join(LEVELS)}, and {RESET}")
        if not isinstance(name, str | None) or not isinstance(for_s, int | float | None):
            raise RequestRefused("logger is a name, and forSeconds a number")
        if for_s is not None and not 0 <= for_s <= FOR_S_MAX:
            raise RequestRefused(f"forSeconds lies between 0 and {FOR_S_MAX}")
        try:
            changes = self._levels.reset(name) if level == RESET else self._levels.change(level, name or ROOT)
        except UnknownLoggerError as error:
            raise RequestRefused(str(error)) from None
        _log_changes(changes)
        if for_s is not None and level != RESET:
            self._reset_later(for_s)
        elif name is None and self._reset_timer is not None:
            self._reset_timer.cancel()
        yield {"changes": [{"logger": one.logger, "old": one.old, "new": one.new} for one in changes]}

    def _reset_later(self, seconds: float) -> None:
        if self._reset_timer is not None:
            self._reset_timer.cancel()
        self._reset_timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._reset)

    def _reset(self) -> None:
        _log_changes(self._levels.reset())

    # --- transcripts --------------------------------------------------------------------------------------------------

    async def _trace(self, request: Request) -> AsyncGenerator[Answer, None]:
        trace = self._trace_of(request.get("shard"))
        try:
            listener = self._traces.listen(trace, is_full=bool(request.get("full")))
        except TooManyListenersError:
            raise RequestRefused(f"{LISTENERS_MAX} others listen already; end one of them") from None
        log.info("somebody listens to the child", extra={"action": "tap_begun", "shard": trace.shard_id})
        try:
            yield self._about(trace)
            async for value in listener.values():
                yield value
        finally:
            self._traces.leave(trace, listener)
            log.info("somebody listens no more", extra={"action": "tap_ended", "shard": trace.shard_id})

    def _trace_of(self, shard: object) -> ProtocolTrace:
        if not isinstance(shard, str):
            raise RequestRefused("name a shard")
        held = self._traces.shards
        found = keys_meant(held, shard, self._status.metrics.stream_labels)
        trace = self._traces.find(found[0]) if len(found) == 1 else None
        if len(found) > 1:
            raise RequestRefused(
                f"this daemon has shard {shard[:200]} of {len(found)} streams: say which one, as STREAM:SHARD; it has "
                f"{', '.join(found[:SHARDS_NAMED_MAX])}"
            )
        if trace is None:
            more = f" and {len(held) - SHARDS_NAMED_MAX} more" if len(held) > SHARDS_NAMED_MAX else ""
            has = f"it has {', '.join(held[:SHARDS_NAMED_MAX])}{more}" if held else "it has none"
            raise RequestRefused(f"this daemon has no lease of shard {shard[:200]!r}; {has}")
        return trace

    def _about(self, trace: ProtocolTrace) -> dict[str, Any]:
        part, at = self._status.metrics.shards.get(trace.shard_id), self._status.instant()  # the key of its lease
        return {
            "shard": trace.shard_id,
            "child": trace.child,
            "state": None if part is None else part.activity_at(at.wall_s).value,
            "busySeconds": None if part is None else part.busy_s(at),
        }


def _log_changes(changes: Iterable[LevelChange]) -> None:
    """Log changes whatever the levels are: a log that falls silent says why."""
    for one in changes:
        fields = {"action": "log_level", "changed_logger": one.logger or "root", "old": one.old, "new": one.new}
        log.handle(log.makeRecord(log.name, logging.INFO, __file__, 0, "log level changed", (), None, extra=fields))


def _verdict(why_not: str | None) -> Answer:
    return {"isMet": why_not is None, "words": why_not or "ok"}
