"""The metrics of all workers of a unit as one exposition: each value with the worker that it is of. Pure.

Only what `prometheus_client` (extra `metrics`) is there for is imported with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

WORKER = "worker"


class _Merged(CollectorRegistry):
    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__(auto_describe=False)
        self._merged = tuple(families)

    def collect(self) -> Iterable[Metric]:
        return self._merged


def merged(
    told: Iterable[tuple[str, str]], running: int, restarts: Mapping[str, int], accept: str
) -> tuple[str, bytes]:
    """(content type, body) of what each worker told, and of what only its supervisor knows."""
    families: dict[str, Metric] = {}
    for worker, text in told:
        for found in text_string_to_metric_families(text):
            family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            family.samples += [one._replace(labels={**one.labels, WORKER: worker}) for one in found.samples]
    alive = GaugeMetricFamily("mld_unit_workers_running", "Workers of the unit that run.")
    alive.add_metric((), running)
    again = CounterMetricFamily("mld_unit_worker_restarts", "How often a worker was started again.", labels=(WORKER,))
    for worker, count in restarts.items():
        again.add_metric((worker,), count)
    encode, content_type = choose_encoder(accept)
    body: bytes = encode(_Merged([*families.values(), alive, again]))
    return content_type, body
