"""Worker reports: rows and what they say of a worker. Pure.

Rules: coordination#worker-report-row, coordination#report-rhythm, coordination#report-judgement. A leader judges with
its own settings and its own wall clock. Reading is tolerant row by row, writing is strict. An mld worker's row has
attributes of ours: `mldVersion`, `mldDrain` if an operator drains it, `mldLeaving` while it stops, `mldStream`, and
where the worker runs (`mldHost`, `mldPid`, `mldStarted`, `mldMeter`).

One rule differs from Java: samples `{}` with ranges make a default worker here, where Java takes it for the least
loaded worker of all. A worker that measures nothing is judged by the throughput of its leases, whatever ranges it
names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

from mld.core.stillness import NEVER, Stillness
from mld.leases.lease import Lease
from mld.leases.own_attribute import OwnAttribute, Row, integer, some_text, words
from mld.leases.rows import ENTITY_TYPE, REPORTS_TABLE_KEY, EntityType
from mld.properties.settings import FleetSettings

SUPPORT_CODE = 1
"""`sup` of every report: this worker can live with a single table."""
UPDATED_AT = "lut"
SAMPLES = "sts"
RANGES = "opr"
SUPPORT = "sup"
SUPPORT_AT = "slu"
VERSION = "mldVersion"
DRAIN = "mldDrain"
"""An operator's words, while the worker is to have no leases. Its own reports leave the attribute alone."""
LEAVING = "mldLeaving"
"""Since when the worker stops, in epoch seconds. Its next process takes it off with its first report."""
STREAM = "mldStream"
"""The name of the only stream, which no lease tells; absent if the application reads several."""
TABLE_STREAM_PARTS = 4  # region, account, table, label
STREAM_CHARACTERS_MAX = 512  # that of a DynamoDB table has its region, account, name and label
HOST, PID, STARTED = "mldHost", "mldPid", "mldStarted"
"""For people: where the worker runs, and since when, in epoch seconds."""
HOST_CHARACTERS_MAX = 64  # of Linux
METER = "mldMeter"
"""What the CPU figures are of, the machine or a container of it: workers with the same one measure the same."""
METER_CHARACTERS_MAX = 200
ENDS = "mldEnds"
"""For people: the workers that this one has found dead lately and whose leases it took, as JSON."""
ENDS_MAX = 5
ENDS_CHARACTERS_MAX = 300
PID_DIGITS_MAX = 10

FAILED = -1.0
"""Stands for an interval in which a metric could not be measured."""
RANGE_PERCENT = 100
"""Operating range of every metric we report."""
THROUGHPUT_NAME = "THROUGHPUT"
"""A metric with this name makes a default worker."""
EXPIRED_AFTER_PERIODS = 2
FIGURE_MAX = 10**15  # far beyond any time in seconds, share or speed; squares and sums of such figures stay finite
SHOWN_MAX = 100  # of a value in a message: an attribute may have 400 KB
_SIX_DECIMALS = Decimal("0.000001")
NOTHING: Mapping[str, str] = MappingProxyType({})

CLOCK_OFF_MAX_S = 60.0
"""Reports are written late, clocks are never quite right, and both are no news."""


def _seconds(found: Any) -> str:
    """Return the text of a time in epoch seconds."""
    return str(integer(FIGURE_MAX)(found))


