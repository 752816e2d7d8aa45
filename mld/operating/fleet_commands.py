"""The commands that look at a fleet: `mld leases`, `workers`, `lag`, `events` and `apps`. Options and printing only.

They print a table for people or JSON for programs. They end with 0, with 1 if something is wrong that should wake
somebody, or with 2 if the configuration cannot be used. None of them takes a lease or writes to a table.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import click
from rich.console import Console

from mld.aws.service_time import ServiceTime
from mld.core.clock import LoopClock
from mld.core.terminal import (
    EXIT_FAILURE,
    EXIT_OK,
    FILE_VARIABLE,
    Duration,
    properties_file,
    say,
    settings_of,
)
from mld.core.turns import in_turns
from mld.operating import listings, plain_values
from mld.operating.command_ends import finish
from mld.operating.events import EventsTable, events_in
from mld.operating.faults import FleetFault, fault_value
from mld.operating.fleet_reader import fleet_reader
from mld.operating.fleet_sight import FleetSight
from mld.operating.fleet_status import FleetStatus, chosen
from mld.operating.open_services import dynamo_of
from mld.operating.options import (
    Invocation,
    with_file,
)
from mld.operating.printing import WATCH_PERIOD_S, follow, print_listing, print_wide
from mld.operating.shard_view import LAG_MAX_S
from mld.operating.text_table import Listing
from mld.operating.verdicts import faults_steps, general_faults, is_green

NO_FILE = ("executableName=-", "applicationName=-", "streamName=-", "AwsCredentialsProvider=DefaultCredentialsProvider")
"""Definitions in place of a properties file, for a command that needs none."""


FORMATS: dict[str, Callable[[Listing, Any, bool], None]] = {
    "table": lambda listing, value, watch: print_listing(listing),
    "wide": lambda listing, value, watch: print_wide(listing),
    "json": lambda listing, value, watch: click.echo(json.dumps(value, indent=None if watch else 2)),
}
"""Functions that print a listing, or the same content as a value: as a table that fits the terminal, as a table with
whole cells, or as JSON (on one line with --watch)."""
_output = click.option(
    "-o", "--output", type=click.Choice([*FORMATS]), default="table", show_default=True, help="How to print."
)
_stream = click.option("--stream", "stream_name", metavar="NAME", help="Only this one of several streams.")
_watch = click.option("--watch", is_flag=True, help="Look again every few seconds, until Ctrl-C.")


@click.command()
@with_file()
@click.option("--by", type=click.Choice(["stream"]), help="One row for each of several streams instead.")
@_stream
@click.option("--all", "show_all", is_flag=True, help="Show the rows of ended shards too.")
@_output
@_watch
def leases(
    invocation: Invocation, by: str | None, stream_name: str | None, show_all: bool, output: str, watch: bool
) -> None:
    """Show every shard, the worst first: state, owner, lag, checkpoint; and what is wrong, with the remedy.

    The command makes one scan of the lease table, and needs no access to the stream or to a daemon.

    Exit code 1 if something is wrong that should wake somebody.
    """

    def shown(status: FleetStatus, faults: Sequence[FleetFault]) -> tuple[Listing, Any]:
        """Return the shards as a table, and as a value for JSON."""
        shards = status.shards if show_all else status.open_shards
        value = plain_values.fleet_value(status, shards, faults)
        if by == "stream":
            return listings.streams_listing(status, faults), value
        return listings.leases_listing(status, shards, faults), value

    _look(invocation, shown, output, watch=watch, stream_name=stream_name)


@click.command()
@with_file()
@_output
@_watch
def workers(invocation: Invocation, output: str, watch: bool) -> None:
    """Show every worker: version, leases, CPU, time of its last sign of life, and which one leads.

    Exit code 1 if something is wrong that should wake somebody. Faults of single shards do not count.
    """

    def shown(status: FleetStatus, faults: Sequence[FleetFault]) -> tuple[Listing, Any]:
        """Return the workers as a table, and as a value for JSON."""
        value = {
            "leader": status.leader,
            "faults": [fault_value(fault) for fault in faults],
            "workers": [plain_values.worker_value(worker) for worker in status.workers],
        }
        return listings.workers_listing(status, faults), value

    _look(invocation, shown, output, watch=watch, of_shards=False)


@click.command()
@with_file()
@click.option(
    "--max", "lag_max_s", type=Duration(), help="Exit with 1 if a shard is further behind than this, or has any fault."
)
@click.option(
    "--probe", is_flag=True, help="Ask Kinesis which shards there are, and for the lag of shards without a fresh one."
)
@_stream
@_output
@_watch
def lag(
    invocation: Invocation, lag_max_s: float | None, probe: bool, stream_name: str | None, output: str, watch: bool
) -> None:
    """Show how far behind each shard is, the worst first, with a verdict and the reason.

    The verdicts: stopped, unreadable, parked, failing, stalled, unknown, lagging, paused or ok.

    Exit code 1 if something is wrong that should wake somebody: a shard that stands still or has no owner, a row that
    cannot be read, hash keys without a lease. With --max it is also 1 if a shard is further behind, is paused, or has
    an unknown lag.
    """

    def shown(status: FleetStatus, faults: Sequence[FleetFault]) -> tuple[Listing, Any]:
        """Return the lags as a table, and as a value for JSON."""
        value = {
            "behindSeconds": status.behind_s,
            "faults": [fault_value(fault) for fault in faults],
            "shards": plain_values.shard_values(status.open_shards, faults),
        }
        return listings.lag_listing(status, faults), value

    _look(invocation, shown, output, watch=watch, lag_max_s=lag_max_s, probe=probe, stream_name=stream_name)


@click.command()
@with_file()
@click.option("--since", "since_s", type=Duration(), help="Only events of the last hour (1h), the last 3 days (3d), …")
@click.option("--worker", help="Only events of this worker.")
@_output
def events(invocation: Invocation, since_s: float | None, worker: str | None, output: str) -> None:
    """Show the history of the fleet: starts, ends, deaths, moves, failures, acts of operators.

    The history is one row of the lease table, with at most 200 events of the last 7 days. With -o json the last lines
    of failed record processors are shown too.
    """
    settings = invocation.settings()

    async def reading() -> int:
        """Print the history of the fleet, and return the exit code."""
        async with fleet_reader(settings) as reader:
            row = await EventsTable(reader.calls, reader.clock, Random()).read()
            first_s = reader.clock.wall() - since_s if since_s is not None else 0.0
        found = [one for one in events_in(row) if one.at_s >= first_s and worker in (None, one.worker)]
        FORMATS[output](listings.events_listing(found), [plain_values.event_value(one) for one in found], False)
        if row is None:
            say(
                "this lease table has no history: mld keeps one if all workers are in the mode of KCL 3.x, and no "
                "table of KCL 3.0 to 3.4 is left"
            )
        return EXIT_OK

    finish(reading)


def _look(
    invocation: Invocation,
    shown: Callable[[FleetStatus, Sequence[FleetFault]], tuple[Listing, Any]],
    output: str,
    *,
    watch: bool,
    lag_max_s: float | None = None,
    probe: bool = False,
    stream_name: str | None = None,
    of_shards: bool = True,
) -> None:
    """Read the fleet, or one stream of it, print it, and exit. The code is 0 if no fault counts (`is_green`), else 1.

    `shown` returns a table of the fleet and its faults, and a value for JSON with the same content. Without `of_shards`
    the faults of single shards are left out.
    """
    settings = invocation.settings()
    bound_s = LAG_MAX_S if lag_max_s is None else lag_max_s

    async def looking() -> int:
        """Print the listing, again and again with --watch, and return the exit code."""
        async with fleet_reader(settings, bound_s) as reader:

            async def look() -> tuple[FleetStatus, Sequence[FleetFault]]:
                """Read the fleet, and find its faults."""
                status, listed = chosen(await reader.look(), stream_name), {}
                if probe:
                    from mld.operating.probes import listed_of, probed

                    status, listed = await probed(settings, status, bound_s), await listed_of(settings, status)
                sight = FleetSight(fleet=status, listed=listed, file=invocation.shown_file)
                return status, await in_turns(faults_steps(sight)) if of_shards else general_faults(sight)

            async def listing() -> Listing:
                return shown(*await look())[0]

            if watch and output == "table" and sys.stdout.isatty():
                await follow(listing, Console(highlight=False, markup=False, emoji=False))  # until Ctrl-C
            while True:
                status, faults = await look()
                FORMATS[output](*shown(status, faults), watch)
                if not watch:
                    is_met = is_green(faults, strictly=lag_max_s is not None)
                    return EXIT_OK if is_met else EXIT_FAILURE
                await asyncio.sleep(WATCH_PERIOD_S)

    finish(looking, is_open_ended=watch)


@click.command()
@properties_file
@click.option("--region", metavar="NAME", help="Region, if not that of the file or of the environment.")
@_output
def apps(
    argument_file: str | None, option_file: str | None, overrides: Sequence[str], region: str | None, output: str
) -> None:
    """Show the applications of an account and region: streams, workers, shards, lag.

    Applications are found by the form of their lease tables, whichever program made them. The first 500 rows of each
    table are read. Region, credentials and endpoint come from the properties file, or else from the environment.
    """
    from mld.operating.account_view import look_at_account

    file = option_file or argument_file or os.environ.get(FILE_VARIABLE)
    wanted = (*(() if file else NO_FILE), *overrides, *([f"regionName={region}"] if region else []))
    settings = settings_of(file or os.devnull, wanted)

    async def looking() -> int:
        """Print the applications of the account, and return the exit code."""
        service_time = ServiceTime()
        async with dynamo_of(settings, service_time) as service:
            account = await look_at_account(service, LoopClock(service_time.now))
        FORMATS[output](listings.apps_listing(account), account, False)
        return EXIT_OK

    finish(looking)
