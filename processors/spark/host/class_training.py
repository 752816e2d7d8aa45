"""Makes the archive of Spark's classes (`session.class_archive`) for this environment: once, when it is set up.

    mld-spark --archive-classes

A session is started as a host does it, and runs a micro-batch of the shipped sample with every part of it (two sinks,
an aggregate, a dead letter). The classes that it has loaded are what is archived when its JVM ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mld.processors.samples
from mld.processors.spark.batch.micro_batch import Offer, plan
from mld.processors.spark.batch.page_file import PageWriter
from mld.processors.spark.batch.record_columns import read_line
from mld.processors.spark.batch.spool import open_spool
from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.host import start_up
from mld.processors.spark.link import EXIT_CONFIGURATION, EXIT_FAILURE
from mld.processors.spark.session import class_archive, spark_session
from mld.processors.spark.settings import SettingsError, SparkSettings, complain, load, log_by
from mld.processors.spark.sink_port import SessionError
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record

RECORDS, ARRIVAL_MS = 200, 1_700_000_000_000
EXIT_S = 300.0
"""How long the JVM may write its archive; on a loaded machine it takes a minute."""
SHARD, OTHER = (StreamShard("training", f"shardId-00000000000{number}") for number in (0, 1))
IDENTITY = {
    "MLD_STREAM_NAME": SHARD.stream,
    "MLD_STREAM_ARN": f"arn:aws:kinesis:us-east-1:000000000000:stream/{SHARD.stream}",
    "MLD_STREAM_CREATED": "2026-01-02T03:04:05.000Z",
}
PROPERTIES = """\
mld.spark.pipeline = {sample}:transform
mld.spark.format = json
mld.spark.schema = event_id BIGINT, user STRING, session STRING, page STRING, referrer STRING, agent STRING, \\
                   load_ms BIGINT, at DOUBLE
mld.spark.sink.clicks.path = {directory}/clicks
mld.spark.sink.per_minute.path = {directory}/per_minute
mld.spark.deadLetter = {directory}/dead-letter
mld.spark.conf.spark.driver.extraJavaOptions = {quiet} "{option}{archive}"
"""


def line() -> bytes:
    """Return a `processRecords` line of click events as a daemon writes it; the last one is malformed."""
    events = [
        json.dumps({
            "event_id": number, "user": f"user-{number % 9}", "session": "s", "page": f"/product/{number}",
            "referrer": "", "agent": "App/1", "load_ms": number, "at": 1.7e9 + number,
        }).encode()
        for number in range(RECORDS)
    ]  # fmt: skip
    records = (Record(data, "k", str(number), 0, ARRIVAL_MS) for number, data in enumerate([*events, b"{"], start=1))
    return b"".join(encode_process_records(tuple(records), 0))


def train(settings: SparkSettings, scratch: Path) -> None:
    """Run one micro-batch in a session, whose JVM has ended when this returns. Raises HostStartError and
    SessionError.
    """
    spool = open_spool(settings.spool, scratch)
    started = start_up.start(settings, scratch, spool)
    try:
        offers = []
        for link, shard in enumerate((SHARD, OTHER), 1):
            writer = PageWriter(spool.page(link, 1), shard)
            for group in read_line(line()).groups:
                writer.add(group)
            page = writer.close()
            offers.append(Offer(link, 1, shard, page.first, page.last, page.records, page.size))
        outcome = started.engine.run(plan(offers, {}))
        if outcome.failed:
            raise SessionError(f"the sample does not run: {', '.join(outcome.failed.values())}")
        _end(started)
    finally:
        spool.close()


def _end(started: start_up.Started) -> None:
    """End the session, then its JVM, by its own way out, on which it writes the archive."""
    jvm: Any = started.spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    started.engine.stop()
    started.close()
    jvm.stdin.close()
    try:
        jvm.wait(EXIT_S)
    except subprocess.TimeoutExpired as error:
        jvm.kill()
        raise SessionError(f"the JVM did not write its archive within {EXIT_S:.0f} s") from error


def main(arguments: Sequence[str]) -> int:
    if arguments:
        sys.stderr.write("usage: mld-spark --archive-classes\n")
        return EXIT_CONFIGURATION
    try:
        spark_session.check_extra()
        with class_archive.making() as archive, tempfile.TemporaryDirectory(prefix="mld-spark-classes-") as scratch:
            train(_settings(Path(scratch), archive), Path(scratch))
    except (SettingsError, SessionError) as error:
        complain(str(error))
        return EXIT_CONFIGURATION
    except start_up.HostStartError as error:
        complain(str(error))
        return EXIT_FAILURE
    made = class_archive.find()
    assert made is not None, "it was put there a moment ago"
    sys.stdout.write(f"{made}: {made.stat().st_size / 1e6:.0f} MB of Spark's classes; sessions start with them now\n")
    return 0


def _settings(scratch: Path, archive: Path) -> SparkSettings:
    """Return the settings of the training session. Raises SettingsError."""
    file = scratch / "training.properties"
    sample = Path(mld.processors.samples.__file__).parent / "clicks.py"
    values = {"quiet": class_archive.QUIET, "option": class_archive.DUMP, "archive": archive}
    text = PROPERTIES.format(sample=sample, directory=scratch, **values)
    file.write_text(text, "utf-8")
    settings = load(str(file), (), IDENTITY)
    log_by(settings.fit)
    return settings
