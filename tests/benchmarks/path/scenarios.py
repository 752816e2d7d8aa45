"""The scenarios: a backlog, records as they come, quiet shards.

Every one starts a daemon on shards that have nothing for it yet, waits until all children are there, and measures from
then on, so that the cost of a start is in none of the figures but those of a whole run.
"""

from __future__ import annotations

import math
import time

from tests.benchmarks.path import yardsticks
from tests.benchmarks.path.figures import Load, Row, percentile
from tests.benchmarks.path.records import event_records_max
from tests.benchmarks.path.rig import AnyDynamo, Rig, Stand
from tests.benchmarks.path.subject import CHECKPOINT_EVERY, Subject, dynamo_of, running

POLLING, FANOUT = "POLLING", "FANOUT"
BACKLOG_TIMEOUT_S = 240.0
SMALL_BYTES = 200
SMALL_RECORDS = 50_000
SMALL_EACH = 5
TRICKLE_PER_S = 5
TRICKLE_S = 20.0
STEADY = (0.4, 0.8)
"""The share of a backlog that is delivered when the steady part begins and ends: warm, and in full flow."""
IDLE_S = 20.0
JAVA_WARM_S = 20.0  # of polls, before they are measured: a JVM compiles what it runs often
IDLE_CALLS = 500
QUIET_S = 10.0


def backlog(rig: Rig, subject: Subject, load: Load, shards: int, *, tls: bool, mode: str = POLLING) -> list[Row]:
    """Full shards, read as fast as it goes."""
    each = event_records_max(load.record_bytes)
    server = rig.kinesis(load.records(1, each), load.record_bytes, tls=tls)
    records = min(load.records(shards, each), load.records(1, each))
    total = records * shards
    keys = {"retrievalMode": mode, "idleTimeBetweenReadsInMillis": "200"}
    with running(rig, subject, f"backlog-{shards}-{records}", server, tls=tls, shards=shards, keys=keys) as daemon:
        server.tell("report")
        before = daemon.cost()
        server.tell("open")
        flow = []
        for share in STEADY:
            daemon.wait_for_records(int(share * total), BACKLOG_TIMEOUT_S)
            flow.append((daemon.notes.total, daemon.cost().cpu_s))
        daemon.wait_for_records(total, BACKLOG_TIMEOUT_S)
        after = daemon.cost()
        report = server.tell("report")
    wall_s = daemon.notes.last_at - report["began_at"]
    figures = yardsticks.per(after.cpu_s - before.cpu_s, wall_s, total, load.record_bytes)
    for part, since, until in (("steady", *flow), ("whole", (0, 0.0), (total, after.cpu_s))):
        us = 1e6 * (until[1] - since[1]) / (until[0] - since[0]) if until[0] > since[0] else math.nan
        figures |= {f"{part}_us_per_record": us, f"{part}_cpu_s_per_gb": 1000 * us / load.record_bytes}
    memory = {
        "rss_mb": after.rss_mb,
        "peak_mb": after.peak_mb,
        "threads": after.threads,
        "batches": daemon.notes.batches,
    }
    return [Row("backlog", subject.name, load.name, shards, tls, mode, figures | memory)]


def trickle(rig: Rig, subject: Subject, shards: int, *, tls: bool, mode: str = POLLING) -> list[Row]:
    """A few records a second in each shard: how old they are when a child has them."""
    server = rig.kinesis(0, SMALL_BYTES, tls=tls)
    keys = {"retrievalMode": mode, "idleTimeBetweenReadsInMillis": "200"}
    stream = f"live-{shards}-{TRICKLE_PER_S}"
    sink = rig.tools.aged_sink
    with running(rig, subject, stream, server, tls=tls, shards=shards, keys=keys, sink=sink) as daemon:
        daemon.notes.look()
        daemon.notes.delays_us.clear()
        server.tell("report")
        before = daemon.cost()
        time.sleep(TRICKLE_S)
        after = daemon.cost()
        daemon.notes.look()
        late = server.tell("report")["lateness_us"]
    delays = sorted(daemon.notes.delays_us)
    figures = {f"p{round(share * 100)}_ms": percentile(delays, share) / 1000 for share in (0.5, 0.9, 0.99)}
    figures |= {"max_ms": delays[-1] / 1000, "count": len(delays), "cores": (after.cpu_s - before.cpu_s) / TRICKLE_S}
    figures["server_p99_ms"] = percentile(late, 0.99) / 1000 if late else 0.0
    return [Row("trickle", subject.name, "", shards, tls, mode, figures)]


