"""Reads the properties file of a running daemon again, and applies what may change without a restart.

A file that cannot be used changes nothing. The table of keys marks those that may change at once (`live`); changed keys
without that mark are named in the log. `mld.daemon.streams_reader` reads the list of streams.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.check.refusals import refusals
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.daemon.file_reads import FileHangsError, FileReads
from mld.daemon.systemd import ServiceManager
from mld.logging import logs
from mld.logging.logback import LogbackError, LogbackLevels
from mld.metrics.events import EventKind
from mld.metrics.registry import Metrics
from mld.metrics.words import refusal_words, restart_words
from mld.properties.live_changes import Changes, changes_between
from mld.properties.loader import LoadedConfiguration, load
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.scrubber import Scrubber
from mld.properties.settings import Settings

if TYPE_CHECKING:
    from mld.daemon.worker import Worker

log = logging.getLogger(__name__)

READ_ONCE = "name a file: a pipe cannot be read twice"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of the command line for the log. They override the properties file."""

    scrub: Scrubber
    """Hides secrets in the log."""
    level: str | None = None
    file: str | None = None
    """A logback file."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Values for the variables in the logback file."""

    def read(self) -> LogbackLevels | LogbackError | None:
        """Read the logback file again; blocks. Return its levels, or why it cannot be used; None if there is no
        file.
        """
        return logs.levels_again(self.file, self.env)

    def apply(self, settings: Settings, levels: LogbackLevels | LogbackError | None) -> None:
        """Set the log level of the command line, or if it names none, that of the properties file. Those in `levels`,
        which `read` has returned, overrule it.
        """
        logs.change_level(self.level or settings.log_level.value, self.file, levels)

    def is_quieter(self, settings: Settings) -> bool:
        """Return whether less would be logged with these settings than is logged now."""
        wanted: int = getattr(logging, (self.level or settings.log_level.value).upper())
        return wanted > logging.getLogger().level

    @property
    def winner(self) -> str | None:
        """The option of the command line that overrides `mld.logLevel`; None if no option does."""
        if self.file is not None:
            return "-l"
        return None if self.level is None else "--log-level"


@dataclass(frozen=True, slots=True)
class Reload:
    """Result of a reload."""

    settings: Settings | None
    """The settings in effect from now on; None if the file could not be used."""
    why: str = ""
    """Why the file could not be used."""
    taken: tuple[str, ...] = ()
    """Keys whose new values are in effect now."""
    waiting: tuple[str, ...] = ()
    """Keys whose new values need a restart."""


