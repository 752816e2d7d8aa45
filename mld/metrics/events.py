"""Events: what happened to a fleet, for `mld events` and the status page. Pure. Rule: coordination#event-history.

The parts of a worker note events in its `EventBuffer`. The newest events of all workers are packed into one row of the
lease table, so that writing one costs a few write units. Nothing depends on an event, and any may be lost.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate, takewhile

from mld.core.steps import Steps, at_once
from mld.core.stream_ids import shard_of_key

EVENTS_MAX = 200
KEPT_S = 7 * 86_400.0
PACKED_BYTES_MAX = 4_000
"""Longest content of the row: four write units, and one read unit."""
TOLD_CHARACTERS_MAX = 40_000
"""Most characters of the events that are packed: ten times what fits, so that packing takes a millisecond or two."""
COMPRESSION_LEVEL = 3
UNPACKED_BYTES_MAX = 256 * 1024
"""More than `EVENTS_MAX` events can have. Longer content was not packed by us."""
BUFFERED_MAX = 500
"""Events of one worker that wait for a write. A fleet that has more in a few seconds has more urgent problems."""
TEXT_CHARACTERS_MAX = 200
CUT = " …"
TIME_S_MAX = 253_402_300_799  # the end of the year 9999
LINES_MAX, LINES_CHARACTERS_MAX = 20, 1_500
"""Last lines of a record processor that an event keeps: enough for a traceback, without displacing other events."""
WITH_LINES_MAX = 5
"""How many of the newest events keep their lines; only one if otherwise other events have no room."""
FAILURES_OF_SHARD_MAX = 2
"""Of the failures of a shard only the first and the last are kept; those between would displace everything else."""
MOVES_MAX = 3
"""More moves than this between the same two workers, in the seconds between two writes, become one event."""
NAMED_MAX = 10
"""Shards that such an event names."""
NOBODY = "nobody"
"""Shown as the owner of a lease that was given back, or that another worker has taken from us."""


class EventKind(Enum):
    """The kinds of events, as words for people."""

    STARTED = "started"
    ENDED = "ended"
    DIED = "died"
    MOVED = "moved"
    FAILED = "failed"
    RECOVERED = "recovered"
    LOST = "lost"
    SLOW = "slow"
    ACT = "act"
    CONFIG = "config"
    DISK = "disk"
    TABLE = "table"
    STRANGER = "stranger"
    CLOCK = "clock"


KINDS = frozenset(kind.value for kind in EventKind)


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `worker` is the worker that it is about: for a move the new owner, for an act the operator."""

    kind: EventKind
    text: str = ""
    shard: str = ""
    """Key of the lease; empty if the event is about none, or about several."""
    worker: str = ""
    """In a buffer, empty means the worker that noted the event."""
    at_s: int = 0
    """Epoch seconds, by the clock of the worker that noted it."""
    lines: tuple[str, ...] = ()
    """The last lines of a record processor that failed."""


