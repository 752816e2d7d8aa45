"""The same proof on a Delta table, with the PySpark of `make test-lakehouse`; beside it an append that is not fenced.

    PYTHONPATH=.venv-lakehouse/lib/python3.11/site-packages .venv/bin/python -m tests.prove_spark --runs 30 \\
        --layouts delta,naive-delta

There is no staging area and no entry to link, so the stages are those of `sinks.lake_table`; a file system without room
is left out, since Delta leaves its files behind.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from tests.prove_spark.runs import Machine, Run

DELTA, NAIVE_DELTA = "delta", "naive-delta"
STAGES = ("opening", "staging", "committed", "acknowledged")
ROUNDS = ("kill", "kill", "pair", "zombie", "jvm")
OPTIONS = (
    "--packages io.delta:delta-spark_4.1_2.13:4.4.0 "
    "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension "
    "--conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog "
    "--conf spark.databricks.delta.snapshotPartitions=1"
)


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


def prepare(layouts: list[str]) -> None:
    """Every JVM that is started from now on has Delta, if a layout needs it."""
    from tests.prove_spark import jvm

    if {DELTA, NAIVE_DELTA}.intersection(layouts):
        os.environ[jvm.MORE_OPTIONS] = OPTIONS
