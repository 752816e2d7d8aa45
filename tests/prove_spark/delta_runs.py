"""The same proof on a Delta table (`make prove-lakehouse`); beside it an append that is not fenced.

`delta-s3` is a table on S3, in a bucket of versitygw (`make test-s3` builds it), by two drivers, each a JVM of its own.
There is no staging area and no entry to link, so the stages are those of `sinks.lake_table`; a file system without room
is left out, since Delta leaves its files behind.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

from mld.processors.spark.session.jvm_classes import install, log_settings
from mld.processors.spark.session.packages import PACKAGES
from mld.processors.spark.session.s3a import s3a_settings
from mld.processors.spark.session.spark_session import hadoop_version
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_spec import S3Access
from tests.prove_spark import jvm
from tests.prove_spark.runs import SHARDS, Machine, Run, wait_until_held
from tests.prove_spark.writer import GAVE_UP
from tests.support.s3_servers import SECRET, Versitygw
from tests.support.servers import ACCOUNT

MISSING = ("PATH_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "DELTA_TABLE_ONLY")
"""How Spark says that there is no table yet."""
DELTA, NAIVE_DELTA, DELTA_S3 = "delta", "naive-delta", "delta-s3"
STAGES = ("opening", "staging", "committed", "acknowledged")
ROUNDS = ("kill", "kill", "pair", "zombie", "jvm")
PACKAGE = "io.delta:delta-spark_4.1_2.13:4.4.0"
SETTINGS = (
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog "
    "--conf spark.databricks.delta.snapshotPartitions=1"
)
OPTIONS = f"--packages {PACKAGE} {SETTINGS}"
AWAY_S = 1.0


class DeltaRun(Run):
    def __init__(self, seed: int, layout: str, machine: Machine, root: Path) -> None:
        super().__init__(seed, layout, machine, root)
        self._stages = STAGES if layout == DELTA else ("opening", "staging", "staged", "acknowledged")
        self._kinds = ROUNDS if layout == DELTA else ("kill",)

    def _found(self) -> Counter[tuple[str, int]]:
        path = self._room / "out é%20"
        if not any((path / "_delta_log").glob("*.json")):
            return Counter()
        frame = self._machine.jvm.session.read.format("delta").load(str(path))
        return Counter((row[0], row[1]) for row in frame.select("shardId", "sequence").collect())


class DeltaS3Run(DeltaRun):
    """Writers that race or overtake each other are drivers of their own."""

    def __init__(self, seed: int, machine: Machine, root: Path, store: Versitygw) -> None:
        super().__init__(seed, DELTA, machine, root)
        self.outcome.layout = DELTA_S3
        self._kinds = (*ROUNDS, "race", "race", "server")
        self._store = store
        self._bucket = f"prove-{uuid4().hex[:20]}"
        store.client("s3").create_bucket(Bucket=self._bucket)
        self._table = f"s3a://{self._bucket}/out"

    def _round(self, kind: str) -> None:
        if kind == "race":
            self._race()
        elif kind == "server":
            self._server_dies()
        else:
            super()._round(kind)

    def _race(self) -> None:
        """Two drivers that write the same shards at the same time; one of them may die."""
        stage = self._rng.choice((None, *self._stages))
        fault = f"kill@{stage}#{self._nth(stage)}" if stage else None
        other = self._other(SHARDS)
        one = self._writer(SHARDS, fault)
        if stage:
            self._end(one, stage)
        else:
            self._expect(one, 0)
        self._expect(other, 0)

    def _pair(self) -> None:
        stage = self._rng.choice(self._stages)
        one = self._writer(SHARDS[:1], f"kill@{stage}#{self._nth(stage)}")
        other = self._other(SHARDS[1:])
        self._end(one, stage)
        self._expect(other, 0)

    def _zombie(self) -> None:
        stage = self._rng.choice(self._stages)
        gate = self._root / f"gate{self._rng.random()}"
        zombie = self._writer(SHARDS, f"hold@{stage}#{self._nth(stage)}:{gate}")
        wait_until_held(gate, zombie)
        self._expect(self._other(tuple(self._rng.sample(SHARDS, self._rng.randint(1, 3)))), 0)
        gate.touch()
        self._expect(zombie, 0)

    def _server_dies(self) -> None:
        writer = self._writer(SHARDS, None)
        time.sleep(self._rng.uniform(0.5, 4.0))
        self._store.kill()
        time.sleep(self._rng.uniform(0, AWAY_S))
        self._store.start()
        self._expect(writer, 0, GAVE_UP)
        self.outcome.killed["(server)"] += 1

    def _other(self, shards: tuple[str, ...]) -> subprocess.Popen[str]:
        return self._machine.start(self._plan(shards), None, jvm=self._machine.spare())

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        return {**super()._plan(shards), "layout": DELTA, "path": self._table, "log_store": True}

    def _found(self) -> Counter[tuple[str, int]]:
        session = self._machine.jvm.session
        install(session)
        try:
            frame = session.read.format("delta").load(self._table)
        except Exception as error:
            if any(words in str(error) for words in MISSING):
                return Counter()
            raise
        return Counter((row[0], row[1]) for row in frame.select("shardId", "sequence").collect())


def prepare(layouts: list[str], stack: contextlib.ExitStack) -> Versitygw | None:
    """Every JVM that is started from now on has Delta, if a layout needs it, and speaks to the store given back."""
    if {DELTA, NAIVE_DELTA}.intersection(layouts):
        os.environ[jvm.MORE_OPTIONS] = OPTIONS
    if DELTA_S3 not in layouts:
        return None
    store = stack.enter_context(Versitygw())
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCOUNT, "AWS_SECRET_ACCESS_KEY": SECRET}
    access = S3Access(SDK_CREDENTIALS, "us-east-1", store.endpoint, path_style=True)
    conf = {**s3a_settings(access, hadoop_version(), {PACKAGES: PACKAGE}), **log_settings({})}
    words = shlex.join(word for pair in conf.items() for word in ("--conf", "=".join(pair)))
    os.environ[jvm.MORE_OPTIONS] = f"{words} {SETTINGS}"
    return store
