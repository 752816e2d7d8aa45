"""Several writers on one sink, interleaved operation by operation from a seed, with deaths, zombies and power cuts.

Every record of every shard must be in the sink once and in no more than one place, whatever the schedule; and what a
writer was told is committed must survive.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from mld.processors.spark.commit import ledger, ledger_files
from mld.processors.spark.commit.journal import ABANDONED_S, STAGING, Journal
from mld.processors.spark.commit.ledger_files import LEDGER, path_of
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, spans
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import Fenced, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.files import FileSink
from mld.processors.spark.writer_identity import WriterIdentity
from tests.support.patience import PATIENCE_S
from tests.support.tiers import sliced
from tests.twins.store import Disk, MemoryStore

SEEDS = int(os.environ.get("MLD_RACE_SEEDS", "40"))
SHARDS = [StreamShard("s", str(index)) for index in range(3)]
RECORDS = 12
TURNS_MAX = 20_000


NOBODY = WriterIdentity()
Layout = tuple[str, ...]
FLAT: Layout = ()
PARTITIONED: Layout = ("p",)
LAYOUTS = pytest.mark.parametrize("layout", [FLAT, PARTITIONED], ids=["flat", "partitioned"])


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class Frame:
    """What stands in for a frame: the records of a batch, and a partition value for each."""

    def __init__(self, records: list[tuple[str, int]]) -> None:
        self.records = records


class PlainSink(FileSink):
    """The real sink, with a few plain writes in place of Spark's part."""

    def _fitted(self, head, frame):
        return frame, ()

    def _written(self, frame: Frame, token: str) -> int:
        by_partition: dict[int, list[tuple[str, int]]] = {}
        for shard, sequence in frame.records:
            by_partition.setdefault(sequence % 2 if self._spec.partition_by else 0, []).append((shard, sequence))
        for partition, records in by_partition.items():
            where = f"p={partition}/" if self._spec.partition_by else ""
            name = f"{self._journal.data(token)}/{where}part.json"
            self._staging.put(name, json.dumps(records).encode())
        return len(frame.records)


def over_memory(
    store: MemoryStore, partition_by: Layout = FLAT, writer: WriterIdentity = NOBODY, *, shared: bool = False
) -> FileSink:
    return PlainSink(SinkSpec("out", partition_by=partition_by, writer=writer, shared=shared), store)


