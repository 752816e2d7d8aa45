"""What must always hold, checked at every step of a run or at its end.

The numbers are those of docs/develop/simulation.md.

The ledger is told of everything that happens: records put, batches begun, records delivered, rows written. A checker
never looks into the code under test, with one exception: which leases a worker believes to hold (4).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mld.metrics.instruments import Tally
from mld.metrics.worker import LeaseMove
from tests.simulation.beliefs import NEVER, Beliefs
from tests.simulation.shared_shards import SharedShards, hash_of
from tests.simulation.world.plan import DRIFT_MAX
from tests.twins.dynamo import Applied
from tests.twins.dynamo_expressions import Item

SENTINEL_ORDER = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}
SHARD_END = "SHARD_END"
OPERATOR = "operator"
"""Writes as this one what a person asks for with our commands."""
_END = (1, 0, 0)
Place: TypeAlias = tuple[int, int]
"""A user record in its shard: sequence and sub-sequence number."""
RECOVERED_S = 150.0
"""A record that could be read for so long after the faults stopped must have been read."""
RETENTION_MARGIN_S = 0.001
"""What the rounding of large times may hide."""
TWIN_TURNS_MAX = 3
"""A process whose write is unknown cannot tell its twin's from its own; that happens, but not again and again."""
UNBELIEVING_MAX_S = 2.5
"""Beliefs are looked at once a second; who does not believe any more stops at once."""
LOST_LEASE_GRACE_S = 1.0
"""Beside one lease duration: the answer that says so may be under way."""
ANSWER_LATE_MAX_S = 8.0
"""The slowest answer of DynamoDB here."""


class Violation(AssertionError):
    """A promise is broken; the text says which, where and when."""


@dataclass
class ShardRecord:
    """One shard as the checkers know it."""

    shard_id: str
    parents: tuple[str, ...] = ()
    put: list[Place] = field(default_factory=list)
    put_at: list[float] = field(default_factory=list)
    hashes: list[int | None] = field(default_factory=list)
    """Of their partition keys; None for a record without one."""
    extra: set[Place] = field(default_factory=set)
    """Records that an operator wants left out: they may be delivered, or not."""
    delivered: set[Place] = field(default_factory=set)
    complete_to: int = 0
    """So many records from the first on were delivered, without a gap."""
    at_latest: bool = False
    """Its row says LATEST: whoever starts reading now owes nothing of what lies before."""
    tip_at: float = float("-inf")
    """When somebody began to read it at its tip last."""
    ended: bool = False
    """SHARD_END was accepted."""
    closed: bool = False
    checkpoint: str = ""
    """As the row has it; empty without a row."""
    had_row: bool = False
    edited: bool = False
    """Somebody changed its row by hand."""
    odd_checkpoint: str = "none"
    """A number that no record of its own has, written by hand: a checkpoint of its owner takes the row back from it."""
    last_checkpoint: tuple[int, int, int] | None = None
    is_gone: bool = False
    """Its stream was deleted: nothing of it can be read or lost any more, and another may have its name."""
    starts_at_latest: bool = False
    """Shards of its stream that were there before its leases begin at LATEST."""
    stolen_at: float = float("-inf")
    """When a worker took its lease from another for itself, as those of 2.x do; the other one learns of it late."""

    def deliver(self, place: Place) -> None:
        if self.at_latest:
            self.delivered.update(self.put[self.complete_to : bisect_left(self.put, place)])
        self.delivered.add(place)
        self._count_complete()

    def index_of(self, place: Place) -> int | None:
        """Where it stands in `put`; None if it was not put here or does not belong here."""
        index = bisect_left(self.put, place)
        return index if index < len(self.put) and self.put[index] == place else None

    def let_go(self, index: int) -> None:
        """Nobody can read it any more."""
        self.delivered.add(self.put[index])
        self._count_complete()

    def _count_complete(self) -> None:
        while self.complete_to < len(self.put) and self.put[self.complete_to] in self.delivered:
            self.complete_to += 1

    def let_go_of_what_lay_before_the_tip(self) -> None:
        """Its row says LATEST, and whoever reads it now began at the tip: as documented, in Java as here."""
        self.delivered.update(self.put[self.complete_to : bisect_left(self.put_at, self.tip_at)])
        self._count_complete()

    @property
    def has_news_since_the_tip(self) -> bool:
        return bool(self.put_at) and self.put_at[-1] >= self.tip_at

    def deliver_nothing_before_now(self) -> None:
        """It was read from LATEST and nothing was there: what was put before is not owed."""
        self.delivered.update(self.put)
        self.complete_to = len(self.put)

    def undelivered_to(self, place: Place | None) -> int:
        """How many user records up to a place (None: all) nobody has got."""
        end = len(self.put) if place is None else bisect_right(self.put, place)
        return max(0, end - self.complete_to)


