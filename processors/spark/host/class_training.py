"""Makes the archive of Spark's classes (`session.class_archive`) for this environment, once after its installation.

    mld-spark --archive-classes

It starts a session as a session host does, and runs a micro-batch with the sample pipeline `clicks.py`, which uses
every part: two sinks, an aggregate, a dead letter. When the JVM ends, it archives the classes that it has loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mld.processors.samples
from mld.processors.spark.batch.record_columns import Row, SparkRecord
from mld.processors.spark.batch.spool import open_spool
from mld.processors.spark.fatal import EXIT_CONFIGURATION, FatalError
from mld.processors.spark.host import start_up
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.sanitizing import complain, log_by
from mld.processors.spark.session import class_archive, spark_session
from mld.processors.spark.session.class_archive import ArchiveKind
from mld.processors.spark.session.java import find_java
from mld.processors.spark.session_errors import SessionError
from mld.processors.spark.settings import SettingsError, load
from mld.properties.printable import printable

RECORDS, ARRIVAL_MS = 200, 1_700_000_000_000
LINES_SHOWN, LINE_CHARACTERS = 20, 500
"""How many of the last printed lines are shown after an error, and how much of each."""
EXIT_S = 300.0
"""Longest time for the JVM to write the archive. On a loaded machine it takes a minute."""
SHARD = StreamShard("training", "shardId-000000000000")
EVENT = (
    b'{"event_id": %(n)d, "user": "user-%(n)d", "session": "s", "page": "/product/%(n)d", "referrer": "", '
    b'"agent": "App/1", "load_ms": %(n)d, "at": 1700000000.5}'
)
PROPERTIES = Path(__file__).with_name("training.properties")


def events() -> list[Row]:
    """Return records of click events. The last one is malformed, so that the dead letter is used, too."""
    data = [*(EVENT % {b"n": number} for number in range(RECORDS)), b"{"]
    stream, shard = SHARD.stream_name.encode(), SHARD.shard.encode()
    records = [
        SparkRecord(event, b"k", b"%d" % number, ARRIVAL_MS, 0, stream, shard)
        for number, event in enumerate(data, start=1)
    ]
    return [(record.position, record) for record in records]


def train(scratch: Path, kind: ArchiveKind, archive: Path) -> None:
    """Run one micro-batch in a session, and wait for its JVM to end, which writes the archive. Raises SettingsError,
    FatalError and SessionError."""
    file = scratch / "training.properties"
    sample = Path(mld.processors.samples.__file__).parent / "clicks.py"
    values = {"quiet": kind.quiet, "option": kind.making, "archive": archive}
    file.write_text(PROPERTIES.read_text().format(sample=sample, directory=scratch, **values), "utf-8")
    settings = load(str(file), (), {})
    log_by(settings.fit)
    started = start_up.start(settings, scratch, open_spool(settings.spool, scratch))
    if failed := started.engine.replay(SHARD, events()).failed:
        raise SessionError(f"the sample does not run: {failed[SHARD]}")
    jvm: Any = started.spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    started.close()
    jvm.stdin.close()  # the JVM that PySpark has started ends when its standard input ends
    try:
        jvm.wait(EXIT_S)
    except subprocess.TimeoutExpired as error:
        jvm.kill()
        raise SessionError(f"the JVM did not write its archive within {EXIT_S:.0f} s") from error


@contextmanager
def printing_to(file: Path) -> Iterator[None]:
    """Have this process and those that it starts print into a file, and print its last lines if an error is raised.

    A JVM that makes an AOT cache prints its whole class path, 20 kB."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [(number, os.dup(number)) for number in (1, 2)]
    try:
        with file.open("wb") as printed:
            for number, _ in before:
                os.dup2(printed.fileno(), number)
        yield
    except BaseException:
        lines = file.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
        os.write(before[1][1], "".join(f"{printable(line[:LINE_CHARACTERS])}\n" for line in lines).encode())
        raise
    finally:
        for number, own in before:
            os.dup2(own, number)
            os.close(own)


def main(arguments: Sequence[str]) -> int:
    """Make the archive of Spark's classes, and return the exit code."""
    if arguments:
        sys.stderr.write("usage: mld-spark --archive-classes\n")
        return EXIT_CONFIGURATION
    try:
        spark_session.check_extra()
        kind = class_archive.kind_of(find_java(os.environ))
        with (
            class_archive.making(kind) as archive,
            tempfile.TemporaryDirectory(prefix="mld-spark-classes-") as scratch,
            printing_to(Path(scratch) / "printed"),
        ):
            train(Path(scratch), kind, archive)
    except (SettingsError, SessionError) as error:
        complain(str(error))
        return EXIT_CONFIGURATION
    except FatalError as error:
        complain(str(error))
        return error.status
    made = class_archive.find(kind)
    assert made is not None, "it was put there a moment ago"
    sys.stdout.write(f"{made}: {made.stat().st_size / 1e6:.0f} MB of Spark's classes; sessions start with them now\n")
    return 0
