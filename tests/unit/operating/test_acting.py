"""What an act saves, prints and keeps, whatever becomes of its changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.lease import Lease
from mld.operating import operator_hold
from mld.operating.acting import Report, perform
from mld.operating.options import Asked
from mld.operating.plan import ActPlan, Change, Fate, KeptLines, Outcome
from tests.virtual_time import virtual

CHANGE = Change("goes", writes.create(Lease("shard", TRIM_HORIZON)))


async def performed(path: Path, fate: Fate, *, execute: bool = True) -> int:
    async def write(report: Report) -> tuple[Sequence[Outcome], bool]:
        assert path.read_text() == "a record\n", "it is on the disk before anything is written"
        outcome = Outcome(CHANGE, fate)
        report(outcome)
        return (outcome,), fate is Fate.DONE

    plan = ActPlan("title", (CHANGE,), kept=KeptLines(path, ("a record\n",)))
    asked = Asked("f", execute=execute, output="json")
    return await perform(plan, asked, lambda: Path("rows"), write)


@pytest.mark.parametrize("fate", [Fate.DONE, Fate.UNKNOWN, Fate.REFUSED])
@virtual
async def test_what_a_change_takes_away_is_kept_unless_it_is_surely_not_made(
    fate: Fate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept"
    assert await performed(path, fate) == (0 if fate is Fate.DONE else 1)
    value = json.loads(capsys.readouterr().out)
    assert path.exists() is (fate is not Fate.REFUSED)
    assert value.get("file") == (None if fate is Fate.REFUSED else str(path))


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

    monkeypatch.setattr(operator_hold.getpass, "getuser", nameless)
    assert operator_hold.user_name().isdigit()
