"""`mld migrate-streams`: a lease table of one stream becomes one of several, or the other way round. Options only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mld.core.terminal import EXIT_OK, chosen_file, properties_file
from mld.operating.acts.act_options import ActOptions, acting, perform
from mld.operating.reset_commands import run_with_doors, save_before, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mld.operating.acts.act_options import Report
    from mld.operating.acts.plan import Outcome
    from mld.operating.resets.application import Doors
    from mld.operating.resets.table_forms import Reshaping

STOP_FIRST = "stop them first: a worker makes the rows of its own form anew"


@click.command("migrate-streams")
@properties_file
@click.option(
    "--to",
    "form",
    type=click.Choice(["several", "one"]),
    required=True,
    help="The form of the table: for several streams (mld.streams), or for one (streamName).",
)
@click.option("--stream", "stream_name", metavar="NAME", help="Whose leases they are, if the file names several.")
@acting
def migrate_streams(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    form: str,
    stream_name: str | None,
    execute: bool,
    backup_file: str | None,
    output: str,
) -> None:
    """Turn the leases of one stream into the form of several streams, or back; all checkpoints are kept.

    The file may be that of before or that of after. All workers must be stopped. If it breaks off, the same command
    again does what is left; until then workers refuse the table.
    """

    async def work(doors: Doors) -> int:
        from mld.operating.resets.reshaping import reshape

        app = doors.app
        seen = await app.require_table(any_form=True)
        reshaping = await _planned(doors, form)
        if reshaping is None:
            show(output, ["the table has the form of one stream already", "nothing to do"], {"changes": []})
            return EXIT_OK
        plan = reshaping.whole(seen.table)
        written: dict[tuple[str, str], Outcome] = {}

        async def write(report: Report) -> tuple[Sequence[Outcome], bool]:
            def note(outcome: Outcome) -> None:
                written[outcome.change.key, outcome.change.words] = outcome
                report(outcome)

            is_done = await reshape(app, reshaping, seen.table, note)
            return tuple(written.values()), is_done

        return await perform(
            plan,
            ActOptions(execute, backup_file, output),
            lambda: save_before("migrate-streams", doors, seen.table.rows, backup_file),
            write,
            lambda: app.require_no_workers(seen, STOP_FIRST),
        )

    run_with_doors(chosen_file(option_file, argument_file), overrides, work, stream_name)


async def _planned(doors: Doors, form: str) -> Reshaping | None:
    from mld.operating.resets.reshaping import to_one, to_several

    app, setting = doors.app, doors.stream
    table = (await app.require_table(any_form=True)).table
    if form == "one":
        return await to_one(app, table, doors.settings if setting is None else setting)
    label, epoch = (app.stream_name, None) if setting is None else (setting.name, setting.epoch)
    return await to_several(app, table, label, epoch)
