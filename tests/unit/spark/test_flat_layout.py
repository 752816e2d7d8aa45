"""A flat sink in one directory: names, what goes on in directories, and what is left when the ledger is lost."""

from __future__ import annotations

import json

import pytest

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import LEDGER
from mld.processors.spark.high_water_marks import RecordPosition, spans
from mld.processors.spark.sink_port import SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import COPIES, COPIES_SWEPT_FROM, FlatSink, PartitionedSink
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import SHARDS, Frame, Killed, _records, over_memory, read


class ManyFiles(FlatSink):
    """The real sink, with a file for each record in place of Spark's part."""

    def _columns(self, frame):
        return ()

    def _write(self, frame: Frame, token: str) -> int:
        for index, record in enumerate(frame.records):
            name = f"{self._journal.data(token)}/part-{index:05d}-7c9e.c000.snappy.parquet"
            self._store.put(name, json.dumps([record]).encode())
        return len(frame.records)


def many(store: MemoryStore) -> FlatSink:
    return ManyFiles(SinkSpec("out"), store)


def one(store: MemoryStore) -> FlatSink:
    return over_memory(FlatSink, store)  # type: ignore[return-value]


def publish(sink: FlatSink, upto: int) -> None:
    batch = spans({SHARDS[0]: RecordPosition(upto)}, sink.open())
    if batch:
        sink.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]


def shown(disk: Disk) -> list[str]:
    return sorted(name for name, file in disk.names.items() if file is not None and not name.startswith("_"))


def test_names_are_the_number_of_the_commit_and_of_the_file():
    store = MemoryStore(Disk())
    publish(many(store), 2)
    publish(many(store), 3)
    assert shown(store.disk) == [
        "c000000000001-00000.c000.snappy.parquet",
        "c000000000001-00001.c000.snappy.parquet",
        "c000000000002-00000.c000.snappy.parquet",
    ]


def test_few_copies_stay():
    store = MemoryStore(Disk())
    for number in range(1, 4 * COPIES_SWEPT_FROM):
        publish(one(store), number)
        assert len(store.names(COPIES)) <= COPIES_SWEPT_FROM
    assert ledger.entry_name(4 * COPIES_SWEPT_FROM - 1) in store.names(COPIES)


def dying(disk: Disk, after: int) -> MemoryStore:
    """A process that dies at its nth operation."""
    left = after

    def before(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return MemoryStore(disk, 1, before)


def lose(disk: Disk) -> None:
    for name in [name for name in disk.names if name == "_mld" or name.startswith("_mld/")]:
        del disk.names[name]


@pytest.mark.parametrize("kind", [one, many])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_whoever_loses_the_ledger_at_any_moment_loses_and_doubles_nothing(kind, before):
    """The writer dies at each of its operations, and then `_mld` is deleted; records are delivered again."""
    refused = died = 0
    for after in range(1_000):
        disk = Disk()
        for upto in range(1, before + 1):
            publish(kind(MemoryStore(disk)), upto)
        try:
            publish(kind(dying(disk, after)), before + 3)
        except Killed:
            died += 1
        else:
            break
        lose(disk)
        try:
            publish(kind(MemoryStore(disk, 2)), before + 3)
        except SinkRefused as error:
            refused += 1
            assert "is missing; restore _mld" in str(error)
            number = max(name[:13] for name in shown(disk))
            for name in [name for name in shown(disk) if name.startswith(number)]:
                del disk.names[name]
            publish(kind(MemoryStore(disk, 2)), before + 3)
        assert sorted(read(disk).items()) == [(("0", n), 1) for n in range(1, before + 4)], after
        publish(kind(MemoryStore(disk, 3)), before + 4)
        lose(disk)
        assert kind(MemoryStore(disk, 4)).open() == {SHARDS[0]: RecordPosition(before + 4)}
    assert died > 20
    assert bool(refused) is (kind is many), "of a commit of one file a reader sees all or nothing"


def test_a_lost_ledger_without_a_copy_is_refused():
    disk = Disk()
    publish(one(MemoryStore(disk)), 3)
    for name in [name for name in disk.names if name.startswith("_")]:
        del disk.names[name]
    with pytest.raises(SinkRefused, match=r"holds commits, but no ledger, and _mld_copies/0+1\.json cannot be read"):
        one(MemoryStore(disk)).open()


def test_an_emptied_directory_begins_anew():
    disk = Disk()
    publish(one(MemoryStore(disk)), 3)
    lose(disk)
    for name in shown(disk):
        del disk.names[name]
    assert one(MemoryStore(disk)).open() == {}
    publish(one(MemoryStore(disk)), 5)
    lose(disk)
    assert one(MemoryStore(disk)).open() == {SHARDS[0]: RecordPosition(5)}


def test_a_first_commit_that_comes_while_another_worker_opens_is_no_lost_ledger():
    """Its copy of the entry is there, and its files are about to come."""
    disk = Disk()
    begun = False

    def dies_before_its_file_comes(operation: str) -> None:
        if operation == "move c000000000001-00000.json":
            raise Killed

    def before(operation: str) -> None:
        nonlocal begun
        if operation == "names " and not begun:
            begun = True
            with pytest.raises(Killed):
                publish(one(MemoryStore(disk, 1, dies_before_its_file_comes)), 2)

    assert one(MemoryStore(disk, 2, before, {2})).open() == {SHARDS[0]: RecordPosition(2)}
    assert begun
    assert one(MemoryStore(disk, 3, alive={2, 3})).open() == {SHARDS[0]: RecordPosition(2)}
    assert len(read(disk)) == 2


def test_directories_of_version_0_1_whose_ledger_is_lost_are_refused():
    store = MemoryStore(Disk())
    store.put("mld_commit=000000000012/part-0.json", b"[]")
    with pytest.raises(SinkRefused, match=r"has mld_commit=000000000012, as mld 0\.1 kept commits"):
        one(store).open()


def test_a_ledger_of_version_0_1_is_refused_with_its_version():
    disk = Disk()
    publish(one(MemoryStore(disk)), 2)
    store = MemoryStore(disk)
    path = f"{LEDGER}/{ledger.entry_name(1)}"
    value = json.loads(store.read(path))
    store.write(path, json.dumps({**value, "version": 1, "marks": {}}).encode())
    with pytest.raises(SinkRefused, match=r"was written by mld 0\.1 \(version 1\).*Use a new directory"):
        one(MemoryStore(disk, 2, alive={2})).open()


@pytest.mark.parametrize("name", ["_delta_log", "_spark_metadata"])
@pytest.mark.parametrize("layout", [FlatSink, PartitionedSink])
def test_a_directory_whose_readers_would_never_see_our_files_is_refused(layout, name):
    disk = Disk()
    MemoryStore(disk).put(f"{name}/00000000000000000000.json", b"{}")
    with pytest.raises(SinkRefused, match=f"has {name}, as .* keeps it.*; use a new directory"):
        over_memory(layout, MemoryStore(disk)).open()
