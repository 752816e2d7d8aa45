"""Click events of a web shop for the tours, and the result that the tours' sinks must have. Pure.

Equal seeds and start times give equal events. The filter and the sums are the same as in
`processors/samples/clicks.py`, but without Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

USERS = 2_000
_PAGES = ("/", "/search", "/product/{item}", "/cart", "/checkout", "/help")
_PAGE_WEIGHTS = (20, 25, 35, 10, 6, 4)
_AGENTS = ("Firefox", "Chrome", "Safari", "Edge", "App/iOS", "App/Android", "Crawler")
_REFERRERS = (None, "https://www.example.com/", "https://search.example.net/?q=sh\u00f6es", "newsletter")

CRAWLER = "Crawler"
MINUTE_S = 60
HOME = "home"

Key = tuple[str, int]
"""Shard and sequence number."""
Cell = tuple[int, str]
"""A minute, in seconds since the epoch, and a section of the shop."""


@dataclass(frozen=True, slots=True)
class ClickEvent:
    """A record that is to be put into the stream."""

    partition_key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """A record that Kinesis accepted: its shard, sequence number and data."""

    shard: str
    sequence: int
    text: str


def click_events(count: int, *, seed: int, start_s: float) -> Iterator[ClickEvent]:
    """Yield `count` events in the order of their times. The partition key of an event is its user."""
    rng = Random(seed)
    at_s = start_s
    for number in range(count):
        at_s += rng.expovariate(50.0)
        user = f"user-{rng.randrange(USERS):04d}"
        page = rng.choices(_PAGES, _PAGE_WEIGHTS)[0].format(item=rng.randrange(5_000))
        event = {
            "event_id": number,
            "user": user,
            "session": f"{user}-{rng.randrange(5)}",
            "page": page,
            "referrer": rng.choice(_REFERRERS),
            "agent": rng.choice(_AGENTS),
            "load_ms": round(rng.lognormvariate(5.0, 0.6)),
            "at": round(at_s, 3),
        }
        yield ClickEvent(user, json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())


@dataclass(frozen=True, slots=True)
class Sums:
    """How many clicks a minute and section have, and the sum of their load times in milliseconds."""

    clicks: int = 0
    load_ms: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.clicks + other.clicks, self.load_ms + other.load_ms)


@dataclass(slots=True)
class ShardLine:
    """How many records of one shard were put, written, filtered out, and sent to the dead letter."""

    records: int = 0
    out: int = 0
    filtered: int = 0
    dead: int = 0


@dataclass(slots=True)
class TourOutcome:
    """What the sinks have after a run, or what they should have."""

    rows: Sequence[tuple[str, int, int]] = ()
    """Shard, sequence number and event id of every row of the sink `clicks`."""
    minutes: Mapping[Cell, Sums] = field(default_factory=dict)
    dead: Sequence[tuple[str, int, str]] = ()
    """Shard, sequence number and data of every dead letter."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """High-water mark of the sink for each shard: the last record that the sink has."""


def expected(put: Iterable[Put]) -> TourOutcome:
    """Return what the sinks should have after these records. A record that is not JSON is a dead letter, and a click of
    a crawler is left out. Every other click is a row, and counts in the sums of its minute and section.
    """
    rows: list[tuple[str, int, int]] = []
    dead: list[tuple[str, int, str]] = []
    minutes: dict[Cell, Sums] = {}
    marks: dict[str, int] = {}
    for record in put:
        marks[record.shard] = max(marks.get(record.shard, 0), record.sequence)
        try:
            event = json.loads(record.text)
        except ValueError:
            dead.append((record.shard, record.sequence, record.text))
            continue
        if event["agent"] != CRAWLER:
            rows.append((record.shard, record.sequence, event["event_id"]))
            cell = (int(event["at"]) // MINUTE_S * MINUTE_S, event["page"].split("/")[1] or HOME)
            minutes[cell] = minutes.get(cell, Sums()) + Sums(1, event["load_ms"])
    return TourOutcome(rows, minutes, dead, marks)


def shard_lines(put: Iterable[Put], found: TourOutcome) -> dict[str, ShardLine]:
    """Return for each shard the numbers of its records, from the records that were put and the result that was
    found.
    """
    lines: dict[str, ShardLine] = {}
    for record in put:
        lines.setdefault(record.shard, ShardLine()).records += 1
    for shard, _, _ in found.rows:
        lines.setdefault(shard, ShardLine()).out += 1
    for shard, _, _ in found.dead:
        lines.setdefault(shard, ShardLine()).dead += 1
    for line in lines.values():
        line.filtered = line.records - line.out - line.dead
    return dict(sorted(lines.items()))


def find_faults(wanted: TourOutcome, found: TourOutcome, checkpoints: Mapping[str, int | None]) -> list[str]:
    """Compare what the sinks have (`found`) with what they should have (`wanted`). Return a sentence for each kind of
    fault and place; none if everything adds up.

    `checkpoints` are the checkpoints of the open shards.
    """
    faults = row_faults("clicks", wanted.rows, found.rows)
    faults += row_faults("the dead letter", wanted.dead, found.dead)
    for cell in sorted(wanted.minutes.keys() | found.minutes.keys()):
        wanted_sums, found_sums = wanted.minutes.get(cell, Sums()), found.minutes.get(cell, Sums())
        if wanted_sums != found_sums:
            faults.append(f"per_minute: section {cell[1]} at {cell[0]} has {found_sums}, and should have {wanted_sums}")
    for shard, last in sorted(wanted.marks.items()):
        mark = found.marks.get(shard)
        if mark != last:
            faults.append(f"{shard}: the sink clicks is at {mark}, and the last record is {last}")
        if shard in checkpoints and checkpoints[shard] != mark:
            faults.append(f"{shard}: the checkpoint is {checkpoints[shard]}, and the sink is at {mark}")
    return faults


def row_faults(
    where: str, wanted: Sequence[tuple[str, int, object]], found: Sequence[tuple[str, int, object]]
) -> list[str]:
    """Return sentences about rows (shard, sequence number, content) that are missing, repeated, or should not be
    there.
    """
    faults = []
    wanted_counts, found_counts = Counter(wanted), Counter(found)
    twice = sum(count - 1 for count in Counter(row[:2] for row in found).values())
    missing = wanted_counts.keys() - found_counts.keys()
    strange = found_counts.keys() - wanted_counts.keys()
    if missing:
        faults.append(f"{where}: {len(missing)} of {len(wanted)} records are missing, the first is {min(missing)[:2]}")
    if twice:
        faults.append(f"{where}: {twice} records are there more than once")
    if strange:
        faults.append(f"{where}: {len(strange)} rows should not be there, the first is {min(strange)[:2]}")
    return faults
