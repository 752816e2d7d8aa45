"""Code that all commands share: the options that name a properties file, messages on stderr, and exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from mld.properties.loader import LoadedConfiguration
    from mld.properties.remarks import ConfigurationError
    from mld.properties.scrubber import Scrubber
    from mld.properties.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

EXIT_OK = 0
EXIT_FAILURE = 1
"""Exit code if something failed, or if a condition that the command checks is not met."""
EXIT_CONFIGURATION = 2

FILE_VARIABLE = "MLD_PROPERTIES"
"""Environment variable with the properties file for commands that are called without one."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}

define_option = click.option(
    "-D",
    "--define",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the properties file; may be repeated.",
)
file_option = click.option(
    "-p", "--properties-file", "option_file", metavar="FILE", help="The properties file; wins over the argument."
)


def one_file(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> str | None:
    """Return the file of an argument that may be left out. Raises click.UsageError if several are given."""
    if len(given) > 1:
        raise click.UsageError(f"give one properties file, not {len(given)}: {' '.join(given)}")
    return given[0] if given else None


file_argument = click.argument("argument_file", metavar="[APP.properties]", nargs=-1, callback=one_file)


class Duration(click.ParamType[float]):
    """A click type for durations: ``30s``, ``5m``, ``2h``, ``1d`` or plain seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds in a text of the command line. For any other text, end the command with a usage error."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        number = text.rstrip("msdh")
        try:
            seconds = float(number) * _UNITS[text[len(number) :] or "s"]
        except (ValueError, KeyError):
            self.fail(f"{text!r} is no duration: give a number with s, m, h or d, such as 5m", param, ctx)
        if not 0 <= seconds < float("inf"):
            self.fail(f"{text!r} is no duration: it must not be negative", param, ctx)
        return seconds


def properties_file(command: F) -> F:
    """Add the parameters `argument_file`, `option_file` and `overrides` to a command; see `chosen_file`."""
    return file_argument(file_option(define_option(command)))


def chosen_file(option_file: str | None, argument_file: str | None) -> str:
    """Return the given file, or the file that `MLD_PROPERTIES` names. Raises click.UsageError if no file is given."""
    if option_file and argument_file:
        say(f"both -p {option_file} and {argument_file} are given; -p is used")
    chosen = option_file or argument_file or os.environ.get(FILE_VARIABLE)
    if not chosen:
        raise click.UsageError(f"give a properties file, or name one in the environment as {FILE_VARIABLE}")
    return chosen


def settings_of(file: str, overrides: Sequence[str]) -> Settings:
    """Return the settings of a properties file. If the file has errors, print them and exit with 2."""
    return loaded_of(file, overrides).settings


def loaded_of(file: str, overrides: Sequence[str]) -> LoadedConfiguration:
    """Return the complete configuration of a properties file. If the file has errors, print them and exit with 2."""
    from mld.properties.loader import load
    from mld.properties.remarks import ConfigurationError

    try:
        loaded = load(file, overrides, os.environ)
    except ConfigurationError as error:
        complain(error)
    scrubber().hide(loaded.secrets)
    return loaded


def open_standard_streams() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that is closed (``>&-``).

    Otherwise the next file or connection would get its number.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - until the process ends


def leave_terminal() -> None:
    """Leave the terminal, and connect stdin and stderr to /dev/null. The command that completes a word for the shell
    needs this: no library may ask the user for a code then, such as an MFA code.
    """
    with suppress(PermissionError):  # this process leads its session already
        os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 2)


@cache
def scrubber() -> Scrubber:
    """Return the object that hides secrets in what this command prints: the secrets of its properties file, and others
    that are recognized by their place in a text, such as a password in a URL.
    """
    from mld.properties.scrubber import Scrubber

    return Scrubber()


def terminal_text(text: str) -> str:
    """Return `text`, which anybody may have written, as one line for a terminal: without secrets, and with everything
    escaped that ends a line or controls the terminal.
    """
    from mld.properties.printable import printable

    return printable(scrubber()(text))


def say(text: str) -> None:
    """Print one line on stderr, fit for a terminal."""
    click.echo(f"mld: {terminal_text(text)}", err=True)


def say_what_is_logged() -> None:
    """Print log messages from WARNING on by `say`, which removes secrets and control characters from the rows that they
    may quote. Without a handler, Python would print them unfiltered.
    """

    class Spoken(logging.Handler):
        """Prints each log message by `say`."""

        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    logging.getLogger().handlers[:] = [Spoken(logging.WARNING)]


def complain(error: ConfigurationError) -> NoReturn:
    """Print each problem and each warning on a line of its own, then a hint how to see more, and exit with 2."""
    click.echo("mld: the configuration cannot be used:", err=True)
    for problem in error.problems:
        click.echo(f"  {terminal_text(str(problem))}", err=True)
    for warning in error.warnings:
        click.echo(f"  warning: {terminal_text(str(warning))}", err=True)
    click.echo("`mld check` on the same file shows every value and where it comes from.", err=True)
    sys.exit(EXIT_CONFIGURATION)
