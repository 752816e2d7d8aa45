"""Puts the records of a dead letter back through the pipeline, into the sinks that miss them, exactly once.

    mld-spark --replay-dead-letter app.properties    # in the daemon's working directory, beside it or alone

The marks of the sinks say how far earlier replays have got. What fails again is a new letter, for the next replay.
Letters stay where they are; when they may be deleted is for people to say.

Letters of a dead letter -> records, as they came from the daemon.

Letters are numbered by where they stand: the number of the commit that has brought them, and their place in it. So a
position never changes, a letter that comes later has a higher one, and what a sink has got back is one mark.

Pure: values in, values out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sys
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

from mld.core.clock import LoopClock
from mld.core.errors import MldError
from mld.operating.stream_access import streams_of
from mld.processors.spark.batch.attempts import Stopped
from mld.processors.spark.batch.engine import Engine
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.record_columns import SUB_END, SparkRecord
from mld.processors.spark.batch.spool import open_spool
from mld.processors.spark.high_water_marks import ID_VARIABLE, STREAM_KEY, RecordPosition, StreamShard, WriterIdentity
from mld.processors.spark.host.process_watch import clear, hold, sweep
from mld.processors.spark.host.start_up import start
from mld.processors.spark.link import EXIT_CONFIGURATION, EXIT_FAILURE, FatalError, scratch_directory
from mld.processors.spark.settings import SettingsError, SparkSettings, complain, load, log_by
from mld.processors.spark.sink_port import SessionGone, SinkError
from mld.processors.spark.sinks.files import FileSink, StoredLetters
from mld.properties.lines import ConfigurationError
from mld.properties.loader import load as load_daemon
from mld.properties.settings import Settings
from mld.retrieval.stream_naming import StreamNaming

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DIGITS = re.compile(r"[0-9]{1,129}", re.ASCII)
REPLAY = "(dead letter)"
"""Stands for the stream in the marks of what was replayed; no stream can be called so."""


class LetterError(Exception):
    """A line that is no letter; one sentence."""


@dataclass(frozen=True, slots=True)
class SparkLetter:
    """A record that was put aside. `sinks` are those that miss it, None: all do. `writer` is the application and its
    pipeline, None if a letter does not say."""

    position: RecordPosition
    record: SparkRecord
    reason: str
    sinks: frozenset[str] | None
    writer: tuple[str, str] | None


def replay_shard(identity: str) -> StreamShard:
    """Stand in the marks of sinks for the letters of one directory."""
    return StreamShard(REPLAY, identity)


def letters_of(number: int, texts: Iterable[tuple[str, bytes]]) -> Iterator[SparkLetter]:
    """Yield the letters of one commit, from the names and contents of its files, which are sorted. Raises
    LetterError.
    """
    at = 0
    for name, data in texts:
        for line in data.splitlines():
            try:
                yield _letter(RecordPosition(number, at), json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise LetterError(
                    f"{name} has a line that is no dead letter of mld-spark ({error!r}): {line[:80]!r}; take it out"
                ) from error
            at += 1


def _letter(position: RecordPosition, value: dict[str, object]) -> SparkLetter:
    data, key = value.get("data", ""), value.get("partitionKey")
    sequence, stream, shard = (value[name] for name in ("sequenceNumber", "streamName", "shardId"))
    if not all(isinstance(text, str) for text in (data, sequence, stream, shard, "" if key is None else key)):
        raise TypeError("a field of another type")
    if not _DIGITS.fullmatch(str(sequence)):
        raise ValueError("no sequenceNumber")
    sub = value.get("subSequenceNumber", 0)
    if type(sub) is not int or not 0 <= sub < SUB_END:
        raise ValueError("no subSequenceNumber")
    arrived, sinks, application = value.get("approximateArrivalTimestamp"), value.get("sinks"), value.get("application")
    record = SparkRecord(
        a2b_base64(str(data), strict_mode=True),
        None if key is None else str(key).encode(),
        str(sequence).encode(),
        None if arrived is None else (datetime.fromisoformat(str(arrived)) - _EPOCH) // _MILLISECOND,
        sub,
        str(stream).encode(),
        str(shard).encode(),
    )
    return SparkLetter(
        position,
        record,
        str(value.get("reason", "")),
        frozenset(map(str, sinks)) if isinstance(sinks, list) else None,
        None if application is None else (str(application), str(value.get("pipelineId", ""))),
    )


def for_us(
    letters: Iterable[SparkLetter], writer: tuple[str, str], sinks: frozenset[str]
) -> Iterator[tuple[frozenset[str] | None, list[SparkLetter]]]:
    """Yield runs of letters that are for the same of our `sinks` (None: for all), in their order. Letters of other
    writers, and of sinks that are not there any more, are left out.
    """
    mine = (one for one in letters if one.writer in (None, writer) and (one.sinks is None or one.sinks & sinks))
    for only, run in groupby(mine, lambda one: None if one.sinks is None else one.sinks & sinks):
        yield only, list(run)


log = logging.getLogger("mld.spark")

USAGE = "usage: mld-spark --replay-dead-letter APP.properties\n"
LEFT_OUT = "left out, because another application or pipeline has written them, or for sinks that are not there now"


@dataclass(slots=True)
class LetterReplay:
    """One replay of one dead letter by an engine that has started."""

    engine: Engine
    box: StoredLetters
    upto: int
    """The newest commit that is read: what this replay puts there is for the next one."""
    writer: WriterIdentity
    sinks: frozenset[str]
    letters: int = 0
    earlier: int = 0
    """Letters that an earlier replay has given back."""
    left_out: int = 0
    again: int = 0
    """Letters that have failed again."""

    def run(self) -> str | None:
        """Return why it had to stop, if it had to. Raises SinkError, LetterError, SessionGone and Stopped."""
        shard = replay_shard(self.box.identity())
        for only, run in self._waiting(shard):
            outcome = self.engine.replay(shard, [(one.position, one.record) for one in run], only)
            self.again += outcome.figures.poisoned + outcome.figures.malformed
            if (reason := outcome.failed.get(shard)) is not None:
                return reason
            self.letters += len(run)
        return None

    def _waiting(self, shard: StreamShard) -> Iterator[tuple[frozenset[str] | None, list[SparkLetter]]]:
        """Return letters that some sink of ours has not got back."""
        mark = self.engine.held(shard) or RecordPosition(0)
        for number, names in self.box.commits().items():
            if number > self.upto:
                return
            letters = list(letters_of(number, ((name, self.box.read(name)) for name in names)))
            waiting = [one for one in letters if one.position > mark]
            self.earlier += len(letters) - len(waiting)
            mine = list(for_us(waiting, (self.writer.application, self.writer.pipeline), self.sinks))
            self.left_out += len(waiting) - sum(len(run) for _, run in mine)
            yield from mine

    def said(self) -> Iterator[str]:
        """Yield the counts for people, line by line."""
        passed = self.letters - self.again
        yield f"{self.letters} letters replayed: {passed} are in the sinks, {self.again} are letters again"
        if self.earlier:
            yield f"{self.earlier} letters were replayed before"
        if self.left_out:
            yield f"{self.left_out} letters {LEFT_OUT}"


def settings_of(file: str, env: Mapping[str, str]) -> SparkSettings:
    """Return the settings, with the identity that the daemon's marks have. Raises SettingsError."""
    settings = load(file, (), env)
    if settings.dead_letter is None:
        raise SettingsError(f"{file}: mld.spark.deadLetter is not set, so there is nothing to replay")
    if not settings.sinks:
        raise SettingsError(
            f"{file}: the pipeline writes by itself, and nobody would know what it was given again; name a sink"
        )
    if settings.writer is not None:
        return settings
    settings = load(file, (), {**env, **_stream_variables(file, env)})
    if settings.writer is None:
        raise SettingsError(
            "Kinesis does not say which stream this is, without which the marks of the sinks mean nothing: see the "
            f"warning above, or set {STREAM_KEY} if the daemon has it as well"
        )
    return settings


