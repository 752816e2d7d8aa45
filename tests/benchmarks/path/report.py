"""Rows as tables in Markdown, as a plot, and both in docs/lab/performance.md.

Rows with a turn are those of `table`, which has a section of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks import tables
from tests.benchmarks.path import plot, table
from tests.benchmarks.path.figures import LOADS, Row, find
from tests.benchmarks.path.yardsticks import BOTO3
from tests.benchmarks.tables import markdown_table

PLOT = Path("docs/lab/performance.svg")
SHARDS_OF_PAGE = (64,)
"""Backlogs of other numbers are printed only."""

Measure = Callable[[], list[Row]]


def line(row: Row) -> str:
    """For the one who waits."""
    figures = ", ".join(f"{name} {value:.4g}" for name, value in (row.figures or {}).items())
    what = [row.scenario, row.subject, row.load, f"{row.shards} shards" if row.shards else "", row.wire, row.mode]
    return f"{' '.join(filter(None, what))}: {figures}"


def markdown(rows: Sequence[Row]) -> str:
    of_table = [row for row in rows if row.turn]
    rows = [row for row in rows if not row.turn]
    parts = [
        _notes(of_table),
        table.markdown(of_table),
        _notes(rows),
        _backlogs(rows),
        _trickle(rows),
        _idle(rows),
        _quiet(rows),
    ]
    return "\n\n".join(part for part in parts if part)


def put_into_page(rows: Sequence[Row]) -> None:
    of_path = [row for row in rows if not row.turn and (row.scenario != "backlog" or row.shards in SHARDS_OF_PAGE)]
    if of_path:
        tables.put_into_page("path", markdown(of_path))
    if of_table := [row for row in rows if row.turn]:
        PLOT.write_text(plot.svg(of_table))
        tables.put_into_page("table", f"{markdown(of_table)}\n\n![CPU seconds per GB]({PLOT.name})")


def _notes(rows: Sequence[Row]) -> str:
    return "\n".join(f"* {row.subject}" for row in rows if row.scenario == "note")


def _backlogs(rows: Sequence[Row]) -> str:
    lines = []
    for row in _sorted(rows, "backlog"):
        per_gb = row["cpu_s_per_gb"]
        lines.append(
            (
                row.load, str(row.shards), row.wire, row.mode.lower(), row.subject,
                f"{per_gb:.2f}", f"{row['us_per_record']:.2f}",
                _boto3_ratio(per_gb, rows, row), f"{row['mb_per_s']:.0f}", f"{row['rss_mb']:.0f}",
            )
        )  # fmt: skip
    return markdown_table(
        "Backlog",
        ("records", "shards", "wire", "retrieval", "daemon", "CPU s/GB", "us/record", "boto3 x", "MB/s", "RSS MB"),
        lines,
    )


def _boto3_ratio(per_gb: float, rows: Sequence[Row], row: Row) -> str:
    found = find(rows, scenario="yardstick", subject=BOTO3, load=row.load, tls=row.tls)
    return "-" if found is None else f"{found['cpu_s_per_gb'] / per_gb:.1f}"


def _trickle(rows: Sequence[Row]) -> str:
    lines = [
        (row.mode.lower(), str(row.shards), row.wire, row.subject, f"{row['count']:,.0f}", f"{row['p50_ms']:.0f}",
         f"{row['p90_ms']:.0f}", f"{row['p99_ms']:.0f}", f"{row['max_ms']:.0f}",
         f"{row['server_p99_ms']:.1f}" if row["server_p99_ms"] else "-", f"{row['cores']:.2f}")
        for row in _sorted(rows, "trickle")
    ]  # fmt: skip
    return markdown_table(
        "Trickle: five records a second in each shard, milliseconds from put to child (polling: every 200 ms)",
        ("retrieval", "shards", "wire", "daemon", "records", "p50", "p90", "p99", "max", "server's p99", "cores"),
        lines,
    )


def _idle(rows: Sequence[Row]) -> str:
    lines = [
        (str(row.shards), row.load, row.wire, row.subject, f"{row['polls_per_s']:.0f}", f"{row['cpu_ms_per_poll']:.2f}",
         f"{row['boto3_ms_per_poll']:.2f}", f"{row['boto3_ms_per_poll'] / row['cpu_ms_per_poll']:.1f}",
         f"{row['writes_per_s']:.1f}", f"{row['checkpoints_per_s']:.1f}", f"{100 * row['cores']:.1f}")
        for row in _sorted(rows, "idle")
    ]  # fmt: skip
    return markdown_table(
        "Five records of 200 B at every poll; renewals, a checkpoint every ten batches and all the rest included",
        ("shards", "polls every", "wire", "daemon", "polls/s", "CPU ms/poll", "boto3 in a loop", "boto3 needs x",
         "lease writes/s", "of them checkpoints", "% of a core"),
        lines,
    )  # fmt: skip


def _quiet(rows: Sequence[Row]) -> str:
    lines = [
        (str(row.shards), row.wire, row.subject, f"{row['rss_mb']:.0f}", f"{row['private_mb']:.0f}",
         f"{row['peak_mb']:.0f}", f"{row['threads']:.0f}", f"{100 * row['cores']:.1f}")
        for row in _sorted(rows, "quiet")
    ]  # fmt: skip
    return markdown_table(
        "Empty shards, everything as by default",
        ("shards", "wire", "daemon", "RSS MB", "of it private", "peak", "threads", "% of a core"),
        lines,
    )


def _sorted(rows: Sequence[Row], scenario: str) -> list[Row]:
    loads = list(LOADS)
    found = [row for row in rows if row.scenario == scenario]
    return sorted(
        found,
        key=lambda row: (
            loads.index(row.load) if row.load in loads else 0, row.load, row.mode != "POLLING", row.tls, row.shards,
            row.subject,
        ),
    )  # fmt: skip
