"""The part of `mld check` that says what metrics cost in CloudWatch, and what would cost less."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mld.views import cloudwatch_price
from properties.settings import Settings
from properties.values import MetricsLevel

OTHER_DIMENSIONS = ("Operation", "StreamId", "WorkerIdentifier")


def metrics_prices_of(
    settings: Settings, leases: Collection[int], workers: Collection[int]
) -> Iterator[dict[str, float]]:
    """Counts and dollars of a month for each size of a fleet; the dollars of cheaper files under their names."""
    for lease_count in leases:
        for worker_count in workers:
            whole = cloudwatch_price.cost(settings, lease_count, worker_count)
            yield {
                "leases": lease_count,
                "workers": worker_count,
                "metrics": whole.metrics,
                "requests": round(whole.requests),
                "dollars": round(whole.dollars, 2),
            } | {
                name: round(cloudwatch_price.cost(other, lease_count, worker_count).dollars, 2)
                for name, other in _cheaper(settings).items()
            }


def print_metrics_prices(console: Console, prices: Sequence[dict[str, float]], settings: Settings) -> None:
    """The table, and what it is made of; a line if nothing is sent."""
    if not any(row["metrics"] for row in prices):
        console.print(Text("Nothing is sent to CloudWatch (mld.metrics, metricsLevel).", style="dim"))
        return
    table = Table(title="What its metrics cost in CloudWatch, dollars a month", title_justify="left")
    for name in ("leases", "workers", "custom metrics", "this file", *_cheaper(settings)):
        table.add_column(name, justify="right")
    for row in prices:
        counts = (f"{row[name]:,.0f}" for name in ("leases", "workers", "metrics"))
        table.add_row(*counts, *(f"{row[name]:,.2f}" for name in ("dollars", *_cheaper(settings))))
    console.print(table)
    (first_size, first), (_, second) = cloudwatch_price.METRIC_TIERS[:2]
    note = (
        f"By the {cloudwatch_price.LIST_PRICE}: {first:.2f} a metric ({second:.2f} above {first_size:,}), "
        f"{cloudwatch_price.REQUEST_DOLLARS_PER_THOUSAND} a thousand requests. "
        "A metric is billed for the hours in which it gets values. What is scraped from /metrics costs nothing here."
    )
    console.print(Text(note, style="dim"), soft_wrap=True)


def _cheaper(settings: Settings) -> dict[str, Settings]:
    """What could be changed to pay less."""
    names = settings.metrics_enabled_dimensions
    kept = OTHER_DIMENSIONS if "ALL" in names else tuple(name for name in names if name != "ShardId")
    return {
        "with metricsLevel=SUMMARY": replace(settings, metrics_level=MetricsLevel.SUMMARY),
        "without ShardId": replace(settings, metrics_enabled_dimensions=kept),
    }
