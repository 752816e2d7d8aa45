"""`mld migrate-streams`: a lease table of one stream becomes one of several, or the other way round. Options only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mld.operating.acts.act_options import acting
from mld.operating.reset_commands import run_with_doors, save_before, show
from mld.terminal import EXIT_FAILURE, EXIT_OK, chosen_file, properties_file, say

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        lines = [plan.title, *(f"  {change.key}: {change.words}" for change in plan.changes), *plan.notes]
        changes = [{"key": one.key, "change": one.words, "outcome": "planned"} for one in plan.changes]
        value: dict[str, Any] = {"plan": plan.title, "changes": changes, "notes": list(plan.notes)}
        if not plan.changes:
            show(output, [*lines, "nothing to do"], value)
            return EXIT_OK
        show(output, lines, None if execute else value)
        await app.require_no_workers(seen, STOP_FIRST)
        if not execute:
            show(output, ["nothing was done; --execute does it"], None)
            return EXIT_OK
        saved = save_before("migrate-streams", doors, seen.table.rows, backup_file)
        show(output, [f"the rows are saved in {saved}"], None)
        written: dict[tuple[str, str], Outcome] = {}

        def report(outcome: Outcome) -> None:
            written[outcome.change.key, outcome.change.words] = outcome
            why = f": {outcome.why}" if outcome.why else ""
            show(output, [f"  {outcome.change.key}: {outcome.change.words}: {outcome.fate.value}{why}"], None)

        is_done = await reshape(app, reshaping, seen.table, report)
        value["changes"] = [
            {"key": one.change.key, "change": one.change.words, "outcome": one.fate.value}
            | ({"why": one.why} if one.why else {})
            for one in written.values()
        ]
        if output == "json":
            show(output, [], value | {"saved": str(saved)})
        if not is_done:
            say("not all rows were written; the same command again does what is left")
        return EXIT_OK if is_done else EXIT_FAILURE

    run_with_doors(chosen_file(option_file, argument_file), overrides, work, stream_name)


async def _planned(doors: Doors, form: str) -> Reshaping | None:
    from mld.operating.resets.reshaping import to_one, to_several

    app, setting = doors.app, doors.stream
    table = (await app.require_table(any_form=True)).table
    if form == "one":
        return await to_one(app, table, doors.settings if setting is None else setting)
    label, epoch = (app.stream_name, None) if setting is None else (setting.name, setting.epoch)
    return await to_several(app, table, label, epoch)
