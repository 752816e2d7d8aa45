"""The options and arguments that the commands of operators share.

Nothing heavy is imported here, because a supervisor may call `mld status --live` every few seconds.
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
stream_option = click.option(
    "--stream", "stream_name", metavar="NAME", help="The stream, if the properties file names several."
)
_execute = click.option("--execute", is_flag=True, help="Carry the plan out. Without this the plan is only printed.")
_backup = click.option(
    "--backup",
    "backup_file",
    metavar="FILE",
    help="File for the rows, which are saved before anything is changed; by default one in the working directory.",
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a command was called."""

    file: str
    """The properties file."""
    overrides: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """The arguments that the command needs besides the file, such as a shard."""
    more: tuple[str, ...] = ()
    """Further arguments, such as another command line."""
    execute: bool = False
    backup_file: str | None = None

    @property
    def shown_file(self) -> str:
        """The file, for commands that are proposed to the user; empty if an environment variable names it."""
        return "" if self.file == os.environ.get(FILE_VARIABLE) else self.file

    def settings(self) -> Settings:
        """Load the file. If it cannot be used, print what is wrong with it and exit with 2."""
        return settings_of(self.file, self.overrides)


def with_file(*names: str, acts: bool = False, more: str = "") -> Callable[[F], F]:
    """Return a decorator that gives a command the parameter `invocation`: its properties file, and an argument for each
    of `names`.

    With `acts` the command has --execute and --backup, too. With `more`, which describes them in the help, further
    arguments may follow.
    """
    metavar = " ".join(["[APP.properties]", *names, more]).strip()

    def decorate(command: F) -> F:
        """Return the command with the options and arguments that make up its `invocation`."""

        @wraps(command)
        def called(words: Sequence[str], option_file: str | None, overrides: Sequence[str], **rest: Any) -> Any:
            """Call the command with its file, arguments and options in one `Invocation`."""
            first_words, more_words = (words, ()) if not more else _split(words, option_file, len(names))
            file, arguments = file_and_words(first_words, option_file, *names)
            act_options = {name: rest.pop(name) for name in ("execute", "backup_file")} if acts else {}
            return command(Invocation(file, tuple(overrides), arguments, tuple(more_words), **act_options), **rest)

        kind = click.UNPROCESSED if more else None  # another command line is passed on as it is
        complete = partial(complete_word, names)
        argument = click.argument("words", metavar=metavar, nargs=-1, type=kind, shell_complete=complete)
        decorated = cast("F", argument(file_option(define_option(called))))
        return _execute(_backup(decorated)) if acts else decorated

    return decorate


def _split(words: Sequence[str], option_file: str | None, count: int) -> tuple[Sequence[str], Sequence[str]]:
    """Split the words of a command line after the first `count`. The properties file counts as one more word, unless it
    is given by an option, or by the environment variable.
    """
    by_variable = os.environ.get(FILE_VARIABLE) and not (words and words[0].endswith(FILE_SUFFIX))
    if not option_file and not by_variable:
        count += 1
    return words[:count], words[count:]


def file_and_words(words: Sequence[str], option_file: str | None, *names: str) -> tuple[str, tuple[str, ...]]:
    """Return the properties file, and the argument for each of `names`. In `words` the file is the first or the last
    word, if it is there at all.

    Raises click.UsageError.
    """
    # If the only word is the file, the argument that the command needs is missing.
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
    """The type of an option whose value is a place in a stream. `kinds` are the kinds of places that are allowed."""

    name = "place"

    def __init__(self, kinds: Collection[PointKind] = ALL_KINDS) -> None:
        self._kinds = kinds

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Point:
        """Return the place that the value of the option names. A wrong value ends the command with its message."""
        if isinstance(value, Point):
            return value
        try:
            return parse_point(str(value), time.time(), self._kinds)
        except PointError as error:
            self.fail(str(error), param, ctx)