def idle(
    rig: Rig,
    subject: Subject,
    shards: int,
    idle_ms: int,
    *,
    tls: bool,
    each: int = SMALL_EACH,
    seconds: float = IDLE_S,
) -> list[Row]:
    """Five small records (`each`) at every poll of a shard; renewals, and a checkpoint every ten batches."""
    server = rig.kinesis(SMALL_RECORDS, SMALL_BYTES, tls=tls)
    server.tell("open")
    dynamo = dynamo_of(rig, subject, tls=tls)
    keys = {"retrievalMode": POLLING, "idleTimeBetweenReadsInMillis": str(idle_ms)}
    stream = f"few-{shards}-{each}"
    with running(rig, subject, stream, server, tls=tls, shards=shards, keys=keys) as daemon:
        time.sleep(0.0 if subject.jars is None else JAVA_WARM_S)
        daemon.notes.look()
        calls, writes = _calls(server, "GetRecords"), _calls(dynamo, "UpdateItem")
        before, batches = daemon.cost(), daemon.notes.batches
        time.sleep(seconds)
        after = daemon.cost()
        calls, writes = _calls(server, "GetRecords") - calls, _calls(dynamo, "UpdateItem") - writes
        daemon.notes.look()
    cpu_s = after.cpu_s - before.cpu_s
    loop = yardsticks.baseline(rig, "idle", server.endpoint, stream, str(IDLE_CALLS), tls=tls)
    figures = {
        "polls_per_s": calls / seconds,
        "writes_per_s": writes / seconds,
        "checkpoints_per_s": (daemon.notes.batches - batches) / seconds / CHECKPOINT_EVERY,
        "cpu_ms_per_poll": 1000 * cpu_s / calls,
        "boto3_ms_per_poll": 1000 * loop["cpu_s"] / IDLE_CALLS,
        "cores": cpu_s / seconds,
        "rss_mb": after.rss_mb,
        "threads": after.threads,
    }
    return [
        Row("idle", subject.name, f"{idle_ms} ms" if each else f"{idle_ms} ms, empty", shards, tls, POLLING, figures)
    ]


def quiet(rig: Rig, subject: Subject, shards: int, *, tls: bool, mode: str = POLLING) -> list[Row]:
    """Nothing in the shards at all, everything as by default: what it takes to be there."""
    server = rig.kinesis(0, SMALL_BYTES, tls=tls)
    server.tell("open")
    with running(
        rig, subject, f"backlog-{shards}-0", server, tls=tls, shards=shards, keys={"retrievalMode": mode}
    ) as daemon:
        time.sleep(QUIET_S)
        before, at = daemon.cost(), time.monotonic()
        time.sleep(QUIET_S)
        after, took_s = daemon.cost(), time.monotonic() - at
    figures = {
        "rss_mb": after.rss_mb,
        "private_mb": after.private_mb,
        "peak_mb": after.peak_mb,
        "threads": after.threads,
        "cores": (after.cpu_s - before.cpu_s) / took_s,
    }
    return [Row("quiet", subject.name, "", shards, tls, mode, figures)]


def _calls(stand: Stand | AnyDynamo, operation: str) -> int:
    return int(stand.tell("report")["calls"].get(operation, 0))
