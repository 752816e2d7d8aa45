"""Finds the metrics and instruments that the fields and methods of a dataclass declare (see `declaring`), for the
Prometheus page and for CloudWatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from mld.metrics.declaring import JAVA, METRIC, Declared, Instant, JavaMetric, Metric, MetricKind, Value
from mld.metrics.instruments import Calls, Spread, StatisticSet, Tally


def metrics_of(part: type, *labels: str, reach: Callable[[Any], Any] = lambda owner: owner) -> Iterator[Metric]:
    """Yield the metrics of Prometheus that the dataclass `part` declares by its fields and by methods marked `shown`,
    each with the function that reads its value.

    All metrics of a worker are read from one object, for example `Metrics`. `reach` returns the instance of `part` that
    this object holds, or None. `labels` come before the labels of each metric.
    """
    marked = ((getattr(method, METRIC, None), method) for method in vars(part).values())
    held = ((one.metadata.get(METRIC), _value_of(_public(one.name))) for one in fields(part))
    for metric, value in chain(marked, held):
        if metric is not None:
            yield replace(metric, labels=(*labels, *metric.labels), read=_reading(reach, value, metric.kind))


def _value_of(name: str) -> Callable[[Any, Instant], Any]:
    """Return a function that reads the attribute `name` of a part."""
    return lambda part, _: getattr(part, name)


def _reading(
    reach: Callable[[Any], Any], value: Callable[[Any, Instant], Any], kind: MetricKind
) -> Callable[[Any, Instant], Value]:
    """Return the function that reads a metric's value from its owner: `reach` finds the part of the owner that has it,
    and `value` the value or instrument in that part. An instrument is turned into the value to publish.
    """

    def read(owner: Any, at: Instant) -> Value:
        """Return the value to publish for the metric of `owner`; None if it is unknown, or `owner` lacks the part."""
        part = reach(owner)
        match None if part is None else value(part, at):
            case Spread() as spread:
                return math.floor(spread.total) if kind is MetricKind.COUNTER else spread.value()
            case Calls() as attempts:
                return attempts.seconds.value()
            case Tally() as named:
                return named.value()
            case bool() as flag:
                return int(flag)
            case plain:
                known: Value = plain
                return known

    return read


def declared(part: type) -> Iterator[Declared]:
    """Yield the instruments of a dataclass that KCL has names for: one `Declared` for each part of an instrument whose
    values are sent. Metrics that name no operation get the `OPERATION` of the class.
    """
    for one in fields(part):
        java: tuple[JavaMetric, ...] = one.metadata.get(JAVA, ())
        named = [replace(metric, operation=metric.operation or part.OPERATION) for metric in java]  # type: ignore[attr-defined]
        for piece in dict.fromkeys(metric.part for metric in named):
            yield Declared(_taking(_public(one.name), piece), tuple(m for m in named if m.part == piece))


def _taking(name: str, piece: str) -> Callable[[Any], StatisticSet | None]:
    """Return the function that takes the values of the field `name`, or of its attribute or key `piece`."""

    def take(part: Any) -> StatisticSet | None:
        """Take the statistics that were collected since the last call; None if there are none."""
        found = getattr(part, name)
        if piece:
            found = found.get(piece) if isinstance(found, dict) else getattr(found, piece)
        taken: StatisticSet | None = None if found is None else found.take()
        return taken

    return take


def _public(name: str) -> str:
    """Return the name of the property that reads a private field."""
    return name.removeprefix("_")