class JudgedMoves(Tally):
    """Counts the moves of one process's leases, and tells the ledger of those that expired or were lost to a twin."""

    def __init__(self, ledger: Ledger, process: str) -> None:
        super().__init__()
        self._ledger = ledger
        self._process = process

    def add(self, name: str, count: int = 1) -> None:
        super().add(name, count)
        if name == LeaseMove.TWIN.value:
            self._ledger.accused_twin(self._process)
        self._ledger.expiries += name == LeaseMove.EXPIRED.value


class Ledger:
    """Knows what happened and raises `Violation` at once. `believers(key)` names the processes that hold a lease."""

    def __init__(
        self, now: Callable[[], float], failover_s: float, believers: Callable[[str], list[tuple[str, str]]]
    ) -> None:
        self._now = now
        self._failover_s = failover_s
        self._believers = believers
        self.beliefs = Beliefs(failover_s)
        self.shards: dict[str, ShardRecord] = {}
        self.trace: Callable[[str], None] = lambda text: None
        self.on_violation: Callable[[str], None] = lambda text: None
        self.may_delete: Callable[[str], bool] = lambda key: False
        """Whether somebody else judges the deletion of this row."""
        self.on_batch: Callable[[str, str, str], None] = lambda process, worker, shard: None
        self.deliveries = 0
        self.redeliveries = 0
        self.repeats = 0
        """Redeliveries in shards whose leases nobody stole within the last two lease durations."""
        self.checkpoints = 0
        self.takes = 0
        self.expiries = 0
        self.news_at = float("-inf")
        """When a record was delivered last that nobody had got before."""
        self.frozen_end = False  # the stream is gone: nothing may be marked finished any more
        self.paused_s: dict[str, float] = {}  # until when a process was stopped last
        self.retention_s = 0.0
        self.calm_at = float("inf")
        self.mended_at = float("-inf")  # when counters of damaged rows were last moved by hand
        self.trimmed = 0
        self._last_of_child: dict[tuple[int, str], Place] = {}
        self._next_of_child: dict[tuple[int, str], int] = {}  # index in `put`; absent while anything may come
        self._owner_lost_at: dict[tuple[str, str], float] = {}
        self.ours: set[str] = set()  # process names of our daemon: some promises are not Java's
        self.starts_at_latest = False
        self._sent: dict[str, float] = {}  # when the last accepted write of a row was sent
        self._sent_by: dict[tuple[str, str], float] = {}  # the same by key and process
        self._last_writer: dict[str, str] = {}
        self._believed_at: dict[tuple[str, str], float] = {}  # by process and key: when it was last seen to believe
        self._predecessor_at = float("-inf")  # when a late write of an ended process was applied over its successor's
        self._turns: dict[str, int] = {}  # how often two processes of one worker id have written a row by turns
        self.has_twins = False
        self._asked: dict[tuple[str, str], set[tuple[str, int]]] = {}  # by process and shard: checkpoints asked for
        self.shared = SharedShards(self, now)
        """Judges shards of which several children share the records."""

    # --- told by the world --------------------------------------------------------------------------------------------

    def shard(self, shard_id: str) -> ShardRecord:
        return self.shards.setdefault(shard_id, ShardRecord(shard_id))

    def put(self, shard_id: str, sequence: int, keys: Sequence[str] = ("key",)) -> None:
        """A record or an aggregate, of user records with these keys, all of which belong to the shard."""
        record = self.shard(shard_id)
        record.put += [(sequence, sub) for sub in range(len(keys))]
        record.put_at += [self._now()] * len(keys)
        record.hashes += map(hash_of, keys)

    def owed(self, record: ShardRecord, place: Place | None = None) -> int:
        """How many user records up to a place nobody has got, of those that could be read until now."""
        if record.closed and self._is_passed(record):
            return 0  # closed before anybody had begun to read at the tip
        left = record.undelivered_to(place)
        if left and record.at_latest:
            record.let_go_of_what_lay_before_the_tip()
            left = record.undelivered_to(place)
        if left and self.retention_s:
            self._let_trimmed_go(record)
            left = record.undelivered_to(place)
        return left

    def _let_trimmed_go(self, record: ShardRecord) -> None:
        trimmed = bisect_left(record.put_at, self._now() - self.retention_s + RETENTION_MARGIN_S)
        for index in range(record.complete_to, trimmed):
            if record.put[index] in record.delivered:
                continue
            readable_s = self.retention_s - max(0.0, self.calm_at - record.put_at[index])
            if readable_s > RECOVERED_S:
                place, name = record.put[index], record.shard_id
                raise self.violation(1, f"{place} of {name} was not read in {readable_s:.0f} s without faults")
            self.trimmed += 1
            record.let_go(index)

    def edited_by_hand(self, shard_id: str) -> None:
        shard = self.shard(shard_id)
        shard.edited = True
        shard.last_checkpoint = None
        shard.ended = False

    def owner_changed_by_hand(self, shard_id: str, before: str) -> None:
        self._owner_lost_at[shard_id, before] = self._now()

    def finished_by_hand(self, shard_id: str) -> None:
        """An operator gives up what is left of a closed shard."""
        record = self.shard(shard_id)
        record.ended = record.edited = True
        record.checkpoint = SHARD_END
        record.last_checkpoint = _END
        record.delivered.update(record.put)
        record.complete_to = len(record.put)

    def asked(self, process: str, shard: str, sequence: str, sub: int, child: int = 0) -> None:
        self.shared.asked(child, position(sequence, sub))
        self._asked.setdefault((process, shard), set()).add((sequence, sub))

    def answered(self, process: str, shard: str, sequence: str, sub: int) -> None:
        """A child was told that its checkpoint is stored. Several children of a shard hear only that it is noted."""
        record = self.shard(shard)
        if record.is_gone or self.shared.shares(process, shard) or record.checkpoint == record.odd_checkpoint:
            return  # an odd checkpoint was written by hand over the one that was stored
        stored, meant = record.last_checkpoint, position(sequence, sub)
        if stored is not None and meant is not None and stored < meant:
            raise self.violation(1, f"{process} told a child that {shard} is stored at {sequence}; the row is behind")

    def accepted_too_much(self, process: str, shard: str) -> None:
        raise self.violation(1, f"{process} lets a child of {shard} checkpoint what it never got")

    def accused_twin(self, process: str) -> None:
        foreign_at = max(self.mended_at, self._predecessor_at)
        if not self.has_twins and self._now() - foreign_at > self._failover_s:
            raise self.violation(4, f"{process} takes its own writes for those of a twin, and there is none")

    def check_beliefs(self, beliefs: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Nobody believes for longer than a lease duration after sending its last accepted write."""
        bound = self._failover_s * (1 + 4 * DRIFT_MAX) + 0.01
        for process, keys in beliefs:
            for key in keys:
                self._believed_at[process, key] = self._now()
                sent_at = self.believed_from(process, key)
                if self.has_twins and _worker(self._last_writer.get(key, "")) == _worker(process):
                    # It may have taken the other's write for its own lost one, but not for long.
                    sent_at = min(self._sent[key], sent_at + self._failover_s)
                age = self._now() - sent_at
                if age > bound:
                    raise self.violation(4, f"{process} believes in {key} {age:.2f} s after its last write was sent")

    def write_answered(self, process: str, key: str, sent_at: float, waiting: Iterable[float]) -> None:
        """A process hears that its write was accepted; `waiting` is when those were sent that it waits for."""
        self.beliefs.answered(process, key, sent_at, self._now(), waiting)

    def write_refused(self, process: str, key: str) -> None:
        """A process hears that the condition of its write did not hold."""
        self.beliefs.refused(process, key)

    def believed_from(self, process: str, key: str) -> float:
        """What the belief of a process in a lease counts from."""
        return self.beliefs.since(process, key)

    def wrote_at(self, process: str, key: str) -> float:
        """When the last accepted write of a row by a process was sent."""
        return self._sent_by.get((key, process), -1e9)

    def batch_begins(self, worker: str, shard: str, *, is_ours: bool = True) -> None:
        """Checker 5. A Java worker counts from the answer that told it of its lease, which may be late."""
        lost_at = self._owner_lost_at.get((shard, worker))
        if lost_at is None:
            return
        bound = self._failover_s + LOST_LEASE_GRACE_S + (0.0 if is_ours else ANSWER_LATE_MAX_S)
        since = max(lost_at, self.paused_s.get(worker, 0.0), self.beliefs.since_of_worker(worker, shard))
        if self._now() - since > bound:
            raise self.violation(5, f"{worker} still delivers {shard} {self._now() - since:.1f} s after it lost it")

    def read_from_tip(self, shard: str) -> None:
        """Somebody got an iterator of the type LATEST."""
        self.shard(shard).tip_at = self._now()

    def batch_begins_in(self, process: str, worker: str, shard: str) -> None:
        """The same for a process that can be asked whether it believes."""
        self.on_batch(process, worker, shard)
        believed_at = self._believed_at.get((process, shard))
        if believed_at is None:
            return
        since = max(believed_at, self._sent_by.get((shard, process), 0.0), self.paused_s.get(worker, 0.0))
        if self._now() - since > UNBELIEVING_MAX_S and (worker, process) not in self._believers(shard):
            raise self.violation(5, f"{process} delivers {shard} {self._now() - since:.1f} s after it knew of the loss")

    def begins_at(self, child: int, shard: str, sequence: str, sub: int) -> None:
        """A child is told its checkpoint: it must get all that follows, and nothing at or before it."""
        if sequence.isdigit():
            self._last_of_child[child, shard] = start = (int(sequence), sub)
            self._next_of_child[child, shard] = bisect_right(self.shard(shard).put, start)
        elif sequence != "LATEST":
            self._next_of_child[child, shard] = 0
        self.shared.begins_at(child, self._next_of_child.get((child, shard)))

    def delivered(self, worker: str, child: int, shard: str, places: list[Place]) -> None:
        record = self.shard(shard)
        if record.is_gone:
            return
        self._check_parents(record, worker)
        last, following = self._last_of_child.get((child, shard), (-1, 0)), self._next_of_child.get((child, shard))
        for place in places:
            if place <= last:
                raise self.violation(2, f"child {child} of {worker} went back in {shard}: {last} then {place}")
            if place in record.extra:
                last = place
                continue
            self.shared.delivered(child, place)
            following = self._next_for(child, record, following, place)
            if following is None or record.put[following : following + 1] != [place]:
                following = self._skipped_to(record, following, place, child, worker)
            last, following = place, following + 1
            self.deliveries += 1
            self.redeliveries += place in record.delivered
            # For one the robbed worker may deliver on, and what it delivered then comes again from the other one.
            self.repeats += place in record.delivered and self._now() - record.stolen_at > 2 * self._failover_s
            if place not in record.delivered:
                self.news_at = self._now()
            record.deliver(place)
        self._last_of_child[child, shard] = last
        if following is not None:
            self._next_of_child[child, shard] = following
        self.trace(f"{worker} child {child} gets {len(places)} of {shard}")

    def _next_for(self, child: int, record: ShardRecord, following: int | None, place: Place) -> int | None:
        """The index of the record that a child must get now, which it shares with others or not."""
        index = record.index_of(place)
        wanted = self.shared.following(child, following)
        is_between = wanted is not None and index is not None and index < wanted
        return index if is_between and self.shared.is_keyless(child, index) else wanted

    def _skipped_to(self, record: ShardRecord, expected: int | None, place: Place, number: int, worker: str) -> int:
        """A child gets another record than its next one: what it should have got between must have been trimmed."""
        index, child = record.index_of(place), f"child {number} of {worker}"
        if index is None:
            raise self.violation(1, f"{child} gets {place}, which does not belong to {record.shard_id}")
        if expected is None:
            return index
        trimmed_to = bisect_left(record.put_at, self._now() - self.retention_s + RETENTION_MARGIN_S)
        following = self.shared.following(number, trimmed_to)
        if not self.retention_s or (following is not None and following < index):
            skipped = record.put[expected]
            raise self.violation(1, f"{child} gets {place} of {record.shard_id} without {skipped} before it")
        return index

    def _check_parents(self, record: ShardRecord, worker: str) -> None:
        if record.delivered or record.edited:
            return
        for parent in (self.shard(name) for name in record.parents):
            if self._is_passed(parent) or parent.edited or self.has_edited_ancestor(parent):
                continue
            if left := self.owed(parent):
                raise self.violation(2, f"{record.shard_id} begins while {left} of {parent.shard_id} are undelivered")
            if not parent.ended and not self.has_left_unseen(parent):
                raise self.violation(2, f"{record.shard_id} begins before {parent.shard_id} is at SHARD_END")

    def has_edited_ancestor(self, record: ShardRecord) -> bool:
        return any(self.shard(p).edited or self.has_edited_ancestor(self.shard(p)) for p in record.parents)

    # --- every accepted write -----------------------------------------------------------------------------------------

    def applied(self, write: Applied, sent_at: float) -> None:
        key = (write.after or write.before)["leaseKey"]["S"]
        record = self.shard(key)
        if not write.after:
            if not self.may_delete(key):
                self._check_deletion(record, write)
            record.last_checkpoint = None
            record.checkpoint = ""
            return
        record.had_row = True
        record.checkpoint = _text(write.after, "checkpoint")
        record.at_latest = record.checkpoint == "LATEST"
        if not write.before:
            self.trace(f"{write.sender} creates {key} at {record.checkpoint}")
        if not write.before and not record.is_gone:
            self._check_creation(record, write)
        if not record.is_gone:
            self._check_checkpoint(record, write)
        record.last_checkpoint = _position(write.after)
        self._check_counter(record, write, sent_at)
        self._check_writer(key, write)
        if _text(write.before, "leaseCounter") != _text(write.after, "leaseCounter"):  # else it is no heartbeat
            self._sent[key] = sent_at
            self._sent_by[key, write.sender] = max(sent_at, self.wrote_at(write.sender, key))  # they may overtake
            self._last_writer[key] = write.sender
            before, after = _actual_owner(write.before), _actual_owner(write.after)
            if after == _worker(write.sender):
                self.beliefs.applied(write.sender, key, sent_at, is_take=before != after)

    def _check_creation(self, record: ShardRecord, write: Applied) -> None:
        """A child is read from its start, wherever the application began."""
        has_parent_row = any(self.shard(parent).checkpoint for parent in record.parents)
        by_hand = record.edited or self.has_edited_ancestor(record)
        if record.checkpoint != "TRIM_HORIZON" and has_parent_row and not by_hand:
            raise self.violation(1, f"{write.sender} creates the child {record.shard_id} at {record.checkpoint}")

    def _check_deletion(self, record: ShardRecord, write: Applied) -> None:
        """A row is the proof that its children must be read: it stays until they have been started."""
        if record.checkpoint != SHARD_END:
            raise self.violation(3, f"{write.sender} deletes {record.shard_id} at {record.checkpoint}")
        for child in self.children_of(record.shard_id):
            if self.has_left_unseen(child):
                continue
            if child.checkpoint in ("", "TRIM_HORIZON", "AT_TIMESTAMP") and not child.ended and not child.edited:
                raise self.violation(2, f"{write.sender} deletes {record.shard_id} before {child.shard_id} is started")

    def generation(self, record: ShardRecord) -> int:
        """How many generations of ancestors a shard has, of those that the ledger knows."""
        parents = [self.shards[parent] for parent in record.parents if parent in self.shards]
        return max((1 + self.generation(parent) for parent in parents), default=0)

    def children_of(self, shard_id: str) -> list[ShardRecord]:
        return [record for record in self.shards.values() if shard_id in record.parents]

    def _check_counter(self, record: ShardRecord, write: Applied, sent_at: float) -> None:
        """Checker 4: every write counts up by one; two processes of one worker id do not both go on."""
        key, before, after = record.shard_id, _counter(write.before), _counter(write.after)
        if before is None or after is None or before == after:
            return
        if after != before + 1:
            raise self.violation(4, f"{write.sender} takes the counter of {key} from {before} to {after}")
        last, owner = self._last_writer.get(key), _actual_owner(write.after)
        if last is not None and _worker(last) == _worker(write.sender) and _life(write.sender) < _life(last):
            self._predecessor_at = self._now()
        if last == write.sender or last not in self.ours or write.sender not in self.ours or owner is None:
            return
        same_owner = owner == _actual_owner(write.before) == _worker(write.sender) == _worker(last)
        if not same_owner or sent_at - self._sent_by.get((key, write.sender), -1e9) > self._failover_s:
            self._turns[key] = 0
            return
        self._turns[key] = self._turns.get(key, 0) + 1
        if self._turns[key] > TWIN_TURNS_MAX:
            raise self.violation(4, f"{write.sender} and {last} go on writing {key} by turns")

    def _check_checkpoint(self, record: ShardRecord, write: Applied) -> None:
        before, after = _position(write.before), _position(write.after)
        if write.before and before == after:
            return
        text = _text(write.after, "checkpoint")
        name = record.shard_id
        if write.before:
            self.checkpoints += 1
            self.trace(f"{write.sender} checkpoints {name} at {text[-8:]}")
            if _text(write.before, "checkpoint") == SHARD_END:
                raise self.violation(3, f"{write.sender} takes {name} back from SHARD_END to {text}")
            is_odd = _text(write.before, "checkpoint") == record.odd_checkpoint
            if before is not None and after is not None and after < before and not is_odd:
                raise self.violation(3, f"{write.sender} takes the checkpoint of {name} back to {text}")
        if text == SHARD_END:
            if _text(write.before, "checkpoint") == "LATEST":
                record.deliver_nothing_before_now()
            if not record.closed:
                raise self.violation(3, f"{write.sender} marks {name} finished although it is open")
            self._check_children_exist(record, write)
            if self.frozen_end and self.owed(record):
                raise self.violation(3, f"{write.sender} marks {name} finished although its stream is gone")
            if left := self.owed(record):
                raise self.violation(1, f"{write.sender} ends {name} with {left} records undelivered")
            record.ended = True
        elif text.isdigit() and (left := self.owed(record, (int(text), _sub(write.after)))):
            raise self.violation(1, f"{write.sender} checkpoints {name} past {left} undelivered records")
        if write.before and self.shared.shares(write.sender, name):
            self.shared.row_moves(write.sender, name, after)
        elif write.before and write.sender in self.ours:
            asked = self._asked.get((write.sender, name), set())
            if (text, _sub(write.after)) not in asked:
                raise self.violation(1, f"{write.sender} checkpoints {name} at {text}, which its child did not ask for")

    def has_left_unseen(self, record: ShardRecord) -> bool:
        """A shard that was closed, and forgotten with all it had, before anybody made a row of it."""
        is_due = bool(self.retention_s) or self._is_passed(record)
        return is_due and record.closed and not record.had_row and not self.owed(record)

    def _is_passed(self, record: ShardRecord) -> bool:
        """Whether those who read at the tip have made no row of it."""
        return not record.had_row and (self.starts_at_latest or record.starts_at_latest)

    def _check_children_exist(self, record: ShardRecord, write: Applied) -> None:
        for child in self.children_of(record.shard_id):
            if not child.had_row and not self.has_edited_ancestor(child) and not self.has_left_unseen(child):
                raise self.violation(2, f"{write.sender} ends {record.shard_id} while {child.shard_id} has no row")

    def _check_writer(self, key: str, write: Applied) -> None:
        """Checker 4: renewals and checkpoints come from the owner; an expired owner has stopped believing."""
        before, after = _actual_owner(write.before), _actual_owner(write.after)
        me = _worker(write.sender)
        if before == after and before is not None:
            is_same_pair = _text(write.before, "leaseOwner") == _text(write.after, "leaseOwner")
            # Java renews by the counter alone, which a row made anew after a deletion by hand may match by chance.
            is_chance = self.shard(key).edited and write.sender not in self.ours
            if _counter(write.before) != _counter(write.after) and before != me and is_same_pair and not is_chance:
                raise self.violation(4, f"{write.sender} wrote {key}, which belongs to {before}")
        elif before is not None:
            if after is None and before != me and me != OPERATOR:
                raise self.violation(4, f"{write.sender} releases {key}, which belongs to {before}")
            self._owner_lost_at[key, before] = self._now()
            self._check_disbelief(key, before, write.sender)
        if after == me:
            self._owner_lost_at.pop((key, me), None)
            if before not in (None, me):
                self.shard(key).stolen_at = self._now()
        if after is not None and before != after:
            self.takes += 1
            self.trace(f"{write.sender} takes {key} from {before or 'nobody'}")
            self._owner_lost_at.pop((key, after), None)

    def _check_disbelief(self, key: str, owner: str, taker: str) -> None:
        """Whoever is taken from a living owner hears of it by its next write, which is refused."""
        others = self._sent.get(key, NEVER) if self.has_twins else NEVER
        for worker, process in self._believers(key):
            age = self._now() - max(self.believed_from(process, key), others)
            if worker == owner and age > self._failover_s * (1 + 4 * DRIFT_MAX):
                raise self.violation(
                    4, f"{process} believes in {key} {age:.2f} s after its last write was sent, while {taker} takes it"
                )

    def violation(self, number: int, text: str) -> Violation:
        """To be raised; noted first, because a child that raises it only looks like one that died."""
        self.on_violation(f"checker {number} at {self._now():.2f} s: {text}")
        return Violation(f"checker {number} at {self._now():.2f} s: {text}")


def _text(item: Item, name: str) -> str:
    value: Mapping[str, Any] | None = item.get(name)
    return "" if value is None else str(next(iter(value.values())))


def _sub(item: Item) -> int:
    return int(_text(item, "checkpointSubSequenceNumber") or 0)


def _actual_owner(item: Item) -> str | None:
    return _text(item, "checkpointOwner") or _text(item, "leaseOwner") or None


def _worker(process: str) -> str:
    return process.split("#")[0]


def _life(process: str) -> int:
    """The number of a process among those of its worker."""
    return int(process.split("#")[1])


def _counter(item: Item) -> int | None:
    text = _text(item, "leaseCounter")
    return int(text) if text.isdigit() else None


def _position(item: Item) -> tuple[int, int, int] | None:
    return position(_text(item, "checkpoint"), _sub(item))


def position(text: str, sub: int) -> tuple[int, int, int] | None:
    """A checkpoint as something that compares."""
    if text == SHARD_END:
        return _END
    if text in SENTINEL_ORDER:
        return (0, SENTINEL_ORDER[text], 0)
    return (0, int(text), sub) if text.isdigit() else None
