"""A fleet as its tables show it: verdicts, what is unknown, shares, leader, holes, and what stands still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.fleet.leader.lock import DamagedLock, LockRow, SeenLock
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.operating.fleet_status import (
    FleetStatus,
    NoStreamError,
    chosen,
    fleet_status,
)
from mld.operating.listings import workers_listing
from mld.operating.shard_view import Verdict, ViewRules

NOW_S = 1_763_661_600
RULES = ViewRules(lease_duration_s=10.0)
HALF = HASH_KEY_MAX // 2
LEFT, RIGHT = HashRange(0, HALF), HashRange(HALF + 1, HASH_KEY_MAX)
AT, LATER = Position("100"), Position("200")
ALIVE = WorkerReport("w-1", NOW_S - 5, mld={"version": "0.2.0"}, samples={"C": (50.0,)}, ranges={"C": (100,)})


def lease(key: str = "shardId-000000000000", **changes: object) -> Lease:
    fresh = ShardStatus("idle", NOW_S - 1, behind_ms=0, delivered=AT)
    base = Lease(key, AT, owner="w-1", hash_range=HashRange(0, HASH_KEY_MAX), status=fresh)
    return replace(base, **changes)  # type: ignore[arg-type]


def view(*leases: Lease, lock: SeenLock = None, **more: object) -> FleetStatus:
    return fleet_status(leases, (ALIVE,), lock, NOW_S, RULES, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        pytest.param(lease(), Verdict.OK, id="at the tip"),
        pytest.param(lease(status=ShardStatus("processing", NOW_S, 61_000)), Verdict.LAGGING, id="beyond the bound"),
        pytest.param(lease(status=ShardStatus("processing", NOW_S, 60_000)), Verdict.OK, id="just within it"),
        pytest.param(lease(status=ShardStatus("stalled", NOW_S, 61_000)), Verdict.STALLED, id="stands still"),
        pytest.param(lease(status=ShardStatus("stalled", NOW_S, 59_000)), Verdict.OK, id="slow, within the bound"),
        pytest.param(lease(status=ShardStatus("unreadable", NOW_S, 0)), Verdict.UNREADABLE, id="reads fail"),
        pytest.param(lease(status=ShardStatus("failing", NOW_S, 0)), Verdict.FAILING, id="fails without a note yet"),
        pytest.param(lease(status=ShardStatus("idle", NOW_S - 7, 0)), Verdict.UNKNOWN, id="older than two renewals"),
        pytest.param(lease(status=ShardStatus("idle", NOW_S)), Verdict.UNKNOWN, id="Kinesis has not said"),
        pytest.param(lease(status=None), Verdict.UNKNOWN, id="a worker of Java"),
        pytest.param(lease(owner=None), Verdict.STOPPED, id="nobody's"),
        pytest.param(lease(status=ShardStatus("parked", NOW_S, 0)), Verdict.PARKED, id="parked"),
        pytest.param(lease(paused="by me", failing=Failing(3, NOW_S, AT)), Verdict.PAUSED, id="paused"),
        pytest.param(lease(failing=Failing(3, NOW_S, AT)), Verdict.FAILING, id="failing"),
        pytest.param(lease(failing=Failing(3, NOW_S, TRIM_HORIZON)), Verdict.OK, id="failed before its checkpoint"),
        pytest.param(lease(checkpoint=SHARD_END, owner=None), Verdict.ENDED, id="read to its end"),
        pytest.param(lease(owner="w-2", checkpoint_owner="w-1"), Verdict.OK, id="handed over"),
    ],
)
def test_verdict(row: Lease, verdict: Verdict) -> None:
    assert [shard.verdict for shard in view(row).shards] == [verdict]


def test_the_leases_of_a_dead_worker_are_stopped() -> None:
    dead = WorkerReport("w-2", NOW_S - 61)
    row = lease(owner="w-2", status=ShardStatus("idle", NOW_S - 61, 0))
    seen = fleet_status([row], [ALIVE, dead], None, NOW_S, RULES)
    assert [shard.verdict for shard in seen.shards] == [Verdict.STOPPED]
    assert {worker.worker: worker.is_alive for worker in seen.workers} == {"w-1": True, "w-2": False}


def test_a_lag_that_is_not_fresh_is_unknown() -> None:
    seen = view(lease(status=ShardStatus("idle", NOW_S - 100, 0)))
    assert seen.behind_s is None
    assert seen.shards[0].age_s == 100


def test_workers_have_shares_kinds_and_figures() -> None:
    rows = [lease(f"shardId-00000000000{n}", owner=owner) for n, owner in enumerate(("w-1", "w-1", "w-2"))]
    rows.append(lease("shardId-000000000009", checkpoint=SHARD_END, owner="w-2"))
    one, other = view(*rows, lock=LockRow("w-2", 120.0, "v")).workers
    assert (one.leases, one.share, one.kind, one.cpu_percent, one.heard_s) == (2, 2 / 3, "mld 0.2.0", 50.0, 1)
    assert (other.leases, other.is_leader, other.kind, other.is_alive) == (1, True, "mld", None)


@pytest.mark.parametrize(
    ("lock", "leader"),
    [
        (LockRow("w-1", 120.0, "v"), "w-1"),
        (LockRow("w-1", 120.0, "v", is_released=True), None),
        (DamagedLock({}, "no owner"), None),
        (None, None),
    ],
    ids=["held", "released", "damaged", "none"],
)
def test_leader(lock: SeenLock, leader: str | None) -> None:
    assert view(lease(), lock=lock).leader == leader


def test_holes_are_what_no_open_lease_covers() -> None:
    assert view(lease(hash_range=LEFT)).holes == (RIGHT,)
    assert view(lease(hash_range=LEFT), lease("shardId-000000000001", hash_range=RIGHT)).holes == ()
    ended = lease("shardId-000000000001", hash_range=RIGHT, checkpoint=SHARD_END)
    assert view(lease(hash_range=LEFT), ended).holes == (RIGHT,)


def test_no_hole_is_claimed_where_a_range_is_not_known() -> None:
    assert view(lease(hash_range=LEFT), lease("shardId-000000000001", hash_range=None)).holes == ()
    assert view(lease(hash_range=LEFT), corrupt=[("shardId-000000000001", "damaged")]).holes == ()
    assert view().holes == ()


def test_a_worker_is_heard_by_whatever_it_writes() -> None:
    silent = WorkerReport("w-1", NOW_S - 300, mld={"version": "0.2.0"})
    seen = fleet_status([lease()], [silent], None, NOW_S, RULES)
    assert [(worker.is_alive, worker.heard_s) for worker in seen.workers] == [(True, 1)]
    assert [shard.verdict for shard in seen.shards] == [Verdict.OK]
    old = lease(status=ShardStatus("idle", NOW_S - 200, 0))
    assert [shard.verdict for shard in fleet_status([old], [silent], None, NOW_S, RULES).shards] == [Verdict.STOPPED]


def test_while_the_table_is_throttled_the_silent_are_not_dead() -> None:
    silent = WorkerReport("w-1", NOW_S - 300, mld={"version": "0.2.0"})
    old = lease(status=ShardStatus("idle", NOW_S - 200, 0))
    seen = fleet_status([old], [silent], None, NOW_S, replace(RULES, is_throttled=True))
    assert [(shard.verdict, shard.why) for shard in seen.shards] == [
        (Verdict.UNKNOWN, "silent for 3 min: the lease table is throttled")
    ]
    (worker,) = seen.workers
    assert (worker.is_alive, worker.why) == (None, "silent: the lease table is throttled")


@pytest.mark.parametrize(("ago_s", "is_shown"), [(600, True), (3_700, False)])
def test_a_worker_that_died_stays_visible_for_an_hour_with_its_end(ago_s: int, is_shown: bool) -> None:
    finder = replace(ALIVE, ends={"w-9": NOW_S - ago_s})
    seen = {worker.worker: worker for worker in fleet_status([lease()], [finder], None, NOW_S, RULES).workers}
    assert seen.keys() == ({"w-1", "w-9"} if is_shown else {"w-1"})
    if is_shown:
        assert (seen["w-9"].is_alive, seen["w-9"].leases) == (False, 0)
        assert seen["w-9"].why == "found dead 10 min ago by w-1, which took leases of it"


@pytest.mark.parametrize(("told_ago_s", "is_dead"), [(61, True), (59, False)])
def test_leases_that_nobody_had_room_for_are_stopped_once_their_owner_was_found_dead(
    told_ago_s: int, is_dead: bool
) -> None:
    """Its report is gone: whoever took others of its leases has deleted it."""
    finder = replace(ALIVE, ends={"w-2": NOW_S - 60})
    row = lease(owner="w-2", status=ShardStatus("idle", NOW_S - told_ago_s, 0))
    java = lease("shardId-000000000001", owner="java", status=None)
    for rules in (RULES, replace(RULES, is_throttled=True)):
        seen = fleet_status([row, java], [replace(finder, ends={**finder.ends, "java": NOW_S})], None, NOW_S, rules)
        assert [shard.verdict for shard in seen.shards] == [
            Verdict.STOPPED if is_dead else Verdict.UNKNOWN,
            Verdict.UNKNOWN,
        ]
        lives = {worker.worker: worker.is_alive for worker in seen.workers}
        assert lives == {"w-1": True, "w-2": False if is_dead else None, "java": None}


def test_a_worker_that_came_back_is_not_dead() -> None:
    finder = replace(ALIVE, ends={"w-2": NOW_S - 60})
    back = WorkerReport("w-2", NOW_S - 5, mld={"version": "0.2.0"})
    seen = {worker.worker: worker for worker in fleet_status([lease()], [finder, back], None, NOW_S, RULES).workers}
    assert (seen["w-2"].is_alive, seen["w-2"].why) == (True, None)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        pytest.param(lease(), None, id="well"),
        pytest.param(lease(status=None), "its worker does not tell", id="a worker of Java"),
        pytest.param(lease(status=ShardStatus("idle", NOW_S)), "not read yet", id="Kinesis has not said"),
        pytest.param(lease(status=ShardStatus("idle", NOW_S - 7, 0)), "silent for 7 s", id="older than two renewals"),
        pytest.param(lease(status=ShardStatus("unreadable", NOW_S, why="forbidden")), "forbidden", id="told"),
        pytest.param(lease(status=ShardStatus("parked", NOW_S)), "the log of its worker says why", id="not told"),
    ],
)
def test_what_is_not_well_or_unknown_has_a_reason(row: Lease, why: str | None) -> None:
    assert [shard.why for shard in view(row).shards] == [why]


def test_whether_a_worker_without_a_report_is_of_java_is_not_known() -> None:
    restored = lease("shardId-000000000001", owner="w-9", status=None)
    kinds = {worker.worker: worker.kind for worker in view(lease(owner="w-3"), restored).workers}
    assert kinds == {"w-1": "mld 0.2.0", "w-3": "mld", "w-9": "unknown"}


def test_shards_are_in_the_order_of_their_numbers() -> None:
    rows = [lease(f"shardId-{number:012}") for number in (10, 2, 1)]
    assert [shard.key[-2:] for shard in view(*rows).shards] == ["01", "02", "10"]


# --- several streams --------------------------------------------------------------------------------------------------

ORDERS, CLICKS = "111111111111:orders:17", "222222222222:clicks:18"


def of_stream(stream: str, number: int = 0, **changes: object) -> Lease:
    return lease(f"{stream}:shardId-{number:012}", stream=stream, **changes)


def test_shards_of_several_streams_stand_by_label_and_id() -> None:
    rows = [of_stream(CLICKS, 10), of_stream(CLICKS, 9), of_stream(ORDERS, 1)]
    seen = view(*rows, labels={ORDERS: "a label"})
    assert [shard.name for shard in seen.shards] == [
        f"{CLICKS}:shardId-000000000009",
        f"{CLICKS}:shardId-000000000010",
        "a label:shardId-000000000001",
    ]


def test_holes_are_those_of_each_stream_and_none_hides_anothers() -> None:
    rows = [of_stream(ORDERS, hash_range=LEFT), of_stream(CLICKS, hash_range=RIGHT)]
    seen = view(*rows, labels={ORDERS: "orders", CLICKS: "clicks"})
    assert seen.holes_of == {"orders": (RIGHT,), "clicks": (LEFT,)}
    assert len(seen.holes) == 2


def test_an_unreadable_row_makes_only_its_own_stream_unsure() -> None:
    rows = [of_stream(ORDERS, hash_range=LEFT), of_stream(CLICKS, hash_range=LEFT)]
    labels = {ORDERS: "orders", CLICKS: "clicks"}
    seen = view(*rows, labels=labels, corrupt=[(f"{ORDERS}:shardId-000000000001", "why")])
    assert seen.holes_of == {"clicks": (RIGHT,)}


def test_shards_without_hash_keys_have_no_holes() -> None:
    assert view(lease(hash_range=HashRange(0, 1)), lease("shardId-2", hash_range=HashRange(0, 1))).holes == ()


@pytest.mark.parametrize("name", ["the clicks", "clicks", CLICKS])
def test_one_stream_is_chosen_by_label_name_or_identifier(name: str) -> None:
    rows = [of_stream(ORDERS, hash_range=LEFT), of_stream(CLICKS, hash_range=LEFT)]
    seen = chosen(view(*rows, labels={CLICKS: "the clicks"}), name)
    assert [shard.lease.stream for shard in seen.shards] == [CLICKS]
    assert seen.holes_of == {"the clicks": (RIGHT,)}
    assert seen.workers[0].leases == 2


def test_a_stream_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(NoStreamError, match=f"no stream nope; it has {CLICKS}"):
        chosen(view(of_stream(CLICKS)), "nope")
    with pytest.raises(NoStreamError, match="form of one stream"):
        chosen(view(lease()), "nope")
    assert chosen(view(lease()), None).shards


@pytest.mark.parametrize("ahead_s", [30, 600])
def test_a_time_of_the_future_is_no_sign_of_life(ahead_s: int) -> None:
    now = 1_000_000
    lease = Lease("s", TRIM_HORIZON, owner="w", status=ShardStatus("idle", now + ahead_s, 0))
    found = fleet_status([lease], [WorkerReport("w", now + ahead_s, mld={"version": "1"})], None, now, ViewRules(10.0))
    (shard,), (worker,) = found.shards, found.workers
    if ahead_s <= 60:
        assert (shard.verdict, worker.is_alive, worker.is_ahead) == (Verdict.OK, True, False)
        return
    words = "clocks disagree: what was written last is 10 min in the future"
    assert (shard.verdict, shard.why, shard.behind_s) == (Verdict.UNKNOWN, words, None)
    assert (worker.is_alive, worker.why, worker.is_ahead) == (None, words, True)
    assert "in the future" in str(workers_listing(found).rows[0])
