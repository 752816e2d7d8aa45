"""A sink in one directory: names, what goes on in directories, and what is left when the ledger is lost."""

from __future__ import annotations

import json

import pytest

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger_files import LEDGER, Names, path_of
from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.files import FileSink
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import LAYOUTS, SHARDS, Frame, PlainSink, _records, over_memory, read


class ManyFiles(PlainSink):
    """With a file for each record."""

    def _written(self, frame: Frame, token: str) -> int:
        for index, record in enumerate(frame.records):
            name = f"{self._journal.data(token)}/part-{index:05d}-7c9e.c000.snappy.parquet"
            self._staging.put(name, json.dumps([record]).encode())  # type: ignore[attr-defined]
        return len(frame.records)


def publish(sink: FileSink, upto: int) -> None:
    batch = spans({SHARDS[0]: RecordPosition(upto)}, sink.open())
    if batch:
        sink.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]


def shown(disk: Disk) -> list[str]:
    return sorted(name for name, file in disk.names.items() if file is not None and not name.startswith("_"))


def test_names_begin_with_the_number_of_the_commit():
    store = MemoryStore(Disk())
    publish(ManyFiles(SinkSpec("out"), store), 2)
    publish(ManyFiles(SinkSpec("out"), store), 3)
    assert shown(store.disk) == [
        "c000000000001-part-00000-7c9e.c000.snappy.parquet",
        "c000000000001-part-00001-7c9e.c000.snappy.parquet",
        "c000000000002-part-00000-7c9e.c000.snappy.parquet",
    ]


def test_a_commit_whose_directory_vanishes_is_not_called_done_until_its_files_are_there(monkeypatch):
    disk = Disk()
    sink, sync = ManyFiles(SinkSpec("out"), MemoryStore(disk)), MemoryStore.sync
    sink.open()

    def vanished(store, path):
        if path == ".":
            monkeypatch.setattr(MemoryStore, "sync", sync)
            raise FileNotFoundError(path)
        sync(store, path)

    monkeypatch.setattr(MemoryStore, "sync", vanished)
    with pytest.raises(SinkError):
        publish(sink, 2)
    assert sink.open() == {SHARDS[0]: RecordPosition(2)}
    assert len(shown(disk)) == 2
    assert not Names.of(MemoryStore(disk).names(LEDGER)).unfinished


@LAYOUTS
def test_files_without_a_ledger_are_refused_and_an_emptied_directory_begins_anew(layout):
    disk = Disk()
    publish(over_memory(MemoryStore(disk), layout), 3)
    for name in [name for name in disk.names if name == "_mld" or name.startswith("_mld/")]:
        del disk.names[name]
    with pytest.raises(SinkRefused, match=r"holds files of commits, (p=\d/)?c0+1-part.json among them, but no ledger"):
        over_memory(MemoryStore(disk), layout).open()
    for name in shown(disk):
        del disk.names[name]
    assert over_memory(MemoryStore(disk), layout).open() == {}


def test_a_first_commit_that_comes_while_another_worker_opens_is_no_lost_ledger():
    disk = Disk()
    begun = False

    def before(operation: str) -> None:
        nonlocal begun
        if operation == "files " and not begun:
            begun = True
            publish(over_memory(MemoryStore(disk, 1)), 2)

    assert over_memory(MemoryStore(disk, 2, before, {2})).open() == {}, "it is fenced when it publishes"
    assert begun
    assert len(read(disk)) == 2


def test_a_ledger_of_version_0_1_is_refused_with_its_version():
    disk = Disk()
    publish(over_memory(MemoryStore(disk)), 2)
    store = MemoryStore(disk)
    path = path_of(1)
    value = json.loads(store.read(path))
    store.put(path, json.dumps({**value, "version": 1, "marks": {}}).encode())
    with pytest.raises(SinkRefused, match=r"was written by mld 0\.1 \(version 1\).*Use a new directory"):
        over_memory(MemoryStore(disk, 2, alive={2})).open()


def test_an_entry_of_version_0_2_that_is_half_done_is_finished():
    """It names its files by their index, and has a copy of itself beside them."""
    disk, token = Disk(), f"here.{'b' * 32}"
    store = MemoryStore(disk)
    moves = (
        ledger.FileMove("copy.json", "_mld_copies/000000000001.json"),
        ledger.FileMove("data/p", "c000000000001-0"),
    )
    entry = ledger.LedgerEntry(
        1, token, {SinkSpec("out").writer: {SHARDS[0]: RecordPosition(1)}}, moves, "parquet in files"
    )
    for name, data in (("copy.json", b"{}"), ("data/p", json.dumps([("0", 1)]).encode()), ("owner", b"9")):
        store.put(f"_mld/staging/{token}/{name}", data)
    store.put(path_of(1), ledger.encode(entry))
    publish(over_memory(store), 2)
    assert read(disk) == {("0", 1): 1, ("0", 2): 1}


@pytest.mark.parametrize("name", ["_delta_log", "_spark_metadata"])
@LAYOUTS
def test_a_directory_whose_readers_would_never_see_our_files_is_refused(layout, name):
    disk = Disk()
    MemoryStore(disk).put(f"{name}/00000000000000000000.json", b"{}")
    with pytest.raises(SinkRefused, match=f"has {name}, as .* keeps it.*; use a new directory"):
        over_memory(MemoryStore(disk), layout).open()