@dataclass
class World:
    """Writers in threads, of which one runs at a time: the one drawn for the next operation."""

    rng: random.Random
    layout: Layout
    alive: set[int] = field(default_factory=set)
    told: dict[StreamShard, RecordPosition] = field(default_factory=dict)
    turns: int = 0

    def __post_init__(self) -> None:
        self.disk = Disk()
        self._turn = threading.Condition()
        self._running: int | None = None
        self._waiting: dict[int, str] = {}
        self._killed: set[int] = set()
        self._threads: dict[int, threading.Thread] = {}
        self._failures: list[BaseException] = []
        self._even = self.rng.random() < 0.25
        self._ranks: dict[int, float] = {}

    def start(self, pid: int, shards: list[StreamShard], writer: WriterIdentity = NOBODY) -> None:
        self.alive.add(pid)
        self._waiting[pid] = "start"
        self._threads[pid] = threading.Thread(target=self._run, args=(pid, shards, writer), daemon=True)
        self._threads[pid].start()

    def play(self, death: float) -> None:
        """Let one writer after the other do one operation; some die instead."""
        with self._turn:
            while self._waiting:
                self.turns += 1
                assert self.turns < TURNS_MAX, "no end"
                pid = self._next()
                if self.rng.random() < death:
                    self._killed.add(pid)
                    self.alive.discard(pid)
                del self._waiting[pid]
                self._running = pid
                self._turn.notify_all()
                assert self._turn.wait_for(lambda: self._running is None, 10)
                self._look()
        for thread in self._threads.values():
            thread.join(PATIENCE_S)
        if self._failures:
            raise self._failures[0]

    def _look(self) -> None:
        """Called after every operation."""

    def check_told(self, seed: int) -> None:
        """Every record is there that a writer was told is committed."""
        marks = over_memory(MemoryStore(self.disk, 0), self.layout).open()
        found = read(self.disk)
        for shard, position in self.told.items():
            assert marks[shard] >= position, seed
            assert all(found[shard.shard, sequence] == 1 for sequence in range(1, position.sequence + 1)), seed

    def _next(self) -> int:
        """One in four runs draws each turn; in the others the writer of the highest rank runs, and ranks are drawn
        anew now and then, so that some stand still for long."""
        waiting = sorted(self._waiting)
        if self._even:
            return self.rng.choice(waiting)
        for pid in waiting:
            self._ranks.setdefault(pid, self.rng.random())
        first = max(waiting, key=lambda pid: self._ranks[pid])
        if self.rng.random() < 0.04:
            self._ranks[first] = self.rng.random()
        return first

    def _before(self, pid: int, operation: str) -> None:
        if pid in self._killed:
            raise Killed
        with self._turn:
            self._waiting[pid] = operation
            self._running = None
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._running == pid)
        if pid in self._killed:
            raise Killed

    def _run(self, pid: int, shards: list[StreamShard], writer: WriterIdentity) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._running == pid)
        try:
            if pid not in self._killed:
                self._work(pid, shards, writer)
        except Killed:
            pass
        except BaseException as error:
            self._failures.append(error)
        finally:
            with self._turn:
                self.alive.discard(pid)
                self._waiting.pop(pid, None)
                self._running = None
                self._turn.notify_all()

    def _work(self, pid: int, shards: list[StreamShard], writer: WriterIdentity) -> None:
        """A host: open, then batches of drawn sizes until its shards are done."""
        sink = self.sink_of(pid, lambda operation: self._before(pid, operation), writer)
        marks: HighWaterMarks | None = None
        while marks is None or any(marks.get(shard) != RecordPosition(RECORDS) for shard in shards):
            try:
                if marks is None:
                    marks = sink.open()
                batch = self._draw(marks, shards)
                published = sink.publish(Frame(list(_records(batch, writer))), batch, f"by {pid}")  # type: ignore[arg-type]
                self.told |= {shard: published.marks[shard] for shard in batch}
                marks = published.marks
            except Fenced:
                marks = None
            except SinkError as error:
                assert not isinstance(error, SinkRefused), error
                marks = None

    def sink_of(self, pid: int, before: Callable[[str], None], writer: WriterIdentity) -> FileSink:
        store = MemoryStore(self.disk, pid, before, self.alive)
        return over_memory(store, self.layout, writer, shared=writer is not NOBODY)

    def _draw(self, marks: HighWaterMarks, shards: list[StreamShard]) -> ShardSpans:
        offered = {}
        left = [shard for shard in shards if marks.get(shard, RecordPosition(0)) < RecordPosition(RECORDS)]
        for shard in left:
            done = marks[shard].sequence if shard in marks else 0
            offered[shard] = RecordPosition(self.rng.randint(done + 1, RECORDS))
        return spans(offered, marks)


def _records(batch: ShardSpans, writer: WriterIdentity = NOBODY) -> Iterator[tuple[str, int]]:
    for shard, span in batch.items():
        for sequence in range(span.after.sequence + 1 if span.after else 1, span.upto.sequence + 1):
            yield f"{writer.application}{shard.shard}", sequence


def read(disk: Disk) -> Counter[tuple[str, int]]:
    """What a reader sees: every file that is not hidden."""
    found: Counter[tuple[str, int]] = Counter()
    for name, file in disk.names.items():
        if file is not None and not any(part.startswith(("_", ".")) for part in name.split("/")):
            found.update((shard, sequence) for shard, sequence in json.loads(file.content))
    return found


@pytest.fixture(autouse=True)
def small_ledgers(monkeypatch):
    """Keep so few entries that every run sweeps."""
    monkeypatch.setattr(ledger_files, "ENTRIES_KEPT", 1)
    monkeypatch.setattr(ledger_files, "ENTRIES_SWEPT_FROM", 2)


