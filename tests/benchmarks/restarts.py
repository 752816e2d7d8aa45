"""Time from exec to the first records where other workers were there before, and where there are many shards.

*A crash and a deploy right after it.* A daemon is killed with ``kill -9``, one under a new id takes its leases over and
is stopped by SIGTERM, a third one starts: all within the two minutes for which the leader lock of the first stands.

*Many shards.* A daemon starts on a fresh table and is stopped by SIGTERM, and another one starts under a new id. The
servers are the stand-ins of the `path` benchmarks and the child is the cheapest there is, so that the figure is that of
the daemon.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.path.rig import Rig, build
from tests.benchmarks.process import SDK_CHILD, BenchError, Daemon
from tests.benchmarks.tables import load_average, spread, table
from tests.benchmarks.world import make_stream, put_evenly
from tests.support.servers import EmbeddedAws

SHARDS = 4
SHARDS_MANY = 64
RECORDS_PER_SHARD = 10
RECORD_BYTES = 1000
FAILOVER_S = 10.0  # the default
TIMEOUT_S = 60.0
DEPLOYED_TARGET_S = 3.0
TAKEN_OVER_TARGET_S = FAILOVER_S + 2.0 + 1.0
"""From exec: the bound counts from the death, but nobody can see what stands still before there is somebody."""
MANY_TARGET_S = 2.5

FRESH, AFTER_KILL, AFTER_STOP = (
    "first id, on a fresh table",
    "second id, right after kill -9 of the first",
    "third id, right after SIGTERM of the second",
)
MANY_FRESH, MANY_AFTER_STOP = "on a fresh table", "new id, after SIGTERM"

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
    _print(
        f"A crash and a deploy right after it: exec to the first record, seconds, {SHARDS} shards, {runs} runs",
        deployed,
        targets,
        f"the leader lock was that of {', '.join(sorted(lock_owners))} when the third had its records; "
        f"load average before {before}, after {load_average()}",
    )
    before = load_average()
    many = _many(scratch, runs)
    targets = {MANY_FRESH: MANY_TARGET_S, MANY_AFTER_STOP: MANY_TARGET_S}
    _print(
        f"{SHARDS_MANY} shards on one worker: exec to the first record, seconds, against stand-ins, {runs} runs",
        many,
        targets,
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


def _many(scratch: Path, runs: int) -> Seen:
    place = scratch / "many"
    place.mkdir()
    seen: Seen = defaultdict(list)
    with Rig(place, build(place)) as rig:
        for number in range(runs):
            for worker, what in (("first", MANY_FRESH), ("second", MANY_AFTER_STOP)):
                seen[what].append(_start_of_many(rig, f"many-{number}", worker))
    return seen


def _start_of_many(rig: Rig, application: str, worker: str) -> tuple[float, float]:
    """Start, wait for every shard, and stop."""
    kinesis = rig.kinesis(RECORDS_PER_SHARD, RECORD_BYTES, tls=False)
    kinesis.tell("open")
    directory = rig.fresh(f"{application}-{worker}")
    notes = directory / "notes"
    notes.touch()
    keys = {
        "executableName": shlex.join(rig.tools.sink),
        "applicationName": application,
        "streamName": f"backlog-{SHARDS_MANY}-{RECORDS_PER_SHARD}",
        "workerId": worker,
        "metricsLevel": "NONE",
        "dynamoDBEndpoint": rig.dynamo(tls=False).endpoint,
    }
    with Daemon(directory, kinesis.endpoint, keys, env={"BENCH_NOTES": str(notes)}, log_level="info") as daemon:
        what = f"records in the children of {SHARDS_MANY} shards"
        daemon.wait_for(lambda: len(first_records(notes.read_text())) >= SHARDS_MANY, TIMEOUT_S, what)
        came = first_records(notes.read_text()).values()
        daemon.stop()
        if status := daemon.wait():
            raise BenchError(f"the daemon ended with status {status}; see {daemon.log_file}")
    return min(came) - daemon.executed_at, max(came) - daemon.executed_at


def first_records(notes: str) -> dict[str, float]:
    """When each shard's child had its first records, by what the children noted (`path/sink.py`)."""
    first: dict[str, float] = {}
    for line in notes.split("\n")[:-1]:  # what follows the last line end is still being written
        shard, event, at, _ = line.split()
        if event == "records":
            first.setdefault(shard, float(at))
    return first


def _print(title: str, seen: Seen, targets: Mapping[str, float], note: str) -> None:
    rows = []
    for what, target in targets.items():
        first, last = spread([one for one, _ in seen[what]]), spread([one for _, one in seen[what]])
        figures = (f"{value:.2f}" for value in (first.median, last.min, last.median, last.max))
        rows.append((what, *figures, f"{target:g}", str(sum(one > target for _, one in seen[what]))))
    columns = ("start", "first shard, median", "last shard: min", "median", "max", "target", "above it")
    table(title, columns, rows, note)
