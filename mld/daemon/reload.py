"""Reads the properties file, and the list of streams, of a running daemon again.

A file that cannot be used changes nothing. What a key may change at once is in the table of keys (`live`), the rest is
named. The list of streams (`mld.streamsFile`) is read every minute, unasked.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mld.check.refusals import refusals
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.daemon.systemd import ServiceManager
from mld.logging import logs
from mld.metrics.configuration import refusal_words, restart_words
from mld.metrics.events import EventKind
from mld.metrics.registry import Metrics
from mld.properties.live_changes import Changes, changes_between
from mld.properties.loader import LoadedConfiguration, bytes_of_list, load
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.scrubber import Scrubber
from mld.properties.settings import Settings, StreamSetting
from mld.properties.stream_list import StreamList, StreamsFile

if TYPE_CHECKING:
    from mld.daemon.worker import Worker

log = logging.getLogger(__name__)

READ_ONCE = "a pipe cannot be read twice: name a file"

SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What the command line says about the log; both win over the properties file. `scrub` is that of the log."""

    scrub: Scrubber
    level: str | None = None
    file: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """For the variables in the file."""

    def apply(self, settings: Settings) -> None:
        """Log from the level on that counts."""
        logs.change_level(self.level or settings.log_level.value, self.file, self.env)

    def is_quieter(self, settings: Settings) -> bool:
        """Return whether less will be logged than now."""
        wanted: int = getattr(logging, (self.level or settings.log_level.value).upper())
        return wanted > logging.getLogger().level

    @property
    def winner(self) -> str | None:
        """The option that makes `mld.logLevel` void."""
        return "-l" if self.file is not None else None if self.level is None else "--log-level"


