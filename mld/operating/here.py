"""The commands that talk to a daemon of this machine over its control socket: `mld status`. Options and printing only.

A supervisor calls `mld status --live` every few seconds: what only people need is imported when it is printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from mld.core.terminal import EXIT_FAILURE, EXIT_OK, properties_file
from mld.operating.daemon_client import find_daemon, find_daemons
from mld.operating.daemon_options import daemon_options, guarded, wanted_daemon
from mld.properties.redaction import printable


@click.command()
@properties_file
@click.option("--live", "probe", flag_value="live", help="Only whether it makes progress: exit code 0 or 1.")
@click.option("--ready", "probe", flag_value="ready", help="Only whether it has started: exit code 0 or 1.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
@daemon_options
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
    is the one daemon that runs here. --live and --ready are probes for a supervisor: one line, exit code 0 or 1; of
    several workers, such as those of one unit, all must be well.
    """

    def show() -> int:
        wanted = wanted_daemon(option_file, argument_file, overrides, pid, worker, timeout_s)
        if probe is not None:
            verdicts = [link.ask(probe) for link in find_daemons(wanted, os.environ)]
            return _print_verdict(next((one for one in verdicts if not one["isMet"]), verdicts[0]), output)
        value = find_daemon(wanted, os.environ).ask("status")
        if output == "json":
            click.echo(json.dumps(value, indent=2))
        else:
            from mld.operating.daemon_listing import daemon_listing, headline
            from mld.operating.printing import print_listing

            click.echo(printable(headline(value)))
            print_listing(daemon_listing(value))
        return EXIT_OK if value["isAlive"] else EXIT_FAILURE

    sys.exit(guarded(show))


def _print_verdict(verdict: dict[str, Any], output: str) -> int:
    click.echo(json.dumps(verdict) if output == "json" else printable(str(verdict["words"])))
    return EXIT_OK if verdict["isMet"] else EXIT_FAILURE
