"""Makes the engine of the streaming mode from the settings, and refuses before the first record what cannot work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.commit.store import local_directory
from mld.processors.spark.pipeline import Pipeline, PipelineError, PipelineFailed
from mld.processors.spark.session import spark_session
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import Sink, SinkRefused
from mld.processors.spark.streaming.engine import StreamingEngine
from mld.processors.spark.streaming.inbox import QUERIES, Inbox, LeadLock
from mld.processors.spark.streaming.leader import QueryLeader
from mld.processors.spark.streaming.queries import SparkQueries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "mld.spark.checkpoint"
GLOB_LETTERS = "*?[]{}"
"""What Spark takes for a pattern in the path of a streaming source."""


def make_engine(
    spark: SparkSession,
    settings: SparkSettings,
    pipeline: Pipeline,
    sinks: Sequence[Sink],
    dead: Sink | None,
    spool: Spool,
) -> StreamingEngine:
    """Return the pipeline is asked once for its frames. Raises SinkRefused and PipelineError."""
    if not settings.checkpoint:
        raise SinkRefused(f"{KEY} is missing; mld.spark.mode = streaming keeps its state there")
    root = local_directory(settings.checkpoint, KEY)
    if strange := sorted(set(GLOB_LETTERS) & set(str(root))):
        raise SinkRefused(f"{KEY} = {settings.checkpoint}: Spark takes {' '.join(strange)} for a pattern; rename it")
    for sink in sinks:
        if sink.exactly_once and settings.output_modes.get(sink.name) == "complete":
            raise SinkRefused(
                f"mld.spark.sink.{sink.name}.outputMode is complete, which replaces all rows each time, and this "
                "format is appended to; write append or update, or another format with mode = overwrite"
            )
    private = settings.is_local  # executors may be other users
    inbox = Inbox(root, settings.writer, private=private)
    inbox.open()  # before Spark looks for the directory
    inbox.make_home(QUERIES)
    for sink in sinks:
        sink.open()  # what refuses us is to be heard before a query has taken anything
    named = {sink.name: sink for sink in sinks}
    queries = SparkQueries(spark, settings, pipeline, named, dead, root, inbox.directory)
    try:
        queries.frames()
    except PipelineFailed as error:
        raise PipelineError(f"{error}; correct the pipeline") from error
    leader = QueryLeader(
        Inbox(root, settings.writer, private=private),
        LeadLock(root, spark_session.jvm_pid(spark)),
        queries,
        attempts_max=settings.attempts_max,
        backoff_s=settings.retry_backoff_s,
    )
    return StreamingEngine(settings, inbox, leader, spark_session.SessionHealth(spark), spool)
