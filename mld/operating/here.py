"""The commands that talk to a daemon of this machine over its control socket: `mld status`. Options and printing only.

A supervisor calls `mld status --live` every few seconds: what only people need is imported when it is printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from mld.errors import MldError
from mld.terminal import EXIT_FAILURE, EXIT_OK, chosen_file, complain, properties_file, say
from properties.printable import printable

TIMEOUT_S = 5.0
F = TypeVar("F", bound=Callable[..., Any])

_pid = click.option("--pid", type=int, help="Of several daemons: the one with this process id.")
_worker = click.option("--worker", metavar="ID", help="Of several daemons: the one with this worker id.")
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1, max=600),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds until the daemon must have answered.",
)


def _daemon(command: F) -> F:
    """Adds the parameters that choose a daemon."""
    return _pid(_worker(_timeout(command)))


@click.command()
@properties_file
@click.option("--live", "probe", flag_value="live", help="Only whether it makes progress: exit code 0 or 1.")
@click.option("--ready", "probe", flag_value="ready", help="Only whether it has started: exit code 0 or 1.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
@_daemon
def status(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    probe: str | None,
    output: str,
    pid: int | None,
    worker: str | None,
    timeout_s: float,
) -> None:
    """Show the daemon that runs on this machine: its shards, how far behind, what fails.

    It is asked over a socket that only its user can open, without a port and without AWS. Without a properties file it
    is the one daemon that runs here. --live and --ready are probes for a supervisor: one line, exit code 0 or 1.
    """

    def show() -> int:
        from mld.operating.daemon_client import find_daemon

        link = find_daemon(_wanted(option_file, argument_file, overrides, pid, worker, timeout_s), os.environ)
        if probe is not None:
            return _print_verdict(link.ask(probe), output)
        value = link.ask("status")
        if output == "json":
            click.echo(json.dumps(value, indent=2))
        else:
            from mld.operating.daemon_listing import daemon_listing, headline
            from mld.operating.printing import print_listing

            click.echo(printable(headline(value)))
            print_listing(daemon_listing(value))
        return EXIT_OK if value["isAlive"] else EXIT_FAILURE

    sys.exit(_guarded(show))


def _print_verdict(verdict: dict[str, Any], output: str) -> int:
    click.echo(json.dumps(verdict) if output == "json" else printable(str(verdict["words"])))
    return EXIT_OK if verdict["isMet"] else EXIT_FAILURE


def _wanted(
    option_file: str | None,
    argument_file: str | None,
    overrides: Sequence[str],
    pid: int | None,
    worker: str | None,
    timeout_s: float,
) -> Any:
    """Which daemon the options and the file name. Exits with 2 if the file cannot be used."""
    from mld.operating.daemon_client import WantedDaemon
    from properties.loader import load_some
    from properties.remarks import ConfigurationError, Level, Remark

    if not (option_file or argument_file or overrides):
        return WantedDaemon(None, None, pid, worker, timeout_s)
    file = chosen_file(option_file, argument_file)
    try:
        values = load_some(file, ("applicationName", "mld.controlSocket"), overrides, os.environ)
        if "applicationName" not in values:
            raise ConfigurationError([Remark(Level.ERROR, "applicationName", file, "is required", "")])
    except ConfigurationError as error:
        complain(error)
    socket = values.get("mld.controlSocket")
    setting = None if socket is None else str(socket)
    return WantedDaemon(str(values["applicationName"]), setting, pid, worker, timeout_s)


def _guarded(action: Callable[[], int]) -> int:
    try:
        return action()
    except KeyboardInterrupt:
        return EXIT_OK
    except (MldError, OSError) as error:
        say(str(error))
        return EXIT_FAILURE
