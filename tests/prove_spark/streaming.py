"""A writer of the proof for the streaming mode, started as a process and killed at will.

    python -m tests.prove_spark.streaming PLAN

As `writer`, with an engine of the streaming mode over an inbox, and two queries: one passes every record on, the other
counts and adds up the records of each shard in its state. Exit codes: 0 done, 4 gave up.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from mld.processors.spark.batch.micro_batch import plan
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.commit.store import stage
from mld.processors.spark.pipeline import Pipeline
from mld.processors.spark.session.spark_session import SessionHealth
from mld.processors.spark.sink_port import SessionGone, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.streaming.engine import StreamingEngine
from mld.processors.spark.streaming.inbox import Inbox
from mld.processors.spark.streaming.queries import SparkQueries
from tests.prove_spark.writer import FAILURES_MAX, GAVE_UP, Writer
from tests.unit.spark.twins import offer_to, settings_of

SINKS = ("out", "sums")
ATTEMPTS_MAX = 8


class StreamingWriter(Writer):
    def __init__(self, planned: dict[str, Any]) -> None:
        super().__init__({**planned, "layout": "flat"})
        home = Path(planned["path"]).parent
        root = home / "checkpoint é%20"
        self._spool = Spool(Path(planned["checkpoints"]) / f"spool-{os.getpid()}")
        settings = settings_of(
            "mld.spark.mode = streaming",
            f"mld.spark.checkpoint = {root}",
            "mld.spark.retryBackoffMillis = 50",
            f"mld.spark.attemptsMax = {ATTEMPTS_MAX}",
            "mld.spark.sink.sums.outputMode = update",
            "mld.spark.conf.spark.sql.streaming.pollingDelay = 20ms",
            sinks=SINKS,
        )
        self._session.conf.set("spark.sql.streaming.pollingDelay", "20ms")
        paths = {"out": planned["path"], "sums": str(home / "sums")}
        sinks = {name: make_sink(SinkSpec(name, "parquet", path), self._session) for name, path in paths.items()}
        inbox = Inbox(root)
        inbox.open()
        queries = SparkQueries(self._session, settings, Pipeline(transform, SINKS), sinks, None, root, inbox.directory)
        for query in self._session.streams.active:
            query.stop()  # of a writer that was killed, whose JVM would have ended with it
        self._engine = StreamingEngine(settings, inbox, queries, SessionHealth(self._session), self._spool)

    def run(self) -> int:
        failures = 0
        offered = {shard: self._checkpoint(shard) for shard in self._shards}
        stage("opening")
        self._engine.start()
        while any(offered[shard] < last for shard, last in self._shards.items()):
            ends = {shard: self._next(offered[shard], last) for shard, last in self._shards.items()}
            offers = [
                offer_to(self._spool, shard, range(offered[shard] + 1, end + 1)) for shard, end in ends.items() if end
            ]
            marks = {o.shard: mark for o in offers if (mark := self._engine.mark_of(o.shard)) is not None}
            batch = plan(offers, marks)
            try:
                failed = self._engine.run(batch).failed if batch.slices else {}
            except SessionGone as error:
                print(f"SessionGone: {error}", file=sys.stderr)
                return GAVE_UP
            if failed:
                print(next(iter(failed.values())), file=sys.stderr)
                failures += 1
                if failures > FAILURES_MAX:
                    return GAVE_UP
                continue
            stage("acknowledged")
            offered = {shard: end or offered[shard] for shard, end in ends.items()}
            self._keep(offered)
        self._engine.stop()
        return 0


def transform(records: Any, batch: Any) -> dict[str, Any]:
    from pyspark.sql import functions as F

    named = records.selectExpr("shardId", "CAST(sequenceNumber AS LONG) AS sequence")
    sums = named.groupBy("shardId").agg(F.count("*").alias("records"), F.sum("sequence").alias("total"))
    return {"out": named, "sums": sums}


if __name__ == "__main__":
    status = StreamingWriter(json.loads(sys.argv[1])).run()
    sys.stderr.flush()
    os._exit(status)  # threads of PySpark may wait for a query that another writer runs by now
