"""Worker reports: rows, figures, judgement (coordination#report-judgement)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.fleet.report import reports
from mld.fleet.report.reports import FAILED, CorruptReportError, ReportRules, ReportScan, WorkerReport
from mld.fleet.report.sightings import Sightings

NOW = 1_784_640_060
RULES = ReportRules()

MEASURED_ROW: dict[str, dict[str, Any]] = {
    "leaseKey": {"S": "host-1:9f3c"},
    "entityType": {"S": "WORKER_METRIC_STATS"},
    "lut": {"N": "1784640030"},
    "sup": {"N": "1"},
    "slu": {"N": "1784640030"},
    "sts": {"M": {"C": {"L": [{"N": "41.2"}, {"N": "39.870001"}, {"N": "44.5"}]}}},
    "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
}
UNMEASURED_ROW: dict[str, dict[str, Any]] = {
    "leaseKey": {"S": "host-2:77aa"},
    "entityType": {"S": "WORKER_METRIC_STATS"},
    "lut": {"N": "1784640031"},
    "sup": {"N": "1"},
    "slu": {"N": "1784640031"},
    "sts": {"M": {}},
    "opr": {"M": {}},
}
LEGACY_ROW = {
    "wid": {"S": "host-3:old"},
    "lut": {"N": "1784640025"},
    "sts": {"M": {"C": {"L": [{"N": "55.0"}]}}},
    "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
}
MEASURED = WorkerReport(
    "host-1:9f3c",
    1_784_640_030,
    samples={"C": (41.2, 39.870001, 44.5)},
    ranges={"C": (100,)},
)


def report(
    *figures: float, age_s: float | None = 0, worker: str = "w", limits: tuple[int, ...] = (100,), **changes: Any
) -> WorkerReport:
    """A report with CPU figures, without any a default worker's."""
    filled = {"samples": {"C": figures}, "ranges": {"C": limits}} if figures else {}
    updated_at_s = None if age_s is None else int(NOW - age_s)
    return replace(WorkerReport(worker, updated_at_s, **filled), **changes)  # type: ignore[arg-type]


# --- reading


@pytest.mark.parametrize(
    ("row", "key", "expected"),
    [
        (MEASURED_ROW, "leaseKey", MEASURED),
        (
            UNMEASURED_ROW,
            "leaseKey",
            WorkerReport("host-2:77aa", 1_784_640_031),
        ),
        (
            LEGACY_ROW,
            "wid",
            WorkerReport("host-3:old", 1_784_640_025, samples={"C": (55.0,)}, ranges={"C": (100,)}, legacy=True),
        ),
        ({"wid": {"S": "w"}}, "wid", WorkerReport("w", None, legacy=True)),
        (
            {"leaseKey": {"S": "w"}, "lut": {"N": "1E3"}, "sts": {"NULL": True}, "opr": {"NULL": True}},
            "leaseKey",
            WorkerReport("w", 1000),
        ),
        (
            {"leaseKey": {"S": "w"}, "lut": {"N": "7.5"}, "opr": {"M": {"C": {"L": [{"N": "99.9"}]}}}},
            "leaseKey",
            WorkerReport("w", 7, ranges={"C": (99,)}),
        ),
        (
            {"leaseKey": {"S": "w"}, "lut": {"N": "7"}, "sup": {"S": "one"}, "slu": {"BOOL": True}},
            "leaseKey",
            WorkerReport("w", 7),
        ),
        (
            {
                "leaseKey": {"S": "w"},
                "lut": {"N": "7"},
                "mldVersion": {"S": "0.2"},
                "mldWatch": {"S": "{}"},
                "x": {"N": "1"},
            },
            "leaseKey",
            WorkerReport("w", 7, mld={"version": "0.2"}),
        ),
    ],
)
def test_rows_are_read(row: reports.Row, key: str, expected: WorkerReport) -> None:
    assert reports.parse_row(row, key) == expected


@pytest.mark.parametrize(
    "damage",
    [
        {"lut": {"S": "yesterday"}},
        {"lut": {"N": "soon"}},
        {"lut": {"N": "1E99"}},
        {"lut": {"N": "Infinity"}},
        {"sts": {"S": "C"}},
        {"sts": {"M": {"C": {"N": "1"}}}},
        {"sts": {"M": {"C": {"L": [{"S": "busy"}]}}}},
        {"opr": {"L": []}},
        {"leaseKey": {"S": ""}},
    ],
)
def test_a_damaged_row_costs_only_itself(damage: dict[str, Any]) -> None:
    damaged = MEASURED_ROW | {"leaseKey": {"S": "damaged"}} | damage
    with pytest.raises(CorruptReportError):
        reports.parse_row(damaged, "leaseKey")
    scan = reports.parse_rows([damaged, MEASURED_ROW], "leaseKey")
    assert scan.reports == (MEASURED,)
    assert [worker for worker, _ in scan.corrupt] == [damaged["leaseKey"]["S"]]


