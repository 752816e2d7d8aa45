"""Results: rows of figures, kept as JSON lines so that runs can be put together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Load:
    """Records of one size. `first_mb` is the payload of a run with one shard, which is slow, `mb` that of others."""

    name: str
    record_bytes: int
    first_mb: int
    mb: int
    baseline_mb: int

    def scaled(self, share: float) -> Load:
        return replace(self, first_mb=max(1, int(self.first_mb * share)), mb=max(1, int(self.mb * share)))

    def records(self, shards: int, each: int) -> int:
        """Per shard, rounded up to a multiple of `each`."""
        total = (self.first_mb if shards == 1 else self.mb) * 1_000_000
        return max(1, math.ceil(total / self.record_bytes / shards / each)) * each


LOADS = {
    load.name: load
    for load in (
        Load("1 KB", 1024, 250, 800, 40),
        Load("20 KB", 20_480, 250, 800, 80),
        Load("100 B", 100, 30, 80, 6),
    )
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: of whom, at what, in which turn (in `table` from 1 on), and its figures by name."""

    scenario: str
    subject: str
    load: str = ""
    shards: int = 0
    tls: bool = False
    mode: str = ""
    figures: Mapping[str, float] | None = None
    turn: int = 0

    def __getitem__(self, name: str) -> float:
        assert self.figures is not None
        return self.figures[name]

    @property
    def wire(self) -> str:
        return "TLS" if self.tls else "plain"


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else math.nan


def write(file: Path, rows: Iterable[Row]) -> None:
    with file.open("a") as out:
        for row in rows:
            out.write(json.dumps(asdict(row)) + "\n")


def read(file: Path) -> list[Row]:
    """The latest row of each measurement, in the order in which they were first made."""
    rows: dict[tuple[object, ...], Row] = {}
    for line in file.read_text().splitlines():
        row = Row(**json.loads(line))
        rows[row.scenario, row.subject, row.load, row.shards, row.tls, row.mode, row.turn] = row
    return list(rows.values())


def find(rows: Iterable[Row], **wanted: object) -> Row | None:
    """The first row with these fields."""
    return next((row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())), None)
