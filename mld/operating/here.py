"""The commands that talk to a daemon on this machine over its control socket: `mld status` and `mld tap`.

Supervisors call `mld status --live` every few seconds. So modules that only format output for people are imported when
they are needed, not at the start.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from mld.core.terminal import EXIT_FAILURE, EXIT_OK, chosen_file, complain, define_option, file_argument, file_option
from mld.operating.command_ends import finish
from mld.operating.daemon_link import DaemonLink, WantedDaemon, find_daemon, find_daemons
from mld.operating.options import output_option
from mld.properties.printable import printable

F = TypeVar("F", bound=Callable[..., Any])
TIMEOUT_S = 5.0
PAGE = "page"
"""The severity of faults that wake somebody (`mld.operating.faults`)."""
_MARKS = {"toChild": "->", "fromChild": "<-"}
"""The mark before a line, by its direction."""


# --- which daemon -----------------------------------------------------------------------------------------------------


def of_daemon(command: F) -> F:
    """Give a command the parameter `wanted`: the daemon that its options and its properties file describe."""

    @wraps(command)
    def called(
        argument_file: str | None,
        option_file: str | None,
        overrides: Sequence[str],
        pid: int | None,
        worker: str | None,
        timeout_s: float,
        **rest: Any,
    ) -> Any:
        """Call the command with the daemon that the arguments and options name."""
        named: tuple[str | None, str | None] = None, None
        if option_file or argument_file or overrides:
            named = _application_of(chosen_file(option_file, argument_file), overrides)
        return command(WantedDaemon(*named, pid, worker, timeout_s), **rest)

    options = (
        file_argument,
        file_option,
        define_option,
        click.option("--pid", type=int, help="Process id of the daemon, if several run here."),
        click.option("--worker", metavar="ID", help="Worker id of the daemon, if several run here."),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=0.1, max=600),
            default=TIMEOUT_S,
            show_default=True,
            help="Seconds within which the daemon must answer.",
        ),
    )
    decorated: Any = called
    for option in reversed(options):  # as decorators are applied that stand above a function in this order
        decorated = option(decorated)
    return cast("F", decorated)


def _application_of(file: str, overrides: Sequence[str]) -> tuple[str, str | None]:
    """Return the application and mld.controlSocket of a properties file. Exits with 2 if the file cannot be used."""
    from mld.properties.loader import load_some
    from mld.properties.remarks import ConfigurationError

    names = ("applicationName", "mld.controlSocket")
    try:
        values = load_some(file, names, overrides, os.environ, required="applicationName")
    except ConfigurationError as error:
        complain(error)
    setting = values.get("mld.controlSocket")
    return str(values["applicationName"]), None if setting is None else str(setting)


# --- commands ---------------------------------------------------------------------------------------------------------


@click.command()
@of_daemon
@click.option("--live", "probe", flag_value="live", help="Check only whether the daemon makes progress.")
@click.option("--ready", "probe", flag_value="ready", help="Check only whether the daemon has started.")
@output_option
def status(wanted: WantedDaemon, probe: str | None, output: str) -> None:
    """Show the daemon that runs on this machine: its shards, their lag, and what fails.

    The command needs no port and no access to AWS: it asks over a socket that only the daemon's user can open. Without
    a properties file it asks the only daemon that runs here. --live and --ready are probes for a supervisor. They print
    one line and end with 0 or 1; if several workers run here, all must be well.

    Exit code 1 if the daemon makes no progress, or knows of a fault that should wake somebody.
    """

    def show() -> int:
        """Print the answer of the daemon, or of a probe, and return the exit code."""
        if probe is not None:
            verdicts = [link.ask(probe) for link in find_daemons(wanted, os.environ)]
            verdict = next((one for one in verdicts if not one["isMet"]), verdicts[0])
            click.echo(json.dumps(verdict) if output == "json" else printable(str(verdict["words"])))
            return EXIT_OK if verdict["isMet"] else EXIT_FAILURE
        value = find_daemon(wanted, os.environ).ask("status")
        if output == "json":
            click.echo(json.dumps(value, indent=2))
        else:
            from mld.operating.daemon_listing import daemon_headline, daemon_listing
            from mld.operating.printing import print_listing

            click.echo(printable(daemon_headline(value)))
            print_listing(daemon_listing(value))
        is_well = value["isAlive"] and not any(one["severity"] == PAGE for one in value["faults"])
        return EXIT_OK if is_well else EXIT_FAILURE

    finish(show)


@click.command()
@of_daemon
@click.argument("shard")
@click.option("--until-exit", is_flag=True, help="End when this child ends, not only when the lease is lost.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def tap(wanted: WantedDaemon, shard: str, until_exit: bool, output: str) -> None:
    """Show the messages between the daemon and a running child, as they are sent. They contain the data of records.

    SHARD is a shard's id, or its number. Lines to the child are marked ->, lines of the child <-. The daemon never
    waits for this command: if it reads too slowly, lines are left out and counted.
    """
    if Path(shard).is_file():
        raise click.UsageError(f"name a shard after the file: mld tap {shard} SHARD")
    printer = _print_json if output == "json" else _print_line
    finish(lambda: _follow(find_daemon(wanted, os.environ), shard, until_exit, printer), is_open_ended=True)


def _follow(link: DaemonLink, shard: str, until_exit: bool, printer: Any) -> int:
    """Print what the daemon sends until the lease or, with `until_exit`, the child has ended. Return the exit code."""
    for value in link.follow("tap", shard=shard):
        printer(value)
        if value.get("event") == "leaseEnded" or (until_exit and value.get("event") == "childEnded"):
            return EXIT_OK
    printer({"at": time.time(), "event": "daemonLeft", "words": "the daemon has closed the connection: it is stopping"})
    return EXIT_FAILURE


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def _print_line(value: dict[str, Any]) -> None:
    """Print one value that the daemon sends, for people.

    The value is one of four: the number of lines that were left out, a message with its time and direction, an event in
    words, or, as the first value, the situation of the shard.
    """
    if "lost" in value:
        count = value["lost"]
        click.echo(f"-- {count} line{'' if count == 1 else 's'} left out: too many for this terminal")
    elif "line" in value:
        # Long data in a line is shortened, and then its whole length is shown. The one byte more is the line break.
        about = [f"{value['bytes']:,} bytes"] if value["bytes"] > len(value["line"]) + 1 else []
        about += [f"{value['records']:,} records"] if value.get("records", 0) > 1 else []
        about += ["cut off"] if value.get("isCut") else []
        more = f"  ({', '.join(about)})" if about else ""
        number = f" [{value['child']}]" if "child" in value else ""
        click.echo(f"{_time(value)} {_MARKS[value['way']]}{number} {printable(value['line'])}{more}")
    elif "words" in value:
        click.echo(f"-- {_time(value)} {printable(value['words'])}")
    else:
        click.echo(f"-- {_situation(value)}")


def _situation(value: dict[str, Any]) -> str:
    """Return a sentence on the shard when the tap begins: its state, its child, and the batch in work."""
    from mld.operating.daemon_listing import children_in_words

    child = value["child"] or "no child runs now"
    busy = value["busySeconds"]
    has = "" if busy is None else f", a batch in its hands for {busy:.1f} s"
    state = value["state"] or "waiting"
    loads = "".join(f"; {one}" for one in children_in_words(value))
    return printable(f"{value['shard']}: {state}, {child}{has}{loads}")


def _time(value: dict[str, Any]) -> str:
    """Return the local time of a message, with milliseconds."""
    at = float(value["at"])
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"
