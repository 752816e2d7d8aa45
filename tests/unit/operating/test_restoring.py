"""What a saved file makes of a table, and what of its rows is put back as it was."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from mld.operating.backup import BackupHeader, write_backup
from mld.operating.plan import ActRefusedError, raw_table
from mld.operating.restoring import Restoration, Saved, read_saved, require_same_table
from mld.shards.graph import ShardGraph
from tests.support.changes import operation_of, request_for
from tests.unit.shards.twins import GRAPH_S, done, row, sid

HEADER = BackupHeader("app", "app", "clicks", "2026-01-31T00:00:00+00:00", "export")


def stored(lease: Lease, **more: Any) -> dict[str, Any]:
    """A row of any age."""
    fresh = new_row(Lease(lease.key, lease.checkpoint, parents=lease.parents, children=lease.children))
    return {**fresh, "leaseCounter": {"N": "7"}, **more}


def saved(*leases: Lease) -> Saved:
    return Saved(HEADER, leases, {lease.key: stored(lease) for lease in leases})


def planned(file: Saved, *leases: Lease, may_skip: bool = False) -> dict[str, tuple[str, str]]:
    table = raw_table([stored(lease) for lease in leases])
    plan = Restoration(file, ShardGraph(GRAPH_S), may_skip).plan(table, "me")
    return {change.key: (operation_of(change), change.words) for change in plan.changes}


def test_a_checkpoint_goes_back_and_an_equal_one_stays():
    changes = planned(saved(row(0, 11), row(3, 12)), row(0, 15), row(3, 12))
    assert changes == {sid(0): ("UpdateItem", "from 15/0 back to 11/0")}


def test_rows_below_a_shard_that_is_unfinished_in_the_file_are_read_again():
    changes = planned(saved(row(0, 11), row(3, 12)), done(0, children=(1, 2)), row(1, 25), row(2, 25), row(3, 12))
    assert changes[sid(0)] == ("UpdateItem", "from SHARD_END back to 11/0")
    assert {key for key, (kind, _) in changes.items() if kind == "DeleteItem"} == {sid(1), sid(2)}
    assert list(changes) == [sid(0), sid(1), sid(2)]


def test_rows_below_a_finished_one_stay():
    plan = Restoration(saved(done(0, children=(1, 2)), row(3, 12)), ShardGraph(GRAPH_S)).plan(
        raw_table([stored(row(1, 25)), stored(row(3, 12))]), "me"
    )
    assert [change.key for change in plan.changes] == [sid(0)]
    assert f"not in the file and left alone: {sid(1)}" in plan.notes


@pytest.mark.parametrize(
    ("there", "in_file"), [(Position("11"), Position("12")), (TRIM_HORIZON, Position("1")), (Position("15"), SHARD_END)]
)
def test_nothing_is_skipped_unless_asked_for(there: Position, in_file: Position) -> None:
    with pytest.raises(ActRefusedError, match=rf"ahead of the table for {sid(3)}: .*--skip-forward"):
        planned(saved(row(3, in_file)), row(3, there))
    assert planned(saved(row(3, in_file)), row(3, there), may_skip=True)


def test_a_missing_row_is_put_back_as_it_was_without_its_owners():
    lease = row(3, 12)
    old = stored(
        lease,
        leaseOwner={"S": "w1"},
        checkpointOwner={"S": "w0"},
        mldState={"S": "idle"},
        mldHeartbeat={"S": "1"},
        throughputKBps={"N": "1.5"},
        unknown={"BOOL": True},
    )
    plan = Restoration(Saved(HEADER, (lease,), {lease.key: old}), ShardGraph(GRAPH_S)).plan(raw_table([]), "me")
    (change,) = plan.changes
    assert request_for(change)["ConditionExpression"] == "attribute_not_exists(#leaseKey)"
    assert request_for(change)["Item"] == stored(
        lease, leaseOwner={"S": "me"}, throughputKBps={"N": "1.5"}, unknown={"BOOL": True}
    )


def test_records_that_left_the_stream_are_named():
    plan = Restoration(saved(row(9, 11)), ShardGraph(GRAPH_S)).plan(raw_table([]), "me")
    assert f"Kinesis has no records any more of {sid(9)}" in plan.notes


def test_a_file_is_read_back_and_a_damaged_row_is_named(tmp_path: Path) -> None:
    lock = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
    write_backup(tmp_path / "good", HEADER, [stored(row(3, 12)), lock])
    assert [lease.key for lease in read_saved(tmp_path / "good").leases] == [sid(3)]

    write_backup(tmp_path / "bad", HEADER, [{"leaseKey": {"S": sid(3)}}])
    with pytest.raises(ActRefusedError, match=f"lease row {sid(3)} cannot be read"):
        read_saved(tmp_path / "bad")
    (tmp_path / "none").write_text(json.dumps(asdict(HEADER)) + "\n")
    with pytest.raises(ActRefusedError, match="holds no lease"):
        read_saved(tmp_path / "none")


def test_a_file_of_another_table_is_refused():
    require_same_table(saved(row(3)), "app", "app")
    with pytest.raises(ActRefusedError, match="use --from-another to restore this file"):
        require_same_table(saved(row(3)), "app", "other")