@LAYOUTS
@pytest.mark.parametrize("power_cuts", sliced([False, True], True))
def test_every_record_once_whatever_the_schedule(layout, power_cuts):
    for seed in range(SEEDS):
        rng = random.Random(seed)
        world = World(rng, layout)
        pid = 0
        for death in (0.02, 0.01, 0.0):
            # Two or three hosts; shards are shared at times: that is what a zombie is.
            for _ in range(rng.randint(2, 3)):
                pid += 1
                world.start(pid, rng.sample(SHARDS, rng.randint(1, 3)))
            if not death:
                world.start(pid + 1, SHARDS)
            world.play(death)
            assert not [record for record, count in read(world.disk).items() if count > 1], seed
            if power_cuts and death:
                world.disk.lose_power(rng)
                world.check_told(seed)
        expected = Counter((shard.shard, sequence) for shard in SHARDS for sequence in range(1, RECORDS + 1))
        assert read(world.disk) == expected, f"seed {seed}"


@LAYOUTS
def test_writers_that_share_a_sink_write_everything_each(layout):
    """Their streams have the same name, the same shards and the same numbers."""
    writers = [WriterIdentity("one", stream="s"), WriterIdentity("two", stream="s")]
    for seed in range(SEEDS // 2):
        world = World(random.Random(seed), layout)
        pid = 0
        for death in (0.02, 0.0):
            for writer in writers:
                for _ in range(2):
                    pid += 1
                    world.start(pid, SHARDS, writer)
            world.play(death)
        expected = Counter(
            record
            for writer in writers
            for record in _records({shard: ShardSpan(None, RecordPosition(RECORDS)) for shard in SHARDS}, writer)
        )
        assert read(world.disk) == expected, f"seed {seed}"


def test_nothing_is_left_behind():
    world = World(random.Random(1), PARTITIONED)
    for pid in (1, 2, 3):
        world.start(pid, SHARDS)
    world.play(0.01)
    over_memory(MemoryStore(world.disk, 9, alive=set()), PARTITIONED).open()
    assert not [name for name in world.disk.names if name.startswith(f"{STAGING}/")]
    assert len([name for name in world.disk.names if name.startswith(f"{LEDGER}/")]) <= 4
    assert ABANDONED_S > 0


class LinkedAndNotHeard(MemoryStore):
    """Says of a link that it exists because it has just been made, as a network file system may."""

    def create(self, path: str, data: bytes, draft: str) -> bool:
        super().create(path, data, draft)
        return False


def test_a_commit_whose_answer_is_lost_is_known_as_ours():
    sink = over_memory(LinkedAndNotHeard(Disk()))
    sink.open()
    for number in (1, 2):
        batch = spans({SHARDS[0]: RecordPosition(number)}, sink.open())
        assert sink.publish(Frame(list(_records(batch))), batch, "b").number == number  # type: ignore[arg-type]


def test_what_was_linked_while_a_reader_opened_is_durable_before_it_is_told():
    """At every step of the opening the writer dies right after its link, before it has synced it; and then the power is
    lost, at every step after that or once the marks were told."""
    for step in range(1, 40):
        for then in (None, *range(1, 25)):
            disk, steps, seen = Disk(), 0, None

            def dies_once_linked(_: str, disk: Disk = disk) -> None:
                if path_of(1) in disk.names:
                    raise Killed

            writer = over_memory(MemoryStore(disk, 1, dies_once_linked, alive={1, 2}))
            batch = spans({SHARDS[0]: RecordPosition(5)}, writer.open())

            def beside(
                _: str, at: int = step, last: int | None = then, writer: FileSink = writer, batch: ShardSpans = batch
            ) -> None:
                nonlocal steps
                steps += 1
                if steps == at:
                    with pytest.raises(Killed):
                        writer.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]
                if last is not None and steps >= at + last:
                    raise Killed

            with suppress(Killed):
                seen = over_memory(MemoryStore(disk, 2, beside, alive={1, 2})).open()
            if steps < step:
                return
            disk.events = [event for event in disk.events if not event.unsynced]
            disk.lose_power(random.Random(0))
            after = over_memory(MemoryStore(disk, 3)).open()
            assert after == seen or not seen, (step, then)
            assert read(disk) == (Counter(_records(batch)) if after else Counter()), (step, then)
    raise AssertionError("an opening has more steps than that")


