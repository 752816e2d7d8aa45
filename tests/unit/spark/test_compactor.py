"""When the host compacts: after enough commits, one directory at a time, and never at the cost of another sink."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from mld.processors.spark.commit.journal import STAGING, Journal
from mld.processors.spark.commit.small_files import QUIET_S
from mld.processors.spark.high_water_marks import RecordPosition, spans
from mld.processors.spark.maintenance.compactor import BACKOFF_MIN_S, Compactor
from mld.processors.spark.sink_port import SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.factory import compactable_sinks, make_sink
from mld.processors.spark.sinks.files import FileSink, FlatSink
from mld.processors.spark.sinks.partitioned_files import PartitionedSink
from tests.support.patience import PATIENCE_S
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import SHARDS, Frame, _records, over_memory, read

FILES = 4


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def commits(disk: Disk, upto: int, layout: type[FileSink] = FlatSink) -> None:
    """One commit for each record."""
    sink = over_memory(layout, MemoryStore(disk))
    done = sink.open().get(SHARDS[0], RecordPosition(0)).sequence
    for number in range(done + 1, upto + 1):
        batch = spans({SHARDS[0]: RecordPosition(number)}, sink.open())
        sink.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]


def compactor(clock: Clock, *sinks) -> Compactor:
    return Compactor(sinks, None, FILES, clock=clock)  # type: ignore[arg-type]


def shown(disk: Disk) -> int:
    return len([name for name, file in disk.names.items() if file is not None and not name.startswith("_")])


def test_enough_files_become_one_and_it_is_not_looked_again_before_there_are_as_many(clock):
    disk = Disk()
    looked = []
    store = MemoryStore(disk, before=lambda operation: looked.append(operation) if operation == "listed " else None)
    one = compactor(clock, over_memory(FlatSink, store))
    commits(disk, FILES - 1)
    assert one.round() is None
    assert len(looked) == 1
    assert one.round() is None
    assert len(looked) == 1, "nothing has come"
    commits(disk, FILES)
    done = one.round()
    assert done is not None and done.removed == FILES
    assert shown(disk) == 1
    commits(disk, 2 * FILES - 2)
    assert one.round() is None
    commits(disk, 2 * FILES - 1)
    assert one.round() is not None
    assert (shown(disk), len(read(disk))) == (1, 2 * FILES - 1)


def test_what_came_before_the_start_counts_and_directories_have_their_turns(clock):
    disk = Disk()
    commits(disk, 2 * FILES, PartitionedSink)
    one = compactor(clock, over_memory(PartitionedSink, MemoryStore(disk)))
    assert one.round() is not None
    assert one.round() is not None
    assert (one.round(), shown(disk)) == (None, 2)


def test_its_directories_are_found_without_a_look_at_what_is_staged():
    """Staging areas of others come and go meanwhile."""
    disk = Disk()
    looked = []
    commits(disk, 2, PartitionedSink)
    sink = over_memory(PartitionedSink, MemoryStore(disk, before=looked.append))
    assert sink.directories() == ["p=0", "p=1"]
    assert not [operation for operation in looked if "_mld" in operation]
    assert over_memory(FlatSink, MemoryStore(disk)).directories() == [""]


def test_after_a_silence_it_looks_once_more(clock):
    disk = Disk()
    commits(disk, 1)
    one = compactor(clock, over_memory(FlatSink, MemoryStore(disk)))
    assert one.wait_s() is None
    assert one.round() is None
    assert one.wait_s() == QUIET_S
    clock.now += QUIET_S
    assert (one.wait_s(), one.round(), one.wait_s()) == (0.0, None, None)


def test_a_sink_that_fails_is_left_for_a_while_and_the_others_go_on(clock, caplog):
    good, bad = Disk(), Disk()
    commits(good, FILES)
    commits(bad, FILES)
    broken = over_memory(FlatSink, MemoryStore(bad))
    broken.compact = lambda *_: (_ for _ in ()).throw(SinkError("out: no"))  # type: ignore[method-assign]
    one = compactor(clock, broken, over_memory(FlatSink, MemoryStore(good)))
    assert one.round() is not None
    assert "every record is there: out: no" in caplog.text
    assert one.wait_s() is not None
    del broken.compact
    clock.now += BACKOFF_MIN_S - 1
    assert one.round() is None
    clock.now += 1
    assert one.round() is not None


def test_what_can_never_be_put_together_is_not_tried_again(clock, caplog):
    disk = Disk()
    commits(disk, FILES)
    refused = over_memory(FlatSink, MemoryStore(disk))

    def refuse(*_):
        raise SinkRefused("other columns")

    refused.compact = refuse  # type: ignore[method-assign]
    one = compactor(clock, refused)
    assert one.round() is None
    commits(disk, 3 * FILES)
    assert one.round() is None
    assert caplog.text.count("other columns") == 1


def test_another_worker_that_is_at_it_is_left_to_it_unless_it_is_dead(clock):
    disk = Disk()
    commits(disk, FILES)
    alive = {0, 7}
    theirs = Journal(MemoryStore(disk, 7), "out")
    token = theirs.stage()
    theirs.mark_compaction(token)
    one = compactor(clock, over_memory(FlatSink, MemoryStore(disk, 0, alive=alive)))
    assert f"{STAGING}/{token}/compacting" in disk.names
    assert one.round() is None
    alive.remove(7)
    assert one.round() is not None


def test_its_thread_works_when_a_batch_has_ended_and_stops(clock):
    disk = Disk()
    commits(disk, FILES)
    compacted = threading.Event()
    store = MemoryStore(disk, before=lambda operation: compacted.set() if operation.startswith("remove c") else None)
    one = compactor(clock, over_memory(FlatSink, store))
    one.start()
    one.triggered()
    assert compacted.wait(PATIENCE_S)
    one.stop()
    one._thread.join(10)
    assert not one._thread.is_alive()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (SinkSpec("out", "parquet", "s3://bucket/x", compact=True), "a copy that is carried out late"),
        (SinkSpec("out", "json", "/x", compact=True), "files of json stay as they are; compacted are orc and parquet"),
        (SinkSpec("out", "delta", "/x", compact=True), "their own maintenance"),
    ],
)
def test_what_cannot_be_compacted_is_refused_if_it_is_asked_for_and_left_out_if_not(spec, said):
    with pytest.raises(SinkRefused, match=rf"mld\.spark\.sink\.out\.compact = on: .*{said}"):
        make_sink(spec, None)  # type: ignore[arg-type]
    sinks, (reason,) = compactable_sinks([replace(spec, compact=None)], None)  # type: ignore[arg-type]
    assert not sinks
    assert said in reason


@pytest.mark.parametrize(("compact", "by_hand", "count"), [(None, False, 1), (False, False, 0), (False, True, 1)])
def test_files_of_this_machine_are_compacted_unless_the_settings_say_no_or_somebody_asks(
    tmp_path, compact, by_hand, count
):
    spec = SinkSpec("out", "parquet", str(tmp_path / "new"), compact=compact)
    sinks, left_out = compactable_sinks([spec], None, by_hand=by_hand)  # type: ignore[arg-type]
    assert (len(sinks), left_out) == (count, [])
    assert not (tmp_path / "new").exists()
    if sinks:
        assert sinks[0].compact(None, "", lambda files: ()) is None  # type: ignore[arg-type]
        assert not (tmp_path / "new").exists(), "a sink without commits stays as it is"
