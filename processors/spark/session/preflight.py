"""Can `mld-spark` run what a properties file says? Looked at without a session: seconds before a JVM would be there.

    mld-spark --check app.properties        # in the daemon's working directory

The settings, the extra, Java and the pipeline's file are looked at in the order in which a session host needs them. One
sentence for what is wrong, exit 2; exit 0 with one line otherwise.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence

from mld.processors.spark import pipeline
from mld.processors.spark.meeting_place import EXIT_CONFIGURATION
from mld.processors.spark.sanitized import complain
from mld.processors.spark.session import lakehouse, modules, spark_session
from mld.processors.spark.settings import SettingsError, SparkSettings, load
from mld.processors.spark.spark_errors import SessionError


def examine(file: str, env: Mapping[str, str]) -> str:
    """Return what was found. Raises SettingsError, SessionError or PipelineError."""
    settings = load(file, (), env)
    spark_session.check_extra()
    java = f"Java at {spark_session.java_home(settings.java_home, env)}"
    modules.check(settings)
    modules.importable_here(settings)
    formats = _formats(settings)
    pipeline.load(settings.pipeline, [spec.name for spec in settings.sinks])
    version = importlib.metadata.version("pyspark")
    return f"PySpark {version}, {java}, {formats}pipeline {settings.pipeline}: ready to start"


def _formats(settings: SparkSettings) -> str:
    """Return what the formats of a lake house need of PySpark. Raises SessionError if it is not what is installed."""
    formats = lakehouse.formats_of([spec.format for spec in settings.sinks], settings.catalogs)
    spark_session.s3_client(settings, {**settings.conf, **spark_session.lake(settings)})
    given = {format_ for format_ in formats if lakehouse.is_given(format_, settings.packages, settings.conf)}
    return "".join(
        f"{format_} by your own package, " if format_ in given else f"{lakehouse.needs(format_)}, "
        for format_ in formats
    )


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: mld-spark --check APP.properties\n")
        return EXIT_CONFIGURATION
    try:
        sys.stdout.write(examine(arguments[0], os.environ) + "\n")
    except (SettingsError, SessionError, pipeline.PipelineError) as error:
        complain(str(error))
        return EXIT_CONFIGURATION
    return 0
