"""The daemons beside each other in one table for each wire: the costs that a user sees first, and their factors.

A figure is the range over the turns; a factor is the range over what was measured in the same turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.benchmarks.path.figures import Row
from tests.benchmarks.path.yardsticks import BOTO3
from tests.benchmarks.tables import markdown_table

OURS = "mld"
IDLE_MS = 200
MANY = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One of the figures of a line; `yardstick` is its name in the rows of the yardsticks, if they have it."""

    scenario: str
    load: str
    shards: tuple[int, ...]
    figure: str
    yardstick: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    title: str
    parts: tuple[Part, ...]


def _backlog(load: str, shards: int, figure: str) -> tuple[Part, ...]:
    return (
        Part("backlog", load, (shards,), f"steady_{figure}", figure),
        Part("backlog", load, (shards,), f"whole_{figure}"),
    )


_POLLS, _EMPTY = f"{IDLE_MS} ms", f"{IDLE_MS} ms, empty"
LINES = (
    Line("1 KB, 1 shard, s/GB", _backlog("1 KB", 1, "cpu_s_per_gb")),
    Line("1 KB, 4 shards, s/GB", _backlog("1 KB", 4, "cpu_s_per_gb")),
    Line("20 KB, 1 shard, s/GB", _backlog("20 KB", 1, "cpu_s_per_gb")),
    Line("100 B, 4 shards, us/record", _backlog("100 B", 4, "us_per_record")),
    Line(
        "poll of 5 records with a checkpoint every 10, 64 shards, ms",
        (Part("idle", _POLLS, (MANY,), "cpu_ms_per_poll", "boto3_ms_per_poll"),),
    ),
    Line(
        "idle poll, 64 shards, ms",
        (Part("idle", _EMPTY, (MANY,), "cpu_ms_per_poll", "boto3_ms_per_poll"),),
    ),
    Line(
        "RSS, MB, 64 shards / peak in a backlog of 1 KB",
        (Part("idle", _EMPTY, (MANY,), "rss_mb"), Part("backlog", "1 KB", (1, 4), "peak_mb")),
    ),
)
BACKLOGS = (("1 KB", (1, 4)), ("20 KB", (1,)), ("100 B", (4,)))
"""What is read in the table."""

Values = dict[tuple[int, int], float]
"""By turn and number of shards."""


def daemons(rows: Sequence[Row]) -> list[str]:
    """Java first, ours last."""
    names = dict.fromkeys(row.subject for row in rows if row.scenario in ("backlog", "idle"))
    return sorted(names, key=lambda name: (name == OURS, not name.startswith("Java")))


def markdown(rows: Sequence[Row]) -> str:
    return "\n\n".join(
        _wire(rows, tls=tls) for tls in (False, True) if any(row.load and row.tls == tls for row in rows)
    )


def _wire(rows: Sequence[Row], *, tls: bool) -> str:
    names = [*daemons(rows), BOTO3]
    others = [name for name in names if name not in (OURS, BOTO3)]
    lines = []
    for line in LINES:
        found = {name: [values(rows, part, name, tls=tls) for part in line.parts] for name in names}
        lines.append(
            (
                line.title,
                *(_cell(map(_range, found[name])) for name in names),
                *(_cell(map(_factor, found[name], found[OURS])) for name in others),
            )
        )
    short = {name: name.partition(",")[0] for name in names} | {BOTO3: "boto3 in a loop"}
    factors = [f"{short[name]} / {OURS}" for name in others]
    wire = "with TLS" if tls else "without TLS"
    return markdown_table(
        f"The daemon, {wire}; CPU of the steady part / of the whole run with its start",
        ("", *(short[name] for name in names), *factors),
        lines,
    )


def values(rows: Sequence[Row], part: Part, subject: str, *, tls: bool) -> Values:
    """A yardstick is measured once for all shards, and polls of boto3 stand in the rows of the daemons."""
    if subject == BOTO3:
        if not part.yardstick:
            return {}
        if part.scenario == "backlog":
            part = Part("yardstick", part.load, part.shards, part.yardstick)
            return {
                (row.turn, shards): row[part.figure]
                for row in _found(rows, part, subject, tls=tls)
                for shards in part.shards
            }
        part, subject = Part(part.scenario, part.load, part.shards, part.yardstick), OURS
    return {
        (row.turn, row.shards): row[part.figure]
        for row in _found(rows, part, subject, tls=tls)
        if row.shards in part.shards and not math.isnan(row[part.figure])
    }


def _found(rows: Sequence[Row], part: Part, subject: str, *, tls: bool) -> list[Row]:
    wanted = (part.scenario, part.load, subject, tls)
    return [row for row in rows if (row.scenario, row.load, row.subject, row.tls) == wanted]


def _factor(others: Values, ours: Values) -> str:
    return _range({key: others[key] / ours[key] for key in others.keys() & ours.keys()})


def _range(found: Values) -> str:
    if not found:
        return ""
    low, high = _number(min(found.values())), _number(max(found.values()))
    return low if low == high else f"{low}-{high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _cell(texts: Iterable[str]) -> str:
    """What is lacking after the last part there is, is not named: the yardsticks have no whole run."""
    found = list(texts)
    while found and not found[-1]:
        found.pop()
    return " / ".join(text or "-" for text in found) or "-"
