"""Checks without a session whether `mld-spark` can run with a properties file, faster than a JVM starts.

    mld-spark --check app.properties        # in the daemon's working directory

It runs all checks of a host's start that need no session, and checks that Java works and that the installed PySpark
fits the formats. If something is wrong, it prints one sentence and exits with status 2; otherwise it prints one line
and exits with 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from mld.processors.spark import pipeline
from mld.processors.spark.fatal import EXIT_CONFIGURATION
from mld.processors.spark.host.start_up import load_pipeline
from mld.processors.spark.sanitizing import complain
from mld.processors.spark.session import lakehouse, spark_session
from mld.processors.spark.session.java import find_java
from mld.processors.spark.session_errors import SessionError
from mld.processors.spark.settings import SettingsError, SparkSettings, load
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sinks.factory import make_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def examine(file: str, env: Mapping[str, str]) -> str:
    """Check a properties file, and return a line that describes the setup. Raises SettingsError, SessionError,
    SinkRefused or PipelineError."""
    settings = load(file, (), env)
    load_pipeline(settings).check_imports()
    import pyspark

    for spec in settings.sinks:
        make_sink(spec, cast("SparkSession", None))  # touches nothing, but refuses what cannot work
    java = f"Java at {find_java(env).home}"
    formats = _formats(settings)
    return f"PySpark {pyspark.__version__}, {java}, {formats}pipeline {settings.pipeline}: ready to start"


def _formats(settings: SparkSettings) -> str:
    """Return a text about the PySpark that the lakehouse formats need, for the line that is printed. Raises
    SessionError if the installed PySpark does not fit.
    """
    spark_session.s3_client(settings, {**settings.conf, **spark_session.lake(settings)})  # only for their errors
    return "".join(
        f"{name} by your own package, " if lakehouse.is_given(name, settings.conf) else f"{lakehouse.needs(name)}, "
        for name in lakehouse.formats_of([spec.format for spec in settings.sinks], settings.catalogs)
    )


def main(arguments: Sequence[str]) -> int:
    """Print what the check finds, and return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: mld-spark --check APP.properties\n")
        return EXIT_CONFIGURATION
    try:
        sys.stdout.write(examine(arguments[0], os.environ) + "\n")
    except (SettingsError, SessionError, SinkRefused, pipeline.PipelineError) as error:
        complain(str(error))
        return EXIT_CONFIGURATION
    return 0