class Elsewhere(MemoryStore):
    machine = b"another "


@pytest.mark.parametrize(("age_s", "stays"), [(ABANDONED_S - 1, True), (ABANDONED_S + 1, False)])
def test_a_staging_area_of_which_nobody_can_tell_whether_its_writer_lives_stays_for_a_day(age_s, stays):
    """Such as one of another machine, whose writer then finds that it may not commit any more."""
    disk = Disk()
    batch = spans({SHARDS[0]: RecordPosition(1)}, over_memory(MemoryStore(disk)).open())
    over_memory(MemoryStore(disk)).publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]
    journal = Journal(Elsewhere(disk, 1), "out")
    with suppress(SinkError), journal.staged() as token:
        disk.now_s += age_s
        assert over_memory(MemoryStore(disk, 2)).open()
        assert (f"{STAGING}/{token}" in disk.names) is stays
        head = journal.head()
        assert head is not None
        journal.commit(token, lambda head: ledger.LedgerEntry(head.number + 1, token, head.writers))  # type: ignore[union-attr]
        assert stays


def test_an_entry_whose_number_was_removed_meanwhile_is_void():
    """Its writer had read the head when it fell asleep, and others have committed and swept since."""
    disk = Disk()
    asleep = False

    def publish(store: MemoryStore, upto: int) -> None:
        batch = spans({SHARDS[1]: RecordPosition(upto)}, over_memory(store).open())
        over_memory(store).publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]

    def falls_asleep(operation: str) -> None:
        nonlocal asleep
        if operation.startswith("create") and not asleep:
            asleep = True
            for upto in range(1, 8):
                publish(MemoryStore(disk, 2, alive={1, 2}), upto)

    late = over_memory(MemoryStore(disk, 1, falls_asleep, {1, 2}))
    batch = spans({SHARDS[0]: RecordPosition(5)}, late.open())
    with pytest.raises(SinkError, match="nobody can tell whether it was in time"):
        late.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]
    for pid in (3, 4):
        assert SHARDS[0] not in over_memory(MemoryStore(disk, pid)).open()
    assert ("0", 1) not in read(disk)
    assert asleep


def test_what_a_writer_elsewhere_has_staged_goes_though_another_commit_comes_before_the_sweeper_s():
    """The sweeper's follows that one, and whoever had staged by then finds it."""
    disk = Disk()

    def publish(upto: int) -> None:
        sink = over_memory(MemoryStore(disk, 2, alive={1, 2, 3}))
        batch = spans({SHARDS[0]: RecordPosition(upto)}, sink.open())
        sink.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]

    def is_overtaken(operation: str) -> None:
        if operation == f"create {path_of(2)}" and not overtaken:
            overtaken.append(operation)
            disk.now_s -= ABANDONED_S
            publish(2)
            disk.now_s += ABANDONED_S

    overtaken: list[str] = []
    publish(1)
    journal = Journal(Elsewhere(disk, 1), "out")
    with pytest.raises(SinkError, match="cleared away as abandoned"), journal.staged() as token:
        disk.now_s += ABANDONED_S + 1
        over_memory(MemoryStore(disk, 3, is_overtaken, {1, 2, 3})).open()
        assert overtaken
        assert f"{STAGING}/{token}" not in disk.names
        head = journal.head()
        assert head is not None
        assert (head.number, head.swept_to) == (3, int(disk.now_s) - ABANDONED_S)
        journal.commit(token, lambda head: ledger.LedgerEntry(head.number + 1, token, head.writers))  # type: ignore[union-attr]