OWN_MEMBERS = {
    "version": OwnAttribute(VERSION, "S", some_text(), "0.2"),
    "drain": OwnAttribute(DRAIN, "S", some_text(), "by ops"),
    "leaving": OwnAttribute(LEAVING, "S", some_text(), "1763661600"),
    "stream": OwnAttribute(STREAM, "S", words(STREAM_CHARACTERS_MAX), "clicks"),
    "host": OwnAttribute(HOST, "S", words(HOST_CHARACTERS_MAX), "ip-10-0-1-23"),
    "pid": OwnAttribute(PID, "S", some_text(PID_DIGITS_MAX), "4711"),
    "started": OwnAttribute(STARTED, "S", _seconds, "1763661600"),
    "meter": OwnAttribute(METER, "S", some_text(METER_CHARACTERS_MAX), "6f9c2f1e-4e7b-4a8e-9f3a-0d5c8b7a6e5d"),
}
"""Member of `WorkerReport.mld` -> attribute."""
TOLD = frozenset(OWN_MEMBERS) - {"drain"}
"""The members that a worker writes with each report."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker-metrics row as read: what a worker last said of itself."""

    worker: str
    updated_at_s: int | None
    """Wall clock, epoch seconds; None if the row lacks it."""
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Averages by metric, oldest first; -1 where the metric failed."""
    ranges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Operating ranges by metric; only index 0 counts, the highest percentage."""
    legacy: bool = False
    """Read from the legacy worker-metrics table."""
    mld: Mapping[str, str] = field(default_factory=dict)
    """What an mld worker adds about itself; empty for a Java worker."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """The workers that it has found dead lately, and when, in epoch seconds."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What one run of the assigner has read. `reports` are all of them, duplicates and expired ones too."""

    leases: tuple[Lease, ...]
    reports: tuple[WorkerReport, ...]
    expired: frozenset[str]
    """Keys of leases that are nobody's or whose owner does not renew them."""


@dataclass(frozen=True, slots=True)
class ReportRules:
    """The reader's settings: workerMetricsReporterFreqInMillis, staleWorkerMetricsEntryCleanupDuration, EMAAlpha."""

    report_period_s: float = 30.0
    stale_after_s: float = 86_400.0
    ema_alpha: float = 0.5

    @classmethod
    def of(cls, fleet: FleetSettings) -> ReportRules:
        """Return the rules of this fleet's settings."""
        return cls(fleet.report_period_s, fleet.stale_report_s, fleet.ema_alpha)


