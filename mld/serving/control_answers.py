"""`ControlAnswers`: the answers of a daemon on its control socket: its identity, probes, its status, and protocol
traces.

A protocol trace is the live transcript of the messages between the daemon and a child (`mld tap`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from mld.consumer.protocol_trace import LISTENERS_MAX, ProtocolTrace, ProtocolTraces, TooManyListenersError
from mld.core.clock import Clock
from mld.core.stream_ids import keys_meant
from mld.core.turns import in_turns
from mld.serving.control import Answer, ControlRoute, Request, RequestRefused
from mld.serving.daemon_status import DaemonStatus
from mld.serving.json_pieces import in_pieces
from mld.serving.own_shards import own_shards, processes_value

log = logging.getLogger(__name__)


SHARDS_NAMED_MAX = 20


class ControlAnswers:
    """The answers of one daemon."""

    def __init__(self, status: DaemonStatus, traces: ProtocolTraces, clock: Clock) -> None:
        self._status = status
        self._traces = traces
        self._clock = clock
        self._started_at = clock.monotonic()

    def routes(self) -> Mapping[str, ControlRoute]:
        """Return for each word that a request may ask for the function that answers it."""
        return {
            "who": self._who,
            "live": self._live,
            "ready": self._ready,
            "status": self._own,
            "tap": self._trace,
        }

    async def _who(self, _: Request) -> AsyncGenerator[Answer, None]:
        """Yield which application, worker and process answers here."""
        me = self._status.identity
        yield {"application": me.application, "worker": me.worker, "pid": os.getpid()}

    async def _live(self, _: Request) -> AsyncGenerator[Answer, None]:
        """Yield the answer to the liveness probe: whether all loops make progress."""
        yield _verdict(self._status.why_not_alive())

    async def _ready(self, _: Request) -> AsyncGenerator[Answer, None]:
        """Yield the answer to the readiness probe: whether this daemon works and is not stopping."""
        yield _verdict(self._status.why_not_ready())

    async def _own(self, _: Request) -> AsyncGenerator[Answer, None]:
        """Yield the state of this daemon and its shards, for `mld status`."""
        head = self._status.own(self._clock.monotonic() - self._started_at)
        shards = own_shards(self._status.metrics, self._status.instant())
        # The server ends each answer with a line break itself.
        yield b"".join(await in_turns(in_pieces(head, {"shards": iter(shards)}))).rstrip()

    # --- transcripts --------------------------------------------------------------------------------------------------

    async def _trace(self, request: Request) -> AsyncGenerator[Answer, None]:
        """Yield a description of the shard's child, and then each message between the daemon and the child."""
        trace = self._trace_of(request.get("shard"))
        try:
            listener = self._traces.listen(trace)
        except TooManyListenersError:
            raise RequestRefused(f"end another `mld tap`: {LISTENERS_MAX} follow shards of this daemon") from None
        log.info("a caller follows the child's messages", extra={"action": "tap_begun", "shard": trace.shard_id})
        try:
            yield self._about(trace)
            async for value in listener.values():
                yield value
        finally:
            self._traces.leave(trace, listener)
            log.info("a caller no longer follows them", extra={"action": "tap_ended", "shard": trace.shard_id})

    def _trace_of(self, shard: object) -> ProtocolTrace:
        """Return the trace of the shard that the caller names. Raises RequestRefused if it is not exactly one."""
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
        """Return a description of the shard's child now, which is sent before its messages."""
        part = self._status.metrics.shards.get(trace.shard_id)  # `trace.shard_id` is the lease key
        at = self._status.instant()
        return {
            "shard": trace.shard_id,
            "child": trace.running,
            "state": None if part is None else part.activity_at(at.wall_s).value,
            "busySeconds": None if part is None else part.busy_s(at),
            **({} if part is None else processes_value(part, at)),
        }


def _verdict(why_not: str | None) -> Answer:
    """Return the answer to a probe; `why_not` is the reason if the answer is no, else None."""
    return {"isMet": why_not is None, "words": why_not or "ok"}
