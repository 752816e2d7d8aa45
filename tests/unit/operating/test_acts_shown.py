"""What an act shows is what it does: whole acts of an operator beside a fleet, from the plan to the rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mld.operating.application import Application
from mld.operating.exporting import export_tables
from mld.operating.operator_id import OPERATOR_PREFIX
from mld.operating.options import Invocation
from mld.operating.points import Point, PointKind
from mld.operating.resetting import reset_to
from mld.operating.restoring import restore_from
from tests.support.changes import operator_on
from tests.support.fleet import TABLE, Fleet, in_fleet

SHARD_0 = "shardId-000000000000"
HORIZON = Point(PointKind.TRIM_HORIZON)


@dataclass(eq=False)
class Acts:
    """An operator's commands on a fleet; `said` is what each printed, a line of changes each."""

    world: Fleet
    directory: Path
    capsys: pytest.CaptureFixture[str]
    count: int = field(init=False, default=0)

    def asked(self, *, execute: bool) -> Invocation:
        self.count += 1
        return Invocation("app.properties", execute=execute, backup_file=str(self.directory / f"rows-{self.count}"))

    def app(self) -> Application:
        return operator_on(self.world)

    def changes(self) -> list[str]:
        """The changes that were printed since, by key."""
        lines = self.capsys.readouterr().out.splitlines()
        return [line.strip().partition(": ")[0] for line in lines if line.startswith("  ")]

    async def reset(self, point: Point = HORIZON, shard: str | None = None) -> None:
        """Show it, then do it: the same rows."""
        for execute in (False, True):
            asked = self.asked(execute=execute)
            assert await reset_to(self.app(), asked, point, None, shard, stop_fleet=False) == 0
            shown = self.changes()
            if not execute:
                planned = shown
        assert planned
        assert shown == planned * 2, "the plan, and then what became of each"


async def split_and_cleaned(world: Fleet) -> None:
    """Two shards, of which one was split and its row cleaned up; nobody runs any more."""
    running = world.start("w1", seed=1)
    world.put(20)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.put(20)
    await world.until(lambda: SHARD_0 not in rows_of(world) and len(rows_of(world)) == 3, 600.0)
    await world.until(world.all_delivered)
    await running.stop()


def rows_of(world: Fleet) -> dict[str, dict[str, dict[str, str]]]:
    """The lease rows, by key."""
    return {key: row for key, row in world.dynamo.rows(TABLE).items() if key.startswith("shardId")}


def rows_free(world: Fleet) -> bool:
    return not any(
        row.get("leaseOwner", {}).get("S", "").startswith(OPERATOR_PREFIX) for row in rows_of(world).values()
    )


@in_fleet(2)
async def test_a_row_that_was_cleaned_up_is_made_again_and_all_is_read_from_the_beginning(
    world: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await split_and_cleaned(world)
    acts = Acts(world, tmp_path, capsys)
    await acts.reset()
    assert SHARD_0 in rows_of(world)
    assert rows_free(world)
    world.recorder.deliveries.clear()
    world.start("w2", seed=2)
    await world.until(world.all_delivered)


@in_fleet(2)
async def test_one_shard_without_a_row_begins_again(
    world: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await split_and_cleaned(world)
    await Acts(world, tmp_path, capsys).reset(shard="0")
    assert rows_of(world)[SHARD_0]["checkpoint"] == {"S": "TRIM_HORIZON"}


@in_fleet(2)
async def test_a_file_puts_back_rows_that_are_gone(
    world: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = world.start("w1", seed=1)
    world.put(20)
    await world.until(world.all_delivered)
    await running.stop()
    acts = Acts(world, tmp_path, capsys)
    saved = tmp_path / "saved"
    assert await export_tables(acts.app(), saved) == 0
    before = rows_of(world)
    world.dynamo.delete_row(TABLE, SHARD_0)
    capsys.readouterr()
    for execute, printed in ((False, 1), (True, 2)):
        assert (
            await restore_from(
                acts.app(),
                acts.asked(execute=execute),
                saved,
                None,
                from_another=False,
                may_skip=False,
                stop_fleet=False,
            )
            == 0
        )
        assert acts.changes() == [SHARD_0] * printed
    assert rows_of(world)[SHARD_0]["checkpoint"] == before[SHARD_0]["checkpoint"]
