"""The commands that look at a fleet: `mld leases`, `mld workers`, `mld lag`. Options and printing only.

All take the properties file, print a table for people or JSON for machines, and end with 0, with 1 if what was asked
about is not so, or with 2 if the configuration cannot be used. They only read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mld.core.terminal import EXIT_FAILURE, EXIT_OK, Duration
from mld.operating.options import Asked, asks, finish

if TYPE_CHECKING:
    from mld.operating.fleet_status import FleetStatus
    from mld.operating.listings import Listing


def _as_table(listing: Listing, _value: Any, _watch: bool) -> None:
    from mld.operating.printing import print_listing

    print_listing(listing)


def _as_json(_listing: Listing, value: Any, watch: bool) -> None:
    click.echo(json.dumps(value, indent=None if watch else 2))


FORMATS = {"table": _as_table, "json": _as_json}
"""How to print a look: its rows for people, or its values, once or again and again."""
_output = click.option(
    "-o", "--output", type=click.Choice([*FORMATS]), default="table", show_default=True, help="How to print."
)
_stream = click.option("--stream", "stream_name", metavar="NAME", help="Only this one of several streams.")
_watch = click.option("--watch", is_flag=True, help="Look again every few seconds, until Ctrl-C.")


@click.command()
@asks()
@click.option(
    "--by", type=click.Choice(["worker", "host", "stream"]), help="How the open shards are shared out instead."
)
@_stream
@click.option("--all", "show_all", is_flag=True, help="Show the rows of ended shards too.")
@_output
@_watch
def leases(asked: Asked, by: str | None, stream_name: str | None, show_all: bool, output: str, watch: bool) -> None:
    """Show every shard, the worst first: state, owner, how far behind, checkpoint; and holes in the hash range.

    The answer comes from one scan of the lease table, so it needs no access to the stream or to a daemon.
    """
    from mld.operating import listings

    def shown(status: FleetStatus) -> tuple[Listing, Any]:
        shards = status.shards if show_all else status.open_shards
        value = listings.fleet_value(status, shards)
        if by == "stream":
            return listings.streams_listing(status), value
        return listings.shares_listing(status, by) if by else listings.leases_listing(status, shards), value

    _look(asked, shown, output, watch=watch, stream_name=stream_name)


@click.command()
@asks()
@_output
@_watch
def workers(asked: Asked, output: str, watch: bool) -> None:
    """Show every worker: version, leases, CPU, when it was last heard, who leads."""
    from mld.operating import listings

    def shown(status: FleetStatus) -> tuple[Listing, Any]:
        value = {"leader": status.leader, "workers": [listings.worker_value(worker) for worker in status.workers]}
        return listings.workers_listing(status), value

    _look(asked, shown, output, watch=watch)


@click.command()
@asks()
@click.option("--max", "lag_max_s", type=Duration(), help="Exit with 1 if a shard is further behind, or unknown.")
@click.option("--probe", is_flag=True, help="Ask Kinesis about shards whose rows do not say it, as Java's do not.")
@_stream
@_output
@_watch
def lag(asked: Asked, lag_max_s: float | None, probe: bool, stream_name: str | None, output: str, watch: bool) -> None:
    """Show how far behind each shard is, the worst first, with a verdict and the reason.

    The verdicts: stopped, unreadable, parked, failing, stalled, unknown, lagging, paused or ok.

    Exit code 1 with --max, if a shard is further behind, stands still, has no owner, or does not say how far it is.
    """
    from mld.operating import listings
    from mld.operating.verdicts import TROUBLE

    def shown(status: FleetStatus) -> tuple[Listing, Any]:
        value = {
            "behindSeconds": status.behind_s,
            "shards": [listings.shard_value(shard) for shard in status.open_shards],
        }
        return listings.lag_listing(status), value

    def is_met(status: FleetStatus) -> bool:
        return lag_max_s is None or not any(shard.verdict in TROUBLE for shard in status.open_shards)

    _look(asked, shown, output, watch=watch, lag_max_s=lag_max_s, is_met=is_met, probe=probe, stream_name=stream_name)


def _look(
    asked: Asked,
    shown: Callable[[FleetStatus], tuple[Listing, Any]],
    output: str,
    *,
    watch: bool,
    lag_max_s: float | None = None,
    probe: bool = False,
    is_met: Callable[[FleetStatus], bool] = lambda _: True,
    stream_name: str | None = None,
) -> None:
    """Look at the fleet, or at one stream of it, print, and exit."""
    from mld.operating.fleet_status import LAG_MAX_S
    from mld.operating.printing import WATCH_PERIOD_S, follow

    settings = asked.settings()
    bound_s = LAG_MAX_S if lag_max_s is None else lag_max_s

    async def looking() -> int:
        from mld.operating.fleet_reader import fleet_reader
        from mld.operating.fleet_status import chosen
        from mld.operating.probing import probed

        async with fleet_reader(settings, bound_s) as reader:

            async def look() -> FleetStatus:
                status = chosen(await reader.look(), stream_name)
                return await probed(settings, status, bound_s) if probe else status

            async def listed() -> Listing:
                return shown(await look())[0]

            if watch and output == "table" and sys.stdout.isatty():
                from rich.console import Console

                await follow(listed, Console(highlight=False, markup=False))
            FORMATS[output](*shown(status := await look()), watch)
            while watch:
                await asyncio.sleep(WATCH_PERIOD_S)
                FORMATS[output](*shown(status := await look()), watch)
            return EXIT_OK if is_met(status) else EXIT_FAILURE

    finish(looking)
