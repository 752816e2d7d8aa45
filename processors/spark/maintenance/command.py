"""Compacts every directory of the sinks of a properties file, by hand: beside a daemon, or while none runs.

mld-spark --compact app.properties        # in the daemon's working directory
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mld.processors.spark.commit import network_files, small_files
from mld.processors.spark.meeting_place import EXIT_CONFIGURATION, EXIT_FAILURE
from mld.processors.spark.sanitized import complain, log_by
from mld.processors.spark.session import spark_session
from mld.processors.spark.settings import SettingsError, SparkSettings, load
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sinks.factory import compactable_sinks
from mld.processors.spark.sinks.files import FileSink
from mld.processors.spark.spark_errors import SessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS_MAX = 10_000
"""For one directory; each leaves fewer files than it found."""


def compact_all(settings: SparkSettings, spark: SparkSession) -> Iterator[str]:
    """Compact until nothing small is left; one line for each sink. Raises SinkError."""
    sinks, left_out = compactable_sinks(settings.sinks, spark, by_hand=True)
    for reason in left_out:
        yield f"{reason}\n"
    for sink in sinks:
        before = after = rows = 0
        for directory in sink.directories():
            found = len(sink.files_of(directory))
            rows += _compact(sink, spark, directory)
            before, after = before + found, after + len(sink.files_of(directory))
        yield f"sink {sink.name}: {before} files, now {after}; {rows} rows were written again\n"


def _compact(sink: FileSink, spark: SparkSession, directory: str) -> int:
    rows = 0
    for _ in range(ROUNDS_MAX):
        done = sink.compact(spark, directory, lambda files: small_files.to_compact(files, all_small=True))
        if done is None:
            break
        rows += done.rows
    return rows


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: mld-spark --compact APP.properties\n")
        return EXIT_CONFIGURATION
    try:
        settings = load(arguments[0], (), os.environ)
        log_by(settings.fit)
        spark_session.check_extra(remote=settings.remote is not None)
        if not settings.trusts_network_files:
            network_files.check(network_files.places(settings.sinks, dead_letter=None, ledger=None, checkpoint=None))
        with tempfile.TemporaryDirectory(prefix="mld-spark-compact-") as scratch:
            spark = spark_session.start(settings, Path(scratch))
            try:
                for line in compact_all(settings, spark):
                    sys.stdout.write(settings.fit(line))
                    sys.stdout.flush()
            finally:
                spark.stop()
    except (SettingsError, SessionError, SinkRefused) as error:
        complain(str(error))
        return EXIT_CONFIGURATION
    except (SinkError, OSError) as error:
        complain(str(error))
        return EXIT_FAILURE
    return 0
