"""A run of the proof with the sink on S3: as `runs`, flat or partitioned as the seed draws it.

In three more kinds of round several writers race for the same shards, several replace the same head at the same moment,
and the server is killed under a writer. On a store whose conditional writes are not atomic (`S3sFs`) the moment has to
bring records that are lost or doubled: a race that is left to chance seldom does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from mld.aws.objects import S3Bucket
from mld.processors.spark.commit.journal import ABANDONED_S, Journal
from mld.processors.spark.commit.ledger_files import LEDGER
from mld.processors.spark.commit.s3_store import S3Store
from mld.processors.spark.session.s3a import s3a_settings
from mld.processors.spark.session.spark_session import hadoop_version
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_spec import S3Access
from tests.prove_spark import jvm
from tests.prove_spark.runs import ROUNDS, SHARDS, Machine, Outcome, Run, wait_until_held
from tests.prove_spark.writer import ENDPOINT_VARIABLE, GAVE_UP
from tests.support.s3_servers import SECRET, StoredServer, Versitygw
from tests.support.servers import ACCOUNT, ServerProcess
from tests.support.spark_servers import cluster

S3, S3_MINISTACK, S3_NAIVE, S3_CLUSTER = "s3", "s3-ministack", "s3-unconditional", "s3-cluster"
OF_EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
AWAY_S = 1.0
CROWD = 3
BURST = 6


class S3Run(Run):
    def __init__(self, seed: int, machine: Machine, root: Path, server: ServerProcess, layout: str = S3) -> None:
        super().__init__(seed, layout, machine, root)
        self._server = server
        self._partitioned = self._rng.random() < 0.5
        self._kinds = tuple(kind for kind in ROUNDS if kind != "full")
        self._kinds += ("crowd", "burst", "server") if isinstance(server, StoredServer) else ("crowd", "burst")
        if layout == S3_NAIVE:
            self._kinds = ("burst",)
            self._partitioned = False  # `S3sFs` makes file names of keys, and those of partitions get too long for it
        self._bucket = f"prove-{uuid4().hex[:20]}"
        self._s3 = server.client("s3")
        self._s3.create_bucket(Bucket=self._bucket)
        self._hosts = 0
        os.environ |= {
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            ENDPOINT_VARIABLE: server.endpoint,
        }

    def _round(self, kind: str) -> None:
        if kind == "crowd":
            self._crowd()
        elif kind == "burst":
            self._burst()
        elif kind == "server":
            self._server_dies()
        else:
            super()._round(kind)

    def _crowd(self) -> None:
        """Several writers, two of three shards each, so that each shard has two."""
        writers = [self._writer((SHARDS[number], SHARDS[(number + 1) % CROWD]), None) for number in range(CROWD)]
        for writer in writers:
            self._expect(writer, 0)

    def _burst(self) -> None:
        """Writers of the same shards that have all read the same head, and replace it at the same moment."""
        start = self._root / f"start-{uuid4().hex}"
        gates = [self._root / f"gate-{uuid4().hex}" for _ in range(BURST)]
        for gate in gates:
            gate.symlink_to(start)
        writers = [self._writer(SHARDS, f"hold@entry#1:{gate}") for gate in gates]
        for gate, writer in zip(gates, writers, strict=True):
            wait_until_held(gate, writer)
        start.touch()
        for writer in writers:
            self._expect(writer, 0)

    def _server_dies(self) -> None:
        assert isinstance(self._server, StoredServer)
        writer = self._writer(SHARDS, None)
        time.sleep(self._rng.uniform(0.5, 3.0))
        self._server.kill()
        time.sleep(self._rng.uniform(0, AWAY_S))
        self._server.start()
        self._expect(writer, 0, GAVE_UP)
        self.outcome.killed["(server)"] += 1

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        self._hosts += 1
        layout = "partitioned" if self._partitioned else "flat"
        scratch = str(self._root / f"host-{self._hosts}")
        return {**super()._plan(shards), "layout": layout, "path": f"s3://{self._bucket}/out", "scratch": scratch}

    def _found(self) -> Counter[tuple[str, int]]:
        """What a reader of the bucket sees, file by file."""
        copy = self._root / f"copy-{uuid4().hex}"
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix="out/"):
            for one in page.get("Contents", ()):
                if "/_mld/" not in one["Key"]:
                    file = copy / f"{uuid4().hex}.parquet"
                    file.parent.mkdir(exist_ok=True)
                    file.write_bytes(self._s3.get_object(Bucket=self._bucket, Key=one["Key"])["Body"].read())
        if not copy.exists():
            return Counter()
        rows = self._machine.jvm.session.read.parquet(str(copy)).select("shardId", "sequence").collect()
        return Counter((row[0], row[1]) for row in rows)


class S3ClusterRun(S3Run):
    """With executors that write to the bucket themselves. Two days later no staged file may be left."""

    def play(self) -> Outcome:
        outcome = super().play()
        bucket = InTwoDays(lambda: self._s3, self._bucket)
        Journal(S3Store(bucket, "out/"), "out").open()
        left = [one.key for one in bucket.list("out/_mld/") if LEDGER not in one.key]
        if left:
            outcome.faults.append(f"staged files are left: {left[:3]}")
        return outcome

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        plan = super()._plan(shards)
        del plan["scratch"]
        return plan


class InTwoDays(S3Bucket):
    def now_s(self) -> float:
        return super().now_s() + 2 * ABANDONED_S


@contextlib.contextmanager
def clustered() -> Iterator[Versitygw]:
    """A store, and a standalone cluster of one node; JVMs from now on are its drivers and speak to S3."""
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCOUNT, "AWS_SECRET_ACCESS_KEY": SECRET}  # its node has them as well
    with tempfile.TemporaryDirectory() as directory, Versitygw() as store, cluster(Path(directory), workers=1) as one:
        access = S3Access(SDK_CREDENTIALS, "us-east-1", store.endpoint, path_style=True)
        conf = {**s3a_settings(access, hadoop_version(), {}), **OF_EXECUTORS}
        os.environ[jvm.MASTER] = one.url
        os.environ[jvm.MORE_OPTIONS] = shlex.join(word for pair in conf.items() for word in ("--conf", "=".join(pair)))
        yield store