def test_in_the_lease_table_only_marked_rows_are_reports() -> None:
    rows: list[reports.Row] = [
        {"leaseKey": {"S": "shardId-1"}},
        {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}},
        MEASURED_ROW,
    ]
    assert reports.parse_rows(rows, "leaseKey") == ReportScan((MEASURED,))


# --- writing


def test_a_measured_worker_writes_what_java_writes_and_its_version() -> None:
    own = reports.own_report("host-1:9f3c", {"C": (41.2, FAILED, 39.870001, 44.0)}, 1_784_640_030.9, "0.2")
    assert reports.attributes(own) == {
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": "1784640030"},
        "sup": {"N": "1"},
        "slu": {"N": "1784640030"},
        "sts": {"M": {"C": {"L": [{"N": "41.2"}, {"N": "-1.0"}, {"N": "39.870001"}, {"N": "44.0"}]}}},
        "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
        "mldVersion": {"S": "0.2"},
    }


@pytest.mark.parametrize("rings", [{}, {"C": ()}, {"C": (FAILED,)}, {"C": (FAILED,) * 10}])
def test_what_cannot_be_measured_is_left_out_of_both_maps(rings: dict[str, tuple[float, ...]]) -> None:
    written = reports.attributes(reports.own_report("w", rings, NOW, "0.2"))
    assert written["sts"] == written["opr"] == {"M": {}}


@given(st.dictionaries(st.sampled_from(["C", "M"]), st.lists(st.floats(0, 100) | st.just(FAILED), max_size=10)))
def test_what_is_written_reads_back(rings: dict[str, list[float]]) -> None:
    rounded = {name: tuple(reports.mean([value]) for value in ring) for name, ring in rings.items()}
    own = reports.own_report("w", rounded, NOW, "0.2")
    assert reports.parse_row({"leaseKey": {"S": "w"}} | reports.attributes(own), "leaseKey") == own
    assert reports.is_valid(own)


def test_a_worker_tells_where_it_is_and_nothing_else_is_written() -> None:
    told = {"host": "ip-10-0-1-23", "pid": "4711", "started": "1763661600", "meter": "boot", "stream": "clicks"}
    own = reports.own_report("w", {}, NOW, "0.2", members={**told, "meter": ""})
    written = reports.attributes(own)
    assert written["mldHost"] == {"S": "ip-10-0-1-23"}
    assert "mldMeter" not in written
    drained = {"leaseKey": {"S": "w"}, "mldDrain": {"S": "by me"}, **reports.attributes(replace(own, mld=told))}
    read = reports.parse_row(drained, "leaseKey")
    assert read.mld == {**told, "drain": "by me"}
    assert reports.attributes(replace(MEASURED, mld=read.mld)).keys().isdisjoint({"mldDrain"})


@pytest.mark.parametrize("text", ["", "-1", "1e400", "soon", "9" * 30])
def test_a_start_that_is_no_time_is_left_out(text: str) -> None:
    row = {"leaseKey": {"S": "w"}, "mldStarted": {"S": text}, "mldHost": {"S": "h"}}
    assert reports.parse_row(row, "leaseKey").mld == {"host": "h"}


# --- figures


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], -1.0),
        ([0.0], 0.0),
        ([10.0, 20.0], 15.0),
        ([1.0, 1.0, 2.0], 1.333333),
        ([0.0000005], 0.000001),
        ([0.0000025], 0.000003),
        ([0.00000049], 0.0),
    ],
)
def test_the_figure_of_an_interval_is_the_mean_rounded_half_up(samples: list[float], expected: float) -> None:
    assert reports.mean(samples) == expected


def test_a_ring_keeps_the_ten_newest_oldest_first() -> None:
    ring: tuple[float, ...] = ()
    for number in range(12):
        ring = reports.extended(ring, float(number), 10)
    assert ring == tuple(map(float, range(2, 12)))


@pytest.mark.parametrize(
    ("samples", "alpha", "expected"),
    [
        ([20, 40, -1, 60], 0.5, 45.0),
        ([20], 0.5, 20.0),
        ([20, 40], 0.5, 30.0),
        ([-1, 20, 40], 0.25, 25.0),
        ([], 0.5, 0.0),
        ([-1, -1], 0.5, 0.0),
    ],
)
def test_a_worker_is_judged_by_its_moving_average(samples: list[float], alpha: float, expected: float) -> None:
    assert reports.average(samples, alpha) == expected


# --- judgement