def _stream_variables(file: str, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the daemon tells its children of the stream; only its name if Kinesis does not answer. Raises
    SettingsError.
    """
    try:
        settings = load_daemon(file, (), env).settings
    except ConfigurationError as error:
        raise SettingsError("\n".join(str(problem) for problem in error.problems)) from error
    if settings.is_multi_stream:
        return {ID_VARIABLE: "(several)"}
    try:
        return {"MLD_STREAM_NAME": settings.stream_name, **asyncio.run(_described(settings))}
    except MldError as error:
        raise SettingsError(str(error)) from error


async def _described(settings: Settings) -> Mapping[str, str]:
    async with streams_of(settings) as streams:
        return await StreamNaming(streams, LoopClock()).variables()


def replay(settings: SparkSettings) -> tuple[LetterReplay, str | None]:
    """Return the replay, and why it had to stop. Raises what `main` catches."""
    assert settings.writer is not None
    sweep()
    with ExitStack() as ends:
        scratch = scratch_directory(os.getpid())
        ends.callback(hold(scratch).close)
        ends.callback(clear, scratch, daemon_lives=False)
        spool = open_spool(settings.spool, scratch, settings.s3)
        ends.callback(spool.close)
        # What failed before may fail again, all of it.
        started = start(replace(settings, malformed_share_max=1.0), scratch, spool)
        ends.callback(started.close)
        signal.signal(signal.SIGTERM, lambda *_: started.engine.stop())
        signal.signal(signal.SIGINT, lambda *_: started.engine.stop())
        dead = started.dead_letter
        assert isinstance(dead, FileSink)
        names = frozenset(spec.name for spec in settings.sinks)
        one = LetterReplay(started.engine, dead.letters(), dead.newest(), settings.writer, names)
        return one, one.run()


def main(arguments: Sequence[str]) -> int:
    """Exit status 0: no letter is left; 1: some failed again, or it had to stop; 2: the configuration."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        return EXIT_CONFIGURATION
    try:
        settings = settings_of(str(Path(arguments[0]).absolute()), os.environ)
        log_by(settings.fit)
        one, stopped = replay(settings)
    except Stopped:
        complain("stopped; what was replayed is in the sinks, and the next replay goes on there")
        return EXIT_FAILURE
    except (SinkError, SpoolError, LetterError, SessionGone) as error:
        complain(f"{error}; what was replayed is in the sinks, and the next replay goes on there")
        return EXIT_FAILURE
    except FatalError as error:
        complain(str(error))
        return error.status
    if stopped is not None:
        complain(f"stopped: {stopped}; the next replay goes on there")
    sys.stdout.write("".join(f"{line}\n" for line in one.said()))
    return EXIT_FAILURE if stopped is not None or one.again else 0
