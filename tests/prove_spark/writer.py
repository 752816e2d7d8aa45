"""A writer of the proof, started as a process and killed at will: what a session host does with its sinks.

    python -m tests.prove_spark.writer PLAN

The plan (JSON) names the sink, the shards with their records, and a directory for the checkpoints. The writer reads
the checkpoints, opens the sink, and publishes batches of drawn sizes until its shards are written. A checkpoint follows
each publication, and some are lost. Exit codes: 0 done, 3 no room, 4 gave up.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

from mld.processors.spark.commit.faults import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session.jvm_classes import install
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_port import Fenced, Published, Sink, SinkError
from mld.processors.spark.sink_spec import S3Access, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.generic import GenericSink
from mld.processors.spark.sinks.jdbc import JdbcSink
from tests.prove_spark.jvm import attached

FULL, GAVE_UP = 3, 4
FAILURES_MAX = 5
LAYOUTS = ("flat", "partitioned", "naive")


ENDPOINT_VARIABLE = "MLD_PROVE_S3_ENDPOINT"
JDBC_IDLE_S = 2
"""A transaction of a dead writer is ended sooner than in production, so that others need not wait for it."""


def sink_of(plan: Mapping[str, Any], session: Any) -> Sink:
    layout, path = plan["layout"], plan["path"]
    if "options" in plan:
        return jdbc_sink(layout, plan["options"], session, merge=plan["merge"])
    if plan.get("log_store"):
        install(session)
    if layout == "delta":
        return make_sink(SinkSpec("out", "delta", path), session)
    if layout == "naive-delta":
        return GenericSink(SinkSpec("out", "delta", path))
    if layout == "iceberg":
        return make_sink(SinkSpec("out", "iceberg", path), session)
    if layout == "naive-iceberg":
        return NaiveIceberg(path, session)
    if layout == "naive":
        return GenericSink(SinkSpec("out", "parquet", path))
    partition_by = ("bucket", "tag") if layout == "partitioned" else ()
    s3 = S3Access(SDK_CREDENTIALS, "us-east-1", os.environ.get(ENDPOINT_VARIABLE), path_style=True)
    spec = SinkSpec("out", "parquet", path, partition_by=partition_by, s3=s3)
    return make_sink(spec, session, Path(plan["scratch"]) if "scratch" in plan else None)


def jdbc_sink(layout: str, options: Mapping[str, str], session: Any, *, merge: bool) -> Sink:
    if layout == "naive-jdbc":
        return GenericSink(SinkSpec("out", "jdbc", options=options))
    keys = ("shardId", "sequence") if merge else ()
    spec = SinkSpec("out", "jdbc", options=options, mode="merge" if merge else "append", keys=keys)
    sink = JdbcSink(spec, session)
    sink.idle_s = JDBC_IDLE_S
    return sink


class NaiveIceberg:
    """What a pipeline without marks does: append the batch."""

    name, exactly_once = "out", False

    def __init__(self, table: str, session: Any) -> None:
        self._table, self._session = table, session

    def open(self) -> HighWaterMarks:
        return {}

    def publish(self, frame: Any, batch: ShardSpans, batch_id: str) -> Published:
        from mld.processors.spark.sinks.iceberg import make_table

        stage("staging")
        with suppress(Exception):  # another one has made it
            make_table(self._session, self._table, frame.schema, ())
        frame.writeTo(self._table).append()
        stage("staged")
        return Published({})


class Writer:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._rng = random.Random(plan["seed"])
        self._session = attached()
        for name, value in plan.get("conf", {}).items():
            self._session.conf.set(name, value)
        self._sink = sink_of(plan, self._session)
        self._checkpoints = Path(plan["checkpoints"])
        self._lost = plan["lost"]
        self._largest = plan["largest"]
        self._shards = {StreamShard("s", shard): last for shard, last in plan["shards"].items()}

    def run(self) -> int:
        failures = 0
        offered = {shard: self._checkpoint(shard) for shard in self._shards}
        marks: HighWaterMarks | None = None
        while any(offered[shard] < last for shard, last in self._shards.items()):
            try:
                if marks is None:
                    stage("opening")
                    marks = self._sink.open()
                ends = {shard: self._next(offered[shard], last) for shard, last in self._shards.items()}
                if batch := spans({shard: RecordPosition(end) for shard, end in ends.items() if end}, marks):
                    marks = self._sink.publish(self._frame(batch), batch, "proof").marks
                stage("acknowledged")
                offered = {shard: end or offered[shard] for shard, end in ends.items()}
                self._keep(offered)
            except SinkError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                if "; make room," in str(error):
                    return FULL
                failures += not isinstance(error, Fenced)
                if failures > FAILURES_MAX:
                    return GAVE_UP
                marks = None
        return 0

    def _next(self, offered: int, last: int) -> int:
        """Where the next batch of a shard ends; 0 if it has nothing to offer this time."""
        if offered >= last or self._rng.random() < 0.2:
            return 0
        return min(last, offered + self._rng.randint(1, self._largest))

    def _frame(self, batch: ShardSpans) -> Any:
        frames = [
            self._session.range(span.after.sequence + 1 if span.after else 1, span.upto.sequence + 1, 1, 1).selectExpr(
                f"'{shard.shard}' AS shardId", "id AS sequence", "id % 3 AS bucket", "concat('a/b:%é ', id % 2) AS tag"
            )
            for shard, span in batch.items()
        ]
        return reduce(lambda one, other: one.union(other), frames)

    def _checkpoint(self, shard: StreamShard) -> int:
        file = self._checkpoints / shard.shard
        return json.loads(file.read_text()) if file.exists() else 0

    def _keep(self, offered: dict[StreamShard, int]) -> None:
        for shard, position in offered.items():
            if self._rng.random() >= self._lost and position > self._checkpoint(shard):
                draft = self._checkpoints / f".{shard.shard}.{os.getpid()}"
                draft.write_text(json.dumps(position))
                draft.replace(self._checkpoints / shard.shard)


if __name__ == "__main__":
    raise SystemExit(Writer(json.loads(sys.argv[1])).run())
