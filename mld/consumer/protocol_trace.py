"""`ProtocolTrace`: copies the lines that a child and the daemon exchange to listeners (`mld tap`).

A trace never delays the exchange: lines that a listener does not read in time are dropped, and without listeners the
only cost is the check of an empty list. The trace of a shard lasts as long as its lease is held, across restarts of its
child.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from mld.consumer.lifecycle import StopReason
from mld.consumer.short_line import LINE_CHARACTERS_MAX, ShortLine
from mld.core.clock import Clock

LISTENERS_MAX = 4  # listeners of a worker; each may take as much memory as the bounds below allow
WAITING_BYTES_MAX = 1024 * 1024  # in the queue of one listener
EVENTS_WAITING_MAX = 10_000  # lines and events in this queue
EVENT_BYTES = 200  # memory of an event besides its text
END_WORDS = {
    StopReason.REQUESTED: "this worker gives the lease back",
    StopReason.HANDOFF: "the lease goes to another worker",
    StopReason.LEASE_LOST: "the lease is lost: another worker has it, or it expired",
}
TO_CHILD, FROM_CHILD = "toChild", "fromChild"
Transcribed = dict[str, Any]
"""A line or an event in the form in which listeners get it, ready for JSON."""


class TraceListener:
    """The queue of the lines and events that one listener has not read yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Transcribed]] = deque()  # each value with its size
        self._bytes = 0  # the size of all waiting values
        self._woken = asyncio.Event()
        self._is_over = False  # whether the last value was queued

    def offer(self, value: Transcribed, size: int) -> None:
        """Queue a value of about `size` bytes; if the queue is full, count it as lost."""
        size += EVENT_BYTES
        if self._bytes + size <= WAITING_BYTES_MAX and len(self._waiting) < EVENTS_WAITING_MAX:
            self._waiting.append((size, value))
            self._bytes += size
        else:
            self.lose()
        self._woken.set()

    def lose(self) -> None:
        """Note in the queue that an event is missing at this place."""
        if self._waiting and "lost" in self._waiting[-1][1]:
            self._waiting[-1][1]["lost"] += 1
        else:
            self._waiting.append((0, {"lost": 1}))

    def end(self, value: Transcribed) -> None:
        """Queue the last value, even if the queue is full; after it `values` ends."""
        self._waiting.append((0, value))
        self._is_over = True
        self._woken.set()

    async def values(self) -> AsyncGenerator[Transcribed, None]:
        """Yield the values in order, until the last one."""
        while True:
            while self._waiting:
                size, value = self._waiting.popleft()
                self._bytes -= size
                yield value
            if self._is_over:
                return
            self._woken.clear()
            await self._woken.wait()


