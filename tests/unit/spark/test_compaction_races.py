"""Compactions among commits, interleaved operation by operation: writers that also compact, die, sleep and lose power.

A reader that looks between any two operations finds no record twice; in the end every record is there once, in the
files that the compactions left.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import ENTRY_FILE, LEDGER, STAGING, Journal
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard, spans
from mld.processors.spark.sink_port import Fenced, SinkError, SinkRefused
from mld.processors.spark.sinks.files import COPIES, FileSink, FlatSink
from mld.processors.spark.sinks.partitioned_files import PartitionedSink
from mld.processors.spark.writer_identity import WriterIdentity
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import (
    RECORDS,
    SEEDS,
    SHARDS,
    Frame,
    Killed,
    World,
    _records,
    both_kinds,
    over_memory,
    read,
)

both_layouts = pytest.mark.parametrize("layout", [FlatSink, PartitionedSink])
DIRECTORIES = {FlatSink: ("",), PartitionedSink: ("p=0", "p=1")}


@pytest.fixture(autouse=True)
def small_ledgers(monkeypatch):
    """Keep so few entries that every run sweeps."""
    monkeypatch.setattr(ledger, "ENTRIES_KEPT", 1)
    monkeypatch.setattr(ledger, "ENTRIES_SWEPT_FROM", 2)


@dataclass
class CompactingWorld(World):
    """Every writer compacts now and then, whatever files it draws."""

    compactions: Counter[str] = field(default_factory=Counter)
    _shown: frozenset[str] = frozenset()

    def _look(self) -> None:
        shown = frozenset(name for name, file in self.disk.names.items() if file and not name.startswith("_"))
        if shown != self._shown:
            self._shown = shown
            doubled = [record for record, count in read(self.disk).items() if count > 1]
            assert not doubled, f"a reader finds {doubled[:3]} twice"

    def _work(self, pid: int, shards: list[StreamShard], writer: WriterIdentity) -> None:
        sink = self.sink_of(pid, lambda operation: self._before(pid, operation), writer)
        marks = None
        rounds = self.rng.randint(1, 4)
        while rounds or marks is None or any(marks.get(shard) != RecordPosition(RECORDS) for shard in shards):
            try:
                if marks is None:
                    marks = sink.open()
                if rounds and self.rng.random() < 0.5:
                    rounds -= 1
                    self._compact(sink)
                    continue
                batch = self._draw(marks, shards)
                if batch:
                    published = sink.publish(Frame(list(_records(batch, writer))), batch, f"by {pid}")  # type: ignore[arg-type]
                    self.told |= {shard: published.marks[shard] for shard in batch}
                    marks = published.marks
            except Fenced:
                marks = None
            except FileNotFoundError:
                self.compactions["read what was gone"] += 1
            except SinkError as error:
                assert not isinstance(error, SinkRefused), error
                marks = None

    def _compact(self, sink: FileSink) -> None:
        def some(files):
            names = sorted(one.name for one in files)
            count = self.rng.randint(2, 4)
            return tuple(sorted(self.rng.sample(names, count))) if len(names) >= count else ()

        done = sink.compact(None, self.rng.choice(DIRECTORIES[self.layout]), some)  # type: ignore[arg-type]
        self.compactions["done" if done else "left"] += 1


@both_kinds
@both_layouts
@pytest.mark.parametrize("power_cuts", [False, True])
def test_no_reader_finds_a_record_twice_and_none_is_lost(layout, power_cuts, kind):
    compactions: Counter[str] = Counter()
    for seed in range(SEEDS // 8):
        rng = random.Random(seed)
        world = CompactingWorld(rng, layout, kind)
        pid = 0
        for death in (0.02, 0.01, 0.0):
            for _ in range(rng.randint(2, 3)):
                pid += 1
                world.start(pid, rng.sample(SHARDS, rng.randint(1, 3)))
            if not death:
                world.start(pid + 1, SHARDS)
            world.play(death)
            if power_cuts and death:
                world.disk.lose_power(rng)
                world._look()
                world.check_told(seed)
        expected = Counter((shard.shard, sequence) for shard in SHARDS for sequence in range(1, RECORDS + 1))
        assert read(world.disk) == expected, f"seed {seed}"
        compactions += world.compactions
    assert compactions["done"] > SEEDS // 8, compactions


def publish(sink: FileSink, *ends: int) -> None:
    for upto in ends:
        batch = spans({SHARDS[0]: RecordPosition(upto)}, sink.open())
        sink.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]


def every(files):
    return tuple(sorted(one.name for one in files))


def dying(disk: Disk, after: int) -> MemoryStore:
    """A process that dies at its nth operation."""
    left = after

    def before(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return MemoryStore(disk, 1, before)


def test_a_compaction_that_dies_anywhere_is_finished_or_forgotten_by_the_next_opener():
    shown_while_dead = set()
    for after in range(1, 200):
        disk = Disk()
        publish(over_memory(FlatSink, MemoryStore(disk)), 2, 4, 6)
        try:
            over_memory(FlatSink, dying(disk, after)).compact(None, "", every)  # type: ignore[arg-type]
            break
        except Killed:
            pass
        found = read(disk)
        assert max(found.values(), default=1) == 1, after
        shown_while_dead.add(len(found))
        marks = over_memory(FlatSink, MemoryStore(disk, 2, alive={2})).open()
        assert marks == {SHARDS[0]: RecordPosition(6)}
        assert read(disk) == Counter((SHARDS[0].shard, number) for number in range(1, 7)), after
    else:
        pytest.fail("it never ends")
    assert shown_while_dead == {0, 2, 4, 6}, "the proof has to come to every step of taking files away"


def test_marks_and_columns_stay_and_the_number_goes_on():
    store = MemoryStore(Disk())
    sink = over_memory(FlatSink, store)
    publish(sink, 2, 4, 6)
    done = sink.compact(None, "", every)  # type: ignore[arg-type]
    assert done is not None
    assert (done.number, done.removed, done.added, done.rows) == (4, 3, 1, 6)
    assert [name for name in store.disk.names if name.startswith("c")] == ["c000000000004-00000.json"]
    publish(sink, 8)
    assert len(read(store.disk)) == 8


def test_a_zombie_that_comes_back_to_take_files_away_finds_nothing_to_do():
    """It stands before the first file that it takes away; meanwhile its entry is finished, and its own file is
    compacted again with newer ones."""
    disk = Disk()
    publish(over_memory(FlatSink, MemoryStore(disk)), 2, 4)

    def meanwhile(operation: str) -> None:
        nonlocal slept
        if operation.startswith("remove c") and not slept:
            slept = True
            other = over_memory(FlatSink, MemoryStore(disk, 2, alive={1, 2}))
            publish(other, 6, 8)
            assert other.compact(None, "", every)  # type: ignore[arg-type]
            publish(other, 10)

    slept = False
    over_memory(FlatSink, MemoryStore(disk, 1, meanwhile, {1, 2})).compact(None, "", every)  # type: ignore[arg-type]
    assert slept
    assert read(disk) == Counter((SHARDS[0].shard, number) for number in range(1, 11))


def test_two_that_chose_the_same_files_replace_them_once():
    disk = Disk()
    publish(over_memory(FlatSink, MemoryStore(disk)), 2, 4)
    other = over_memory(FlatSink, MemoryStore(disk, 2, alive={1, 2}))

    def choose(files):
        assert other.compact(None, "", every)  # type: ignore[arg-type]
        return every(files)

    class Rereads(MemoryStore):
        """Files that were open when they were taken away are read to their end."""

        def read(self, path: str) -> bytes:
            return super().read(path) if path in self.disk.names or "/" in path else b'[["0", 1]]'

    assert over_memory(FlatSink, Rereads(disk, 1, alive={1, 2})).compact(None, "", choose) is None  # type: ignore[arg-type]
    assert read(disk) == Counter((SHARDS[0].shard, number) for number in range(1, 5))
    assert not [name for name in disk.names if name.startswith(f"{STAGING}/")]


def test_an_older_program_refuses_the_entry_and_sees_in_the_staging_area_which_number_it_is_about_to_be():
    """So that it moves it away before it frees the number (journal, Cleaning)."""
    disk = Disk()
    publish(over_memory(FlatSink, MemoryStore(disk)), 2, 4)
    drafts = []

    def before(operation: str) -> None:
        if operation.startswith("take"):
            (draft,) = (file for name, file in disk.names.items() if name.endswith(f"/{ENTRY_FILE}") and file)
            drafts.append(ledger.decode(draft.content))

    over_memory(FlatSink, MemoryStore(disk, 1, before)).compact(None, "", every)  # type: ignore[arg-type]
    (draft,) = drafts
    assert (draft.number, draft.removals) == (3, ())
    linked = disk.names[f"{LEDGER}/{ledger.entry_name(3)}"]
    assert linked is not None
    assert b'"version":4' in linked.content
    head = Journal(MemoryStore(disk), "out").head()
    assert head is not None and len(head.removals) == 2
    publish(over_memory(FlatSink, MemoryStore(disk)), 6)
    newest = disk.names[f"{LEDGER}/{ledger.entry_name(4)}"]
    assert newest is not None
    assert b'"version":3' in newest.content, "once it is finished an older program goes on"


def test_a_ledger_lost_in_the_middle_of_a_compaction_is_not_restored_without_the_rows():
    for kept in ("_mld", COPIES):
        disk = Disk()
        publish(over_memory(FlatSink, MemoryStore(disk)), 2, 4, 6)

        def before(operation: str, disk: Disk = disk) -> None:
            if operation.startswith("remove c") and "c000000000001-00000.json" not in disk.names:
                raise Killed

        with pytest.raises(Killed):
            over_memory(FlatSink, MemoryStore(disk, 1, before)).compact(None, "", lambda files: every(files)[:2])  # type: ignore[arg-type]
        if kept == COPIES:
            for name in [name for name in disk.names if name.startswith("_mld/")]:
                del disk.names[name]
            with pytest.raises(SinkRefused, match="restore _mld"):
                over_memory(FlatSink, MemoryStore(disk, 2)).open()
        else:
            over_memory(FlatSink, MemoryStore(disk, 2, alive={2})).open()
            assert len(read(disk)) == 6


def test_a_compaction_is_durable_before_whoever_finishes_it_takes_files_away():
    """Its writer dies before it has made its entry durable, and somebody who was just opening the sink finishes it;
    then the power fails, and of all that was not synced nothing is left."""
    disk = Disk()
    publish(over_memory(FlatSink, MemoryStore(disk)), 2, 4)
    disk.sync(LEDGER)
    linked = False

    def dies_once_linked(operation: str) -> None:
        if linked_now():
            raise Killed

    def linked_now() -> bool:
        return f"{LEDGER}/{ledger.entry_name(3)}" in disk.names

    def before(operation: str) -> None:
        nonlocal linked
        if operation == f"names {LEDGER}" and not linked:
            linked = True
            with pytest.raises(Killed):
                over_memory(FlatSink, MemoryStore(disk, 1, dies_once_linked)).compact(None, "", every)  # type: ignore[arg-type]
        if operation == "move c000000000003-00000.json":
            raise Killed

    with pytest.raises(Killed):
        over_memory(FlatSink, MemoryStore(disk, 2, before, {2})).open()
    assert read(disk) == Counter()

    class NothingKept(random.Random):
        def randint(self, a: int, b: int) -> int:
            return a

    disk.lose_power(NothingKept())
    over_memory(FlatSink, MemoryStore(disk, 3, alive={3})).open()
    assert len(read(disk)) == 4


def test_a_sink_in_directories_stays_as_it_is(monkeypatch):
    store = MemoryStore(Disk())
    sink = over_memory(FlatSink, store)
    publish(sink, 2, 4)
    monkeypatch.setattr(sink, "_in_directories", sink._layout)
    assert sink.compact(None, "", every) is None  # type: ignore[arg-type]
    assert len(read(store.disk)) == 4
