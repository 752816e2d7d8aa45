"""The tables of docs/use/metrics.md, which `make docs` writes anew.

They are rendered from what the instruments declare, and a test keeps them current; the prose around
them is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from mld.metrics.declaring import JavaMetric
from mld.metrics.instruments import SECONDS_BOUNDS
from mld.metrics.registry import JAVA_METRICS, OF_SHARD, OF_WORKER
from mld.views.otel_names import ATTRIBUTES, PREFIX, instrument_of, otel_name

CATALOGUE = (*OF_SHARD, *OF_WORKER)
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
    yield "## CloudWatch and OpenTelemetry"
    yield ""
    yield "Every metric has the dimension `Operation`, and those of its row that `metricsEnabledDimensions` enables."
    attributes = ", ".join(f"`{dimension}` is `{attribute}`" for dimension, attribute in ATTRIBUTES.items())
    yield f"In OpenTelemetry names begin with `{PREFIX}`; {attributes}."
    yield ""
    yield "| Operation | Metric | Unit, level, dimensions | OpenTelemetry |"
    yield "|---|---|---|---|"
    rows: dict[tuple[str, ...], list[JavaMetric]] = {}
    for metric in JAVA_METRICS:
        stem = metric.name.removesuffix("Success").removesuffix("Time")
        alike = (metric.operation, stem, metric.level.value, _dimensions(metric), metric.note)
        rows.setdefault(alike, []).append(metric)
    for metrics in rows.values():
        yield _java_row(metrics)


def _java_row(metrics: list[JavaMetric]) -> str:
    """Return one row for what differs in `Success` and `Time` only."""
    first = metrics[0]
    remark = "" if first.is_sent else f"; not sent: {first.note}"
    otel = "; ".join(
        f"`{otel_name(one.name).removeprefix(PREFIX)}`, {instrument_of(one.name, one.unit).value}" for one in metrics
    )
    names, units = ", ".join(f"`{one.name}`" for one in metrics), ", ".join(one.unit for one in metrics)
    kind = ", ".join(filter(None, (units, first.level.value, _dimensions(first))))
    return f"| {' | '.join((first.operation, names, kind, otel + remark))} |"


def _dimensions(metric: JavaMetric) -> str:
    return ", ".join(f"`{dimension.value}`" for dimension in sorted(metric.dimensions, key=lambda one: one.value))
