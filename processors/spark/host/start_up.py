"""Starts all that a session host needs before its first micro-batch: the user's pipeline, the session, the sinks.

The pipeline is loaded first: a mistake in its file is then found at once, and not after the seconds that a JVM takes to
start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mld.processors.spark import pipeline
from mld.processors.spark.batch.engine import Engine
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.record_columns import SparkRecord
from mld.processors.spark.batch.running import FILE, Running
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.commit import network_files
from mld.processors.spark.fatal import EXIT_CONFIGURATION, EXIT_FAILURE, FatalError
from mld.processors.spark.sentences import sentence
from mld.processors.spark.session import decoding, handover, session_health, spark_session
from mld.processors.spark.session.error_classes import causes_of, is_of, kind_of
from mld.processors.spark.session.error_kinds import ErrorKind
from mld.processors.spark.session_errors import SessionError, SessionGone, SessionUnreachable
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import Sink, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.writer_identity import UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")
DEAD_LETTER = "deadLetter"
"""Name of the sink of dead letters."""
PROBES = 4
"""How many files executors read at the start; with several, probably more than one executor takes part."""
UNSEEN = (ErrorKind.GONE, ErrorKind.FORBIDDEN)
"""Kinds of errors that report a file which executors do not find or may not open."""
NOT_THERE = ("PATH_NOT_FOUND", "java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")
"""Further classes and error conditions that report the same."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running session with its engine, sinks and pipeline."""

    engine: Engine
    dead_letter: Sink | None
    spark: SparkSession
    pipeline: pipeline.Pipeline
    jvm_pid: int | None
    about: Mapping[str, object]
    """Facts about the session for the status file, such as the address of the UI."""

    def close(self) -> None:
        """Call the pipeline's `teardown`, and stop the session."""
        try:
            self.pipeline.teardown(self.spark)
        except pipeline.PipelineError as error:
            log.error("%s", error)
        with suppress(Exception):
            self.spark.stop()


def start(settings: SparkSettings, scratch: Path, spool: Spool) -> Started:
    """Load the pipeline, start the session, open the sinks, run the pipeline's `setup`, and return all of these.
    `scratch` is the host's directory for data. Raises FatalError; its status is EXIT_FAILURE if another attempt may
    help.
    """
    if settings.writer is None:
        raise FatalError(UNKNOWN, EXIT_CONFIGURATION)
    try:
        loaded = load_pipeline(settings)
        spark = spark_session.start(settings, scratch)
        jvm = session_health.jvm_of(spark)
        jvm_pid = jvm.pid if jvm else None
        if not settings.is_local:
            if jvm_pid is not None:
                session_health.watch_executors(spark, jvm_pid, settings.where, settings.start_timeout_s)
            check_spool(spark, spool, settings.where)
        decoding.check_schema(spark, settings.format, settings.schema, settings.rescued_column)
        for spec in settings.sinks:
            spark_session.check_format(spark, spec.format, f"mld.spark.sink.{spec.name}.format")
        own = scratch if settings.is_local else None  # executors on other machines cannot write there
        sinks = [make_sink(spec, spark, own) for spec in settings.sinks]
        dead = make_sink(dead_letter_of(settings), spark, own) if settings.dead_letter else None
        frames, health = (
            handover.Handover(spark, settings, divert=dead is not None),
            session_health.SessionHealth(spark),
        )
        engine = Engine(settings, frames, health, loaded, sinks, dead, spool, Running(scratch / FILE))
        engine.start()
        loaded.setup(spark)  # after the sinks are open, because it may start a streaming query over a sink's table
        health.check()
        health.watch(settings.task_timeout_s)  # after `setup`, whose jobs are not the engine's
    except (pipeline.PipelineError, SessionError, SessionGone, SinkError) as error:
        # After a passing error another attempt may help.
        passing = isinstance(error, (SessionUnreachable, SessionGone, SinkError)) and not isinstance(error, SinkRefused)
        raise FatalError(str(error), EXIT_FAILURE if passing else EXIT_CONFIGURATION) from error
    address = spark.sparkContext.uiWebUrl
    log.info(
        "session ready: Spark %s, master %s, UI %s, sinks %s",
        spark.version,
        settings.where,
        address or "none",
        ", ".join(f"{sink.name} ({'exactly' if sink.exactly_once else 'at least'} once)" for sink in sinks) or "none",
    )
    about = {
        "spark": spark.version,
        "master": settings.where,
        "applicationId": spark.sparkContext.applicationId,
        "ui": address,
        "jvmPid": jvm_pid,
    }
    return Started(engine, dead, spark, loaded, jvm_pid, about)


def load_pipeline(settings: SparkSettings) -> pipeline.Pipeline:
    """Return the pipeline, after checking everything that needs no session. Raises SessionError, SinkRefused and
    PipelineError."""
    spark_session.check_extra()
    places = {f"mld.spark.sink.{sink.name}.path": sink.path for sink in settings.sinks}
    network_files.refuse_network({**places, "mld.spark.deadLetter": settings.dead_letter})
    return pipeline.load(settings.pipeline, [spec.name for spec in settings.sinks])


def check_spool(session: SparkSession, spool: Spool, where: str) -> None:
    """Run a job in which executors read pages of the spool, to find out before the first record whether they can.

    Raises SessionError; SessionUnreachable if the cluster runs no job."""
    record = SparkRecord(b"", None, b"0", None, 0, b"", b"")
    try:
        with ExitStack() as written:
            pages = [written.enter_context(spool.written([record])) for _ in range(PROBES)]
            found = session.read.schema("data BINARY").parquet(*pages).count()
        why = "" if found == PROBES else f"it sees {found} of {PROBES} records"
    except SpoolError as error:
        raise SessionUnreachable(str(error)) from error
    except Exception as error:
        why = sentence(str(error))
        if kind_of(causes_of(error)) not in UNSEEN and not is_of(error, *NOT_THERE):
            raise SessionUnreachable(f"{where} runs no job: {why}; see the lines of Spark above") from error
    if why:
        raise SessionError(
            f"{where} cannot read mld.spark.spool: {why}; name a directory that every node has at the same path and "
            "that executors may read, or s3://bucket/directory"
        )


def dead_letter_of(settings: SparkSettings) -> SinkSpec:
    """Return the spec of the dead letter's sink. Each letter names its stream and shard, so several writers may share
    one directory.

    Letters are raw data, so in local mode only this user may read them. On a cluster other users must be able to, as
    which executors may run."""
    assert settings.writer is not None
    return SinkSpec(
        DEAD_LETTER,
        "json",
        settings.dead_letter,
        writer=settings.writer,
        shared=True,
        path_key="mld.spark.deadLetter",
        private=settings.is_local,
        one_file=True,
        s3=settings.s3,
    )
