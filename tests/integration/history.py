"""What happened, as the recording children and the wire taps saw it, and the checkers of the daemon's promises.

Every checker takes plain values and raises AssertionError with one sentence about the first thing that is wrong.
Promised is: every record is delivered; one child gets its shard's records in order and without gaps; children after
parents; no checkpoint beyond what was delivered; one writer of a lease row at a time.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any
from zlib import crc32

from mld.core.positions import SHARD_END, Position
from tests.support.wiretap import RowWrite


@dataclass(frozen=True, slots=True)
class Put:
    """A record as the stream took it."""

    shard: str
    sequence: int
    data: str


@dataclass(frozen=True, slots=True)
class Delivered:
    at: int
    sequence: int
    data: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A child's request and its answer; `error` None is success."""

    asked: int
    answered: int
    sequence: str | None
    error: str | None


@dataclass(slots=True)
class Life:
    """One child process."""

    pid: int
    worker: str
    shard: str
    started_at: int
    position: Position | None = None
    delivered: list[Delivered] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    is_hostile: bool = False
    number: int = 0
    children: int = 1
    """Which of how many children of its shard it is."""

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        match kind:
            case "delivered":
                self.delivered.append(Delivered(event["at"], int(event["sequence"]), event["data"]))
            case "checkpoint":
                self.checkpoints.append(Checkpoint(event["asked"], event["at"], event["sequence"], event["error"]))
            case "hostile":
                self.is_hostile = True
            case _:
                self.actions.append(kind)
                if kind == "initialize":
                    self.shard = event.get("shardId", self.shard)  # other daemons do not tell it in the environment
                    self.position = Position(event["sequenceNumber"], event.get("subSequenceNumber") or 0)


class History:
    """Reads the children's files as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self._lives: list[Life] = []
        self._latest: dict[Path, Life] = {}
        """Of a file: the kernel gives out the number of a dead process again."""

    def lives(self, shard: str = "", worker: str = "") -> list[Life]:
        """Every child so far, by its start; `shard` is the end of a shard id."""
        for path in self._directory.glob("*.jsonl"):
            self._read(path)
        chosen = (life for life in self._lives if life.shard.endswith(shard) and worker in ("", life.worker))
        return sorted(chosen, key=lambda life: life.started_at)

    def delivered(self) -> set[tuple[str, int]]:
        return {(life.shard, record.sequence) for life in self.lives() for record in life.delivered}

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            if event["kind"] == "start":
                life = Life(event["pid"], event["worker"], event["shard"], event["at"])
                life.number, life.children = event.get("number", 0), event.get("children", 1)
                self._latest[path] = life
                self._lives.append(self._latest[path])
            else:
                self._latest[path].add(event)


# --- checkers --------------------------------------------------------------------------------------------------------


def check_all(
    puts: Sequence[Put],
    lives: Sequence[Life],
    writes: Sequence[RowWrite],
    parents: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Everything that must hold in any run."""
    every_record_delivered(puts, lives)
    in_order_without_gaps(puts, lives)
    children_after_parents(lives, parents or {})
    checkpoints_within_deliveries(lives)
    rows_within_deliveries(puts, lives, writes)
    one_writer_at_a_time(writes)


def every_record_delivered(puts: Sequence[Put], lives: Sequence[Life]) -> None:
    got = {(life.shard, record.sequence): record.data for life in lives for record in life.delivered}
    missing = [put for put in puts if (put.shard, put.sequence) not in got]
    assert not missing, f"{len(missing)} of {len(puts)} records were not delivered, first {missing[0]}"
    wrong = [put for put in puts if got[put.shard, put.sequence] != put.data]
    assert not wrong, f"{len(wrong)} records changed on the way, first {wrong[0]}"


def in_order_without_gaps(puts: Sequence[Put], lives: Sequence[Life]) -> None:
    """Each child got one unbroken run of the shard's records that have its keys, from just after its start position.

    The key of a record is its data. So records of one key are in order, and all of them came to one child.
    """
    by_shard: dict[str, list[Put]] = {}
    for put in sorted(puts, key=lambda put: put.sequence):
        by_shard.setdefault(put.shard, []).append(put)
    for life in lives:
        got = [record.sequence for record in life.delivered]
        for before, after in pairwise(got):
            assert before < after, f"child {life.pid} of {life.shard} got {after} after {before}"
        if not got:
            continue
        assert life.position is not None, f"child {life.pid} of {life.shard} got records before initialize"
        start = life.position
        due = [
            put.sequence
            for put in by_shard.get(life.shard, [])
            if Position(str(put.sequence)) > start and crc32(put.data.encode()) % life.children == life.number
        ]
        for wanted, actual in zip(due, got, strict=False):
            assert wanted == actual, f"child {life.pid} of {life.shard}, started at {start}, got {actual} not {wanted}"
        assert len(got) <= len(due), f"child {life.pid} of {life.shard} got records that nobody put"


