"""A run of the proof with the sink on HDFS: as `runs`, flat or partitioned as the seed draws it.

No room is a quota there, and in one more kind of round the name node ends under a writer and comes back.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.hdfs.cluster import Cluster
from tests.prove_spark.runs import ROUNDS, SHARDS, Machine, Run
from tests.prove_spark.writer import FULL, GAVE_UP

HDFS = "hdfs"
AWAY_S = 2.0
NAMES_LEFT = (0, 2, 5, 9)
"""A quota that a batch meets at its start, in its job, or when it is moved."""


class HdfsRun(Run):
    def __init__(self, seed: int, machine: Machine, root: Path, cluster: Cluster) -> None:
        super().__init__(seed, HDFS, machine, root)
        self._cluster = cluster
        self._home = f"/prove/{time.time_ns()}"
        self._partitioned = self._rng.random() < 0.5
        self._kinds = (*ROUNDS, "namenode")
        cluster.make(self._home)

    def _round(self, kind: str) -> None:
        if kind == "namenode":
            self._name_node()
        else:
            super()._round(kind)

    def _name_node(self) -> None:
        writer = self._writer(SHARDS, None)
        time.sleep(self._rng.uniform(0.5, 4.0))
        self._cluster.stop_name_node()
        time.sleep(self._rng.uniform(0, AWAY_S))
        self._cluster.start_name_node()
        self._expect(writer, 0, GAVE_UP)
        self.outcome.killed["(name node)"] += 1

    def _full(self) -> None:
        names = self._cluster.names(self._home)
        self._cluster.quota(self._home, names=names + self._rng.choice(NAMES_LEFT))
        if self._expect(self._writer(SHARDS, None), FULL, 0) == FULL:
            self.outcome.killed["(no room)"] += 1
        self._cluster.no_quota(self._home)

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        layout = "partitioned" if self._partitioned else "flat"
        return {**super()._plan(shards), "layout": layout, "path": self._path}

    @property
    def _path(self) -> str:
        return f"{self._cluster.uri}{self._home}/out é%20"

    def _found(self) -> Counter[tuple[str, int]]:
        session = self._machine.jvm.session
        try:
            rows = session.read.parquet(self._path).select("shardId", "sequence").collect()
        except Exception as error:
            if any(said in str(error) for said in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")):
                return Counter()
            raise
        return Counter((row[0], row[1]) for row in rows)
