"""What is wrong with a fleet, by everything that may be known of it: each kind is found, named and remedied."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, STREAM_DISABLED, HashRange, Shard
from mld.fleet.report.reports import WorkerReport, own_report
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.metrics.events import Event, EventKind
from mld.metrics.progress import LateLoop
from mld.metrics.words import DYNAMODB, KINESIS
from mld.operating.alert_rules import prometheus_rules
from mld.operating.faults import (
    KINDS,
    FaultKind,
    FleetFault,
    Probe,
    Severity,
    fault_value,
)
from mld.operating.fleet_sight import FleetSight, Listed, Own
from mld.operating.fleet_status import fleet_status
from mld.operating.shard_verdicts import UNTOLD
from mld.operating.shard_view import Verdict, ViewRules
from mld.operating.verdicts import (
    all_kinds,
    counts,
    faults_of,
    is_green,
    why_not,
)
from tests.support.fleet import settings_of
from tests.unit.operating.test_fleet_status import LEFT, NOW_S, RULES, lease, view

ALL = HashRange(0, HASH_KEY_MAX)
RIGHT = HashRange(LEFT.end + 1, HASH_KEY_MAX)
SHARD_3 = "shardId-000000000003"
FILE = "app.properties"
DOCTOR, WORKERS = "mld doctor app.properties", "mld workers app.properties"
ORDERS, CLICKS = "111111111111:orders:17", "111111111111:clicks:17"
UNREAD = ((SHARD_3, "no owner"),)
YOUNGER = "table-younger"


def in_stream(stream: str, shard: str, **changes: object) -> Lease:
    return lease(f"{stream}:{shard}", stream=stream, **changes)


def kinds(seen: FleetSight) -> set[str]:
    return {fault.kind for fault in faults_of(seen)}


def status(activity: str, why: str | None = None, behind_ms: int | None = 0, ago_s: int = 0) -> ShardStatus:
    return ShardStatus(activity, NOW_S - ago_s, behind_ms, why=why)


@pytest.mark.parametrize(
    ("row", "kind", "remedy"),
    [
        pytest.param(lease(SHARD_3), None, "", id="well"),
        pytest.param(lease(SHARD_3, owner=None), "stopped", WORKERS, id="nobody's"),
        pytest.param(lease(SHARD_3, status=status("unreadable")), "unreadable", DOCTOR, id="unread"),
        pytest.param(lease(SHARD_3, status=status("parked")), "parked", DOCTOR, id="parked"),
        pytest.param(
            lease(SHARD_3, status=status("failing")),
            "failing",
            "mld peek app.properties 3 --at checkpoint",
            id="failing",
        ),
        pytest.param(
            lease(SHARD_3, failing=Failing(3, NOW_S, lease(SHARD_3).checkpoint)),
            "failing",
            "mld conformance -- COMMAND",
            id="fails to start",
        ),
        pytest.param(
            lease(SHARD_3, failing=Failing(3, NOW_S, lease(SHARD_3).checkpoint, 3, Position("4711"))),
            "failing",
            "mld peek app.properties 3 --at 4711",
            id="fails on a batch",
        ),
        pytest.param(
            lease(SHARD_3, status=status("stalled", behind_ms=10**6)),
            "stalled",
            "mld restart-child app.properties 3",
            id="stalled",
        ),
        pytest.param(lease(SHARD_3, status=status("idle", ago_s=100)), "unknown", WORKERS, id="silent"),
        pytest.param(lease(SHARD_3, status=None), UNTOLD, "mld lag app.properties --probe", id="java's"),
        pytest.param(
            lease(SHARD_3, status=status("idle", behind_ms=10**6)),
            "lagging",
            "mld lag app.properties --watch",
            id="lagging",
        ),
        pytest.param(lease(SHARD_3, paused="by me"), "paused", "mld resume app.properties 3", id="paused"),
    ],
)
def test_each_bad_state_of_a_shard_names_the_command_that_helps(row: Lease, kind: str | None, remedy: str) -> None:
    more = (lease("shardId-000000000009"),)  # of a worker that lives
    found = [fault for fault in faults_of(FleetSight(fleet=view(row, *more), file=FILE)) if fault.shard == SHARD_3]
    assert [(fault.kind, fault.remedy) for fault in found] == ([] if kind is None else [(kind, remedy)])


def test_every_verdict_but_well_and_ended_is_a_kind() -> None:
    assert {one.value for one in Verdict} - {"ok", "ended"} <= KINDS.keys()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(FleetSight(fleet=view()), {"empty"}, id="no row at all"),
        pytest.param(
            FleetSight(fleet=view(corrupt=[(SHARD_3, "no checkpoint")])), {"corrupt"}, id="one unreadable row"
        ),
        pytest.param(
            FleetSight(fleet=view(lease(checkpoint=SHARD_END, owner=None))),
            {"nothing-open"},
            id="all rows at SHARD_END",
        ),
        pytest.param(FleetSight(fleet=view(lease(hash_range=LEFT))), {"hole"}, id="a hole"),
        pytest.param(FleetSight(unread="no answer"), {"table"}, id="tables that cannot be read"),
        pytest.param(FleetSight(), set(), id="nothing is known"),
    ],
)
def test_a_table_that_is_wrong_is_never_green(seen: FleetSight, expected: set[str]) -> None:
    assert kinds(seen) == expected
    assert is_green(faults_of(seen), strictly=True) is (not expected)
    assert is_green(faults_of(seen), strictly=False) is (not expected)


OPEN = Shard("shardId-000000000000", ALL, "100")


def listed(*shards: Shard, status: str | None = "ACTIVE") -> dict[str | None, Listed]:
    return {None: Listed(shards, status)}


@pytest.mark.parametrize(
    ("row", "shards", "expected"),
    [
        pytest.param(lease(OPEN.shard_id, hash_range=ALL), listed(OPEN), set(), id="well"),
        pytest.param(
            lease(OPEN.shard_id, checkpoint=SHARD_END, owner=None, hash_range=ALL),
            listed(OPEN),
            {"ended-open"},
            id="SHARD_END on an open shard",
        ),
        pytest.param(
            lease(OPEN.shard_id, hash_range=LEFT),
            listed(Shard(OPEN.shard_id, LEFT, "100"), Shard(SHARD_3, RIGHT, "100")),
            {"row-missing"},
            id="a shard without a row, which is the hole, too",
        ),
        pytest.param(
            lease(OPEN.shard_id, hash_range=ALL),
            listed(Shard(OPEN.shard_id, ALL, "100", "900"), Shard(SHARD_3, ALL, "901", None, OPEN.shard_id)),
            set(),
            id="a child whose parent is still read",
        ),
        pytest.param(lease(SHARD_3, hash_range=ALL), listed(OPEN), {"foreign"}, id="rows of another stream"),
        pytest.param(
            lease(OPEN.shard_id, checkpoint=SHARD_END, owner=None, hash_range=ALL),
            listed(Shard(OPEN.shard_id, ALL, "100", "200"), status=STREAM_DISABLED),
            {"stream-off"},
            id="a stream of DynamoDB that was switched off",
        ),
    ],
)
def test_the_table_beside_the_stream(row: Lease, shards: dict[str | None, Listed], expected: set[str]) -> None:
    assert kinds(FleetSight(fleet=view(row), listed=shards)) == expected


def test_one_cause_is_one_fault_but_another_stream_has_its_own() -> None:
    rows = (in_stream(ORDERS, "shardId-000000000000", hash_range=LEFT), in_stream(CLICKS, "shardId-000000000000"))
    fleet = view(*rows, corrupt=[(f"{CLICKS}:shardId-000000000001", "no owner")])
    found = {(fault.kind, fault.stream) for fault in faults_of(FleetSight(fleet=fleet))}
    assert found == {("hole", ORDERS), ("corrupt", CLICKS)}


@pytest.mark.parametrize(
    ("own", "probe", "words"),
    [
        (Own(worker="w-1"), Probe.READY, None),
        (
            Own(worker="w-1", unreached="no answer for 40 s"),
            Probe.READY,
            "no answer for 40 s -> mld doctor app.properties",
        ),
        (Own(worker="w-1", unread="none of its 2 shards can be read"), Probe.READY, "none of its 2 shards"),
        (
            Own(worker="w-1", corrupt=UNREAD),
            Probe.READY,
            f"{SHARD_3}: the row cannot be read: no owner",
        ),
        (Own(worker="w-1", holes={None: 1}), Probe.READY, "have no lease"),
        (Own(worker="w-1", strangers=2), Probe.READY, "2 of its workers read another stream"),
        (Own(worker="w-1", rows=(3, 0)), Probe.READY, "its 3 rows are all at SHARD_END"),
        (Own(worker="w-1", late=(LateLoop("renewals", 20.0),)), Probe.LIVE, "no progress: renewals (silent for 20 s)"),
        (Own(worker="w-1", is_throttled=True), Probe.READY, None),
        (Own(worker="w-1", corrupt=UNREAD), Probe.LIVE, None),
    ],
)
def test_probes_judge_what_a_worker_knows_without_asking(own: Own, probe: Probe, words: str | None) -> None:
    said = why_not(probe, faults_of(FleetSight(own=own, file=FILE)))
    assert (said is None) if words is None else (said is not None and words in said)


def test_a_pause_and_a_silent_java_worker_wake_nobody_and_are_not_green() -> None:
    for row in (lease(paused="by me"), lease(status=None)):
        faults = faults_of(FleetSight(fleet=view(row)))
        assert is_green(faults, strictly=False)
        assert not is_green(faults, strictly=True)


def test_counts_name_every_kind_so_that_an_alert_ends() -> None:
    found = counts(faults_of(FleetSight(fleet=view(lease(owner=None)))))
    assert found.keys() == KINDS.keys()
    assert (found["stopped"], found["hole"]) == (1, 0)


def test_a_remedy_finds_a_file_with_a_blank_and_a_shard_of_one_of_several_streams() -> None:
    row = in_stream(ORDERS, "shardId-000000000012", paused="by me")
    (fault,) = faults_of(FleetSight(fleet=view(row, labels={ORDERS: "orders"}), file="my app.properties"))
    assert fault.remedy == "mld resume 'my app.properties' orders:12"


def test_a_fault_is_of_a_declared_kind_whatever_a_row_lists() -> None:
    """Another version of mld, or anybody, may have written the list; `known_as` is the only way from a text."""
    assert [FleetFault.known_as(text) for text in ("melted shardId-1", "failing", "failing ", "")] == [None] * 4
    fault = FleetFault.known_as("failing shardId-1")
    assert fault is not None and fault.severity is Severity.PAGE
    assert fault_value(fault)["runbook"] == "docs/use/operations.md#a-shard-is-failing"


def test_a_parked_position_is_kept_in_the_words() -> None:
    (fault,) = faults_of(FleetSight(fleet=view(lease(status=status("parked", why="no such shard")))))
    assert fault.sentence.endswith("no such shard -> mld doctor")


def told(worker: str, ago_s: int = 5, **told_of_it: str) -> WorkerReport:
    return own_report(worker, {}, NOW_S - ago_s, "0.3", members=told_of_it)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([told("w-1", stream="clicks"), told("w-2", stream="clicks")], [], id="one application"),
        pytest.param(
            [told("w-1", stream="clicks"), told("w-2", stream="orders")], ["clicks", "orders"], id="two applications"
        ),
        pytest.param([told("w-1", stream="clicks"), told("dead", 300, stream="orders")], [], id="one is dead"),
        pytest.param([told("w-1", stream="clicks"), told("w-2")], [], id="one does not tell"),
    ],
)
def test_two_living_applications_in_one_table_are_told(reports: list[WorkerReport], expected: list[str]) -> None:
    fleet = fleet_status([lease(owner="w-1")], reports, None, NOW_S, RULES)
    found = [fault for fault in faults_of(FleetSight(fleet=fleet)) if fault.kind == "applications"]
    assert [fault.subject for fault in found] == expected
    assert all("set another applicationName" in fault.sentence for fault in found)


def test_workers_of_one_machine_that_share_unevenly_are_noted() -> None:
    reports = [told("w-1", meter="boot", host="ip-1"), told("w-2", meter="boot", host="ip-1"), told("w-3", meter="x")]
    for owned, expected in (((3, 1, 0), ["ip-1"]), ((2, 1, 7), [])):
        owners = [f"w-{number}" for number, count in enumerate(owned, 1) for _ in range(count)]
        rows = [lease(f"shardId-{number:012}", owner=owner) for number, owner in enumerate(owners)]
        fleet = fleet_status(rows, reports, None, NOW_S, RULES)
        found = [fault for fault in faults_of(FleetSight(fleet=fleet)) if fault.kind == "uneven"]
        assert [fault.subject for fault in found] == expected
        assert {worker.where for worker in fleet.workers} == {"ip-1", ""}


def test_a_shard_that_is_behind_says_which_child_gets_most_of_the_records() -> None:
    for why, words in ((None, "90 s behind"), ("child 1 of 4 gets 60%", "90 s behind: child 1 of 4 gets 60%")):
        (fault,) = faults_of(FleetSight(fleet=view(lease(SHARD_3, status=status("processing", why, 90_000)))))
        assert (fault.kind, fault.words) == ("lagging", words)


PAGES = Path(__file__).parents[3] / "docs/use"


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.name)
def test_a_kind_is_explained_leads_to_a_runbook_and_fires_an_alert(kind: FaultKind) -> None:
    assert f"\n| {kind.name} | " in (PAGES / "status-page.md").read_text()
    headings = re.findall(r"^#+ (.*)$", (PAGES / "operations.md").read_text(), re.MULTILINE)
    assert kind.runbook in {re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in headings}
    rules = prometheus_rules(settings_of(), 86_400, "https://wiki/{page}.html")
    assert f"- alert: {kind.alert}\n" in rules
    assert rules.count("- alert: ") == rules.count("runbook_url: ")
    runbooks = re.findall(r'runbook_url: "(.*)"', rules)
    assert all(re.fullmatch(r"https://wiki/(spark-)?operati(ons|ng)\.html#[a-z-]+", one) for one in runbooks)


@pytest.mark.parametrize(
    ("created_s", "looked_s", "is_told"),
    [
        (1_000, 5_000, False),
        (1_100, 5_000, True),
        (1_100, 1_100 + 3 * 86_400, False),  # old news
    ],
)
def test_a_table_that_is_younger_than_its_rows_was_made_again_or_restored(
    created_s: float, looked_s: float, is_told: bool
) -> None:
    row = Lease("a", TRIM_HORIZON, owner="w", status=ShardStatus("idle", 1_000, 0))
    fleet = fleet_status([row], (), None, looked_s, ViewRules(10.0))
    found = [one for one in faults_of(FleetSight(fleet=fleet, table_created_s=created_s)) if one.kind == YOUNGER]
    assert [one.severity for one in found] == ([Severity.TICKET] if is_told else [])
    assert all("1970-01-01T00:18:20Z" in one.words and "mld events" in one.remedy for one in found)


def test_an_event_from_before_the_table_tells_that_it_was_lost() -> None:
    lost = Event(EventKind.TABLE, "the lease table is gone", at_s=1_000)
    fleet = replace(fleet_status([], (), None, 1_200.0, ViewRules(10.0)), events=(lost,))
    assert YOUNGER in kinds(FleetSight(fleet=fleet, table_created_s=1_010))
    assert YOUNGER not in kinds(FleetSight(fleet=fleet)), "who has not asked for the age of the table finds nothing"


def test_a_clock_that_is_off_is_a_fault_of_its_worker() -> None:
    row = Lease("a", TRIM_HORIZON, owner="w", status=ShardStatus("idle", 1_600, 0))
    fleet = fleet_status([row], (), None, 1_000.0, ViewRules(10.0))
    own = Own(worker="leader", clocks_off={"behind": -300.0})
    found = [one for one in faults_of(FleetSight(fleet=fleet, own=own)) if one.kind == "clocks-disagree"]
    assert [(one.subject, one.words) for one in found] == [
        ("behind", "clocks disagree: its own is 5 min behind"),
        ("w", "clocks disagree: its own is 10 min ahead"),
    ]


def test_what_a_shard_has_lost_is_a_fault_with_its_remedy_and_fails_no_probe() -> None:
    seen = FleetSight(own=Own(worker="w-1", lost={"shardId-1": "whatever came after record 7"}), file="app.properties")
    (fault,) = faults_of(seen)
    assert (fault.kind, fault.subject, fault.words) == (
        "records-lost",
        "shardId-1",
        "lost whatever came after record 7",
    )
    assert "mld events app.properties" in fault.remedy
    assert why_not(Probe.READY, [fault]) is None and is_green([fault], strictly=False)


@pytest.mark.parametrize(
    ("own", "kind", "words", "remedy"),
    [
        (
            Own(worker="w-1", slow={DYNAMODB: "answers of DynamoDB take 9.1 s, and leases last 10 s"}),
            "answers-late",
            "DynamoDB take 9.1 s",
            "a longer failoverTimeMillis helps",
        ),
        (
            Own(worker="w-1", slow={KINESIS: "reads of 2 of 4 shards take up to 7.0 s"}),
            "answers-late",
            "Kinesis: reads of 2 of 4 shards",
            "find out what is slow",
        ),
        (
            Own(worker="w-1", contested={SHARD_3: "somebody else takes the subscription"}),
            "subscription-contested",
            SHARD_3,
            "give each application its own",
        ),
        (
            Own(worker="w-1", spent={SHARD_3: "the budget of decoding is used up"}),
            "budget-spent",
            SHARD_3,
            "find out which producer puts such records",
        ),
        (Own(worker="w-1", left_behind="3X"), "left-behind", "the fleet has gone on to 3X", "clientVersionConfig"),
    ],
)
def test_what_a_worker_alone_knows_names_the_worker_and_the_remedy_and_fails_no_probe(
    own: Own, kind: str, words: str, remedy: str
) -> None:
    (fault,) = faults_of(FleetSight(own=own))
    assert (fault.kind, fault.owner, KINDS[kind].is_own) == (kind, "w-1", True)
    assert words in fault.sentence and remedy in fault.remedy
    assert why_not(Probe.READY, [fault]) is None and why_not(Probe.LIVE, [fault]) is None
