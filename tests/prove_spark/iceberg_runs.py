"""A run of the proof with the sink in an Iceberg table, whose catalog is in a PostgreSQL; and a plain append beside it.

    .venv-lakehouse/bin/python -m tests.prove_spark.iceberg_runs --runs 30 [--start 0] [--naive 3] [--catalog rest]

Writers of one run use two JVMs, each with a client of the catalog of its own, and race for the metadata. It
is a program of its own, because Iceberg needs the PySpark of `make test-lakehouse`; it needs what `make test-jdbc` has.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.prove_spark.runs import SHARDS, Machine, Outcome, Run, wait_until_held
from tests.support.databases import Postgres
from tests.support.fetch_databases import POSTGRES_DRIVER
from tests.support.maven import Jar, fetch
from tests.support.rest_catalog import AWS_BUNDLE, NESSIE, Nessie
from tests.support.s3_servers import SECRET, Versitygw
from tests.support.servers import ACCOUNT, REGION

ICEBERG, NAIVE_ICEBERG, ICEBERG_REST = "iceberg", "naive-iceberg", "iceberg-rest"
RUNTIME = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    "iceberg",
)
STAGES = ("opening", "staging", "staged", "checked", "committed", "acknowledged")
NAIVE_STAGES = ("opening", "staging", "staged", "acknowledged")
ROUNDS = ("kill", "kill", "pair", "pair", "zombie", "zombie", "jvm", "server")
AWAY_S = 2.0


class IcebergRun(Run):
    def __init__(
        self, seed: int, machine: Machine, root: Path, database: Postgres | None, layout: str = ICEBERG
    ) -> None:
        super().__init__(seed, layout, machine, root)
        self._database = database
        self._table = f"lake.db.t{time.time_ns()}"
        naive = layout == NAIVE_ICEBERG
        self._stages = NAIVE_STAGES if naive else STAGES
        self._kinds = ("kill",) if naive else ROUNDS

    def _round(self, kind: str) -> None:
        if kind == "server":
            self._server()
        else:
            super()._round(kind)

    def _pair(self) -> None:
        """Two drivers: the other writer's Spark is in a JVM of its own."""
        stage = self._rng.choice(self._stages)
        one = self._writer(SHARDS[:1], f"kill@{stage}#{self._nth(stage)}")
        other = self._machine.start(self._plan(SHARDS[1:]), None, jvm=self._machine.spare())
        self._end(one, stage)
        self._expect(other, 0)

    def _zombie(self) -> None:
        """The writer that overtakes it is another driver."""
        stage = self._rng.choice(self._stages)
        gate = self._root / f"gate{self._rng.random()}"
        zombie = self._writer(SHARDS, f"hold@{stage}#{self._nth(stage)}:{gate}")
        wait_until_held(gate, zombie)
        mine = tuple(self._rng.sample(SHARDS, self._rng.randint(1, 3)))
        self._expect(self._machine.start(self._plan(mine), None, jvm=self._machine.spare()), 0)
        gate.touch()
        self._expect(zombie, 0)

    def _server(self) -> None:
        """The catalog's database crashes somewhere in the work of a writer."""
        from tests.prove_spark.writer import GAVE_UP

        assert self._database is not None
        writer = self._writer(SHARDS, None)
        time.sleep(self._rng.uniform(0.5, 4.0))
        self._database.kill()
        time.sleep(self._rng.uniform(0, AWAY_S))
        self._database.start()
        self._expect(writer, 0, GAVE_UP)
        self.outcome.killed["(server)"] += 1

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        return {**super()._plan(shards), "path": self._table, "conf": self._conf}

    @property
    def _conf(self) -> dict[str, str]:
        assert self._database is not None
        lake = "spark.sql.catalog.lake"
        return {
            lake: "org.apache.iceberg.spark.SparkCatalog",
            f"{lake}.type": "jdbc",
            f"{lake}.uri": self._database.url,
            f"{lake}.jdbc.user": self._database.user,
            f"{lake}.jdbc.password": self._database.password,
            f"{lake}.jdbc.schema-version": "V1",
            f"{lake}.warehouse": f"{self._root.parent}/lake-{self._database.port}",
        }

    def _found(self) -> Counter[tuple[str, int]]:
        session = self._machine.jvm.session
        for name, value in self._conf.items():
            session.conf.set(name, value)
        try:
            session.catalog.refreshTable(self._table)
            rows = session.table(self._table).select("shardId", "sequence").collect()
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return Counter()
            raise
        return Counter((row[0], row[1]) for row in rows)


