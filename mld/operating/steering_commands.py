"""The commands that steer a fleet: `mld move`, `release`, `drain`, `pause`, `resume`, `restart-child`. Options only."""

from __future__ import annotations

import getpass
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from mld.core.terminal import Duration
from mld.operating.options import Asked, asks

if TYPE_CHECKING:
    from mld.operating.acting import PlanInput, Planner, Waiting
    from mld.operating.plan import ActPlan

WAIT_POLL_S = 2.0
WAIT_DEFAULT = "5m"
WORDS_CHARACTERS_MAX = 200

_why = click.option("--why", default="", metavar="TEXT", help="Shown to who looks at it, with your name and the time.")


@click.command()
@asks("SHARD", "WORKER", acts=True)
def move(asked: Asked) -> None:
    """Give one shard to one worker, by a handoff.

    SHARD is a shard's id, or its number. The leader leaves it there for an hour; then it evens out the load as before.
    """
    shard, worker = asked.words

    async def plan(seen: PlanInput) -> ActPlan:
        from mld.operating.steering import plan_move

        reader = seen.reader
        return plan_move(await reader.look(), shard, worker, is_3x=await reader.is_3x(), now_s=reader.clock.wall())

    _act("mld move", asked, plan)


@click.command()
@asks("SHARD", acts=True, unless="of_worker")
@click.option("--worker", "of_worker", metavar="WORKER", help="All shards of this worker, instead of one SHARD.")
def release(asked: Asked, of_worker: str | None) -> None:
    """Take one shard, or all shards of a worker, and hand them to the workers with the fewest leases.

    SHARD is a shard's id, or its number.
    """

    async def plan(seen: PlanInput) -> ActPlan:
        from mld.operating.steering import plan_release, shards_of

        fleet, reader = await seen.reader.look(), seen.reader
        named = asked.words if of_worker is None else shards_of(fleet, of_worker)
        return plan_release(fleet, named, reader.settings.leases.held_max, is_3x=await reader.is_3x())

    _act("mld release", asked, plan)


@click.command()
@asks("WORKER", acts=True)
@click.option("--undo", is_flag=True, help="Let the worker have leases again.")
@click.option(
    "--wait",
    "wait_s",
    type=Duration(),
    is_flag=False,
    flag_value=WAIT_DEFAULT,
    help=f"With --execute: wait so long until it has none, or exit with 1; {WAIT_DEFAULT} if no time is given.",
)
@_why
def drain(asked: Asked, undo: bool, wait_s: float | None, why: str) -> None:
    """Empty a worker: what it has goes to others, and it gets leases only if no other has room for them.

    It lasts until --undo, or until the worker stops.
    """
    (worker,) = asked.words

    async def plan(seen: PlanInput) -> ActPlan:
        from mld.fleet.values import LEASE_TABLE_KEY, REPORTS_TABLE_KEY, Place
        from mld.operating.steering import plan_drain, plan_undrain

        reader, settings = seen.reader, seen.reader.settings
        place = Place(settings.lease_table.name, LEASE_TABLE_KEY)
        if seen.table.row(worker) is None:  # its report is in the table of KCL 3.0 to 3.4
            place = Place(settings.worker_metrics_table.name, REPORTS_TABLE_KEY)
        fleet = await reader.look()
        if undo:
            return plan_undrain(fleet, worker, place)
        words, most = _words(seen, why), settings.leases.held_max
        return plan_drain(fleet, worker, place, words, most, is_3x=await reader.is_3x())

    async def is_empty(seen: PlanInput) -> bool:
        clock = seen.reader.clock
        ends_at = clock.monotonic() + (wait_s or 0.0)
        while any(one.leases for one in (await seen.reader.look()).workers if one.worker == worker):
            if clock.monotonic() + WAIT_POLL_S > ends_at:
                return False
            await clock.sleep(WAIT_POLL_S)
        return True

    _act("mld drain", asked, plan, None if undo or wait_s is None else is_empty)


@click.command()
@asks("SHARD", acts=True)
@_why
def pause(asked: Asked, why: str) -> None:
    """Let a shard wait: its lease stays held, its child stays up, and nothing is delivered until `mld resume`.

    SHARD is a shard's id, or its number.
    """

    async def plan(seen: PlanInput) -> ActPlan:
        from mld.operating.steering import plan_pause

        return plan_pause(await seen.reader.look(), asked.words[0], _words(seen, why))

    _act("mld pause", asked, plan)


@click.command("restart-child")
@asks("SHARD", acts=True)
@_why
def restart_child(asked: Asked, why: str) -> None:
    """Have the record processor of a shard killed, wherever it runs, and started again at the checkpoint.

    At once, without a pause for earlier failures, and without being counted as one. SHARD is a shard's id, or its
    number.
    """

    async def plan(seen: PlanInput) -> ActPlan:
        from mld.operating.steering import plan_restart

        return plan_restart(await seen.reader.look(), asked.words[0], _words(seen, why))

    _act("mld restart-child", asked, plan)


@click.command()
@asks("SHARD", acts=True)
def resume(asked: Asked) -> None:
    """Let a paused shard go on. SHARD is a shard's id, or its number."""

    async def plan(seen: PlanInput) -> ActPlan:
        from mld.operating.steering import plan_resume

        return plan_resume(await seen.reader.look(), asked.words[0])

    _act("mld resume", asked, plan)


def _act(command: str, asked: Asked, plan: Planner, waiting: Waiting | None = None) -> None:
    from mld.operating.acting import act

    act(command, asked, plan, waiting)


def _words(seen: PlanInput, why: str) -> str:
    """Return who does it, when, and why."""
    when = datetime.fromtimestamp(seen.reader.clock.wall(), UTC).isoformat(timespec="seconds")
    try:
        who = getpass.getuser()
    except OSError:
        who = str(os.getuid())
    words = f"by {who}@{socket.gethostname()} at {when}" + (f": {why}" if why else "")
    return words[:WORDS_CHARACTERS_MAX]
