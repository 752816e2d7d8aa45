"""What an act saves, prints and keeps, whatever becomes of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mld.core.errors import TableThrottledError, TableUnavailableError
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.lease import Lease
from mld.operating import operator_id
from mld.operating.acting import perform
from mld.operating.application import application_with
from mld.operating.exporting import export_tables
from mld.operating.options import Invocation
from mld.operating.plan import ActPlan, Change, Fate, KeptLines, Outcome
from mld.operating.table_access import READ_AGAIN_S, Report, read_table
from tests.support.fleet import TABLE, settings_of
from tests.twins.dynamo import MemoryDynamo, throttled
from tests.twins.streams import MemoryStreams
from tests.virtual_time import virtual

CHANGE = Change("goes", writes.create(Lease("shard", TRIM_HORIZON)))


async def performed(path: Path, fate: Fate, *, execute: bool = True) -> int:
    async def write(report: Report) -> Sequence[Outcome]:
        assert path.read_text() == "a record\n", "it is on the disk before anything is written"
        outcome = Outcome(CHANGE, fate)
        report(outcome)
        return (outcome,)

    plan = ActPlan("title", (CHANGE,), kept=KeptLines(path, ("a record\n",)))
    asked = Invocation("f", execute=execute)
    return await perform(plan, asked, lambda: Path("rows"), write)


@pytest.mark.parametrize("fate", [Fate.DONE, Fate.UNKNOWN, Fate.REFUSED])
@virtual
async def test_what_a_change_takes_away_is_kept_unless_it_is_surely_not_made(
    fate: Fate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept"
    assert await performed(path, fate) == (0 if fate is Fate.DONE else 1)
    assert path.exists() is (fate is not Fate.REFUSED)
    assert (f"{path} is gone again" in capsys.readouterr().out) is (fate is Fate.REFUSED)


@virtual
async def test_what_was_written_before_a_failure_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def write(report: Report) -> Sequence[Outcome]:
        report(Outcome(CHANGE, Fate.DONE))
        raise TableUnavailableError("no answer")

    asked = Invocation("f", execute=True)
    with pytest.raises(TableUnavailableError):
        await perform(ActPlan("title", (CHANGE,)), asked, lambda: Path("rows"), write)
    assert capsys.readouterr().out.splitlines()[-2:] == ["the rows are saved in rows", "  shard: done"]


@virtual
async def test_a_page_that_is_throttled_is_asked_for_again() -> None:
    streams = MemoryStreams()
    dynamo = MemoryDynamo(streams.clock)
    app = application_with(settings_of(), dynamo, streams, streams.clock)
    await app.leases.ensure()
    faults = iter([throttled("Scan")] * len(READ_AGAIN_S))
    dynamo.faults = lambda *_: next(faults, None)
    assert (await read_table(app.calls, app.clock)).rows == ()
    faults = iter([throttled("Scan")] * (len(READ_AGAIN_S) + 1))
    with pytest.raises(TableThrottledError):
        await read_table(app.calls, app.clock)


@virtual
async def test_an_export_has_a_file_for_each_table_that_has_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = MemoryStreams()
    dynamo = MemoryDynamo(streams.clock)
    app = application_with(settings_of(), dynamo, streams, streams.clock)
    await app.leases.ensure()
    for name, key in (("CoordinatorState", "key"), ("WorkerMetricStats", "wid")):
        params = {
            "TableName": f"{TABLE}-{name}",
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        await dynamo.call("CreateTable", params)
    dynamo.put_row(f"{TABLE}-WorkerMetricStats", {"wid": {"S": "w1"}})

    assert await export_tables(app, tmp_path / "rows.jsonl") == 0
    leases, reports = tmp_path / "rows.jsonl", tmp_path / f"rows-{TABLE}-WorkerMetricStats.jsonl"
    assert capsys.readouterr().out.splitlines() == [
        f"0 rows of {TABLE} are saved in {leases}",
        f"1 rows of {TABLE}-WorkerMetricStats are saved in {reports}",
    ]
    assert sorted(tmp_path.iterdir()) == sorted((leases, reports))


@virtual
async def test_a_plan_that_is_only_shown_writes_no_file(tmp_path: Path) -> None:
    assert await performed(tmp_path / "kept", Fate.DONE, execute=False) == 0
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_an_operator_whose_account_has_no_name_is_named_by_its_number(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise error

    monkeypatch.setattr(operator_id.getpass, "getuser", nameless)
    assert operator_id.user_name().isdigit()
