"""Runs the records of a dead letter through the pipeline again, into the sinks that miss them, exactly once.

    mld-spark --replay-dead-letter app.properties    # in the daemon's working directory; the daemon may run meanwhile

The marks of the sinks show how far earlier replays have come. A record that fails again becomes a new letter, for the
next replay. The files of the dead letter (`letters`) stay where they are; people decide when to delete them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from mld.core.clock import LoopClock
from mld.core.errors import MldError
from mld.operating.stream_access import streams_of
from mld.processors.spark.batch.attempts import Stopped
from mld.processors.spark.batch.engine import Engine
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.spool import open_spool
from mld.processors.spark.fatal import EXIT_CONFIGURATION, EXIT_FAILURE, FatalError
from mld.processors.spark.host.leftovers import clear, hold, sweep
from mld.processors.spark.host.start_up import start
from mld.processors.spark.letters import LetterError, SparkLetter, for_us, letters_of, replay_shard
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.run_directory import scratch_directory
from mld.processors.spark.sanitizing import complain, log_by
from mld.processors.spark.session_errors import SessionGone
from mld.processors.spark.settings import SettingsError, SparkSettings, load
from mld.processors.spark.sink_port import SinkError
from mld.processors.spark.sinks.files import FileSink
from mld.processors.spark.sinks.stored_letters import StoredLetters
from mld.processors.spark.writer_identity import ID_VARIABLE, STREAM_KEY, WriterIdentity
from mld.properties.loader import load as load_daemon
from mld.properties.remarks import ConfigurationError
from mld.properties.settings import Settings
from mld.retrieval.stream_naming import StreamNaming

log = logging.getLogger("mld.spark")
USAGE = "usage: mld-spark --replay-dead-letter APP.properties\n"
LEFT_OUT = "left out, because another application or pipeline has written them, or for sinks that are not there now"


@dataclass(slots=True)
class LetterReplay:
    """One replay of one dead letter, by an engine that is started already."""

    engine: Engine
    box: StoredLetters
    """The files of the dead letter."""
    upto: int
    """The number of the newest commit to read. Letters that this replay adds have higher numbers, and are for the next
    replay."""
    writer: WriterIdentity
    sinks: frozenset[str]
    letters: int = 0
    """Number of letters that this replay has run, including those that have failed again."""
    earlier: int = 0
    """Number of letters that an earlier replay has put into the sinks."""
    left_out: int = 0
    """Number of letters of other writers, or for sinks that no longer exist."""
    again: int = 0
    """Number of letters that have failed again."""

    def run(self) -> str | None:
        """Replay all letters. Return None, or the reason if the replay had to stop early. Raises SinkError,
        LetterError, SessionGone and Stopped.
        """
        shard = replay_shard(self.box.identity())
        for lacking, group in self._waiting(shard):
            rows = [(letter.position, letter.record) for letter in group]
            outcome = self.engine.replay(shard, rows, lacking)
            self.again += outcome.figures.poisoned + outcome.figures.malformed
            if (reason := outcome.failed.get(shard)) is not None:
                return reason
            self.letters += len(group)
        return None

    def _waiting(self, shard: StreamShard) -> Iterator[tuple[frozenset[str] | None, list[SparkLetter]]]:
        """Yield the letters that were not replayed before, in groups, each with the sinks that lack them (None: all).
        `shard` is the name under which the sinks keep their marks for these letters (`replay_shard`). Count the letters
        that are not yielded, as `earlier` or as `left_out`.
        """
        mark = self.engine.held(shard) or RecordPosition(0)
        for number, names in self.box.commits().items():
            if number > self.upto:
                return
            letters = list(letters_of(number, ((name, self.box.read(name)) for name in names)))
            waiting = [letter for letter in letters if letter.position > mark]
            self.earlier += len(letters) - len(waiting)
            ours = list(for_us(waiting, (self.writer.application, self.writer.pipeline), self.sinks))
            self.left_out += len(waiting) - sum(len(group) for _, group in ours)
            yield from ours

    def in_words(self) -> Iterator[str]:
        """Yield the counts for people, line by line."""
        passed = self.letters - self.again
        yield f"{self.letters} letters replayed: {passed} are in the sinks, {self.again} are letters again"
        if self.earlier:
            yield f"{self.earlier} letters were replayed before"
        if self.left_out:
            yield f"{self.left_out} letters {LEFT_OUT}"


def settings_of(file: str, env: Mapping[str, str]) -> SparkSettings:
    """Return the settings, with the same writer identity as the daemon's. If the environment does not identify the
    stream, Kinesis is asked for the stream's ARN and time of creation, as the daemon does. Raises SettingsError.
    """
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
    """Return the variables that describe the stream, as the daemon sets them for its children. If Kinesis does not
    answer, there is only the stream's name. Raises SettingsError."""
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
    """Ask Kinesis about the stream, and return the variables that identify it."""
    async with streams_of(settings) as streams:
        return await StreamNaming(streams, LoopClock()).variables()


def replay(settings: SparkSettings) -> tuple[LetterReplay, str | None]:
    """Start an engine and replay the letters. Return the replay with its counts, and the reason if it had to stop early
    (None: it has come to the end). Raises the exceptions that `main` catches."""
    assert settings.writer is not None
    sweep()
    with ExitStack() as ends:
        scratch = scratch_directory(os.getpid())
        ends.callback(hold(scratch).close)
        ends.callback(clear, scratch, daemon_lives=False)
        spool = open_spool(settings.spool, scratch, settings.s3)
        ends.callback(spool.close)
        # All letters may fail again, so no share of malformed records stops the replay.
        started = start(replace(settings, malformed_share_max=1.0), scratch, spool)
        ends.callback(started.close)
        signal.signal(signal.SIGTERM, lambda *_: started.engine.stop())
        signal.signal(signal.SIGINT, lambda *_: started.engine.stop())
        dead = started.dead_letter
        assert isinstance(dead, FileSink)
        names = frozenset(spec.name for spec in settings.sinks)
        letter_replay = LetterReplay(started.engine, dead.letters(), dead.newest(), settings.writer, names)
        return letter_replay, letter_replay.run()


def main(arguments: Sequence[str]) -> int:
    """Replay the dead letter of the properties file that `arguments` names. Return the exit status: 0 if no letter is
    left; 1 if some failed again, or the replay had to stop; 2 for a wrong configuration."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        return EXIT_CONFIGURATION
    try:
        settings = settings_of(str(Path(arguments[0]).absolute()), os.environ)
        log_by(settings.fit)
        letter_replay, stopped = replay(settings)
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
    sys.stdout.write("".join(f"{line}\n" for line in letter_replay.in_words()))
    return EXIT_FAILURE if stopped is not None or letter_replay.again else 0
