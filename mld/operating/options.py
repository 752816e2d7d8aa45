"""What the commands of operators share: how they are asked, what they print, and how they end.

Nothing heavy is imported here: a supervisor calls `mld status --live` every few seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from mld.core.errors import AwsUnreachableError, MldError, TableMissingError, TableThrottledError, TableUnavailableError
from mld.core.terminal import (
    EXIT_FAILURE,
    EXIT_OK,
    FILE_VARIABLE,
    chosen_file,
    define_option,
    file_option,
    say,
    settings_of,
)
from mld.operating.points import ALL_KINDS, Point, PointError, PointKind, parse_point

if TYPE_CHECKING:
    from mld.properties.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
FILE_SUFFIX = ".properties"
SHARD, WORKER = "SHARD", "WORKER"
COMPLETION_S = 3.0
FORBIDDEN = ("AccessDenied", "not authorized")
WRONG_NAMES = "check applicationName, tableName, regionName and dynamoDBEndpoint"
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
        complete = partial(_completions, names)
        argument = click.argument("words", metavar=metavar, nargs=-1, type=kind, shell_complete=complete)
        asking = cast("F", argument(file_option(define_option(called))))
        return _execute(_backup(asking)) if acts else asking

    return decorate


def _completions(names: Sequence[str], context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return what a shell may offer for the next word: files, or the shards and workers of the lease table. Without an
    answer within `COMPLETION_S` there is nothing to offer.
    """
    words = [word for word in context.params.get("words") or () if word]
    file = context.params.get("option_file")
    if file is None and words and words[0].endswith(FILE_SUFFIX):
        file, words = words[0], words[1:]
    file = file or os.environ.get(FILE_VARIABLE)
    if file is None and not words:
        return [CompletionItem(begun, type="file")]
    wanted = names[len(words)] if len(words) < len(names) else ""
    if file is None or wanted not in (SHARD, WORKER):
        return []
    import asyncio

    from mld.operating.fleet_reader import fleet_reader
    from mld.operating.fleet_status import LAG_MAX_S
    from mld.properties.loader import load

    async def look() -> list[str]:
        settings = load(file, context.params.get("overrides") or (), os.environ).settings
        async with asyncio.timeout(COMPLETION_S), fleet_reader(settings, LAG_MAX_S) as reader:
            fleet = await reader.look()
        return [one.key for one in fleet.open_shards] if wanted == SHARD else [one.worker for one in fleet.workers]

    try:
        return [CompletionItem(name) for name in asyncio.run(look()) if name.startswith(begun)]
    except Exception:  # whatever it is, a shell that completes has no place to show it
        return []


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


def finish(
    work: Callable[[], int | Coroutine[Any, Any, int]], *, doubt: str = "", is_open_ended: bool = False
) -> NoReturn:
    """Do the work and exit with its code; an error is one line on stderr, and 1.

    So are Ctrl-C, the end of the terminal, and that nobody reads the output any more; `doubt` is what nobody knows
    then. `is_open_ended`: they are an ordinary end, as in `mld peek … | head`.
    """
    _hear_what_ends_a_command()
    try:
        done = work()
        if not isinstance(done, int):
            import asyncio

            done = asyncio.run(done)
        sys.exit(done)
    except KeyboardInterrupt:
        if is_open_ended:
            sys.exit(EXIT_OK)
        say(f"interrupted{doubt and ': '}{doubt}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_open_ended:
            sys.exit(EXIT_OK)
        say(f"nobody reads the output{doubt and ': '}{doubt}")
    except MldError as error:
        say(with_remedy(error))
    except OSError as error:  # such as a full disk behind stdout
        say(f"{error}{doubt and '; '}{doubt}")
    sys.exit(EXIT_FAILURE)


def _hear_what_ends_a_command() -> None:
    """Let a closed terminal and SIGTERM do what Ctrl-C does, so that what is held is given back.

    What is ignored stays ignored (nohup); so does what would become a Ctrl-C that is ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def with_remedy(error: Exception) -> str:
    """Return the error's own sentence, and what its reader can do, if that is known."""
    text = str(error)
    if any(sign in text for sign in FORBIDDEN):
        return f"{text}; `mld iam-policy` with the same file prints the permissions that are needed"
    match error:
        case TableMissingError():
            return f"{text}; the first worker of an application makes its table: {WRONG_NAMES}"
        case TableThrottledError():
            return f"{text}; the table has too little capacity: give it more, or ask again"
        case TableUnavailableError() | AwsUnreachableError():
            return f"{text}; `mld doctor` with the same file looks for the reason"
    if "is no lease table" in text:
        return f"{text}; {WRONG_NAMES}"
    return text
