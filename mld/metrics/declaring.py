"""Functions that declare an instrument together with the names, units and help texts under which it is published.

Instruments that belong together are the fields of a dataclass, and a function of this module makes each field. The
field has a `Metric` if it is published to Prometheus, and a `JavaMetric` for each name that KCL has for it. A value
that is computed when it is read is a method marked `@shown`. So a new metric needs two lines: its declaration, and the
call that notes its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

from mld.metrics.instruments import Calls, Spread, SpreadValue, StatisticSet, Tally
from mld.properties.values import MetricsLevel

T = TypeVar("T")

COUNT = "Count"
MILLIS = "Milliseconds"
BYTES = "Bytes"
NO_UNIT = "None"
MILLIS_PER_SECOND = 1000.0
S, D = MetricsLevel.SUMMARY, MetricsLevel.DETAILED
"""Short names for long tables of metrics."""

Number: TypeAlias = float | int
Value: TypeAlias = Number | SpreadValue | Mapping[str, Number] | None
"""The value of a metric. A mapping has a value for each set of labels: a key is the label values, joined by spaces.
None means unknown, and nothing is published.
"""
NOTHING: frozenset[Dimension] = frozenset()
"""No dimension besides `Operation`, which every metric of KCL has."""

METRIC, JAVA = "metric", "java"
"""Keys in the metadata of a field for its `Metric` and its `JavaMetric`s. A method has its `Metric` as an attribute."""


@dataclass(frozen=True, slots=True)
class Instant:
    """The time at which metrics are read: monotonic seconds and epoch seconds."""

    now: float
    wall_s: float


def age_s(since: float | None, now: float) -> float | None:
    """Return the seconds from `since` to now, never negative; None if `since` is None."""
    return None if since is None else max(0.0, now - since)


# --- Prometheus -------------------------------------------------------------------------------------------------------


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of Prometheus.

    `labels` come after `application` and `stream`, which all metrics have. `java` names the nearest metric of KCL.
    `read` returns the value from the object that holds it.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    java: str = ""
    read: Callable[[Any, Instant], Value] = lambda _, __: None

    def series(self, value: Value, *first: str) -> Iterator[tuple[tuple[str, ...], Number | SpreadValue]]:
        """Yield each number of `value` with its label values, which begin with `first`."""
        if isinstance(value, Mapping):
            for joined_labels, number in value.items():
                yield (*first, *joined_labels.split(" ")), number
        elif value is not None:
            yield first, value


# --- KCL: CloudWatch and OpenTelemetry --------------------------------------------------------------------------------


class Dimension(Enum):
    """The dimensions of KCL's metrics, apart from `Operation`, which every metric has."""

    SHARD = "ShardId"
    STREAM = "StreamId"
    WORKER = "WorkerIdentifier"


SHARD = frozenset({Dimension.SHARD, Dimension.STREAM})
STREAM = frozenset({Dimension.STREAM})
WORKER = frozenset({Dimension.WORKER})
"""The dimensions of metrics of a shard, of a stream, and of a worker."""


@dataclass(frozen=True, slots=True)
class JavaMetric:
    """One metric of one operation of KCL. It is sent at `level` and above; DETAILED is above SUMMARY.

    `part` names the attribute or key of the instrument whose values are sent; empty means the instrument itself. The
    values are multiplied by `scale`.
    """

    operation: str
    name: str
    unit: str
    level: MetricsLevel
    dimensions: frozenset[Dimension] = NOTHING
    part: str = ""
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Declared:
    """All of KCL's metrics for one instrument, or for a part of one. `take` returns the values to send."""

    take: Callable[[Any], StatisticSet | None]
    metrics: tuple[JavaMetric, ...]


@dataclass_transform(eq_default=False)
class Operation:
    """Base class of dataclasses with the counts of one operation of KCL; `name` is KCL's name of the operation."""

    OPERATION: ClassVar = ""

    def __init_subclass__(cls, name: str = "") -> None:
        """Make the subclass a dataclass, and note KCL's name of its operation."""
        cls.OPERATION = name
        dataclass(eq=False)(cls)


# --- fields -----------------------------------------------------------------------------------------------------------


def sent(make: Callable[[], Any], *java: JavaMetric) -> Any:
    """Return a field with an instrument that is published only under KCL's names, not to Prometheus."""
    return field(init=False, default_factory=make, metadata={JAVA: java})


def histogram(name: str, help_text: str, *java: JavaMetric, make: Callable[[], Any] = Spread) -> Any:
    """Return a field for durations in seconds. With `make=Calls` it counts successes and failures separately."""
    return _instrument(make, Metric(name, MetricKind.HISTOGRAM, help_text, java=_nearest(java)), java)