@pytest.mark.parametrize(
    ("it", "valid", "default", "failing"),
    [
        (report(50.0), True, False, False),
        (report(), True, True, False),
        (report(age_s=None), False, True, False),
        (report(50.0, age_s=None), False, False, False),
        (report(50.0, FAILED), True, False, True),
        (report(FAILED, 50.0), True, False, False),
        (report(50.0, limits=()), False, False, False),
        (report(50.0, limits=(0,)), False, False, False),
        (report(50.0, samples={"M": (1.0,)}), False, False, False),
        (report(50.0, samples={"C": (1.0,), "M": (FAILED,)}, ranges={"C": (100,), "M": (90,)}), True, False, True),
        (report(50.0, limits=(80, 0)), True, False, False),
        (report(50.0, samples={"C": ()}), True, False, True),
        (report(50.0, samples={"THROUGHPUT": (FAILED,)}, ranges={}), True, True, False),
        (report(samples={}, ranges={"C": (100,)}), True, True, False),
        (report(samples={"C": (1.0,)}, ranges={}), False, False, False),
    ],
)
def test_validity_default_and_failure(it: WorkerReport, valid: bool, default: bool, failing: bool) -> None:
    assert (reports.is_valid(it), reports.is_default(it), reports.is_failing(it)) == (valid, default, failing)
    assert bool(reports.sort_out([it], NOW, RULES).active) is (valid and not failing)


@pytest.mark.parametrize(
    ("age_s", "rules", "expired", "stale"),
    [
        (0, RULES, False, False),
        (60, RULES, False, False),
        (61, RULES, True, False),
        (-1000, RULES, False, False),
        (86_400, RULES, True, False),
        (86_401, RULES, True, True),
        (None, RULES, False, True),
        (61, ReportRules(report_period_s=60), False, False),
        (61, ReportRules(stale_after_s=60), True, True),
    ],
)
def test_age_is_judged_by_the_settings_of_the_leader(
    age_s: float | None, rules: ReportRules, expired: bool, stale: bool
) -> None:
    it = report(50.0, age_s=age_s)
    assert (reports.is_expired(it, NOW, rules), reports.is_stale(it, NOW, rules)) == (expired, stale)
    assert bool(reports.sort_out([it], NOW, rules).active) is (age_s is not None and not expired)


def test_of_several_rows_of_a_worker_the_newest_counts() -> None:
    old, new = report(10.0, age_s=20, legacy=True), report(90.0, age_s=5)
    timeless, other = report(age_s=None), report(worker="other")
    assert reports.newest_of_each([timeless, old, new, other]) == (new, other)
    assert reports.newest_of_each([new, old, timeless, other]) == (new, other)


def test_of_equally_old_rows_that_of_the_single_table_counts() -> None:
    legacy, single = report(10.0, legacy=True), report(10.0)
    assert reports.newest_of_each([legacy, single]) == reports.newest_of_each([single, legacy]) == (single,)


def test_workers_are_sorted_out() -> None:
    active, failing = report(1.0, worker="a"), report(FAILED, worker="f")
    expired, ancient = report(1.0, worker="e", age_s=61), report(1.0, worker="a", age_s=90_000, legacy=True)
    timeless = report(worker="t", age_s=None)
    found = reports.sort_out([ancient, active, failing, expired, timeless], NOW, RULES)
    assert found == reports.SortedReports((active,), (failing,), (expired,), (timeless,), (ancient, timeless))


def test_a_report_stands_still_when_it_was_watched_for_two_periods_without_news() -> None:
    rules = ReportRules(report_period_s=30.0)
    sightings = Sightings()
    a, b = WorkerReport("a", 100), WorkerReport("b", 100)
    sightings.saw([a, b], 1000.0)
    sightings.saw([replace(a, updated_at_s=99), b], 1030.0)  # news, though its clock was set back
    assert not sightings.is_still("b", 1060.0, rules)
    assert sightings.is_still("b", 1060.1, rules)
    assert not sightings.is_still("a", 1090.0, rules)
    assert not sightings.is_still("never seen", 9999.0, rules)
    sightings.saw([a], 1061.0)
    sightings.saw([a, b], 1062.0)
    assert not sightings.is_still("b", 1063.0, rules), "it was away and came back"
    sightings.forget()
    assert not sightings.is_still("b", 9999.0, rules)


def test_the_ends_of_others_are_told_and_come_back_as_far_as_there_is_room() -> None:
    ends = [(f"w-{number}", NOW + number + 0.5) for number in range(9)]
    assert _ends_read_back(ends) == {f"w-{number}": NOW + number for number in range(4, 9)}
    assert _ends_read_back([("x" * 400, NOW), ("w-1", NOW)]) == {"w-1": NOW}


def _ends_read_back(ends: list[tuple[str, float]]) -> Mapping[str, int]:
    written = reports.attributes(reports.own_report("w", {}, NOW, "0.2", ends))
    return reports.parse_row({"leaseKey": {"S": "w"}, **written}, "leaseKey").ends


@pytest.mark.parametrize("text", ["", "{", "7", "[7]", '[["a"]]', '[["a", "b"]]', '[["a", 1e999]]', "[" * 100_000])
def test_damaged_ends_are_none(text: str) -> None:
    assert reports.parse_row({"leaseKey": {"S": "w"}, "mldEnds": {"S": text}}, "leaseKey").ends == {}
