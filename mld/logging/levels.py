"""Changes the levels of loggers while the daemon runs, and puts back what was configured.

Only loggers that are there can be changed, so that a mistyped name is not silently accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

QUIET_LIBRARIES = ("botocore", "boto3", "urllib3", "asyncio", "werkzeug")
"""They say at INFO and below what nobody but their authors needs."""
ROOT = ""
LEVELS = ("debug", "info", "warning", "error")


class UnknownLoggerError(ValueError):
    """There is no such logger; the text says how names look."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """`logger` is empty for the root; the levels are names, `inherited` where a logger has none of its own."""

    logger: str
    old: str
    new: str


class LogLevels:
    """The levels of this process. One object remembers what was configured, so there should be one.

    A level that another one than this object has set since counts as configured: the file was read again.
    """

    def __init__(self) -> None:
        self._configured: dict[str, int] = {}
        self._set: dict[str, int] = {}

    def change(self, level: str, name: str = ROOT) -> list[LevelChange]:
        """Set the level of one logger, one of LEVELS; the root's is that of all without one of their own."""
        logger = _existing(name)
        self._forget_overruled(name)
        self._configured.setdefault(name, logger.level)
        change = _applied(name, getattr(logging, level.upper()))
        self._set[name] = logger.level
        return [change]

    def reset(self, name: str | None = None) -> list[LevelChange]:
        """Put back the configured level of one logger, or of all; what was changed by that."""
        changes = []
        for one in list(self._configured) if name is None else [name]:
            logger = _existing(one)
            self._forget_overruled(one)
            configured = self._configured.pop(one, logger.level)
            if configured != logger.level:
                changes.append(_applied(one, configured))
        return changes

    def _forget_overruled(self, name: str) -> None:
        if name in self._configured and logging.getLogger(name or None).level != self._set[name]:
            del self._configured[name]


def _applied(name: str, level: int) -> LevelChange:
    logger = logging.getLogger(name or None)
    old = logger.level
    logger.setLevel(level)
    if name == ROOT:
        keep_quiet(old)
    return LevelChange(name, level_name(old), level_name(level))


def keep_quiet(root_before: int | None = None, libraries: Iterable[str] = QUIET_LIBRARIES) -> None:
    """Let libraries log at WARNING at the least, or at the root's level if that is higher.

    `root_before` is the root's level before a change: then a library with another level than follows from it keeps it,
    because somebody has chosen that.
    """
    for name in libraries:
        logger = logging.getLogger(name)
        if root_before is None or logger.level == max(logging.WARNING, root_before):
            logger.setLevel(max(logging.WARNING, logging.getLogger().level))


def level_name(level: int) -> str:
    """Return how people write it."""
    return "inherited" if level == logging.NOTSET else logging.getLevelName(level).lower()


def _existing(name: str) -> logging.Logger:
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise UnknownLoggerError(
            f"there is no logger {name!r}: give a name as the log shows it, such as mld.daemon.worker, or one above "
            "it, such as mld.consumer"
        )
    return logging.getLogger(name or None)
