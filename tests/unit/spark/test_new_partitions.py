"""How many directories a sink begins in an hour, and how they are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mld.processors.spark.sinks import new_partitions
from mld.processors.spark.sinks.new_partitions import FEW, HOUR_S, NewPartitions
from mld.processors.spark.sinks.partitioned_files import directory_of


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
    partitions = NewPartitions(at_most, clock)

    def admitted(*wanted: str) -> set[str]:
        return partitions.admitted(wanted, disk.exist)

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


def test_a_batch_goes_into_so_many_partitions_and_those_that_were_there_first_are_in() -> None:
    clock, disk, admitted = bound(3)
    assert admitted("good") == {"good"}
    his = [f"his{number}" for number in range(FEW + 9)]
    disk.there |= set(his)
    assert admitted("new", *his, "good") == {"good", *his[: FEW - 1]}
    clock.now += HOUR_S
    assert admitted(*his[9:], "good", "newer") == {"good", *his[9 : 9 + FEW - 1]}
    assert admitted("good", "newer") == {"good", "newer"}


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
