"""The data of the status page: what the tables show of the fleet, and what this worker knows better of its own."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from mld.core.positions import SHARD_END, Position
from mld.core.steps import finish
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import ChildFigures, Failing, Lease, ShardStatus
from mld.metrics.activity import ShardActivity
from mld.metrics.children import ChildLoad, ChildLoads
from mld.metrics.declaring import Instant
from mld.metrics.identity import Identity
from mld.metrics.registry import Metrics
from mld.operating.fleet_status import FleetStatus, fleet_status
from mld.operating.shard_view import RANKS, ViewRules
from mld.properties.scrubber import Scrubber
from mld.serving.json_pieces import in_pieces
from mld.serving.status import StatusView
from mld.serving.web_pages import page_and_policy, takes_gzip

NOW_S = 1_763_661_600
ME = Identity("clicks", "clicks-stream", "w-1", "0.2.0")
AT = Instant(500.0, NOW_S)
FRESH = ShardStatus("processing", NOW_S - 1, 90_000, Position("100"))
ROW = Lease("shardId-000000000001", Position("100"), owner="w-1", hash_range=HashRange(0, HASH_KEY_MAX), status=FRESH)
OTHERS = replace(ROW, owner="w-2")
REPORTS = [WorkerReport(worker, NOW_S - 5, mld={"version": "0.2.0"}) for worker in ("w-1", "w-2")]


def fleet(*leases: Lease, reports: list[WorkerReport] = REPORTS) -> FleetStatus:
    return fleet_status(leases, reports, None, NOW_S, ViewRules(10.0))


def view(status: FleetStatus | None, metrics: Metrics | None = None, scrub: Scrubber | None = None) -> StatusView:
    return StatusView(
        identity=ME,
        metrics=metrics or Metrics(),
        fleet=status,
        at=AT,
        mode="CLIENT_VERSION_3X",
        scrub=scrub or Scrubber(),
    )


def encoded(seen: StatusView, *, zipped: bool) -> bytes:
    return b"".join(finish(in_pieces(seen.head(), seen.lists(), zipped=zipped)))


def value_of(told: StatusView) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(encoded(told, zipped=False))
    return value


def shown(status: FleetStatus | None, metrics: Metrics | None = None, scrub: Scrubber | None = None) -> dict[str, Any]:
    return value_of(view(status, metrics, scrub))


def the_shard(status: FleetStatus | None, metrics: Metrics | None = None) -> dict[str, Any]:
    (shard,) = shown(status, metrics)["shards"]
    return dict(shard)


def holding(key: str = ROW.key) -> Metrics:
    metrics = Metrics()
    part = metrics.begin(key, 400.0)
    part.saw_lag(2_000, NOW_S - 1)
    part.forced_activity, part.busy_since = ShardActivity.PROCESSING, 490.0
    part.restarts.add("failed", 2)
    part.last_error, part.last_error_wall_s = "it <b>broke</b>", NOW_S - 30
    return metrics


def test_of_its_own_shards_a_worker_knows_more_and_newer_than_the_row() -> None:
    shard = the_shard(fleet(ROW), holding())
    assert (shard["isHere"], shard["state"], shard["behindSeconds"], shard["busySeconds"]) == (
        True,
        "processing",
        3,
        10,
    )
    assert (shard["restarts"], shard["lastError"], shard["lastErrorAt"]) == (2, "it <b>broke</b>", NOW_S - 30)
    assert (shard["from"], shard["to"], shard["checkpoint"]) == (0, 1, "100/0")


def test_several_children_of_a_shard_are_shown_with_what_each_has() -> None:
    metrics = holding()
    assert "childProcesses" not in the_shard(fleet(ROW), metrics)
    metrics.shards[ROW.key].children = ChildLoads([ChildLoad(0, "pid 7"), ChildLoad(1, "pid 8", 5, 490.0, 2)], 400.0)
    for status in (fleet(ROW), None):
        loads = the_shard(status, metrics)["childProcesses"]
        told = [(one["number"], one["inHand"], one["busySeconds"], one["waiting"]) for one in loads]
        assert told == [(0, 0, None, 0), (1, 5, 10.0, 2)]


def test_whoever_answers_is_alive_and_so_are_its_shards_however_old_the_table_is() -> None:
    silent = [replace(report, updated_at_s=NOW_S - 300) for report in REPORTS]
    old = replace(ROW, status=ShardStatus("idle", NOW_S - 300, 0))
    value = shown(fleet(old, reports=silent), holding())
    assert {one["worker"]: one["isAlive"] for one in value["workers"]} == {"w-1": True, "w-2": False}
    assert [one["state"] for one in value["shards"]] == ["processing"]


def test_of_the_shards_of_others_it_knows_the_row() -> None:
    shard = the_shard(fleet(OTHERS))
    assert (shard["isHere"], shard["state"], shard["behindSeconds"], shard["verdict"]) == (
        False,
        "lagging",
        90,
        "lagging",
    )
    assert shard["busySeconds"] is shard["restarts"] is shard["behindHistory"] is None


def test_a_shard_that_went_to_another_worker_is_not_shown_by_what_is_left_of_it_here() -> None:
    assert the_shard(fleet(OTHERS), holding())["isHere"] is False


@pytest.mark.parametrize(
    ("row", "state", "error"),
    [
        pytest.param(replace(OTHERS, owner=None), "stopped", None, id="nobody's"),
        pytest.param(replace(OTHERS, checkpoint=SHARD_END), "ended", None, id="ended"),
        pytest.param(replace(OTHERS, status=None), "unknown", "its worker does not tell", id="says nothing"),
        pytest.param(replace(OTHERS, paused="by ann, to look"), "paused", None, id="paused"),
        pytest.param(
            replace(OTHERS, failing=Failing(3, NOW_S - 60, Position("100"))),
            "failing",
            "failed 3 times without a checkpoint",
            id="failing",
        ),
        pytest.param(
            replace(OTHERS, status=ShardStatus("unreadable", NOW_S, 0, why="since noon: forbidden")),
            "unreadable",
            "since noon: forbidden",
            id="unreadable",
        ),
        pytest.param(
            replace(OTHERS, status=ShardStatus("parked", NOW_S)),
            "parked",
            "the log of its worker says why",
            id="parked",
        ),
    ],
)
def test_states_of_the_shards_of_others(row: Lease, state: str, error: str | None) -> None:
    shard = the_shard(fleet(row))
    assert (shard["state"], shard["lastError"]) == (state, error)


def test_what_children_said_is_shown_without_the_secrets_of_the_file() -> None:
    scrub = Scrubber(["hush-hush-1"])
    metrics = holding()
    metrics.shards[ROW.key].last_error = "cannot log in with hush-hush-1"
    silent = replace(OTHERS, key="b", status=ShardStatus("unreadable", NOW_S, 0, why="denied: hush-hush-1"))
    for status in (fleet(ROW, silent), None):
        text = json.dumps(shown(status, metrics, scrub))
        assert "hush-hush-1" not in text and "cannot log in with ***" in text
        assert b"hush-hush-1" not in encoded(view(status, metrics, scrub), zipped=False)


def test_without_the_tables_its_own_shards_remain_and_the_reason_is_told() -> None:
    told = replace(view(None, holding()), trouble="the tables cannot be read: no answer")
    value = value_of(told)
    assert [(one["shard"], one["owner"], one["state"]) for one in value["shards"]] == [(ROW.key, "w-1", "processing")]
    assert (value["trouble"], value["tableReadAt"], value["leader"]) == (
        "the tables cannot be read: no answer",
        None,
        None,
    )


def test_shards_have_the_same_fields_wherever_they_are_known_from() -> None:
    fields = {
        frozenset(the_shard(*known)) for known in ((fleet(ROW), holding()), (fleet(OTHERS), None), (None, holding()))
    }
    assert len(fields) == 1


def test_holes_are_shares_of_the_hash_keys() -> None:
    half = replace(OTHERS, hash_range=HashRange(0, HASH_KEY_MAX // 2))
    assert shown(fleet(half))["holes"] == [{"stream": None, "from": 0.5, "to": 1.0}]


def test_what_is_sent_is_the_document_and_compressed_it_is_a_tenth() -> None:
    rows = [replace(ROW, key=f"shardId-{number:012}", owner=f"w-{number % 7}") for number in range(1000)]
    seen = view(fleet(*rows), holding())
    body = encoded(seen, zipped=False)
    assert len(json.loads(body)["shards"]) == 1000
    packed = encoded(seen, zipped=True)
    assert gzip.decompress(packed) == body
    assert len(packed) < len(body) / 10


def test_an_empty_fleet_is_a_document_too() -> None:
    for status in (None, fleet(reports=[])):
        assert json.loads(encoded(view(status), zipped=False))["shards"] == []


@pytest.mark.parametrize(
    ("offer", "takes"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("", False),
        ("identity", False),
    ],
)
def test_only_whotakes_gzip_gets_it(offer: str, takes: bool) -> None:
    assert takes_gzip({"accept-encoding": offer}) is takes


def test_the_page_may_run_its_own_script_and_load_nothing() -> None:
    page, policy = page_and_policy()
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    for outside in (b" src=", b"url(http", b"@import", b'<link rel="stylesheet', b"import("):
        assert outside not in page


def test_the_page_has_the_verdicts_in_the_order_of_the_table_and_a_colour_for_each_state() -> None:
    page, _ = page_and_policy()
    (listed,) = re.findall(rb"const VERDICTS = (\[.*?\]);", page)
    assert json.loads(listed) == list(RANKS)
    for state in ({*RANKS} - {"ok"}) | {activity.value for activity in ShardActivity}:
        assert page.count(f"--{state}: #".encode()) == 2, "light and dark"
        assert f".{state} {{ fill: var(--{state}); background: var(--{state}); }}".encode() in page


def test_a_rate_is_that_between_two_samples_of_one_holding() -> None:
    metrics = Metrics()
    part = metrics.begin("a", 0.0)
    part.batches.note(100)
    part.sample(10.0)
    assert part.records_per_s is None
    part.batches.note(50)
    part.sample(15.0)
    assert part.records_per_s == 10.0
    again = metrics.begin("a", 16.0)
    again.sample(20.0)
    assert again.records_per_s is None


def test_figures_of_another_workers_child_come_from_its_row_while_that_is_fresh() -> None:
    told = replace(FRESH, child=ChildFigures(475.3, 5, 2))
    shard = the_shard(fleet(replace(OTHERS, status=told)))
    assert (shard["recordsPerSecond"], shard["busySeconds"], shard["restarts"]) == (475.3, 5, 2)
    stale = replace(told, at_s=NOW_S - 3600)
    shard = the_shard(fleet(replace(OTHERS, status=stale)))
    assert (shard["recordsPerSecond"], shard["busySeconds"], shard["restarts"]) == (None, None, None)
