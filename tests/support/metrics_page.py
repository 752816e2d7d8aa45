"""The tables of docs/use/metrics.md, which `make docs` writes anew.

They are rendered from what the instruments declare, and a test keeps them current; the prose around
them is written by hand.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from mld.metrics.declaring import BYTES, MILLIS, NO_UNIT, JavaMetric
from mld.metrics.instruments import SECONDS_BOUNDS
from mld.metrics.published import JAVA_METRICS, OF_SHARD, OF_WORKER

OF_THE_MOVE = "only a Java leader moves rows to a single table"
ABSENT = {
    **{
        ("TableMigration", name): OF_THE_MOVE
        for name in (
            "PrePhase1Worker",
            "Phase1Worker",
            "Phase2Worker",
            "WriteFault",
            "DeleteFault",
            "CompletionFault",
            "Time",
        )
    },
    **{("TableMigrationAsyncMove", name): OF_THE_MOVE for name in ("BatchCount", "Success", "Time")},
    ("WorkerMetrics", "FleetMinSupportCode"): OF_THE_MOVE,
    ("MultiStreamTracker", "NonExistingStreamDelete.Count"): (
        "leases are not deleted because the service does not know the stream"
    ),
    ("StreamIdFetch", "Success"): "mld does not fetch stream ids",
    ("StreamIdFetch", "QueueSize"): "mld does not fetch stream ids",
}
"""What KCL sends and mld has nothing to say about."""
CATALOGUE = (*OF_SHARD, *OF_WORKER)
CELL_CHARS_MAX = 120
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def tables() -> str:
    """Return both tables, with their headings."""
    return "\n".join([*_ours(), "", *_java(), ""])


def updated(page: str) -> str:
    """Return the page with these tables in place of those that it has."""
    return page[: page.index(BEGIN)] + BEGIN + "\n" + tables() + "\n" + page[page.index(END) :]


def _ours() -> Iterator[str]:
    yield "## Prometheus"
    yield ""
    yield "Every metric has the labels `application` and `stream`, and those of its row."
    yield f"Histograms have buckets up to {', '.join(f'{bound:g}' for bound in SECONDS_BOUNDS)} seconds."
    yield ""
    yield "| Metric | Type, labels | Meaning, KCL's name |"
    yield "|---|---|---|"
    for metric in CATALOGUE:
        type_and_labels = ", ".join((metric.kind.value, *(f"`{label}`" for label in metric.labels)))
        java = f" `{metric.java}`" if metric.java else ""
        yield f"| `{metric.name}` | {type_and_labels} | {metric.help}{java} |"


def _java() -> Iterator[str]:
    names = {metric.name: metric.unit for metric in JAVA_METRICS}
    yield "## CloudWatch"
    yield ""
    yield "Every metric has the dimension `Operation`, and those of its row that `metricsEnabledDimensions` enables."
    yield f"Units: {_with_unit(names, MILLIS)} and `…Time` are Milliseconds, {_with_unit(names, BYTES)} Bytes,"
    yield f"{_with_unit(names, NO_UNIT)} have none, all others Count."
    yield ""
    yield "| Operation | Metrics | Level, dimensions |"
    yield "|---|---|---|"
    rows: dict[tuple[str, str], list[str]] = {}
    for metric in JAVA_METRICS:
        how = ", ".join(filter(None, (metric.level.value, _dimensions(metric))))
        found = rows.setdefault((metric.operation, how), [])
        if metric.name not in found:
            found.append(metric.name)
    for (operation, how), metrics in rows.items():
        for cell in textwrap.wrap(_listed(metrics), CELL_CHARS_MAX, break_long_words=False):
            yield f"| {operation} | {cell.removesuffix(',')} | {how} |"
    absent: dict[tuple[str, str], list[str]] = {}
    for (operation, name), why in ABSENT.items():
        absent.setdefault((operation, why), []).append(name)
    for (operation, why), names_absent in absent.items():
        yield f"| {operation} | {_listed(names_absent)} | not sent: {why} |"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _with_unit(names: Mapping[str, str], unit: str) -> str:
    return _listed(name for name, of_name in names.items() if of_name == unit and not name.endswith("Time"))


def _dimensions(metric: JavaMetric) -> str:
    return ", ".join(f"`{dimension.value}`" for dimension in sorted(metric.dimensions, key=lambda one: one.value))
