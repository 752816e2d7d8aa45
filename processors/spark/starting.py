"""What a host needs before its first micro-batch: the user's pipeline, the session, the sinks. In this order, because
a slip in the pipeline's file is found in a moment and a JVM takes seconds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from processors.spark import handover, pipeline, session
from processors.spark.engine import Engine
from processors.spark.settings import Settings
from processors.spark.sinks import SinkError, SinkRefused, SinkSpec
from processors.spark.sinks.making import make_sink
from processors.spark.spool import Spool
from properties.spark import Mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

DEAD_LETTER = "deadLetter"
PARTITIONS_OF_A_CLUSTER = 8
"""Behind Spark Connect nobody says how many cores there are; so many tasks cost little on fewer."""


class StartError(Exception):
    """The host cannot start; one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Started:
    engine: Engine
    spark: SparkSession
    pipeline: pipeline.Pipeline
    jvm_pid: int | None
    about: Mapping[str, object]
    """For `mld check`: the address of the UI and the like."""

    def close(self) -> None:
        """The user's last hook, then the end of the session."""
        try:
            self.pipeline.teardown(self.spark)
        except pipeline.PipelineError as error:
            log.error("%s", error)
        with suppress(Exception):
            self.spark.stop()


def start(settings: Settings, scratch: Path, spool: Spool) -> Started:
    """Raises StartError."""
    if settings.mode is not Mode.BATCH:
        raise StartError("mld.spark.mode = streaming is not part of this version; write batch")
    try:
        session.check_extra()
        loaded = pipeline.load(settings.pipeline, [spec.name for spec in settings.sinks])
        spark = session.start(settings, scratch)
        handover.check_schema(spark, settings.format, settings.schema)
        for spec in settings.sinks:
            session.check_format(spark, spec.format, f"mld.spark.sink.{spec.name}.format")
        sinks = [make_sink(spec, spark) for spec in settings.sinks]
        dead = make_sink(SinkSpec(DEAD_LETTER, "json", settings.dead_letter), spark) if settings.dead_letter else None
        frames = handover.Handover(
            spark,
            settings.format,
            settings.schema,
            divert=dead is not None,
            partitions=None if settings.is_local or settings.spool else _partitions(spark, settings),
        )
        engine = Engine(settings, frames, session.Health(spark), loaded, sinks, dead, spool)
        engine.start()
        loaded.setup(spark)
    except (pipeline.PipelineError, session.SessionError, handover.SchemaRefused, SinkRefused, SinkError) as error:
        raise StartError(str(error)) from error
    address = session.ui_address(spark, settings)
    log.info(
        "session ready: Spark %s, master %s, UI %s, sinks %s",
        spark.version,
        settings.remote or settings.master,
        address or "none",
        ", ".join(f"{sink.name} ({'exactly' if sink.exactly_once else 'at least'} once)" for sink in sinks) or "none",
    )
    about = {
        "spark": spark.version,
        "master": settings.remote or settings.master,
        "applicationId": None if settings.remote else spark.sparkContext.applicationId,
        "ui": address,
    }
    return Started(engine, spark, loaded, session.jvm_pid(spark), about)


def _partitions(spark: SparkSession, settings: Settings) -> int:
    """Into how many parts lines are cut that travel through the session."""
    return PARTITIONS_OF_A_CLUSTER if settings.remote else max(2, spark.sparkContext.defaultParallelism)
