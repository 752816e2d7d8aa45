"""The run whose metrics are compared: two shards, a steady load, a split on the way, a graceful stop.

A Java worker and an mld worker go through the same story, each with a CloudWatch that remembers what it is sent. What
Java sent is kept in `java_metrics.json` beside this file, so that every run of the tests compares mld with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.integration.world import World
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S
from tests.support.recording_cloudwatch import RecordingCloudWatch, SentDatum

RECORD = Path(__file__).with_name("java_metrics.json")
SHARDS = 2
RECORDS = 40
AWAITED = ("MillisBehindLatest", "RecordsProcessed", "CurrentLeases", "NumOfLeasesReassignment")
"""Awaited before the run goes on, so that both have published something of everything that happens by the way."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One metric of the record; `dimensions` are names without values."""

    operation: str
    name: str
    unit: str
    dimensions: tuple[str, ...]


def lines_of(datums: Iterable[SentDatum]) -> set[Line]:
    return {Line(datum.operation, datum.name, datum.unit, tuple(sorted(datum.dimensions))) for datum in datums}


def recorded() -> dict[str, set[Line]]:
    """What Java sent, by version and `metricsLevel`, such as ``3.5.1 SUMMARY``."""
    stored = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        case: {Line(one["operation"], one["name"], one["unit"], tuple(one["dimensions"])) for one in lines}
        for case, lines in stored.items()
    }


def record(case: str, lines: set[Line]) -> None:
    """Keep what a Java worker sent; what was kept of other cases stays."""
    stored = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    stored[case] = [asdict(line) for line in sorted(lines)]
    rows = ",\n".join(
        f'  "{name}": [\n' + ",\n".join(f"    {json.dumps(one)}" for one in stored[name]) + "\n  ]"
        for name in sorted(stored)
    )
    RECORD.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


def tell(
    world: World,
    worker: Daemon,
    cloudwatch: RecordingCloudWatch,
    *,
    requests_after: int = 0,
    within_s: float = PATIENCE_S,
) -> set[Line]:
    """Let `worker`, which is running, live through the story; what it has sent when it has stopped.

    It is stopped `requests_after` requests after the parent has ended: none for who sends what is left.
    """
    world.put(RECORDS)
    world.until_delivered(within_s=within_s)
    _until_sent(world, cloudwatch, within_s)
    parent = sorted(shard["ShardId"] for shard in world.shards())[0]
    world.split(parent)
    world.put(RECORDS)
    world.until_delivered(within_s=within_s)
    world.until(lambda: _has_ended(world, parent), within_s, f"{parent} has ended")
    wanted = len(cloudwatch.requests) + requests_after
    world.until(lambda: len(cloudwatch.requests) >= wanted, within_s, "metrics of the split published")
    worker.stop(timeout_s=PATIENCE_S)
    return lines_of(cloudwatch.datums)


def _has_ended(world: World, shard: str) -> bool:
    lease = world.leases().get(shard)
    return lease is None or lease.is_complete


def _until_sent(world: World, cloudwatch: RecordingCloudWatch, within_s: float) -> None:
    def is_sent() -> bool:
        return set(AWAITED) <= {datum.name for datum in cloudwatch.datums}

    world.until(is_sent, within_s, "metrics published")
