"""What the commands of operators share: how they are asked, what they print, and how they end.

Nothing heavy is imported here: a supervisor calls `mld status --live` every few seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from mld.core.terminal import (
    FILE_VARIABLE,
    chosen_file,
    define_option,
    file_option,
    settings_of,
)
from mld.operating.completions import FILE_SUFFIX, complete_word
from mld.operating.points import ALL_KINDS, Point, PointError, PointKind, parse_point

if TYPE_CHECKING:
    from mld.properties.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
stream_option = click.option("--stream", "stream_name", metavar="NAME", help="Which one, if the file names several.")
_execute = click.option("--execute", is_flag=True, help="Do it. Without this the plan is printed, and nothing is done.")
_backup = click.option(
    "--backup",
    "backup_file",
    metavar="FILE",
    help="Where the rows are saved before anything is changed, instead of a file in the working directory.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """How a command was called. `words` are what it needs besides the file; `more` what follows these."""

    file: str
    overrides: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    execute: bool = False
    backup_file: str | None = None

    @property
    def shown_file(self) -> str:
        """The file as commands that help name it; empty where the environment does."""
        return "" if self.file == os.environ.get(FILE_VARIABLE) else self.file

    def settings(self) -> Settings:
        """Load the file; exit with 2, and what is wrong with it, if it cannot be used."""
        return settings_of(self.file, self.overrides)


def asks(*names: str, acts: bool = False, more: str = "") -> Callable[[F], F]:
    """Give a command the parameter `asked`: a properties file, a word for each name, and with `acts` how to act.

    With `more` words may follow the others.
    """
    metavar = " ".join(["[APP.properties]", *names, more]).strip()

    def decorate(command: F) -> F:
        @wraps(command)
        def called(words: Sequence[str], option_file: str | None, overrides: Sequence[str], **rest: Any) -> Any:
            own, behind = (words, ()) if not more else _split(words, option_file, len(names))
            file, found = file_and_words(own, option_file, *names)
            how = {name: rest.pop(name) for name in ("execute", "backup_file") if acts}
            return command(Asked(file, tuple(overrides), found, tuple(behind), **how), **rest)

        kind = click.UNPROCESSED if more else None
        complete = partial(complete_word, names)
        argument = click.argument("words", metavar=metavar, nargs=-1, type=kind, shell_complete=complete)
        asking = cast("F", argument(file_option(define_option(called))))
        return _execute(_backup(asking)) if acts else asking

    return decorate


def _split(words: Sequence[str], option_file: str | None, count: int) -> tuple[Sequence[str], Sequence[str]]:
    """Return so many words, and a file unless it is named otherwise; and what follows."""
    by_variable = os.environ.get(FILE_VARIABLE) and not (words and words[0].endswith(FILE_SUFFIX))
    if not option_file and not by_variable:
        count += 1
    return words[:count], words[count:]


def file_and_words(words: Sequence[str], option_file: str | None, *names: str) -> tuple[str, tuple[str, ...]]:
    """Return the properties file, and a word for each name, from words that may have the file first or last.

    Raises click.UsageError.
    """
    is_file_alone = option_file is None and len(words) == len(names) and bool(names) and words[0].endswith(FILE_SUFFIX)
    if len(words) < len(names) or is_file_alone:
        raise click.UsageError(f"missing argument: {' '.join(names[len(words) - is_file_alone :])}")
    if len(words) > len(names) + 1:
        raise click.UsageError(f"too many arguments: {' '.join(words)}")
    rest, file = tuple(words), None
    if len(words) > len(names):
        is_last = bool(names) and words[-1].endswith(FILE_SUFFIX) and not words[0].endswith(FILE_SUFFIX)
        file, rest = (words[-1], rest[:-1]) if is_last else (words[0], rest[1:])
    return chosen_file(option_file, file), rest


class PointType(click.ParamType[Point]):
    """``trim-horizon``, ``latest``, ``checkpoint``, a time or a sequence number, as far as `kinds` allow."""

    name = "place"

    def __init__(self, kinds: Collection[PointKind] = ALL_KINDS) -> None:
        self._kinds = kinds

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Point:
        if isinstance(value, Point):
            return value
        try:
            return parse_point(str(value), time.time(), self._kinds)
        except PointError as error:
            self.fail(str(error), param, ctx)
