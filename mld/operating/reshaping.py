"""`mld migrate-streams`: which stream the leases of a table belong to, and the writing. The shell of `table_forms`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mld.core.stream_ids import StreamId
from mld.core.terminal import EXIT_OK
from mld.core.turns import in_turns
from mld.fleet.leader.lock import LOCK_KEY
from mld.operating.acting import Report, carry_out, perform
from mld.operating.application import Application, save_before
from mld.operating.naming import is_meant, listed, names_of, streams_in
from mld.operating.operator_hold import MARGIN_S, Observed, moved
from mld.operating.options import Asked, show
from mld.operating.plan import ActRefusedError, Outcome, RawTable
from mld.operating.table_forms import Reshaping, TableForm, require_alone
from mld.properties.settings import Settings, StreamSetting
from mld.shards.identity import foreign_evidence
from mld.tracking.stream_list import Contradiction, ListedStream, identify
from mld.tracking.stream_rows import within_stream

STOP_FIRST = "stop them first: a worker makes the rows of its own form anew"
ROUNDS_MAX = 8
"""How often the table is looked at for what is left: three steps, and requests that failed."""


async def to_several(app: Application, table: RawTable, label: str, epoch: int | None) -> Reshaping:
    """Plan the leases of one stream as those of `label`. Raises ActRefusedError, StreamError.

    The service is asked, so that rows of another stream are not taken for those of this one.
    """
    answer = await app.streams.describe()
    known = listed(table)
    found = identify(
        label,
        answer.arn,
        answer.created_ms,
        epoch=epoch,
        listed=known.current().get(label),
        in_table=streams_in(table.scan.leases),
    )
    if isinstance(found, Contradiction):
        raise ActRefusedError(found.reason)
    await _require_own(app, table, None)
    return Reshaping(TableForm.SEVERAL, ListedStream(str(found), label, answer.arn, answer.created_ms))


async def to_one(app: Application, table: RawTable, wanted: Settings | StreamSetting) -> Reshaping | None:
    """Plan the leases of the table's only stream in the form of one stream; None if none has the other form.

    `wanted` is the file of one stream, or the stream of a file of several. Raises ActRefusedError, StreamError.
    """
    known = listed(table)
    ids = streams_in(table.scan.leases)
    if not ids and known.streams:
        ids = (known.streams[0].id,)  # all leases are turned, and the list is left
    if not ids:
        return None
    mine = [one for one in ids if _is_wanted(one, wanted)]
    if not mine:
        raise ActRefusedError(
            f"the table holds leases of {names_of(ids)}, and the file names stream "
            f"{_name_of(wanted)}: name the stream whose leases are to be kept"
        )
    if len(mine) > 1:
        raise ActRefusedError(
            f"the table holds leases of several streams of that name ({names_of(mine)}), as the "
            "stream was deleted and made again: let mld.formerStreams = delete take the old ones away first"
        )
    require_alone(table, mine[0])
    if streams_in(table.scan.leases):
        await _require_own(app, table, str(mine[0]))
    return Reshaping(TableForm.ONE, ListedStream(str(mine[0]), mine[0].name, ""))


def _is_wanted(stream: StreamId, wanted: Settings | StreamSetting) -> bool:
    if isinstance(wanted, StreamSetting):
        return is_meant(wanted, str(stream))
    account = None if wanted.stream_arn is None else wanted.stream_arn.split(":")[4]
    return stream.name == wanted.stream_name and account in (None, stream.account)


def _name_of(wanted: Settings | StreamSetting) -> str:
    return wanted.name if isinstance(wanted, StreamSetting) else wanted.stream_name


async def _require_own(app: Application, table: RawTable, stream: str | None) -> None:
    """Raise ActRefusedError if the leases of `stream`, or those that name none, are certainly another stream's."""
    leases = [within_stream(lease) for lease in table.scan.leases if lease.stream == stream]
    foreign = await in_turns(foreign_evidence(await app.shards(), leases))
    if foreign is not None:
        raise ActRefusedError(foreign)


async def reshape(app: Application, wanted: Reshaping, first: RawTable, report: Report) -> bool:
    """Write step after step until nothing is left; whether that was reached. `first` is the table as it was planned.

    Each round looks at the table again, so what a lost answer hides is seen there. Raises ActRefusedError if somebody
    else is at work, TableError.
    """
    before, is_settled = wanted.sources(first), False
    for _ in range(ROUNDS_MAX):
        seen = await app.look()
        wanted.require_still(before, seen.table)
        plan = wanted.next_step(seen.table)
        if not plan.changes:
            return True
        if not is_settled and wanted.deletes(plan):
            await _require_settled(app, wanted, seen)
            is_settled = True
        await carry_out(plan, lambda _: app.leases, app.clock, report=report)
    return False


async def _require_settled(app: Application, wanted: Reshaping, seen: Observed) -> None:
    """Raise ActRefusedError if a worker shows itself within a lease duration.

    Who starts now refuses the table, as it has rows of both forms. Who had looked at it before the first copy takes its
    leases, reports or leads by then; without its rows it would make them anew. TableError.
    """
    await app.clock.sleep(app.lease_duration_s + MARGIN_S)
    now = await app.look()
    wanted.require_still(wanted.sources(seen.table), now.table)
    workers = sorted(moved(seen, now))
    if not workers and seen.table.row(LOCK_KEY) != now.table.row(LOCK_KEY):
        workers = ["a worker that leads"]
    if workers:
        raise ActRefusedError(
            f"a worker has started meanwhile ({names_of(workers)}), and nothing was taken away from it: stop it, and "
            "ask again; until then no other worker starts, because the table has rows of both forms"
        )


async def migrate(app: Application, asked: Asked, form: TableForm) -> int:
    """Turn the table into the form, or show what that would do; the exit code. Raises ActRefusedError, TableError."""
    seen = await app.require_table(any_form=True)
    if form is TableForm.ONE:
        reshaping = await to_one(app, seen.table, app.settings if app.setting is None else app.setting)
    else:
        label, epoch = (
            (app.settings.stream_name, None) if app.setting is None else (app.setting.name, app.setting.epoch)
        )
        reshaping = await to_several(app, seen.table, label, epoch)
    if reshaping is None:
        show(asked.output, ["the table has the form of one stream already", "nothing to do"], {"changes": []})
        return EXIT_OK
    wanted, written = reshaping, dict[tuple[str, str], Outcome]()

    async def write(report: Report) -> tuple[Sequence[Outcome], bool]:
        def note(outcome: Outcome) -> None:
            written[outcome.change.key, outcome.change.words] = outcome
            report(outcome)

        is_done = await reshape(app, wanted, seen.table, note)
        return tuple(written.values()), is_done

    save = partial(save_before, app, "migrate-streams", seen, asked)
    return await perform(
        wanted.whole(seen.table), asked, save, write, partial(app.require_no_workers, seen, STOP_FIRST)
    )
