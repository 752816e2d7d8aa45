"""`make prove-spark RUNS=n`: every record exactly once in the sink, whatever dies; and a plain append that is not.

    python -m tests.prove_spark --runs 200 [--start 0] [--layouts flat,partitioned,streaming,naive]

Others are run when they are named: `chain`, the whole chain, daemon to JVM, which takes a minute a run (see `chain`);
`hdfs`, a sink there, which needs what `make test-hdfs` fetches (see `hdfs_runs`); `s3`, in a bucket of versitygw; and
`s3-unconditional`, on a store whose conditional writes are not atomic, which have to go wrong; `make test-s3` builds
both servers; `delta`, a table of Delta, with `naive-delta` beside it, in the environment of `make test-lakehouse` (see
`delta_runs`). A tenth of the runs is enough for
the naive one. Exit code 1 if a record was lost or doubled, or if nothing was doubled by the naive one, for then the
proof would not bite.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.hdfs.cluster import Cluster
from tests.prove_spark import chain
from tests.prove_spark.delta_runs import DELTA, NAIVE_DELTA, DeltaRun, prepare
from tests.prove_spark.hdfs_runs import HDFS, HdfsRun
from tests.prove_spark.runs import Machine, Outcome, Run
from tests.prove_spark.s3_runs import S3, S3_NAIVE, S3Run
from tests.prove_spark.streaming_runs import STREAMING, StreamingRun
from tests.prove_spark.writer import LAYOUTS
from tests.support.s3_servers import S3sFs, Versitygw
from tests.support.servers import EmbeddedAws, ServerProcess

NAIVE = "naive"
NAIVE_SHARE = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove_spark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--layouts", default=",".join((*LAYOUTS[:-1], STREAMING, LAYOUTS[-1])))
    arguments = parser.parse_args()
    layouts = arguments.layouts.split(",")
    with contextlib.ExitStack() as stack:
        cluster = None
        if HDFS in layouts:
            cluster = stack.enter_context(Cluster(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        servers: dict[str, ServerProcess] = {}
        if S3 in layouts:
            servers[S3] = stack.enter_context(Versitygw())
        if S3_NAIVE in layouts:
            servers[S3_NAIVE] = stack.enter_context(S3sFs())
        prepare(layouts)
        machine = Machine()
        stack.callback(lambda: machine.jvm.kill())
        return int(prove_all(layouts, arguments.start, arguments.runs, machine, cluster, servers))


def prove_all(
    layouts: list[str],
    start: int,
    wanted: int,
    machine: Machine,
    cluster: Cluster | None,
    servers: Mapping[str, ServerProcess],
) -> bool:
    """Whether anything has failed."""
    failed = False
    for layout in layouts:
        naive = layout in (NAIVE, S3_NAIVE, NAIVE_DELTA)
        runs = max(1, wanted // NAIVE_SHARE) if naive else wanted
        started = time.monotonic()
        outcomes = [prove(seed, layout, machine, cluster, servers.get(layout)) for seed in range(start, start + runs)]
        print(summary(layout, outcomes, time.monotonic() - started), flush=True)
        if naive:
            failed |= all(outcome.exactly_once for outcome in outcomes)
        else:
            failed |= not all(outcome.exactly_once for outcome in outcomes)
    return failed


def prove(
    seed: int, layout: str, machine: Machine, cluster: Cluster | None, server: ServerProcess | None = None
) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="prove-") as root, contextlib.ExitStack() as stack:
        if layout == chain.CHAIN:
            aws = stack.enter_context(EmbeddedAws())
            outcome = chain.ChainRun(seed, machine, Path(root) / "run", aws).play()
        else:
            outcome = run_of(seed, layout, machine, Path(root), cluster, server).play()
    print(
        f"{layout} {seed}: {_counts(outcome.rounds)}; killed at {_counts(outcome.killed)}; {outcome.records} records, "
        f"{outcome.duplicates} twice, {outcome.missing} missing {outcome.faults or ''}",
        flush=True,
    )
    return outcome


def run_of(
    seed: int, layout: str, machine: Machine, root: Path, cluster: Cluster | None, server: ServerProcess | None = None
) -> Run:
    if server is not None:
        return S3Run(seed, machine, root, server, layout)
    if layout == HDFS:
        assert cluster is not None
        return HdfsRun(seed, machine, root, cluster)
    if layout in (DELTA, NAIVE_DELTA):
        return DeltaRun(seed, layout, machine, root)
    return StreamingRun(seed, machine, root) if layout == STREAMING else Run(seed, layout, machine, root)


def summary(layout: str, outcomes: list[Outcome], took_s: float) -> str:
    killed: Counter[str] = sum((outcome.killed for outcome in outcomes), Counter())
    rounds: Counter[str] = sum((outcome.rounds for outcome in outcomes), Counter())
    records = sum(outcome.records for outcome in outcomes)
    twice = sum(outcome.duplicates for outcome in outcomes)
    missing = sum(outcome.missing for outcome in outcomes)
    bad = sum(1 for outcome in outcomes if not outcome.exactly_once)
    return (
        f"{layout}: {len(outcomes)} runs in {took_s:.0f} s, {records} records, {twice} twice, {missing} missing, "
        f"{bad} runs not exactly once\n"
        f"  rounds: {_counts(rounds)}\n  killed at: {_counts(killed)}\n"
        f"  batches of zombies refused: {sum(outcome.fenced for outcome in outcomes)}"
    )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())
