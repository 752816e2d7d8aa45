"""Lines in CloudWatch's embedded metric format. Pure.

A value is a number, or the statistics of several, as Amazon's own library writes them: Max, Min, Count and Sum. Rules:
metrics#embedded-metric-format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from mld.metrics.instruments import StatisticSet
from mld.views.datums import Datum

METRICS_PER_LINE_MAX = 100
"""The limit of the format."""


def emf_lines(namespace: str, datums: Iterable[Datum], stamp_s: float) -> Iterator[str]:
    """One document for each set of dimensions, or more if it has more metrics than a document may."""
    by_dimensions: dict[tuple[tuple[str, str], ...], list[Datum]] = {}
    for datum in datums:
        by_dimensions.setdefault(datum.dimensions, []).append(datum)
    for dimensions, alike in by_dimensions.items():
        for first in range(0, len(alike), METRICS_PER_LINE_MAX):
            part = alike[first : first + METRICS_PER_LINE_MAX]
            yield json.dumps(_document(namespace, dimensions, part, stamp_s), separators=(",", ":"))


def _document(
    namespace: str, dimensions: tuple[tuple[str, str], ...], datums: list[Datum], stamp_s: float
) -> dict[str, Any]:
    directive = {
        "Namespace": namespace,
        "Dimensions": [[name for name, _ in dimensions]],
        "Metrics": [{"Name": datum.name, "Unit": datum.unit} for datum in datums],
    }
    return {
        "_aws": {"Timestamp": int(stamp_s * 1000), "CloudWatchMetrics": [directive]},
        **dict(dimensions),
        **{datum.name: _value(datum.values) for datum in datums},
    }


def _value(values: StatisticSet) -> float | dict[str, float]:
    if values.count == 1:
        return values.total
    return {"Max": values.greatest, "Min": values.least, "Count": values.count, "Sum": values.total}
