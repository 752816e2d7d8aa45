"""One declaration is enough: the names of both worlds, and what is read and taken, follow from the field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

from mld.metrics.declared import declared, metrics_of
from mld.metrics.declaring import NOTHING, D, Instant, MetricKind, S, count, histogram, shown, success_and_time, tally
from mld.metrics.instruments import Calls, Spread, StatisticSet, Successes, Tally
from mld.metrics.registry import Metrics

AT = Instant(10.0, 1_000.0)


@dataclass(slots=True, eq=False)
class Toy:
    """What somebody adds who wants a new metric."""

    OPERATION: ClassVar = "ToyTask"
    since: float
    runs: Calls = histogram("mld_toy_seconds", "Time.", *success_and_time("ToyTask", "Run", S, NOTHING), make=Calls)
    faults: Spread = count("Faults", D)
    by_kind: Tally = tally("mld_toys_total", "Toys.", "kind")

    @shown("mld_toy_age_seconds", "Age.")
    def age_s(self, at: Instant) -> float:
        return at.now - self.since


def toy() -> Toy:
    made = Toy(4.0)
    made.runs.note(True, 0.5)
    made.faults.note(3)
    made.by_kind.add("train", 2)
    return made


def test_prometheus_gets_name_kind_labels_and_value_of_each_field_and_method() -> None:
    metrics = {metric.name: metric for metric in metrics_of(Toy, "shard")}
    read = {name: list(metric.series(metric.read(toy(), AT), "a")) for name, metric in metrics.items()}
    assert read["mld_toy_age_seconds"] == [(("a",), 6.0)]
    assert read["mld_toys_total"] == [(("a", "train"), 2)]
    (((shard,), spread),) = read["mld_toy_seconds"]
    assert (shard, spread.count, spread.total) == ("a", 1, 0.5)  # type: ignore[union-attr]
    assert [(one.name, one.kind, one.labels, one.java) for one in metrics.values()] == [
        ("mld_toy_age_seconds", MetricKind.GAUGE, ("shard",), ""),
        ("mld_toy_seconds", MetricKind.HISTOGRAM, ("shard",), "ToyTask Run.Time"),
        ("mld_toys_total", MetricKind.COUNTER, ("shard", "kind"), ""),
    ]


def test_cloudwatch_gets_each_part_of_an_instrument_once() -> None:
    made = toy()
    taken = {metric.name: one.take(made) for one in declared(Toy) for metric in one.metrics}
    assert taken == {
        "Run.Success": StatisticSet(1, 1.0, 1.0, 1.0),
        "Run.Time": StatisticSet(1, 0.5, 0.5, 0.5),
        "Faults": StatisticSet(1, 3, 3, 3),
    }
    assert {metric.operation for one in declared(Toy) for metric in one.metrics} == {"ToyTask"}
    assert [one.take(made) for one in declared(Toy)] == [None, None, None]


def _undeclared(part: object, path: str) -> Iterator[str]:
    for one in fields(part) if is_dataclass(part) else ():  # type: ignore[arg-type]
        value = getattr(part, one.name)
        if isinstance(value, Calls | Spread | Successes | Tally) and not one.metadata:
            yield f"{path}.{one.name}"
        yield from _undeclared(value, f"{path}.{one.name}")


def test_nothing_is_counted_that_no_view_shows() -> None:
    metrics = Metrics()
    part = metrics.begin("shardId-000000000000", 0.0)
    assert [*_undeclared(metrics, "metrics"), *_undeclared(part, "shard")] == []