@dataclass(frozen=True, slots=True)
class ReportScan:
    """The reports among some rows; `corrupt` names the rows that cannot be read, with the reason."""

    reports: tuple[WorkerReport, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SortedReports:
    """The workers sorted out, one report for each; who leaves counts as expired.

    `stale` reports are for deletion, duplicates among them.
    """

    active: tuple[WorkerReport, ...] = ()
    failing: tuple[WorkerReport, ...] = ()
    expired: tuple[WorkerReport, ...] = ()
    invalid: tuple[WorkerReport, ...] = ()
    stale: tuple[WorkerReport, ...] = ()


def is_drained(report: WorkerReport) -> bool:
    """Return whether an operator wants the worker to have no leases."""
    return "drain" in report.mld


def is_leaving(report: WorkerReport) -> bool:
    """Return whether the worker stops: nothing may be given to it any more."""
    return "leaving" in report.mld


def application_of(report: WorkerReport) -> str | None:
    """Return what tells the worker's application from others in one table; None if the report does not."""
    return application_on(report.mld["stream"]) if "stream" in report.mld else None


def application_on(stream: str) -> str | None:
    """Return the same of an application on `stream`: its name, that of a DynamoDB table without the label, which is
    another one after the stream was switched off and on; None for several streams.
    """
    region, *table = stream.split("$")
    name = "$".join((region, *table[:2])) if len(table) == TABLE_STREAM_PARTS - 1 else stream
    return name[:STREAM_CHARACTERS_MAX] or None


# --- rows -------------------------------------------------------------------------------------------------------------


class CorruptReportError(ValueError):
    """A row is a report and cannot be read."""


def is_report(row: Row, key: str) -> bool:
    """Return whether the row of a table with hash key `key` is a report: in the legacy table every row is."""
    return key == REPORTS_TABLE_KEY or row.get(ENTITY_TYPE, {}).get("S") == EntityType.WORKER_METRIC_STATS.value


def parse_row(row: Row, key: str) -> WorkerReport:
    """Return the report in a row of a table with hash key `key`. Raises CorruptReportError.

    What nobody is judged by (our additions) is dropped if it is damaged, and what only a Java leader reads (the support
    code) is not looked at.
    """
    worker = row.get(key, {}).get("S")
    if not isinstance(worker, str) or not worker:
        raise CorruptReportError(f"{key} is missing")
    return WorkerReport(
        worker=worker,
        updated_at_s=_integer(row.get(UPDATED_AT), UPDATED_AT),
        samples={name: tuple(float(x) for x in numbers) for name, numbers in _lists(row, SAMPLES)},
        ranges={name: tuple(int(x) for x in numbers) for name, numbers in _lists(row, RANGES)},
        legacy=key == REPORTS_TABLE_KEY,
        mld={member: found for member, attribute in OWN_MEMBERS.items() if (found := attribute.read(row)) is not None},
        ends=_ENDS.read(row) or {},
    )


def parse_rows(rows: Iterable[Row], key: str) -> ReportScan:
    """Return the reports among `rows`; a damaged one costs only itself."""
    found: list[WorkerReport] = []
    corrupt: list[tuple[str, str]] = []
    for row in rows:
        if is_report(row, key):
            try:
                found.append(parse_row(row, key))
            except CorruptReportError as error:
                corrupt.append((str(row.get(key, {}).get("S")), str(error)))
    return ReportScan(tuple(found), tuple(corrupt))


def attributes(report: WorkerReport) -> dict[str, dict[str, Any]]:
    """Return the attributes that the worker itself writes with every report, all but the key.

    `report` is our own: complete, no list empty, and a range for each metric.
    """
    assert report.updated_at_s is not None
    assert report.samples.keys() == report.ranges.keys(), "both filled or both empty"
    assert all(report.samples.values()) and all(report.ranges.values()), "no list may be empty"
    written: dict[str, dict[str, Any]] = {
        ENTITY_TYPE: {"S": EntityType.WORKER_METRIC_STATS.value},
        UPDATED_AT: {"N": str(report.updated_at_s)},
        SAMPLES: {"M": {name: _list(map(_double_text, values)) for name, values in report.samples.items()}},
        RANGES: {"M": {name: _list(map(str, values)) for name, values in report.ranges.items()}},
        SUPPORT: {"N": str(SUPPORT_CODE)},
        SUPPORT_AT: {"N": str(report.updated_at_s)},
    }
    told = {name: value for name, value in report.mld.items() if name in TOLD}
    written |= {OWN_MEMBERS[name].name: {"S": value} for name, value in told.items()}
    return written | ({ENDS: {"S": _ends_text(report.ends)}} if report.ends else {})


def own_report(
    worker: str,
    rings: Mapping[str, Sequence[float]],
    now_s: float,
    version: str,
    ends: Sequence[tuple[str, float]] = (),
    *,
    leaving: bool = False,
    told: Mapping[str, str] = NOTHING,
) -> WorkerReport:
    """Return what a worker says of itself at wall time `now_s`.

    A ring without a single success is left out: what cannot be measured makes a default worker, not a failing one that
    would never get a lease again. `ends` are workers found dead, with when, in epoch seconds; the newest remain. `told`
    are more members of `OWN_MEMBERS`, the empty ones left out.
    """
    samples = {name: tuple(ring) for name, ring in rings.items() if any(value != FAILED for value in ring)}
    return WorkerReport(
        worker=worker,
        updated_at_s=int(now_s),
        samples=samples,
        ranges=dict.fromkeys(samples, (RANGE_PERCENT,)),
        mld={
            "version": version,
            **({"leaving": str(int(now_s))} if leaving else {}),
            **{name: value for name, value in told.items() if value},
        },
        ends={worker: int(at_s) for worker, at_s in ends},
    )


def _ends_text(ends: Mapping[str, int]) -> str:
    newest = sorted(ends.items(), key=lambda end: end[1])[-ENDS_MAX:]
    while len(text := json.dumps(newest)) > ENDS_CHARACTERS_MAX:
        newest = newest[1:]
    return text


def _ends(text: str) -> dict[str, int]:
    ends = {str(worker): int(at_s) for worker, at_s in json.loads(text)[:ENDS_MAX]}
    if not all(0 <= at_s <= FIGURE_MAX for at_s in ends.values()):
        raise ValueError("no times")
    return ends


_ENDS = OwnAttribute(ENDS, "S", _ends, '[["w1", 1763661600]]')


# --- figures ----------------------------------------------------------------------------------------------------------


def mean(samples: Sequence[float]) -> float:
    """Return the figure of an interval: rounded half up to six decimals, `FAILED` if there are no samples."""
    if not samples:
        return FAILED
    average = math.fsum(samples) / len(samples)
    return float(Decimal(repr(average)).quantize(_SIX_DECIMALS, ROUND_HALF_UP))


def extended(ring: Sequence[float], value: float, length: int) -> tuple[float, ...]:
    """Return the ring after one more interval: the newest `length` figures, oldest first."""
    return (*ring, value)[-length:]


def average(samples: Iterable[float], alpha: float) -> float:
    """Return the exponential moving average by which a worker is judged; failures are skipped, 0 without figures."""
    value: float | None = None
    for sample in samples:
        if sample != FAILED:
            value = sample if value is None else alpha * sample + (1 - alpha) * value
    return 0.0 if value is None else value


# --- judgement --------------------------------------------------------------------------------------------------------


def is_default(report: WorkerReport) -> bool:
    """Return whether the worker measures nothing and is judged by the throughput of its leases."""
    return not report.samples or THROUGHPUT_NAME in report.samples


def is_valid(report: WorkerReport) -> bool:
    """Return whether the report says enough to judge the worker."""
    if report.updated_at_s is None:
        return False
    ranges = report.ranges
    return is_default(report) or (
        report.samples.keys() <= ranges.keys() and all(values and values[0] != 0 for values in ranges.values())
    )


def is_expired(report: WorkerReport, now_s: float, rules: ReportRules) -> bool:
    """Return whether the worker has been silent for too long; never for a report of the future."""
    if report.updated_at_s is None:
        return False
    return now_s - report.updated_at_s > EXPIRED_AFTER_PERIODS * rules.report_period_s


def is_failing(report: WorkerReport) -> bool:
    """Return whether a metric failed in the newest interval (or has no figure at all): no leases for such a worker."""
    return not is_default(report) and any(not values or values[-1] == FAILED for values in report.samples.values())


def is_stale(report: WorkerReport, now_s: float, rules: ReportRules) -> bool:
    """Return whether the row is left over and should be deleted."""
    return report.updated_at_s is None or now_s - report.updated_at_s > rules.stale_after_s


def newest_of_each(reports: Iterable[WorkerReport]) -> tuple[WorkerReport, ...]:
    """Return one report for each worker, the newest; of two equally old ones that of the single table."""
    newest: dict[str, WorkerReport] = {}
    for report in reports:
        other = newest.get(report.worker)
        if other is None or _age_order(report) > _age_order(other):
            newest[report.worker] = report
    return tuple(newest.values())


def sort_out(
    reports: Iterable[WorkerReport], now_s: float, rules: ReportRules, moving: Container[str] = ()
) -> SortedReports:
    """Return who is what, from the reports of all tables. Duplicates count once, but each is judged for deletion.

    Those of `moving` are seen to report, whatever their clocks say.
    """
    everything = tuple(reports)
    active, failing, expired, invalid = [], [], [], []
    for report in newest_of_each(everything):
        if not is_valid(report):
            invalid.append(report)
        elif is_leaving(report) or (report.worker not in moving and is_expired(report, now_s, rules)):
            expired.append(report)
        elif is_failing(report):
            failing.append(report)
        else:
            active.append(report)
    stale = tuple(report for report in everything if is_stale(report, now_s, rules))
    return SortedReports(tuple(active), tuple(failing), tuple(expired), tuple(invalid), stale)


def _age_order(report: WorkerReport) -> tuple[float, bool]:
    return (-math.inf if report.updated_at_s is None else report.updated_at_s), not report.legacy


class Sightings:
    """When the report of each worker was last seen to move, by the watcher's own clock.

    A clock that was set back makes the reports of the dead come from the future, where they never expire
    (coordination#reports-and-clocks). That one stands still shows all the same. Only what was watched counts: a new
    leader has to watch for as long.
    """

    def __init__(self) -> None:
        self._times: Stillness[str, int | None] = Stillness()
        self._off_s: dict[str, float] = {}
        """By how much the clocks that made the times are off, as far as that is certain."""
        self._saw_at = NEVER

    def saw(self, reports: Iterable[WorkerReport], now: float, wall_s: float | None = None) -> None:
        """Take note of all reports there are, one for each worker; `now` is monotonic. With `wall_s` the clocks are
        compared.
        """
        there = {report.worker: report.updated_at_s for report in reports}
        for worker, told_s in there.items():
            if self._times.saw(worker, told_s, now) and self._times.has_moved(worker):
                self._off_s[worker] = 0.0 if wall_s is None else clock_off_s(told_s, wall_s, now - self._saw_at)
        self._times.keep(there)
        self._off_s = {worker: off_s for worker, off_s in self._off_s.items() if off_s and worker in there}
        self._saw_at = now

    def off(self) -> dict[str, float]:
        """Return by how much the clocks of workers are off, those that are not left out."""
        return dict(self._off_s)

    def alive(self, now: float, rules: ReportRules) -> frozenset[str]:
        """Return the workers that were seen to report anew lately."""
        return frozenset(worker for worker in self.moving(now, rules) if self.has_moved(worker))

    def is_still(self, worker: str, now: float, rules: ReportRules) -> bool:
        """Return whether the worker's report has stood still for as long as one may."""
        return self._times.is_still(worker, now, EXPIRED_AFTER_PERIODS * rules.report_period_s)

    def moving(self, now: float, rules: ReportRules) -> frozenset[str]:
        """Return the workers whose reports do not stand still."""
        return frozenset(worker for worker in self._times if not self.is_still(worker, now, rules))

    def time_of(self, worker: str) -> int | None:
        """Return the time of the worker's report."""
        return self._times.value(worker)

    def has_moved(self, worker: str) -> bool:
        """Return whether more than one report of the worker was seen."""
        return self._times.has_moved(worker)

    def doubt(self, worker: str) -> None:
        """Ask for another report to show that this worker lives."""
        if worker in self._times:
            self._times.begin(worker, self._times.value(worker), self._times.since(worker))

    def forget(self) -> None:
        self._times.forget_all()
        self._off_s.clear()


def clock_off_s(told_s: int | None, wall_s: float, within_s: float) -> float:
    """Return by how much a clock is off that told `told_s` in the last `within_s` seconds before `wall_s`.

    0 if it may be right; a minute does not count.
    """
    ahead_s = 0.0 if told_s is None else told_s - wall_s
    if ahead_s > CLOCK_OFF_MAX_S:
        return ahead_s
    return ahead_s + within_s if ahead_s + within_s < -CLOCK_OFF_MAX_S else 0.0


# --- attribute values -------------------------------------------------------------------------------------------------


def _list(texts: Iterable[str]) -> dict[str, Any]:
    return {"L": [{"N": text} for text in texts]}


def _double_text(value: float) -> str:
    """Return at most six decimals and at least one, as Java prints it, but without exponent."""
    text = f"{value:.6f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def _number(value: Mapping[str, Any], name: str) -> Decimal:
    try:
        number = Decimal(value["N"])
    except (KeyError, TypeError, InvalidOperation):
        raise CorruptReportError(f"{name} is not a number: {str(value)[:SHOWN_MAX]}") from None
    if not number.is_finite() or abs(number) > FIGURE_MAX:
        raise CorruptReportError(f"{name} is out of range: {number}")
    return number


def _integer(value: Mapping[str, Any] | None, name: str) -> int | None:
    """Return the whole part of a number; None if the attribute is absent or NULL."""
    return None if value is None or "NULL" in value else int(_number(value, name))


def _lists(row: Row, name: str) -> Iterable[tuple[str, tuple[Decimal, ...]]]:
    """Return the members of a map of lists of numbers; none if the attribute is absent or NULL."""
    value = row.get(name)
    if value is None or "NULL" in value:
        return ()
    members = value.get("M")
    if not isinstance(members, Mapping):
        raise CorruptReportError(f"{name} is not a map")
    return [(member, _numbers(content, f"{name}.{member[:SHOWN_MAX]}")) for member, content in members.items()]


def _numbers(value: Mapping[str, Any], name: str) -> tuple[Decimal, ...]:
    numbers = value.get("L")
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        raise CorruptReportError(f"{name} is not a list")
    return tuple(_number(number, name) for number in numbers)