class EventBuffer:
    """Events of one worker that are not written yet. Of the moves between the same two workers it keeps only the first
    few.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=BUFFERED_MAX)
        self._moves: dict[tuple[str, str], tuple[list[Event], int]] = {}
        """Moves by new owner and text: the first few, and how many there were."""
        self.wall: Callable[[], float] = lambda: 0.0
        """Returns epoch seconds; set by the part that takes the events."""

    def note(
        self,
        kind: EventKind,
        text: str = "",
        *,
        shard: str = "",
        worker: str = "",
        lines: Sequence[str] = (),
        ago_s: float = 0.0,
    ) -> None:
        """Add an event that happened `ago_s` seconds ago."""
        event = Event(kind, text, shard, worker, int(self.wall() - ago_s), tuple(lines)[-LINES_MAX:])
        if kind is not EventKind.MOVED:
            self._events.append(event)
        elif (worker, text) in self._moves or len(self._moves) < BUFFERED_MAX:
            first, count = self._moves.get((worker, text), ([], 0))
            self._moves[worker, text] = [*first, event][:NAMED_MAX], count + 1

    def take(self) -> tuple[Event, ...]:
        """Remove and return the noted events. Many moves become one event."""
        moves = [one for first, count in self._moves.values() for one in _in_short(first, count)]
        taken = (*moves, *self._events)
        self._events.clear()
        self._moves.clear()
        return taken


def _in_short(first: list[Event], count: int) -> list[Event]:
    if count <= MOVES_MAX:
        return first
    names = ", ".join(shard_of_key(one.shard) for one in first) + (", …" if count > len(first) else "")
    words = f" {first[0].text}" if first[0].text else ""
    return [replace(first[0], shard="", text=f"{count} shards{words}: {names}")]


def merged(there: Iterable[Event], new: Iterable[Event], now_s: float) -> tuple[Event, ...]:
    """Return the history with the `new` events, the newest last.

    A move that both workers noted counts once. Of the failures of a shard the first and the last remain.
    """
    kept: dict[int, Event] = {}
    last: dict[tuple[EventKind, str], list[int]] = {}
    for number, event in enumerate((*(one for one in there if now_s - one.at_s <= KEPT_S), *new)):
        alike = last.setdefault((event.kind, event.shard), [])
        if event.kind is EventKind.MOVED and event.shard and alike and kept[alike[-1]].worker == event.worker:
            if len(event.text) <= len(kept[alike[-1]].text):
                continue
            del kept[alike.pop()]  # the longer text is from the old owner, which knows more
        if event.kind is EventKind.FAILED and len(alike) >= FAILURES_OF_SHARD_MAX:
            del kept[alike.pop()]
        kept[number] = event
        alike.append(number)
    found = sorted(kept.values(), key=lambda one: one.at_s)[-EVENTS_MAX:]
    return tuple(_without_old_lines(found, WITH_LINES_MAX))


def _without_old_lines(events: list[Event], kept: int) -> list[Event]:
    with_lines = [at for at, one in enumerate(events) if one.lines]
    for number in with_lines[: max(0, len(with_lines) - kept)]:
        events[number] = replace(events[number], lines=())
    return events


def pack_steps(events: Sequence[Event]) -> Steps[bytes]:
    """Return the newest events in `PACKED_BYTES_MAX` bytes. If they do not fit, the lines of all but the newest are
    dropped first.
    """
    room = takewhile(lambda size: size <= TOLD_CHARACTERS_MAX, accumulate(_characters(one) for one in reversed(events)))
    kept, lines_max = list(events[-max(1, sum(1 for _ in room)) :]), WITH_LINES_MAX
    while True:
        told = [[one.at_s, one.kind.value, one.worker, one.shard, one.text, one.lines] for one in kept]
        packed = zlib.compress(json.dumps(told, separators=(",", ":")).encode(), COMPRESSION_LEVEL)
        if len(packed) <= PACKED_BYTES_MAX:
            return packed
        yield
        if lines_max > 1:
            lines_max = 1
            kept = _without_old_lines(kept, lines_max)
        else:
            fitting = len(kept) * PACKED_BYTES_MAX // len(packed)
            kept = kept[-max(1, min(fitting, len(kept) - 1)) :]


def shortened(text: str) -> str:
    """Return the text in at most `TEXT_CHARACTERS_MAX` characters. It is cut between words, because half an id names
    another thing.
    """
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    room = TEXT_CHARACTERS_MAX - len(CUT)
    end = text.rfind(" ", TEXT_CHARACTERS_MAX // 3, room + 1)
    return f"{text[: room if end < 0 else end].rstrip(' ,;:')}{CUT}"


def _characters(event: Event) -> int:
    return len(event.text) + len(event.shard) + len(event.worker) + sum(map(len, event.lines))


pack = at_once(pack_steps)


def unpack(packed: bytes) -> tuple[Event, ...]:
    """Return the packed events, without those of kinds that only a newer version knows.

    Raises exceptions of any kind for content that `pack` has not made.
    """
    told = json.loads(zlib.decompressobj().decompress(packed, UNPACKED_BYTES_MAX))
    return tuple(_event(*one) for one in told[-EVENTS_MAX:] if one[1] in KINDS)


def _event(at_s: int, kind: str, worker: str, shard: str, text: str, lines: list[str]) -> Event:
    if not 0 <= at_s <= TIME_S_MAX:
        raise ValueError("a time that cannot be shown")
    short = [shortened(str(one)) for one in (text, shard, worker, *lines[-LINES_MAX:])]
    return Event(EventKind(kind), short[0], short[1], short[2], int(at_s), tuple(short[3:]))
