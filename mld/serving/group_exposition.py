"""`merged`: merges the Prometheus texts of the workers of a group into one text, with the worker as a label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from mld.serving.prometheus import WORKER, Families


def merged(
    texts: Iterable[tuple[str, str]], running: int, restarts: Mapping[str, int], accept: str
) -> tuple[str, bytes]:
    """Return content type and body of one text (exposition) with the metrics of a whole group of workers.

    `texts` has the name of each worker and the text of its own metrics. Two metrics of the group are added: the number
    of running workers (`running`), and how often each was restarted (`restarts`).
    """
    families: dict[str, Family] = {}
    for worker, text in texts:
        for found in text_string_to_metric_families(text):
            family = families.setdefault(found.name, Family(found.name, found.documentation, found.type))
            family.samples += [one._replace(labels={**one.labels, WORKER: worker}) for one in found.samples]
    alive = GaugeMetricFamily("mld_unit_workers_running", "Workers of the group that run.")
    alive.add_metric((), running)
    again = CounterMetricFamily("mld_unit_worker_restarts", "How often a worker was started again.", labels=(WORKER,))
    for worker, count in restarts.items():
        again.add_metric((worker,), count)
    encode, content_type = choose_encoder(accept)
    body: bytes = encode(Families((*families.values(), alive, again)))
    return content_type, body
