"""Checks that every record arrived, once and in order: what was put against what the processor archived. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Put:
    """An accepted record: where Kinesis placed it and what it held."""

    shard: str
    sequence: int
    text: str


@dataclass(frozen=True, slots=True)
class Archived:
    """A line of the archive."""

    sequence: int
    text: str


def find_faults(put: Iterable[Put], archive: Mapping[str, Sequence[Archived]]) -> list[str]:
    """One sentence per kind of fault and shard; empty if the archive is exactly what was put, in order."""
    expected: dict[str, list[Archived]] = {}
    for record in put:
        expected.setdefault(record.shard, []).append(Archived(record.sequence, record.text))
    faults = []
    for shard in sorted(expected.keys() | archive.keys()):
        wanted = sorted(expected.get(shard, []), key=lambda record: record.sequence)
        faults += _shard_faults(shard, wanted, archive.get(shard, []))
    return faults


def _shard_faults(shard: str, wanted: Sequence[Archived], found: Sequence[Archived]) -> list[str]:
    if list(wanted) == list(found):
        return []
    faults = []
    wanted_numbers = {record.sequence for record in wanted}
    found_numbers = [record.sequence for record in found]
    missing = wanted_numbers.difference(found_numbers)
    if missing:
        faults.append(f"{shard}: {len(missing)} of {len(wanted)} records are missing, the first is {min(missing)}")
    if len(found_numbers) != len(set(found_numbers)):
        faults.append(f"{shard}: {len(found_numbers) - len(set(found_numbers))} records are there more than once")
    if found_numbers != sorted(found_numbers):
        faults.append(f"{shard}: the records are out of order")
    never_put = set(found_numbers) - wanted_numbers
    if never_put:
        faults.append(f"{shard}: {len(never_put)} records were never put, the first is {min(never_put)}")
    return faults or [f"{shard}: the contents of some records differ from what was put"]
