"""The commands that steer a fleet: `mld move`, `release`, `drain`, `pause`, `resume`, `restart-child`. Options only."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from mld.core.terminal import Duration, define_option, file_option
from mld.operating.acts.act_options import ActOptions, act, acting, file_and_words

if TYPE_CHECKING:
    from mld.fleet.values import Place
    from mld.operating.acts.act_options import ActTools
    from mld.operating.acts.plan import ActPlan

WAIT_POLL_S = 2.0
WAIT_DEFAULT = "5m"
WORDS_CHARACTERS_MAX = 200

_shard = click.argument("words", metavar="[APP.properties] SHARD", nargs=-1)
_shard_and_worker = click.argument("words", metavar="[APP.properties] SHARD WORKER", nargs=-1)
_maybe_shard = click.argument("words", metavar="[APP.properties] [SHARD]", nargs=-1)
_worker = click.argument("words", metavar="[APP.properties] WORKER", nargs=-1)
_why = click.option("--why", default="", metavar="TEXT", help="Shown to who looks at it, with your name and the time.")


@click.command()
@_shard_and_worker
@file_option
@define_option
@acting
def move(
    words: Sequence[str],
    option_file: str | None,
    overrides: Sequence[str],
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Give one shard to one worker, by a handoff.

    SHARD is a shard's id, or its number. The leader leaves it there for an hour; then it evens out the load as before.
    """

    file, (shard, worker) = file_and_words(words, option_file, "SHARD", "WORKER")

    async def plan(tools: ActTools) -> ActPlan:
        from mld.operating.acts.steering import plan_move

        fleet = await tools.reader.look()
        return plan_move(fleet, shard, worker, is_3x=await tools.is_3x(), now_s=tools.clock.wall())

    sys.exit(act("mld move", file, overrides, ActOptions(execute, backup_file, output), plan))


@click.command()
@_maybe_shard
@file_option
@define_option
@click.option("--worker", "of_worker", metavar="WORKER", help="All shards of this worker, instead of one SHARD.")
@acting
def release(
    words: Sequence[str],
    of_worker: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Take one shard, or all shards of a worker, and hand them to the workers with the fewest leases.

    SHARD is a shard's id, or its number.
    """
    file, shards = file_and_words(words, option_file, *(() if of_worker is not None else ("SHARD",)))

    async def plan(tools: ActTools) -> ActPlan:
        from mld.operating.acts.steering import plan_release, shards_of

        fleet = await tools.reader.look()
        named = shards if of_worker is None else shards_of(fleet, of_worker)
        return plan_release(fleet, named, tools.settings.max_leases_for_worker, is_3x=await tools.is_3x())

    sys.exit(act("mld release", file, overrides, ActOptions(execute, backup_file, output), plan))


@click.command()
@_worker
@file_option
@define_option
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
@acting
def drain(
    words: Sequence[str],
    option_file: str | None,
    overrides: Sequence[str],
    undo: bool,
    wait_s: float | None,
    why: str,
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Empty a worker: what it has goes to others, and it gets leases only if no other has room for them.

    It lasts until --undo, or until the worker stops.
    """

    file, (worker,) = file_and_words(words, option_file, "WORKER")

    async def plan(tools: ActTools) -> ActPlan:
        from mld.operating.acts.steering import plan_drain, plan_undrain

        fleet, place = await tools.reader.look(), _report_place(tools, worker)
        if undo:
            return plan_undrain(fleet, worker, place)
        most = tools.settings.max_leases_for_worker
        return plan_drain(fleet, worker, place, _words(tools.clock.wall(), why), most, is_3x=await tools.is_3x())

    async def is_empty(tools: ActTools) -> bool:
        from mld.operating.acts.execution import until

        async def holds_none() -> bool:
            return not any(one.leases for one in (await tools.reader.look()).workers if one.worker == worker)

        return await until(holds_none, tools.clock, within_s=wait_s or 0.0, every_s=WAIT_POLL_S)

    waiting = None if undo or wait_s is None else is_empty
    options = ActOptions(execute, backup_file, output)
    sys.exit(act("mld drain", file, overrides, options, plan, waiting))


@click.command()
@_shard
@file_option
@define_option
@_why
@acting
def pause(
    words: Sequence[str],
    option_file: str | None,
    overrides: Sequence[str],
    why: str,
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Let a shard wait: its lease stays held, its child stays up, and nothing is delivered until `mld resume`.

    SHARD is a shard's id, or its number.
    """

    file, (shard,) = file_and_words(words, option_file, "SHARD")

    async def plan(tools: ActTools) -> ActPlan:
        from mld.operating.acts.steering import plan_pause

        return plan_pause(await tools.reader.look(), shard, _words(tools.clock.wall(), why))

    sys.exit(act("mld pause", file, overrides, ActOptions(execute, backup_file, output), plan))


@click.command("restart-child")
@_shard
@file_option
@define_option
@_why
@acting
def restart_child(
    words: Sequence[str],
    option_file: str | None,
    overrides: Sequence[str],
    why: str,
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Have the record processor of a shard killed, wherever it runs, and started again at the checkpoint.

    At once, without a pause for earlier failures, and without being counted as one. SHARD is a shard's id, or its
    number.
    """

    file, (shard,) = file_and_words(words, option_file, "SHARD")

    async def plan(tools: ActTools) -> ActPlan:
        from mld.operating.acts.steering import plan_restart

        return plan_restart(await tools.reader.look(), shard, _words(tools.clock.wall(), why))

    sys.exit(act("mld restart-child", file, overrides, ActOptions(execute, backup_file, output), plan))


@click.command()
@_shard
@file_option
@define_option
@acting
def resume(
    words: Sequence[str],
    option_file: str | None,
    overrides: Sequence[str],
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Let a paused shard go on. SHARD is a shard's id, or its number."""

    file, (shard,) = file_and_words(words, option_file, "SHARD")

    async def plan(tools: ActTools) -> ActPlan:
        from mld.operating.acts.steering import plan_resume

        return plan_resume(await tools.reader.look(), shard)

    sys.exit(act("mld resume", file, overrides, ActOptions(execute, backup_file, output), plan))


def _words(now_s: float, why: str) -> str:
    """Who does it, when, and why."""
    when = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    try:
        who = getpass.getuser()
    except OSError:
        who = str(os.getuid())
    words = f"by {who}@{socket.gethostname()} at {when}" + (f": {why}" if why else "")
    return words[:WORDS_CHARACTERS_MAX]


def _report_place(tools: ActTools, worker: str) -> Place:
    """Where the worker's report is: beside the leases, or in the table of KCL 3.0 to 3.4."""
    from mld.fleet.values import LEASE_TABLE_KEY, REPORTS_TABLE_KEY, Place

    if tools.table.row(worker) is not None:
        return Place(tools.settings.table_name, LEASE_TABLE_KEY)
    return Place(tools.settings.worker_metrics_table_name, REPORTS_TABLE_KEY)