class ProtocolTrace:
    """The trace of one shard's children while its lease is held."""

    def __init__(self, shard_id: str, clock: Clock) -> None:
        self.shard_id = shard_id
        self.listeners: list[TraceListener] = []
        self.child: str | None = None
        """The running child, as the log names it."""
        self.number: int | None = None
        """The number of the child, if the shard has several."""
        self.children: dict[int, ProtocolTrace] = {}
        """The traces of the children by number, if the shard has several."""
        self._clock = clock

    def of_child(self, number: int) -> ProtocolTrace:
        """Make the trace of child `number`, keep it in `children`, and return it. Listeners to the shard's trace get
        its lines, too.
        """
        trace = ProtocolTrace(self.shard_id, self._clock)
        trace.listeners, trace.number = self.listeners, number
        self.children[number] = trace
        return trace

    @property
    def running(self) -> str | None:
        """The running child, or the running children with their numbers, as the log names them; None if none runs."""
        if not self.children:
            return self.child
        children = sorted(self.children.items())
        return ", ".join(f"child {number}: {trace.child}" for number, trace in children if trace.child) or None

    def copied(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces of a line that is written to the child, unchanged. Then copy the line, shortened, to the
        listeners, even if only a part of it was written.
        """
        listeners = tuple(self.listeners)
        short = ShortLine()
        at = self._clock.wall()
        is_whole = False
        try:
            for piece in pieces:
                short.feed(piece)
                yield piece
            is_whole = True
        finally:
            self._send_short(listeners, at, TO_CHILD, short, is_whole=is_whole)

    def heard(self, line: str) -> None:
        """Copy a line of the child's stdout to the listeners: its beginning, and its length in bytes."""
        at = self._clock.wall()
        short = ShortLine()
        short.feed(line[:LINE_CHARACTERS_MAX].encode("utf-8", "replace"))
        short.size = len(line.encode("utf-8", "replace"))
        self._send_short(self.listeners, at, FROM_CHILD, short, is_whole=len(line) <= LINE_CHARACTERS_MAX)

    def _send_short(
        self, listeners: Iterable[TraceListener], at: float, way: str, line: ShortLine, *, is_whole: bool
    ) -> None:
        """Offer a shortened line to the listeners, with the time `at` (epoch seconds); `way` is its direction."""
        text = line.text()
        value: Transcribed = {"at": at, "way": way, "line": text, "bytes": line.size}
        if line.records:
            value["records"] = line.records
        if not is_whole:
            value["isCut"] = True
        if self.number is not None:
            value["child"] = self.number
        for listener in listeners:
            listener.offer(value, len(text))

    def started(self, child: str) -> None:
        """Note that a child was started."""
        self.child = child
        self._note(f"child started: {child}", "childStarted")

    def ended(self, how: str) -> None:
        """Note that the child has ended, and how."""
        self.child = None
        self._note(f"child ended: {how}", "childEnded")

    def _note(self, text: str, event: str) -> None:
        """Send an event of the child's life to the listeners, with a description (`text`)."""
        text = text if self.number is None else f"{text} (child {self.number})"
        for listener in self.listeners:
            listener.offer({"at": self._clock.wall(), "event": event, "words": text}, len(text))

    def close(self, why: str) -> None:
        """End all listeners, because the lease is no longer held; `why` is the reason in words."""
        for listener in self.listeners:
            listener.end({"at": self._clock.wall(), "event": "leaseEnded", "words": why})
        self.listeners.clear()


class TooManyListenersError(Exception):
    """The worker already has as many listeners as allowed."""


class ProtocolTraces:
    """The traces of a worker's shards."""

    def __init__(self) -> None:
        self._by_shard: dict[str, ProtocolTrace] = {}

    def begin(self, shard_id: str, clock: Clock) -> ProtocolTrace:
        """Begin the trace of a shard whose lease is held from now on."""
        trace = self._by_shard[shard_id] = ProtocolTrace(shard_id, clock)
        return trace

    def end(self, trace: ProtocolTrace, stop: StopReason | None, *, is_complete: bool) -> None:
        """End a trace and tell its listeners why: because of `stop`, or because the shard was read to its end
        (`is_complete`).
        """
        if self._by_shard.get(trace.shard_id) is trace:  # else the lease was acquired again, with a new trace
            del self._by_shard[trace.shard_id]
        if is_complete:
            trace.close("the shard was read to its end")
        else:
            trace.close("the daemon gave up on the shard: its log says why" if stop is None else END_WORDS[stop])

    @property
    def shards(self) -> list[str]:
        """The shards whose leases are held."""
        return sorted(self._by_shard)

    def find(self, shard_id: str) -> ProtocolTrace | None:
        return self._by_shard.get(shard_id)

    def listen(self, trace: ProtocolTrace) -> TraceListener:
        """Add a listener; end it with `leave`. Raises TooManyListenersError."""
        if sum(len(each.listeners) for each in self._by_shard.values()) >= LISTENERS_MAX:
            raise TooManyListenersError
        listener = TraceListener()
        trace.listeners.append(listener)
        return listener

    def leave(self, trace: ProtocolTrace, listener: TraceListener) -> None:
        """Remove a listener, unless the trace has ended and removed it already."""
        if listener in trace.listeners:
            trace.listeners.remove(listener)
