"""`make prove-spark RUNS=n`: every record exactly once in the sink, whatever dies; and a plain append that is not.

    python -m tests.prove_spark --runs 200 [--start 0] [--layouts flat,partitioned,naive]

Others are run when they are named: `chain`, the whole chain, daemon to JVM, which takes a minute a run (see `chain`);
`jdbc`, a table of a database, with `naive-jdbc` beside it, which need what `make test-jdbc` fetches; `s3`, in a bucket
of versitygw, and `s3-ministack`, in one of ministack, with `s3-unconditional` beside them, a store whose conditional
writes are not atomic, which need what `make test-s3` builds; `s3-cluster`, written by the executors of a cluster;
`delta`, a table of Delta, with `naive-delta` beside it, and `delta-s3`, one on S3 that two drivers write, in the
environment of `make test-lakehouse`. Each has a module `<name>_runs`. A tenth of the runs is enough for those that have
to go wrong. Exit code 1 if a record was lost or doubled, or if none was by one that has to, for then the proof would
not bite.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.prove_spark import chain, verdict
from tests.prove_spark.delta_runs import DELTA, DELTA_S3, NAIVE_DELTA, DeltaRun, DeltaS3Run, prepare
from tests.prove_spark.jdbc_runs import JDBC, NAIVE_JDBC, JdbcRun
from tests.prove_spark.runs import Machine, Outcome, Run
from tests.prove_spark.s3_runs import S3, S3_CLUSTER, S3_MINISTACK, S3_NAIVE, S3ClusterRun, S3Run, clustered
from tests.prove_spark.writer import LAYOUTS
from tests.support.databases import Postgres
from tests.support.fetch_databases import DRIVERS
from tests.support.s3_servers import S3sFs, Versitygw
from tests.support.servers import EmbeddedAws, Ministack, ServerProcess

NAIVE = ("naive", NAIVE_JDBC, NAIVE_DELTA, S3_NAIVE)
"""What has to go wrong."""
NAIVE_SHARE = 10


class OneRun(Protocol):
    def play(self) -> Outcome: ...


Maker = Callable[[int, Path], OneRun]
"""A seed and a directory of its own -> a run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove_spark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    arguments = parser.parse_args()
    layouts = arguments.layouts.split(",")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(clustered()) if S3_CLUSTER in layouts else prepare(layouts, stack)
        machine = Machine(DRIVERS if {JDBC, NAIVE_JDBC} & {*layouts} else ())
        stack.callback(lambda: machine.jvm.kill())
        stack.callback(machine.kill_spare)
        made = [(layout, maker_of(layout, machine, stack, store)) for layout in layouts]
        failed = [prove_all(layout, make, arguments.start, arguments.runs) for layout, make in made]
        return int(any(failed))


def maker_of(layout: str, machine: Machine, stack: contextlib.ExitStack, store: Versitygw | None = None) -> Maker:
    """How runs of a layout are made. What they need is started now, and ended with the stack; `store`: that of the
    machine's cluster."""
    match layout:
        case "s3-cluster":
            assert layout == S3_CLUSTER and store is not None
            return lambda seed, root: S3ClusterRun(seed, machine, root, store, layout)
        case chain.CHAIN:
            return lambda seed, root: _ChainAlone(seed, machine, root)
        case "jdbc" | "naive-jdbc":
            assert layout in (JDBC, NAIVE_JDBC)
            database = stack.enter_context(Postgres())
            return lambda seed, root: JdbcRun(seed, machine, root, database, layout)
        case "delta" | "naive-delta":
            assert layout in (DELTA, NAIVE_DELTA)
            return lambda seed, root: DeltaRun(seed, layout, machine, root)
        case "delta-s3":
            assert layout == DELTA_S3 and store is not None
            return lambda seed, root: DeltaS3Run(seed, machine, root, store)
        case "s3" | "s3-ministack" | "s3-unconditional":
            servers: dict[str, Callable[[], ServerProcess]] = {S3: Versitygw, S3_MINISTACK: Ministack, S3_NAIVE: S3sFs}
            server = stack.enter_context(servers[layout]())
            return lambda seed, root: S3Run(seed, machine, root, server, layout)
        case _:
            return lambda seed, root: Run(seed, layout, machine, root)


class _ChainAlone:
    """A run of the whole chain, over an AWS of its own."""

    def __init__(self, seed: int, machine: Machine, root: Path) -> None:
        self._seed, self._machine, self._root = seed, machine, root

    def play(self) -> Outcome:
        with EmbeddedAws() as aws:
            return chain.ChainRun(self._seed, self._machine, self._root / "run", aws).play()


def prove_all(layout: str, make: Maker, start: int, wanted: int) -> bool:
    """Whether anything has failed."""
    runs = max(1, wanted // NAIVE_SHARE) if layout in NAIVE else wanted
    started = time.monotonic()
    outcomes = [prove(seed, layout, make) for seed in range(start, start + runs)]
    print(verdict.summary(layout, outcomes, time.monotonic() - started), flush=True)
    return verdict.has_failed(outcomes, has_to_go_wrong=layout in NAIVE)


def prove(seed: int, layout: str, make: Maker) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="prove-") as root:
        outcome = make(seed, Path(root)).play()
    print(
        f"{layout} {seed}: {verdict.counts(outcome.rounds)}; killed at {verdict.counts(outcome.killed)}; "
        f"{outcome.records} records, {outcome.duplicates} twice, {outcome.missing} missing {outcome.faults or ''}",
        flush=True,
    )
    return outcome


if __name__ == "__main__":
    sys.exit(main())
