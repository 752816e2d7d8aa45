"""Events: what happened to a fleet, for `mld events` and the status page. Pure. Rule: coordination#event-history.

The parts of a worker note events in its `EventBuffer`. The newest events of all workers are packed into one row of the
lease table, so that a write costs a few write units. Nothing depends on an event, and any event may be lost.
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
"""How many events the row keeps at most, and for how long."""
PACKED_BYTES_MAX = 4_000
"""Longest content of the row: it costs four write units, or one read unit."""
COMPRESSED_CHARACTERS_MAX = 40_000
"""At most this many characters of events are compressed: ten times what may fit. This takes a millisecond or two."""
COMPRESSION_LEVEL = 3
UNPACKED_BYTES_MAX = 256 * 1024
"""`EVENTS_MAX` events are never longer than this. Longer content was not packed by `pack`."""
BUFFERED_MAX = 500
"""Events of one worker that may wait for a write, which comes every few seconds. If there are more, the oldest are
dropped.
"""
TEXT_CHARACTERS_MAX = 200
CUT = " …"
"""The end of a text that was cut."""
TIME_S_MAX = 253_402_300_799  # the end of the year 9999
LINES_MAX, LINES_CHARACTERS_MAX = 20, 1_500
"""How many of a record processor's last lines an event keeps, and how many of their characters. This is enough for a
traceback, and leaves room for other events.
"""
WITH_LINES_MAX = 5
"""How many of the newest events keep their lines; only one does if the events do not fit otherwise."""
REPEATED_OF_SHARD_MAX = 2
"""How many events of one shard are kept of each kind in `REPEATED`: the first and the last. All of them would leave no
room for other events."""
MOVES_MAX = 3
"""If more leases than this move between the same two workers within one write, the moves become one event."""
NAMED_MAX = 10
"""How many shards an event for many moves names at most."""
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
    BUDGET = "budget"


KINDS = frozenset(kind.value for kind in EventKind)
REPEATED = frozenset({EventKind.FAILED, EventKind.RECOVERED, EventKind.BUDGET})
"""Kinds of events that records can cause again and again."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `worker` is the worker that it is about: for a move the new owner, for an act the operator."""

    kind: EventKind
    text: str = ""
    shard: str = ""
    """Key of the lease; empty if the event is about no lease, or about several."""
    worker: str = ""
    """In a buffer, empty means the worker that noted the event."""
    at_s: int = 0
    """Epoch seconds, by the clock of the worker that noted it."""
    lines: tuple[str, ...] = ()
    """The last lines of a record processor that failed."""


