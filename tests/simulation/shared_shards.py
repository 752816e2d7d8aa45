"""Checker 17: what must hold of a shard whose records several children share by partition key.

1. A record goes to the child that its key chooses, and each child gets all records of its keys, in order.
2. The children of one shard live and die together: none gets records once later ones have begun.
3. The row never passes a record that the child of its key has not asked to be checkpointed in the same life. SHARD_END
   is stored only when all children of one life have asked for it.
4. In the calm part the row follows what was asked for within `FOLLOWS_S`.

The child of a key is computed here. A *life* is that of the children that a process started for a shard at one time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

if TYPE_CHECKING:
    from tests.simulation.checkers import Ledger, Place, ShardRecord

FOLLOWS_S = 10.0
"""A write a second, and what an answer takes."""
SETTLED_S = 45.0
"""After the faults: a write that failed is tried again after up to 20 s, and a late one may still be under way."""
LIVES_KEPT = 3
"""Of one process and shard: a late write may be of an earlier one."""
Position: TypeAlias = tuple[int, int, int]


@dataclass(eq=False)
class Life:
    """The `children` of a shard, started at one time. Children are known by their numbers in the shard."""

    process: str
    shard: ShardRecord
    children: int
    begun: set[int] = field(default_factory=set)
    """Those that were told where to begin."""
    ended: set[int] = field(default_factory=set)
    start: int | None = None
    """Index in `put` of the first record that is theirs; None while that may be any."""
    asked: dict[int, Position] = field(default_factory=dict)
    """The furthest checkpoint that each has asked for."""
    got: set[int] = field(default_factory=set)
    """Indices in `put` of the records that any of them has got."""
    keyless: dict[Place, int] = field(default_factory=dict)
    """Which child got a record without a key."""
    done_to: int = 0
    """All records of the life before this index are done; see `prefix`."""

    @property
    def is_whole(self) -> bool:
        return len(self.begun) == self.children and not self.ended

    @property
    def has_ended_shard(self) -> bool:
        return len(self.asked) == self.children and min(self.asked.values()) == END

    def child_of(self, index: int) -> int | None:
        """Which child a record must go to; None for one without a key."""
        crc = self.shard.hashes[index]
        return None if crc is None else crc % self.children

    def asked_for(self, index: int) -> bool:
        """Whether the child that has, or must have, a record has asked for a checkpoint at or after it."""
        place, child = self.shard.put[index], self.child_of(index)
        child = self.keyless.get(place) if child is None else child
        return child is not None and self.asked.get(child, NOTHING) >= (0, *place)


END: Position = (1, 0, 0)
NOTHING: Position = (-1, 0, 0)


def hash_of(key: str) -> int | None:
    """What chooses the child of a key; None without a key."""
    return crc32(key.encode()) if key else None


class SharedShards:
    """Told by the ledger. `children` are numbered as in the ledger: each has a number of its own."""

    def __init__(self, ledger: Ledger, now: Callable[[], float]) -> None:
        self._ledger = ledger
        self._now = now
        self._lives: dict[tuple[str, str], list[Life]] = {}
        self._life_of: dict[int, tuple[Life, int]] = {}
        self._behind_since: dict[tuple[str, str], float] = {}

    # --- told ---------------------------------------------------------------------------------------------------------

    def starts(self, process: str, shard: str, children: int) -> Life:
        """A process begins to start the children of a shard."""
        lives = self._lives.setdefault((process, shard), [])
        lives.append(Life(process, self._ledger.shard(shard), children))
        del lives[:-LIVES_KEPT]
        return lives[-1]

    def started(self, child: int, life: Life, number: int) -> None:
        self._life_of[child] = life, number

    def ended(self, child: int) -> None:
        if child in self._life_of:
            life, number = self._life_of[child]
            life.ended.add(number)

    def begins_at(self, child: int, start: int | None) -> None:
        """A child is told its checkpoint; `start` is the index of the record after it."""
        if child in self._life_of:
            life, number = self._life_of[child]
            life.begun.add(number)
            life.start = start
            life.done_to = start or 0

    def asked(self, child: int, position: Position | None) -> None:
        if child in self._life_of and position is not None:
            life, number = self._life_of[child]
            life.asked[number] = max(position, life.asked.get(number, NOTHING))

    # --- delivered records --------------------------------------------------------------------------------------------

    def following(self, child: int, index: int | None) -> int | None:
        """The next record that a child must get from this index on; the index itself for an only child."""
        if child not in self._life_of or index is None:
            return index
        life, number = self._life_of[child]
        while index < len(life.shard.put) and life.child_of(index) != number:
            index += 1
        return index

    def is_keyless(self, child: int, index: int | None) -> bool:
        """Whether this record may go to any child."""
        return child in self._life_of and index is not None and self._life_of[child][0].child_of(index) is None

    def delivered(self, child: int, place: Place) -> None:
        if child not in self._life_of:
            return
        life, number = self._life_of[child]
        name, index = life.shard.shard_id, life.shard.index_of(place)
        if life is not self._lives[life.process, name][-1]:
            raise self._violation(f"child {number} of {life.process} gets {place} of {name} after later ones began")
        if index is None:
            return
        chosen = life.child_of(index)
        if chosen is not None and chosen != number:
            raise self._violation(f"child {number} of {life.process} gets {place} of {name}, not child {chosen}")
        if chosen is None and life.keyless.setdefault(place, number) != number:
            raise self._violation(f"children {life.keyless[place]} and {number} of {life.process} get {place}")
        life.got.add(index)
        if life.start is None or index < life.start:
            life.start = life.done_to = index  # it began at the tip, wherever that was

    # --- rows ---------------------------------------------------------------------------------------------------------

    def shares(self, process: str, shard: str) -> bool:
        """Whether this process has several children for the shard."""
        return (process, shard) in self._lives

    def row_moves(self, process: str, shard: str, position: Position | None) -> None:
        """Raises Violation unless the children of one life have asked for everything up to there."""
        whys = []
        for life in reversed(self._lives[process, shard]):
            if (why := self._why_not(life, position)) is None:
                return
            whys.append(why)
        raise self._violation(f"{process} stores {shard} at {position}: {whys[0]}")

    def _why_not(self, life: Life, position: Position | None) -> str | None:
        if position == END:
            open_ = [number for number in range(life.children) if life.asked.get(number) != END]
            return f"child {open_[0]} of {life.children} has not asked for the end" if open_ else None
        if position is None or position[1] < 0:
            return "no child asks for that"
        put, first = life.shard.put, self._first_open(life)
        return f"{put[first]} is unfinished" if first < len(put) and (0, *put[first]) <= position else None

    def _first_open(self, life: Life) -> int:
        """The index of the first record that is not done; the length of `put` if all are."""
        if life.start is None:
            return len(life.shard.put)
        while life.done_to < len(life.shard.put) and (
            life.asked_for(life.done_to) or self._is_trimmed(life, life.done_to)
        ):
            life.done_to += 1
        return life.done_to

    def _is_trimmed(self, life: Life, index: int) -> bool:
        """Whether a record could be out of the stream before anybody of this life got it."""
        retention_s = self._ledger.retention_s
        return bool(retention_s) and life.shard.put_at[index] <= self._now() - retention_s and index not in life.got

    def check_following(self, process: str, believed: Collection[str]) -> None:
        """In the calm part: the rows of what a running process believes to hold follow its children."""
        for (owner, shard), lives in self._lives.items():
            if owner != process:
                continue
            life, now = lives[-1], self._now()
            is_judged = life.is_whole and shard in believed and now > self._ledger.calm_at + SETTLED_S
            if not is_judged or not self._is_behind(life):
                self._behind_since.pop((process, shard), None)
            elif now - (since := self._behind_since.setdefault((process, shard), now)) > FOLLOWS_S:
                raise self._violation(f"the row of {shard} is behind the children of {process} for {now - since:.0f} s")

    def _is_behind(self, life: Life) -> bool:
        shard = life.shard
        stored = shard.last_checkpoint
        if shard.ended or shard.is_gone or stored is None:
            return False
        if life.has_ended_shard:
            return True
        last = self._first_open(life) - 1
        if life.start is None or last < life.start:
            return False
        return life.asked_for(last) and stored < (0, *shard.put[last])

    def _violation(self, text: str) -> Exception:
        return self._ledger.violation(17, text)