@dataclass(frozen=True, slots=True)
class Reload:
    """What came of a reload: the settings to go on with, or None and `why` the file could not be used."""

    settings: Settings | None
    why: str = ""
    taken: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Keys whose new values need a restart."""


class Reloader:
    """Knows what the daemon runs with. `file` is absolute; `overrides` and `env` are those of its start."""

    def __init__(
        self,
        running: LoadedConfiguration,
        file: str,
        overrides: Sequence[str],
        env: Mapping[str, str],
        options: LogOptions,
    ) -> None:
        self.running = running
        self.file = file
        self._overrides = overrides
        self._env = env
        self._options = options

    def reload(self) -> Reload:
        """Read the file, and take what may change at once. Does not raise: what is wrong is in the result."""
        try:
            return self._reload()
        except ConfigurationError as error:
            why = "; ".join(str(problem) for problem in error.problems)
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
        except Exception as error:
            why = str(survived(error, "reloading"))
        why = self._options.scrub(why)
        log.error("not reloaded: %s", f"{self.file} {refusal_words(why)}", extra={"action": "reload_failed"})
        return Reload(None, why)

    def _reload(self) -> Reload:
        if not stat.S_ISREG(Path(self.file).stat().st_mode):
            raise ConfigurationError([Remark(Level.ERROR, "the file", self.file, "is no regular file", READ_ONCE)])
        loaded = load(self.file, self._overrides, self._env)
        self._options.scrub.hide(loaded.secrets)
        refuse_unusable(loaded.settings, self.file)
        known = {str(remark) for remark in self.running.remarks}
        logs.log_remarks(remark for remark in loaded.remarks if str(remark) not in known)
        changes = changes_between(self.running, loaded)
        self.running = replace(changes.running, remarks=loaded.remarks)
        if self._options.is_quieter(changes.running.settings):
            self._tell(changes)  # while it is still heard
            self._options.apply(changes.running.settings)
        else:
            self._options.apply(changes.running.settings)
            self._tell(changes)
        return Reload(changes.running.settings, taken=tuple(changes.taken), waiting=tuple(changes.waiting))

    def _tell(self, changes: Changes) -> None:
        taken, waiting = changes.taken, changes.waiting
        said = [f"{_listed(taken)} changed" if taken else "nothing changed that may change while the daemon runs"]
        if "mld.logLevel" in taken and self._options.winner:
            said.append(f"mld.logLevel is without effect beside {self._options.winner}")
        if waiting:
            said.append(restart_words(waiting))
        log.log(
            logging.WARNING if waiting else logging.INFO,
            "reloaded: %s",
            "; ".join(said),
            extra={"action": "reloaded", "changed": list(taken), "needs_restart": list(waiting)},
        )


def refuse_unusable(settings: Settings, file: str) -> list[Remark]:
    """Return the warnings of what is readable and can hardly work. Raises ConfigurationError for what cannot."""
    remarks = refusals(settings, file)
    if errors := [remark for remark in remarks if remark.level is Level.ERROR]:
        raise ConfigurationError(errors, remarks)
    return remarks


def reload_worker(
    worker: Worker | None, reloader: Reloader | None, manager: ServiceManager, metrics: Metrics, clock: Clock
) -> None:
    """Read the properties file again, and let the worker go on with what it says."""
    if worker is None or not worker.is_ready:  # it starts with the file as it is, or it ends anyway
        log.warning("not reloaded: the worker is starting or stopping", extra={"action": "reload_failed"})
        return
    if reloader is None:
        return
    configuration = metrics.worker.configuration
    manager.reloading(clock.monotonic())
    try:
        done = reloader.reload()
        if done.settings is None:
            configuration.note_refused(reloader.file, done.why, clock.wall())
            metrics.events.note(EventKind.CONFIG, f"reload refused: {done.why}")
            return
        configuration.note_read(reloader.file, clock.wall())
        configuration.waiting = done.waiting
        metrics.events.note(EventKind.CONFIG, f"reloaded{_changes(done)}")
        worker.adjust(done.settings.child)
    finally:
        manager.ready()


def _changes(done: Reload) -> str:
    taken = [f"changed: {', '.join(done.taken)}"] if done.taken else []
    waiting = [restart_words(done.waiting)] if done.waiting else []
    return "".join(f"; {words}" for words in taken + waiting)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


async def _settled() -> None:
    await asyncio.sleep(SETTLED_S)


class StreamsReader:
    """Reads the list of streams of `mld.streamsFile` again while the daemon runs.

    A damaged file changes nothing, and a changed one only if it is the same a moment later: one that is written in
    place may be read half, which is a shorter list, or one with the half of a name. `streams` are those of the start;
    `file` None: they never change. Secrets of the file go to `scrub`. `pause` separates the two looks at a change.
    """

    def __init__(
        self,
        streams: Sequence[StreamSetting],
        file: StreamsFile | None,
        scrub: Scrubber,
        pause: Callable[[], Awaitable[None]] = _settled,
    ) -> None:
        self._streams = streams
        self._file = file
        self.scrub = scrub
        self._pause = pause
        self._said: frozenset[str] = frozenset()
        self.on_look: Callable[[str, str | None], None] = lambda file, why: None
        """Hears after each look at the file why it could not be used; None: it could."""
        self._data: bytes | None = None
        """What the file held when it was last read without a complaint."""

    async def read(self) -> Sequence[StreamSetting]:
        """Return the streams of the file as it is now, or as it was when it could last be read. Raises nothing."""
        if self._file is None:
            return self._streams
        try:
            data = await asyncio.to_thread(bytes_of_list, self._file)
            if data == self._data:
                self.on_look(self._file.path, None)
                return self._streams  # a thousand streams with their keys take 0.15 s to look at
            if (listed := await self._parsed(data)) is None:
                return self._streams
        except ConfigurationError as error:
            self._complain("; ".join(str(problem) for problem in error.problems))
            return self._streams
        except Exception as error:
            self._complain(str(survived(error, "reading the list of streams")))
            return self._streams
        self.scrub.hide(listed.secrets)
        warnings = frozenset(str(remark) for remark in listed.remarks if remark.level is not Level.INFO)
        for text in sorted(warnings - self._said):
            log.warning("%s", text, extra={"action": "configuration"})
        self._said = warnings
        self._streams, self._data = listed.streams, data
        self.on_look(self._file.path, None)
        return self._streams

    async def _parsed(self, data: bytes) -> StreamList | None:
        """Return the list in the file, which held `data`; None if that is news, and changes while we wait.

        Raises ConfigurationError.
        """
        assert self._file is not None
        try:
            listed = await asyncio.to_thread(self._file.parse, data)
            if listed.streams == self._streams:
                return listed
        except ConfigurationError:
            await self._pause()
            if data == await asyncio.to_thread(bytes_of_list, self._file):
                raise
            return None
        await self._pause()
        return listed if data == await asyncio.to_thread(bytes_of_list, self._file) else None

    def _complain(self, why: str) -> None:
        """Say it once, and again when it has changed or was mended meanwhile."""
        assert self._file is not None
        self._data = None
        self.on_look(self._file.path, why)
        text = f"the list of streams is not read, nothing changes: {why}"
        if text not in self._said:
            log.error("%s", text, extra={"action": "streams_file_refused"})
        self._said = frozenset({text})


def note_looks(reader: StreamsReader, metrics: Metrics, clock: Clock) -> None:
    """Keep in the metrics how the list of streams was when it was last read."""

    def note(file: str, why: str | None) -> None:
        configuration, now = metrics.worker.configuration, clock.wall()
        if why is None:
            configuration.note_read(file, now)
            return
        why = reader.scrub(why)
        if file not in configuration.refused:
            metrics.events.note(EventKind.CONFIG, f"list of streams refused: {why}")
        configuration.note_refused(file, why, now)

    reader.on_look = note