class EventBuffer:
    """Events of one worker that are not written yet.

    If many leases move between the same two workers, only the first few moves are kept, and the others are counted.
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
        """Add an event that happened `ago_s` seconds ago, for the history in the lease table. Moves of leases to the
        same worker with the same text form a group, of which only the first few are kept and the others counted. There
        are at most `BUFFERED_MAX` groups.
        """
        event = Event(kind, text, shard, worker, int(self.wall() - ago_s), tuple(lines)[-LINES_MAX:])
        if kind is not EventKind.MOVED:
            self._events.append(event)
        elif (worker, text) in self._moves or len(self._moves) < BUFFERED_MAX:
            first, count = self._moves.get((worker, text), ([], 0))
            self._moves[worker, text] = [*first, event][:NAMED_MAX], count + 1

    def take(self) -> tuple[Event, ...]:
        """Remove and return the noted events. Many moves between the same two workers become one event."""
        moves = [one for first, count in self._moves.values() for one in _as_one(first, count)]
        taken = (*moves, *self._events)
        self._events.clear()
        self._moves.clear()
        return taken


def _as_one(first: list[Event], count: int) -> list[Event]:
    """Return the moves of one group. If there are more than `MOVES_MAX`, return one event in their place, which counts
    them and names their shards. `first` has the first moves of the group, and `count` is the number of all.
    """
    if count <= MOVES_MAX:
        return first
    names = ", ".join(shard_of_key(one.shard) for one in first) + (", …" if count > len(first) else "")
    words = f" {first[0].text}" if first[0].text else ""
    return [replace(first[0], shard="", text=f"{count} shards{words}: {names}")]


def merged(stored: Iterable[Event], new: Iterable[Event], now_s: float) -> tuple[Event, ...]:
    """Return the `stored` events together with the `new` ones, the newest last.

    If the old and the new owner have both noted a move, one event remains. Of a shard's failures the first and the last
    remain; the same holds for the other `REPEATED` kinds. Events older than KEPT_S are dropped.
    """
    kept: dict[int, Event] = {}  # by a number that counts the events
    kept_of: dict[tuple[EventKind, str], list[int]] = {}  # the numbers of the kept events of each kind and shard
    for number, event in enumerate((*(one for one in stored if now_s - one.at_s <= KEPT_S), *new)):
        alike = kept_of.setdefault((event.kind, event.shard), [])
        if event.kind is EventKind.MOVED and event.shard and alike and kept[alike[-1]].worker == event.worker:
            if len(event.text) <= len(kept[alike[-1]].text):
                continue
            del kept[alike.pop()]  # keep the longer text: it is from the old owner, which knows more
        if event.kind in REPEATED and len(alike) >= REPEATED_OF_SHARD_MAX:
            del kept[alike.pop()]
        kept[number] = event
        alike.append(number)
    found = sorted(kept.values(), key=lambda one: one.at_s)[-EVENTS_MAX:]
    return tuple(_without_old_lines(found, WITH_LINES_MAX))


def _without_old_lines(events: list[Event], count: int) -> list[Event]:
    """Drop the lines of all events but the last `count` that have any."""
    with_lines = [at for at, one in enumerate(events) if one.lines]
    for number in with_lines[: max(0, len(with_lines) - count)]:
        events[number] = replace(events[number], lines=())
    return events


def pack_steps(events: Sequence[Event]) -> Steps[bytes]:
    """Pack as many of the newest events as fit into `PACKED_BYTES_MAX` bytes.

    If not all fit, first the lines of processors are dropped from all events but the newest that has any; then the
    oldest events are dropped.
    """
    sizes = accumulate(_characters(one) for one in reversed(events))
    room = takewhile(lambda size: size <= COMPRESSED_CHARACTERS_MAX, sizes)
    kept, lines_max = list(events[-max(1, sum(1 for _ in room)) :]), WITH_LINES_MAX
    while True:
        rows = [[one.at_s, one.kind.value, one.worker, one.shard, one.text, one.lines] for one in kept]
        packed = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), COMPRESSION_LEVEL)
        if len(packed) <= PACKED_BYTES_MAX:
            return packed
        yield
        if lines_max > 1:
            lines_max = 1
            kept = _without_old_lines(kept, lines_max)
        else:
            fitting = len(kept) * PACKED_BYTES_MAX // len(packed)  # an estimate; at least one event is dropped
            kept = kept[-max(1, min(fitting, len(kept) - 1)) :]


def shortened(text: str) -> str:
    """Return the text, cut to at most `TEXT_CHARACTERS_MAX` characters. It is cut between words, because half of an id
    could be taken for another id.
    """
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    room = TEXT_CHARACTERS_MAX - len(CUT)
    end = text.rfind(" ", TEXT_CHARACTERS_MAX // 3, room + 1)  # not so early that little of the text is left
    return f"{text[: room if end < 0 else end].rstrip(' ,;:')}{CUT}"


def _characters(event: Event) -> int:
    """Return how many characters of text an event has."""
    return len(event.text) + len(event.shard) + len(event.worker) + sum(map(len, event.lines))


pack = at_once(pack_steps)
"""`pack_steps`, computed in one go."""


def unpack(packed: bytes) -> tuple[Event, ...]:
    """Return the packed events, without those whose kind only a newer version of mld knows.

    Raises exceptions of any type for content that `pack` has not made.
    """
    rows = json.loads(zlib.decompressobj().decompress(packed, UNPACKED_BYTES_MAX))
    return tuple(_event(*one) for one in rows[-EVENTS_MAX:] if one[1] in KINDS)


def _event(at_s: int, kind: str, worker: str, shard: str, text: str, lines: list[str]) -> Event:
    """Return an event from its stored values. Raises ValueError."""
    if not 0 <= at_s <= TIME_S_MAX:
        raise ValueError("a time that cannot be shown")
    short = [shortened(str(one)) for one in (text, shard, worker, *lines[-LINES_MAX:])]
    return Event(EventKind(kind), short[0], short[1], short[2], int(at_s), tuple(short[3:]))
