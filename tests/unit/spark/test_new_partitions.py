"""How many directories a sink begins in an hour, and how they are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mld.processors.spark.sink_port import SinkSpec
from mld.processors.spark.sinks import new_partitions
from mld.processors.spark.sinks.files import directory_of, is_possible
from mld.processors.spark.sinks.iceberg import IcebergSink
from mld.processors.spark.sinks.lake_table import PartitionField
from mld.processors.spark.sinks.new_partitions import HOUR_S, PartitionBound


class Disk:
    """Directories that exist, and how often somebody looked."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.looked: list[str] = []

    def exist(self, directories: list[str]) -> set[str]:
        self.looked += directories
        return self.there & set(directories)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def bound(at_most: int) -> tuple[Clock, Disk, Callable[..., set[str]]]:
    clock, disk = Clock(), Disk("old", "older")
    partitions = PartitionBound("out", at_most, clock)

    def admitted(*wanted: str) -> set[str]:
        return partitions.admitted(wanted, disk.exist, lambda name: "/" not in name)

    return clock, disk, admitted


def test_what_there_is_may_always_be_written_and_new_ones_until_the_bound() -> None:
    _, _, admitted = bound(2)
    assert admitted("a", "old") == {"a", "old"}
    assert admitted("b", "c", "older", "a") == {"b", "older", "a"}
    assert admitted("d", "b") == {"b"}


def test_an_hour_later_as_many_may_come_again() -> None:
    clock, _, admitted = bound(1)
    assert admitted("a", "b") == {"a"}
    clock.now += HOUR_S
    assert admitted("c", "d", "a") == {"c", "a"}


def test_a_partition_is_looked_for_once() -> None:
    _, disk, admitted = bound(2)
    for _ in range(3):
        admitted("old", "a")
    assert disk.looked == ["old", "a"]


def test_partitions_that_there_are_may_be_written_however_many_they_are() -> None:
    _, disk, admitted = bound(1)
    there = [f"there{number}" for number in range(600)]
    disk.there |= set(there)
    for _ in range(2):
        assert admitted(*there, "a", "b") == {*there, "a"}


def test_who_writes_all_that_he_has_begun_in_each_batch_keeps_no_new_one_out() -> None:
    clock, _, admitted = bound(300)
    his = [f"his{number}" for number in range(300)]
    assert admitted(*his, "a") == set(his)
    clock.now += HOUR_S
    assert admitted(*his, "a") == {*his, "a"}


def test_what_cannot_be_takes_no_place_of_others_unless_it_is_there() -> None:
    _, disk, admitted = bound(1)
    disk.there.add("o/d")
    assert admitted("a/b", "o/d", "a") == {"o/d", "a"}


def test_what_is_forgotten_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_partitions, "KNOWN_MAX", 1)
    _, disk, admitted = bound(9)
    assert admitted("old", "older") == {"old", "older"}
    assert admitted("old", "a") == {"old", "a"}
    assert disk.looked == ["old", "older", "old", "a"]


@pytest.mark.parametrize(
    ("values", "directory"),
    [
        (("2026-01-02", "7"), "day=2026-01-02/n=7"),
        ((None, ""), "day=__HIVE_DEFAULT_PARTITION__/n=__HIVE_DEFAULT_PARTITION__"),
        (("a/b", "../c"), "day=a%2Fb/n=..%2Fc"),
        (("a=b:c", "é %"), "day=a%3Db%3Ac/n=é %25"),
    ],
)
def test_a_partition_is_called_as_spark_calls_it(values: tuple[str | None, ...], directory: str) -> None:
    assert directory_of(("day", "n"), values) == directory


@pytest.mark.parametrize(("value", "expected"), [("é" * 41, True), ("é" * 42, False), (None, True), ("a\0/b", True)])
def test_iceberg_calls_a_directory_by_what_a_url_would_have(value: str | None, expected: bool) -> None:
    sink = IcebergSink(SinkSpec("out", "iceberg", "lake.db.t"), None)  # type: ignore[arg-type]
    field = PartitionField("customer", None, "")  # type: ignore[arg-type]
    assert is_possible(sink._directory([field], [value])) == expected
