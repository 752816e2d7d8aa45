"""What each act on a fleet would write, and why it may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON
from mld.fleet.leader.lock import LockRow
from mld.fleet.membership import LEASES_MAX
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Lease
from mld.leases.rows import LEASE_TABLE_KEY, REPORTS_TABLE_KEY, Place
from mld.operating.fleet_status import FleetStatus, fleet_status
from mld.operating.plan import ActPlan, ActRefusedError
from mld.operating.shard_view import ViewRules
from mld.operating.steering import (
    PIN_S,
    known_worker,
    plan_drain,
    plan_move,
    plan_pause,
    plan_release,
    plan_resume,
    plan_undrain,
)
from tests.support.changes import request_for

NOW = 1_763_000_000
RULES = ViewRules(lease_duration_s=10.0, application="clicks")
BESIDE = Place("leases", LEASE_TABLE_KEY)
LEGACY = Place("leases-WorkerMetricStats", REPORTS_TABLE_KEY)


def lease(number: int, owner: str | None = None, **more: object) -> Lease:
    return Lease(f"shardId-{number:012d}", TRIM_HORIZON, counter=7, owner=owner, **more)  # type: ignore[arg-type]


def report(worker: str, age_s: int = 5, **mld: str) -> WorkerReport:
    return WorkerReport(worker, NOW - age_s, mld={"version": "1.2.3", **mld})


def fleet(*leases: Lease, reports: tuple[WorkerReport, ...] = ()) -> FleetStatus:
    known = reports or (report("a"), report("b"), report("c"))
    return fleet_status(leases, known, LockRow("a", 120.0, "v"), NOW, RULES)


def refused(planned: Callable[[], object]) -> str:
    with pytest.raises(ActRefusedError) as caught:
        planned()
    return str(caught.value)


def said(plan: ActPlan) -> dict[str, str]:
    return {change.key[-2:]: change.words for change in plan.changes}


def test_nothing_goes_to_a_worker_of_another_application() -> None:
    reports = (report("a", stream="clicks"), report("b", stream="orders"), report("c"))
    status = fleet(lease(1, "a"), lease(2, "a"), reports=reports)
    plan = plan_drain(status, "a", BESIDE, "by me", LEASES_MAX, is_3x=True)
    assert said(plan) == {"a": plan.changes[0].words, "01": "handed by a to c", "02": "handed by a to c"}
    assert said(plan_move(status, "1", "c", is_3x=True, now_s=NOW))["01"] == "handed by a to c"


@pytest.mark.parametrize("owner", [None, "a", "b", "c"])
def test_no_shard_goes_to_or_from_a_worker_of_another_application(owner: str | None) -> None:
    status = fleet(lease(1, owner), reports=(report("a", stream="clicks"), report("b", stream="orders"), report("c")))
    plans: list[Callable[[], object]] = [
        lambda: plan_move(status, "1", "b", is_3x=True, now_s=NOW),
        lambda: plan_drain(status, "b", BESIDE, "by me", LEASES_MAX, is_3x=True),
    ]
    if owner == "b":
        plans += [lambda is_3x=is_3x: plan_release(status, ["1"], LEASES_MAX, is_3x=is_3x) for is_3x in (False, True)]  # type: ignore[misc]
    for planned in plans:
        assert "worker b reads stream orders, which this file does not name" in refused(planned)


# --- move -------------------------------------------------------------------------------------------------------------


def test_a_living_owner_hands_the_shard_over_and_it_is_pinned() -> None:
    plan = plan_move(fleet(lease(1, "a")), "1", "b", is_3x=True, now_s=NOW + 0.5)
    (change,) = plan.changes
    assert change.words == "handed by a to b"
    assert request_for(change)["UpdateExpression"] == (
        "SET #mldPinnedUntil = :pinnedUntil, #leaseOwner = :nextOwner, #checkpointOwner = :owner"
    )
    assert request_for(change)["ConditionExpression"] == (
        "#leaseKey = :key AND #leaseOwner = :owner AND attribute_not_exists(#checkpointOwner)"
    )
    assert request_for(change)["ExpressionAttributeValues"][":pinnedUntil"] == {"N": str(NOW + PIN_S)}


def test_a_shard_that_nobody_owns_is_given() -> None:
    (change,) = plan_move(fleet(lease(1, None), reports=(report("b"),)), "1", "b", is_3x=True, now_s=NOW).changes
    assert change.words == "nobody's, given to b"
    assert "#leaseCounter = :seen" in request_for(change)["ConditionExpression"]


def test_a_shard_is_not_taken_from_a_worker_that_reports_late() -> None:
    seen = fleet(lease(1, "d"), reports=(report("b"), report("d", age_s=500)))
    (change,) = plan_move(seen, "1", "b", is_3x=True, now_s=NOW).changes
    assert change.words == "handed by d to b"
    assert "#checkpointOwner = :owner" in request_for(change)["UpdateExpression"]


@pytest.mark.parametrize(
    ("shard", "target", "says"),
    [
        ("7", "b", "there is no shard 7"),
        ("1", "x", "there is no worker x; the table knows a, b, c, d, e"),
        ("1", "…", "there is no worker …; the table knows a, b, c, d, e"),
        ("1", "a", "shardId-000000000001 belongs to a already"),
        ("1", "d", "worker d has not reported lately"),
        ("1", "e", "worker e is drained (by me): end that first"),
        ("2", "b", "shardId-000000000002 was read to its end"),
        ("3", "b", "shardId-000000000003 is on its way to c: wait"),
    ],
)
def test_what_cannot_be_moved_is_refused(shard: str, target: str, says: str) -> None:
    seen = fleet(
        lease(1, "a"),
        Lease("shardId-000000000002", SHARD_END, owner="a"),
        lease(3, "c", checkpoint_owner="a"),
        reports=(report("a"), report("b"), report("c"), report("d", age_s=500), report("e", drain="by me")),
    )
    assert says in refused(lambda: plan_move(seen, shard, target, is_3x=True, now_s=NOW))


LONG, SHOWN = "f2bea819-e548-4c5d-a607-dde05e93434b", "f2bea819…"


@pytest.mark.parametrize("ending", ["", "-1"])
@pytest.mark.parametrize("is_short", [False, True])
def test_a_worker_is_known_by_its_id_and_as_a_narrow_terminal_shows_it(ending: str, is_short: bool) -> None:
    worker, name = LONG + ending, (SHOWN if is_short else LONG) + ending
    seen = fleet(lease(1, worker), reports=(report("a"), report(LONG), report(f"{LONG}-1"), report(f"{LONG}-10")))
    assert plan_drain(seen, name, BESIDE, "by me", LEASES_MAX, is_3x=True).title.startswith(f"drain {worker}:")


@pytest.mark.parametrize("name", ["mld-1", "f2be", "f2bea819", "…", ""])
def test_a_worker_is_not_known_by_a_part_of_its_id(name: str) -> None:
    seen = fleet(lease(1, "mld-10"), reports=(report("mld-10"), report(LONG)))
    assert f"there is no worker {name}; the table knows" in refused(lambda: known_worker(seen, name))


def test_two_workers_that_are_shown_alike_are_told_apart_by_their_ids() -> None:
    other = LONG.replace("e548", "e549")
    seen = fleet(lease(1, LONG), reports=(report(LONG), report(other)))
    assert f"several workers are shown as {SHOWN}" in refused(lambda: known_worker(seen, SHOWN))
    assert known_worker(seen, LONG).worker == LONG


def test_workers_of_2x_are_given_nothing() -> None:
    assert "rules of KCL 2.x" in refused(lambda: plan_move(fleet(lease(1, "a")), "1", "b", is_3x=False, now_s=NOW))
    assert "rules of KCL 2.x" in refused(
        lambda: plan_drain(fleet(lease(1, "a")), "a", BESIDE, "by me", LEASES_MAX, is_3x=False)
    )


# --- release ----------------------------------------------------------------------------------------------------------


def test_a_released_shard_goes_to_whom_has_the_fewest() -> None:
    plan = plan_release(fleet(lease(1, "a"), lease(2, "b")), ["1"], LEASES_MAX, is_3x=True)
    assert said(plan) == {"01": "handed by a to c"}


def test_in_2x_a_released_shard_is_for_whoever_takes_it() -> None:
    plan = plan_release(fleet(lease(1, "a")), ["1"], LEASES_MAX, is_3x=False)
    assert said(plan) == {"01": "taken from a, for nobody"}


def test_a_release_that_is_refused_is_not_sent_in_another_form() -> None:
    seen = lease(1, "a")
    (change,) = plan_release(fleet(seen), ["1"], LEASES_MAX, is_3x=False).changes
    assert change.write.refused(replace(seen, owner="b", checkpoint_owner="a")) is False


def test_a_shard_that_nobody_has_cannot_be_released() -> None:
    assert "nobody owns shardId-000000000001" in refused(
        lambda: plan_release(fleet(lease(1)), ["1"], LEASES_MAX, is_3x=True)
    )


# --- drain ------------------------------------------------------------------------------------------------------------


def test_a_drained_worker_is_marked_first_and_its_shards_are_dealt_out() -> None:
    seen = fleet(*(lease(n, "a") for n in (1, 2, 3)), lease(4, "c", checkpoint_owner="a"), lease(5, "b"))
    plan = plan_drain(seen, "a", BESIDE, "by me", LEASES_MAX, is_3x=True)
    assert [change.key for change in plan.changes] == ["a", *(f"shardId-{n:012d}" for n in (1, 2, 3))]
    assert said(plan) == {
        "a": "gets no more leases while others have room",
        "01": "handed by a to b",
        "02": "handed by a to c",
        "03": "handed by a to b",
    }
    assert plan.notes == ("shardId-000000000004 is on its way to c already",)
    assert plan.changes[0].place is None


def test_what_no_other_worker_has_room_for_stays_with_a_drained_one() -> None:
    ended = [lease(n, "b") for n in (7, 8, 9)]
    seen = fleet(
        *(lease(n, "a") for n in (1, 2, 3)),
        lease(5, "b"),
        lease(6, "c"),
        *(replace(one, checkpoint=SHARD_END) for one in ended),
    )
    plan = plan_drain(seen, "a", BESIDE, "by me", 2, is_3x=True)
    assert said(plan).keys() == {"a", "01", "02"}
    assert plan.notes == ("no other worker has room for shardId-000000000003 (maxLeasesForWorker=2)",)


def test_a_release_that_nobody_has_room_for_is_refused() -> None:
    seen = fleet(lease(1, "a"), lease(2, "b"), lease(3, "c"))
    assert "no other worker has room" in refused(lambda: plan_release(seen, ["1"], 1, is_3x=True))


def test_a_report_of_the_legacy_table_is_marked_there() -> None:
    (change,) = plan_drain(fleet(), "a", LEGACY, "by me", LEASES_MAX, is_3x=True).changes
    assert (change.place, request_for(change)["Key"]) == (LEGACY, {"wid": {"S": "a"}})


def test_asked_again_a_drain_gives_away_what_came_since() -> None:
    seen = fleet(lease(1, "a"), reports=(report("a", drain="by me"), report("b")))
    assert said(plan_drain(seen, "a", BESIDE, "by you", LEASES_MAX, is_3x=True)) == {"01": "handed by a to b"}


@pytest.mark.parametrize("owned", [True, False])
def test_the_last_worker_is_not_drained(owned: bool) -> None:
    seen = fleet(*([lease(1, "a")] if owned else []), reports=(report("a"), report("b", drain="by me")))
    assert "no other worker lives" in refused(lambda: plan_drain(seen, "a", BESIDE, "by me", LEASES_MAX, is_3x=True))


def test_a_drain_is_undone() -> None:
    seen = fleet(reports=(report("a", drain="by me"), report("b")))
    (change,) = plan_undrain(seen, "a", BESIDE).changes
    assert request_for(change)["UpdateExpression"] == "REMOVE #mldDrain"
    assert "worker b is not drained" in refused(lambda: plan_undrain(seen, "b", BESIDE))


# --- pause ------------------------------------------------------------------------------------------------------------


def test_a_pause_leaves_counter_and_owners_alone() -> None:
    (change,) = plan_pause(fleet(lease(1, "a")), "1", "by me: it burns").changes
    assert request_for(change)["UpdateExpression"] == "SET #mldPaused = :words"
    assert request_for(change)["ExpressionAttributeValues"] == {
        ":key": {"S": "shardId-000000000001"},
        ":words": {"S": "by me: it burns"},
        ":owner": {"S": "a"},
    }


def test_what_cannot_be_paused_or_resumed_is_refused() -> None:
    java = WorkerReport("j", NOW - 5)
    seen = fleet(lease(1, "a", paused="by you"), lease(2, "j"), reports=(report("a"), java))
    assert "is paused already: by you" in refused(lambda: plan_pause(seen, "1", "by me"))
    assert "belongs to j, a Java worker" in refused(lambda: plan_pause(seen, "2", "by me"))
    assert "shardId-000000000002 is not paused" in refused(lambda: plan_resume(seen, "2"))
    assert said(plan_resume(seen, "1")) == {"01": "goes on (by you)"}