def children_after_parents(lives: Sequence[Life], parents: Mapping[str, Iterable[str]]) -> None:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for life in lives:
        for record in life.delivered:
            first[life.shard] = min(first.get(life.shard, record.at), record.at)
            last[life.shard] = max(last.get(life.shard, record.at), record.at)
    for child, its_parents in parents.items():
        for parent in its_parents:
            if child in first and parent in last:
                assert first[child] > last[parent], f"{child} was delivered before the end of its parent {parent}"


def checkpoints_within_deliveries(lives: Sequence[Life]) -> None:
    """No child was granted a checkpoint beyond what it had been given by then."""
    for life in lives:
        granted = [one for one in life.checkpoints if one.error is None and one.sequence is not None]
        if not granted:
            continue
        assert life.position is not None, f"child {life.pid} of {life.shard} checkpointed before initialize"
        times = [record.at for record in life.delivered]
        up_to = list(
            accumulate((Position(str(record.sequence)) for record in life.delivered), max, initial=life.position)
        )
        for checkpoint in granted:
            largest = up_to[bisect_right(times, checkpoint.answered)]
            asked = Position(checkpoint.sequence or "")
            assert asked <= largest, f"child {life.pid} of {life.shard} checkpointed {asked} beyond {largest}"


def rows_within_deliveries(puts: Sequence[Put], lives: Sequence[Life], writes: Sequence[RowWrite]) -> None:
    """Whenever a row was written, every record up to its checkpoint had been delivered."""
    first: dict[tuple[str, int], int] = {}
    for life in lives:
        for record in life.delivered:
            place = (life.shard, record.sequence)
            first[place] = min(first.get(place, record.at), record.at)
    positions: dict[str, list[Position]] = {}
    latest: dict[str, list[tuple[float, Put]]] = {}  # the last of the first deliveries up to that position
    for put in sorted(puts, key=lambda put: put.sequence):
        up_to_here = latest.setdefault(put.shard, [])
        this = (first.get((put.shard, put.sequence), math.inf), put)
        up_to_here.append(max([*up_to_here[-1:], this], key=itemgetter(0)))
        positions.setdefault(put.shard, []).append(Position(str(put.sequence)))
    for write in writes:
        covered = bisect_right(positions.get(write.key, ()), Position(write.checkpoint)) if write.is_checkpoint else 0
        if covered:
            at, put = latest[write.key][covered - 1]
            assert at <= write.answered_at, (
                f"{write.writer} set the checkpoint of {write.key} to {write.checkpoint} past the undelivered {put}"
            )


def one_writer_at_a_time(writes: Sequence[RowWrite]) -> None:
    """One write per counter value, and at most one handoff begun there; only the owner renews and checkpoints; a
    checkpoint never goes back.
    """
    by_key: dict[str, list[RowWrite]] = {}
    for write in writes:
        by_key.setdefault(write.key, []).append(write)
    for key, versions in by_key.items():
        versions.sort(key=lambda write: (write.counter, write.begins_handoff))
        for before, after in pairwise(versions):
            assert (before.counter, before.begins_handoff) < (after.counter, after.begins_handoff), (
                f"{before.writer} and {after.writer} wrote the same version of {key}"
            )
            assert Position(before.checkpoint) <= Position(after.checkpoint), (
                f"the checkpoint of {key} went back from {before.checkpoint} to {after.checkpoint} by {after.writer}"
            )
        for write in versions:
            assert write.changes_owner or write.owner == write.writer, (
                f"{write.writer} wrote the row of {key} while {write.owner} owned it"
            )


def completed(writes: Iterable[RowWrite]) -> set[str]:
    """Keys of rows that reached SHARD_END."""
    return {write.key for write in writes if write.checkpoint == SHARD_END.sequence}
