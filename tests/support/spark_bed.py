"""What a session host has, without its links: session, engine and spool as they are started in production."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from processors.spark.batch.outcome import BatchOutcome
from processors.spark.batch.spool import Spool, open_spool
from processors.spark.high_water_marks import StreamShard
from processors.spark.host.start_up import HostStartError, Started, start
from tests.unit.spark.twins import run_data, settings_of

A = StreamShard("s", "a")


class Bed:
    """One shard's batches into the sink `out`, as JSON."""

    def __init__(self, started: Started, spool: Spool, out: Path) -> None:
        self.started, self.spark, self.engine, self.spool, self.out = started, started.spark, started.engine, spool, out

    def run(self, data: Mapping[int, bytes]) -> BatchOutcome:
        return run_data(self.engine, self.spool, data, "a")

    def rows(self) -> Counter[tuple[int, str]]:
        lines = [line for file in self.out.glob("mld_commit=*/part-*") for line in file.read_text().splitlines()]
        return Counter((int(row["sequenceNumber"]), row["payload"]) for row in map(json.loads, lines))


@contextlib.contextmanager
def bed(directory: Path, pipeline: str, *keys: str) -> Iterator[Bed]:
    """Records are text, if `keys` do not say otherwise."""
    (directory / "pipeline.py").write_text(pipeline)
    out = directory / "out"
    settings = settings_of(
        f"mld.spark.pipeline = {directory / 'pipeline.py'}:transform",
        "mld.spark.format = text",
        f"mld.spark.sink.out.path = {out}",
        "mld.spark.sink.out.format = json",
        *keys,
    )
    spool = open_spool(settings.spool, directory)
    try:
        started = start(settings, directory, spool)
        try:
            yield Bed(started, spool, out)
        finally:
            started.close()
    except HostStartError:
        _stop_session()  # a host would end with its session; the next test here would go on with it
        raise
    finally:
        spool.close()


def _stop_session() -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