class RestRun(IcebergRun):
    """With a REST catalog, whose tables are in a bucket. It keeps the catalog in its memory, so it is not killed."""

    def __init__(self, seed: int, machine: Machine, root: Path, catalog: Nessie, layout: str = ICEBERG_REST) -> None:
        super().__init__(seed, machine, root, None, layout)
        self._kinds = tuple(kind for kind in ROUNDS if kind != "server")
        self._catalog = catalog

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        return {**super()._plan(shards), "layout": ICEBERG}

    @property
    def _conf(self) -> dict[str, str]:
        lake = "spark.sql.catalog.lake"
        return {
            lake: "org.apache.iceberg.spark.SparkCatalog",
            f"{lake}.type": "rest",
            f"{lake}.uri": self._catalog.uri,
            f"{lake}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        }


def prove_rest(runs: range) -> bool:
    """Whether every run wrote each record once. Raises what a server raises that does not start."""
    jars = (RUNTIME, AWS_BUNDLE)
    if not fetch((*jars, NESSIE)):
        return False
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCOUNT, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
    with tempfile.TemporaryDirectory(prefix="prove-ice-") as root, Versitygw() as store, Nessie(store) as catalog:
        machine = Machine(jars)
        try:
            made = (RestRun(seed, machine, Path(root) / f"rest{seed}", catalog) for seed in runs)
            outcomes = [play(run, ICEBERG_REST, seed) for seed, run in zip(runs, made, strict=True)]
        finally:
            machine.kill_spare()
            machine.jvm.kill()
    return all(outcome.exactly_once for outcome in outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove_spark.iceberg_runs")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--naive", type=int, default=3)
    parser.add_argument("--catalog", choices=("jdbc", "rest"), default="jdbc")
    arguments = parser.parse_args()
    if arguments.catalog == "rest":
        return int(not prove_rest(range(arguments.start, arguments.start + arguments.runs)))
    jars = (RUNTIME, POSTGRES_DRIVER)
    if not fetch(jars):
        return 1
    with tempfile.TemporaryDirectory(prefix="prove-ice-") as root, Postgres() as database:
        machine = Machine(jars)
        try:
            ours = [
                play(IcebergRun(seed, machine, Path(root) / f"{ICEBERG}{seed}", database), ICEBERG, seed)
                for seed in range(arguments.start, arguments.start + arguments.runs)
            ]
            naive = [
                play(
                    IcebergRun(seed, machine, Path(root) / f"{NAIVE_ICEBERG}{seed}", database, NAIVE_ICEBERG),
                    NAIVE_ICEBERG,
                    seed,
                )
                for seed in range(arguments.naive)
            ]
        finally:
            machine.kill_spare()
            machine.jvm.kill()
    bites = not naive or any(outcome.duplicates for outcome in naive)
    return int(not (bites and all(outcome.exactly_once for outcome in ours)))


def play(run: IcebergRun, layout: str, seed: int) -> Outcome:
    started = time.monotonic()
    outcome = run.play()
    print(
        f"{layout} {seed}: {dict(outcome.rounds)}; killed at {dict(outcome.killed)}; {outcome.fenced} refused; "
        f"{outcome.records} records, {outcome.duplicates} twice, {outcome.missing} missing {outcome.faults or ''} "
        f"in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return outcome


if __name__ == "__main__":
    sys.exit(main())
