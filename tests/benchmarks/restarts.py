"""Time from exec to the first records in a crash and a deploy right after it.

A daemon is killed with ``kill -9``, one under a new id takes its leases over and is stopped by SIGTERM, a third one
starts: all within the two minutes for which the leader lock of the first stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.process import SDK_CHILD, Daemon
from tests.benchmarks.tables import load_average, spread, table
from tests.benchmarks.world import make_stream, put_evenly
from tests.support.servers import EmbeddedAws

SHARDS = 4
RECORDS_PER_SHARD = 10
FAILOVER_S = 10.0  # the default
TIMEOUT_S = 60.0
DEPLOYED_TARGET_S = 3.0
TAKEN_OVER_TARGET_S = FAILOVER_S + 2.0 + 1.0
"""From exec: the bound counts from the death, but nobody can see what stands still before there is somebody."""

FRESH, AFTER_KILL, AFTER_STOP = (
    "first id, on a fresh table",
    "second id, right after kill -9 of the first",
    "third id, right after SIGTERM of the second",
)

Seen = Mapping[str, list[tuple[float, float]]]
"""By what it was: seconds from exec to the first and to the last shard's first record, run after run."""


def measure(aws: EmbeddedAws, scratch: Path, runs: int) -> None:
    """Run everything and print it."""
    before = load_average()
    deployed: Seen = defaultdict(list)
    lock_owners: set[str] = set()
    for number in range(runs):
        lock_owners.add(_crash_and_deploy(aws, scratch / f"deploy-{number}", f"deploy-{number}", deployed))
    targets = {FRESH: DEPLOYED_TARGET_S, AFTER_KILL: TAKEN_OVER_TARGET_S, AFTER_STOP: DEPLOYED_TARGET_S}
    rows = []
    for what, target in targets.items():
        first, last = spread([one for one, _ in deployed[what]]), spread([one for _, one in deployed[what]])
        figures = (f"{value:.2f}" for value in (first.median, last.min, last.median, last.max))
        rows.append((what, *figures, f"{target:g}", str(sum(one > target for _, one in deployed[what]))))
    table(
        f"A crash and a deploy right after it: exec to the first record, seconds, {SHARDS} shards, {runs} runs",
        ("start", "first shard, median", "last shard: min", "median", "max", "target", "above it"),
        rows,
        f"the leader lock was that of {', '.join(sorted(lock_owners))} when the third had its records; "
        f"load average before {before}, after {load_average()}",
    )


def _crash_and_deploy(aws: EmbeddedAws, scratch: Path, name: str, seen: Seen) -> str:
    """One story; whose the leader lock is at its end."""
    make_stream(aws.client("kinesis"), name, SHARDS)
    put_evenly(aws.client("kinesis"), name, SHARDS, RECORDS_PER_SHARD)

    def start(worker: str) -> Daemon:
        keys = {"executableName": SDK_CHILD, "applicationName": name, "streamName": name, "workerId": worker}
        return Daemon(scratch / worker, aws.endpoint, keys)

    def served(daemon: Daemon, what: str) -> None:
        came = daemon.wait_for_records(SHARDS, TIMEOUT_S).values()
        seen[what].append((min(came) - daemon.executed_at, max(came) - daemon.executed_at))

    with start("first") as first:
        served(first, FRESH)
        first.wait_for(lambda: _lock_owner(aws, name) == "first", TIMEOUT_S, "the first worker's leader lock")
        first.kill()
    with start("second") as second:
        served(second, AFTER_KILL)
        second.stop()
        second.wait()
    with start("third") as third:
        served(third, AFTER_STOP)
        return _lock_owner(aws, name)


def _lock_owner(aws: EmbeddedAws, name: str) -> str:
    answer = aws.client("dynamodb").get_item(TableName=name, Key={"leaseKey": {"S": "Leader"}}, ConsistentRead=True)
    owner: str = answer.get("Item", {}).get("ownerName", {}).get("S", "nobody")
    return owner
