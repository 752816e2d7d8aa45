"""Rows of the Spark benchmarks as tables in Markdown, and those in docs/lab/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.benchmarks import tables
from tests.benchmarks.path.figures import Row
from tests.benchmarks.spark_rig import CHILDREN, DAEMON, HOST, JVM, PARTS
from tests.benchmarks.tables import markdown_table

OURS = "one session"
Measure = Callable[[], list[Row]]


def line(row: Row) -> str:
    """For the one who waits."""
    figures = ", ".join(f"{name} {value:.4g}" for name, value in (row.figures or {}).items())
    return f"{row.scenario} {row.subject} {row.load} {row.shards} shards: {figures}"


def markdown(rows: Sequence[Row]) -> str:
    parts = [
        _notes(rows),
        _backlogs(rows),
        _starts(rows),
        _quiet(rows),
        _seconds(rows),
        _delays(rows),
        _memory(rows),
    ]
    return "\n\n".join(part for part in parts if part)


def put_into_page(rows: Sequence[Row]) -> None:
    tables.put_into_page("spark", markdown(rows))


def _notes(rows: Sequence[Row]) -> str:
    return "\n".join(f"* {row.subject}" for row in rows if row.scenario == "note")


def _backlogs(rows: Sequence[Row]) -> str:
    """Each turn a row; a row is compared with ours of the same turn."""
    lines = []
    turns: dict[tuple[int, str], int] = {}
    found = [row for row in rows if row.scenario == "backlog"]
    ours = {shards: [row for row in found if row.subject == OURS and row.shards == shards] for shards in _shards(found)}
    for row in sorted(found, key=lambda row: (row.shards, row.subject != OURS)):
        turn = turns[row.shards, row.subject] = turns.get((row.shards, row.subject), -1) + 1
        costs = [row[f"{part}_s_per_million"] for part in PARTS]
        cost, speed = 1.0, 1.0
        if turn < len(ours[row.shards]):
            one = ours[row.shards][turn]
            cost = sum(costs) / sum(one[f"{part}_s_per_million"] for part in PARTS)
            speed = row["records_per_s"] / one["records_per_s"]
        lines.append(
            (
                str(row.shards), row.subject, f"{row['records_per_s']:,.0f}", f"{sum(costs):.1f}",
                *(f"{cost:.1f}" for cost in costs), f"{row['cores']:.2f}", f"{row['records_per_trigger']:,.0f}",
                f"{cost:.2f}", f"{speed:.2f}",
            )
        )  # fmt: skip
    return markdown_table(
        "Backlog: CPU seconds per million records of 1 KB",
        ("shards", "sessions", "records/s", "all", DAEMON, CHILDREN, HOST, JVM, "cores", "records/trigger",
         "CPU x one session", "records/s x one session"),
        lines,
    )  # fmt: skip


def _starts(rows: Sequence[Row]) -> str:
    lines = [
        (
            row.subject, f"{row['ready_s']:.1f}", f"{row['commit_s']:.1f}", f"{row['ready_cpu_s']:.1f}",
            f"{sum(row[f'{part}_cpu_s'] for part in PARTS):.1f}", *(f"{row[f'{part}_cpu_s']:.1f}" for part in PARTS),
            f"{row['jvm_pss_mb']:.0f}",
        )
        for row in rows
        if row.scenario == "start"
    ]  # fmt: skip
    return markdown_table(
        "Start: seconds from exec of the daemon, by the clock, and CPU seconds until then",
        ("", "session ready", "first commit", "CPU, ready", "CPU, commit", *PARTS, "JVM's PSS, MB"),
        lines,
    )


def _shards(rows: Sequence[Row]) -> set[int]:
    return {row.shards for row in rows}


def _quiet(rows: Sequence[Row]) -> str:
    lines = [
        (
            str(row.shards), row.subject, f"{row['triggers']:.0f}", f"{row['shards_per_trigger']:.0f}",
            f"{row['jobs'] / row['triggers']:.2f}",
            f"{row['host_ms_per_trigger'] + row['jvm_ms_per_trigger']:.0f}",
            *(f"{row[f'{part}_ms_per_trigger']:.0f}" for part in (HOST, JVM, DAEMON, CHILDREN)),
        )
        for row in rows
        if row.scenario == "quiet"
    ]  # fmt: skip
    return markdown_table(
        "Quiet shards: CPU milliseconds per trigger",
        ("shards", "", "triggers", "shards in each", "jobs of Spark in each", "host and JVM", HOST, JVM, DAEMON,
         CHILDREN),
        lines,
    )  # fmt: skip


def _seconds(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row.scenario == "quiet":
            parts = [row[f"{part}_ms_per_s"] for part in PARTS]
            lines.append((str(row.shards), row.subject, f"{sum(parts):.1f}", *(f"{part:.1f}" for part in parts)))
    return markdown_table("Quiet shards: CPU milliseconds per second", ("shards", "", "all", *PARTS), lines)


def _delays(rows: Sequence[Row]) -> str:
    lines = [
        (str(row.shards), row.subject, f"{row['records']:,.0f}",
         *(f"{row[name]:,.0f}" for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms")))
        for row in rows
        if row.scenario == "quiet"
    ]  # fmt: skip
    return markdown_table(
        "Milliseconds from the put of a record to the commit that shows it, same runs",
        ("shards", "", "records", "p50", "p90", "p99", "max"),
        lines,
    )


def _memory(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row.scenario in ("quiet", "backlog"):
            parts = [row[f"{part}_pss_mb"] for part in (CHILDREN, HOST, JVM)]
            daemon = row[f"{DAEMON}_pss_mb"]
            what = "quiet" if row.scenario == "quiet" else "backlog"
            cells = (f"{value:,.0f}" for value in (sum(parts), *parts, daemon))
            lines.append((str(row.shards), f"{what}, {row.subject}", *cells))
    return markdown_table("Memory (PSS), MB", ("shards", "", "children, host, JVM", CHILDREN, HOST, JVM, DAEMON), lines)