class Reloader:
    """Reads the properties file again, and compares it with the configuration that the daemon runs with (`running`)."""

    def __init__(
        self,
        running: LoadedConfiguration,
        file: str,
        overrides: Sequence[str],
        env: Mapping[str, str],
        options: LogOptions,
        run: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None,
    ) -> None:
        """Make a reloader. `file` is an absolute path; `overrides` and `env` are those of the daemon's start.

        `run` calls the function that reads the files; by default in a thread, see `FileReads`.
        """
        self.running = running
        self.file = file
        self._overrides = overrides
        self._env = env
        self._options = options
        self._run = run or FileReads("reload").run

    async def reload(self) -> Reload:
        """Read the file, and apply the keys that may change at once. Raises nothing: errors are in the result."""
        try:
            loaded, remarks, levels = await self._run(self._read)
            self._options.scrub.hide(loaded.secrets)  # also if the file is refused, as the reason may quote from it
            refuse(remarks)
            return self._take(loaded, levels)
        except FileHangsError as error:
            why = str(error)
        except ConfigurationError as error:
            self._log_new(error.warnings)
            why = "; ".join(str(problem) for problem in error.problems)
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
        except Exception as error:
            why = str(survived(error, "reloading"))
        why = self._options.scrub(why)
        log.error("not reloaded: %s", f"{self.file} {refusal_words(why)}", extra={"action": "reload_failed"})
        return Reload(None, why)

    def _read(self) -> tuple[LoadedConfiguration, list[Remark], LogbackLevels | LogbackError | None]:
        """Read the file, and the levels of the log; blocks. Return also the remarks on settings that do not work.
        Raises ConfigurationError and OSError.
        """
        if not stat.S_ISREG(Path(self.file).stat().st_mode):
            raise ConfigurationError([Remark(Level.ERROR, "the file", self.file, "is no regular file", READ_ONCE)])
        loaded = load(self.file, self._overrides, self._env)
        return loaded, refusals(loaded.settings, self.file), self._options.read()

    def _take(self, loaded: LoadedConfiguration, levels: LogbackLevels | LogbackError | None) -> Reload:
        """Apply the keys of a file that was read again, as far as they may change at once, and log all changes.
        `levels` are those of the Logback file, if there is one. Return which changes were taken, and which wait for a
        restart.
        """
        self._log_new(loaded.remarks)
        changes = changes_between(self.running, loaded)
        self.running = replace(changes.running, remarks=loaded.remarks)
        if self._options.is_quieter(changes.running.settings):
            self._log(changes)  # first, because afterwards the level of this line may no longer be logged
            self._options.apply(changes.running.settings, levels)
        else:
            self._options.apply(changes.running.settings, levels)
            self._log(changes)
        return Reload(changes.running.settings, taken=tuple(changes.taken), waiting=tuple(changes.waiting))

    def _log_new(self, remarks: Iterable[Remark]) -> None:
        """Log the remarks that did not hold for the running configuration."""
        known = {str(remark) for remark in self.running.remarks}
        logs.log_remarks(remark for remark in remarks if str(remark) not in known)

    def _log(self, changes: Changes) -> None:
        """Log which keys have changed, and which need a restart."""
        taken, waiting = changes.taken, changes.waiting
        clauses = [f"{', '.join(taken)} changed" if taken else "nothing changed that may change while the daemon runs"]
        if "mld.logLevel" in taken and self._options.winner:
            clauses.append(f"mld.logLevel has no effect, because {self._options.winner} overrides it")
        if waiting:
            clauses.append(restart_words(waiting))
        log.log(
            logging.WARNING if waiting else logging.INFO,
            "reloaded: %s",
            "; ".join(clauses),
            extra={"action": "reloaded", "changed": list(taken), "needs_restart": list(waiting)},
        )


def refuse_unusable(settings: Settings, file: str) -> list[Remark]:
    """Return warnings about settings that probably do not work. Raises ConfigurationError for those
    that cannot work.
    """
    remarks = refusals(settings, file)
    refuse(remarks)
    return remarks


def refuse(remarks: Sequence[Remark]) -> None:
    """Raise ConfigurationError if any of the remarks is an error."""
    if errors := [remark for remark in remarks if remark.level is Level.ERROR]:
        raise ConfigurationError(errors, remarks)


class ReloadRequests:
    """Reloads when it is asked to, once at a time: requests that come meanwhile lead to one more."""

    def __init__(self, reload: Callable[[], Awaitable[None]]) -> None:
        self._reload = reload
        self._is_asked = False
        self._running: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Have the file read again: now, or once more when the reload under way is over."""
        self._is_asked = True
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._is_asked:
            self._is_asked = False
            await self._reload()


async def reload_worker(
    worker: Worker | None, reloader: Reloader | None, manager: ServiceManager, metrics: Metrics, clock: Clock
) -> None:
    """Read the properties file again, and give the new settings to the worker."""
    if worker is None or not worker.is_ready:  # it has just read the file, or is about to end
        log.warning("not reloaded: the worker is starting or stopping", extra={"action": "reload_failed"})
        return
    if reloader is None:
        return
    configuration = metrics.worker.configuration
    manager.reloading(clock.monotonic())
    try:
        done = await reloader.reload()
        if done.settings is None:
            configuration.note_refused(reloader.file, done.why, clock.wall())
            metrics.events.note(EventKind.CONFIG, f"reload refused: {done.why}")
            return
        configuration.note_read(reloader.file, clock.wall())
        configuration.waiting = done.waiting
        metrics.events.note(EventKind.CONFIG, f"reloaded{_changes(done)}")
        worker.adjust(done.settings.child)  # apart from the log level, only keys of children may change at once
    finally:
        if worker.is_ready:  # not if a stop was asked for meanwhile
            manager.ready()


def _changes(done: Reload) -> str:
    """Return which keys a reload has changed, and which need a restart, as the end of a sentence."""
    taken = [f"changed: {', '.join(done.taken)}"] if done.taken else []
    waiting = [restart_words(done.waiting)] if done.waiting else []
    return "".join(f"; {clause}" for clause in taken + waiting)
