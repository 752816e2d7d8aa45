"""What the commands that talk to a daemon of this machine share: which daemon is meant, and how they end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from mld.core.errors import MldError
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, chosen_file, complain, say
from mld.operating.daemon_client import WantedDaemon

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


def daemon_options(command: F) -> F:
    """Adds the parameters that choose a daemon."""
    return _pid(_worker(_timeout(command)))


def wanted_daemon(
    option_file: str | None,
    argument_file: str | None,
    overrides: Sequence[str],
    pid: int | None,
    worker: str | None,
    timeout_s: float,
) -> WantedDaemon:
    """Which daemon the options and the file name. Exits with 2 if the file cannot be used."""
    from mld.properties.loader import load_some
    from mld.properties.remarks import ConfigurationError, Level, Remark

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


def guarded(action: Callable[[], int]) -> int:
    try:
        return action()
    except KeyboardInterrupt:
        return EXIT_OK
    except (MldError, OSError) as error:
        say(str(error))
        return EXIT_FAILURE