def total(name: str, help_text: str, *java: JavaMetric) -> Any:
    """Return a field for values whose sum is published."""
    return _instrument(Spread, Metric(name, MetricKind.COUNTER, help_text, java=_nearest(java)), java)


def tally(name: str, help_text: str, *labels: str, java: str = "") -> Any:
    """Return a field for counts or amounts by `labels`."""
    return _instrument(Tally, Metric(name, MetricKind.COUNTER, help_text, labels, java))


def counter(name: str, help_text: str, java: str = "") -> Any:
    """Return a field for a number that only rises."""
    return field(init=False, default=0, metadata={METRIC: Metric(name, MetricKind.COUNTER, help_text, java=java)})


def gauge(name: str, help_text: str, java: str = "", initial: Number | None = None) -> Any:
    """Return a field for a current number. While it is None, it is unknown and not published."""
    return field(init=False, default=initial, metadata={METRIC: Metric(name, MetricKind.GAUGE, help_text, java=java)})


def given(name: str = "", help_text: str = "") -> Any:
    """Return a field whose value is passed to the constructor; it is published if it has a name."""
    kind = MetricKind.COUNTER if name.endswith("_total") else MetricKind.GAUGE
    return field(metadata={METRIC: Metric(name, kind, help_text)} if name else {})


def shown(name: str, help_text: str, *labels: str, java: str = "") -> Callable[[T], T]:
    """Mark a method as the value of a gauge. The method gets the `Instant` of the reading."""

    def mark(method: T) -> T:
        setattr(method, METRIC, Metric(name, MetricKind.GAUGE, help_text, labels, java))
        return method

    return mark


def _instrument(make: Callable[[], Any], metric: Metric, java: tuple[JavaMetric, ...] = ()) -> Any:
    """Return a field with an instrument that `make` makes, published to Prometheus as `metric` and under KCL's names in
    `java`.
    """
    return field(init=False, default_factory=make, metadata={METRIC: metric, JAVA: java})


def _nearest(java: tuple[JavaMetric, ...]) -> str:
    """Return operation and name of the last of these metrics of KCL, for `Metric.java`."""
    return f"{java[-1].operation} {java[-1].name}" if java else ""


def count(name: str, level: MetricsLevel, dimensions: frozenset[Dimension] = NOTHING, unit: str = COUNT) -> Any:
    """Return a field of an `Operation` for values that are sent under KCL's `name`."""
    return sent(Spread, JavaMetric("", name, unit, level, dimensions))


def times(name: str, level: MetricsLevel, dimensions: frozenset[Dimension] = NOTHING) -> Any:
    """Return a field of an `Operation` for durations in seconds."""
    return sent(Spread, _time("", name, level, dimensions, part=""))


def calls(level: MetricsLevel, dimensions: frozenset[Dimension] = NOTHING, step: str = "") -> Any:
    """Return a field for attempts at an operation, or at one `step` of it. Their success and time are sent."""
    return sent(Calls, *success_and_time("", step, level, dimensions))


def timed(step: str, level: MetricsLevel, dimensions: frozenset[Dimension] = NOTHING) -> Any:
    """Return a field for attempts at one `step` of an operation, of which only the time is sent."""
    return sent(Calls, _time("", f"{step}.Time", level, dimensions))


def succeeded(step: str, level: MetricsLevel) -> Any:
    """Return a field for attempts at one `step` of an operation, of which only the success is sent."""
    return sent(Calls, JavaMetric("", f"{step}.Success", COUNT, level, part="ok"))


def success_and_time(
    operation: str, step: str, level: MetricsLevel, dimensions: frozenset[Dimension]
) -> tuple[JavaMetric, JavaMetric]:
    """Return KCL's two metrics for attempts at `operation`, or at one step of it."""
    dot = f"{step}." if step else ""
    return (
        JavaMetric(operation, f"{dot}Success", COUNT, level, dimensions, part="ok"),
        _time(operation, f"{dot}Time", level, dimensions),
    )


def _time(
    operation: str, name: str, level: MetricsLevel, dimensions: frozenset[Dimension], part: str = "seconds"
) -> JavaMetric:
    """Return KCL's metric for durations in seconds, which are sent in milliseconds. `part` names the attribute of the
    instrument that has them.
    """
    return JavaMetric(operation, name, MILLIS, level, dimensions, part=part, scale=MILLIS_PER_SECOND)


def seconds(operation: str, name: str, level: MetricsLevel, dimensions: frozenset[Dimension] = NOTHING) -> JavaMetric:
    """Return KCL's metric for a spread of seconds."""
    return _time(operation, name, level, dimensions, part="")
