"""`WorkerReport`: the row in which a worker reports its load. Reads, writes and judges such rows. Pure.

Rules: coordination#worker-report-row, coordination#report-rhythm, coordination#report-judgement. A leader judges
reports by its own settings and its own wall clock. Reading is tolerant: a damaged row does not affect others. Writing
is strict. The row of an mld worker has further attributes: `mldVersion`, `mldDrain` if an operator drains it,
`mldLeaving` while it stops, `mldStream`, and where the worker runs (`mldHost`, `mldPid`, `mldStarted`, `mldMeter`).

A *default worker* is one that reports no metrics, so it is judged by the throughput of its leases. Here, unlike in
Java, that includes a worker that reports operating ranges (limits of its load) but no samples: Java takes such a worker
for the least loaded of all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

from mld.leases.lease import Lease
from mld.leases.own_attribute import OwnAttribute, Row, integer, some_text, text_cut_to
from mld.leases.rows import ENTITY_TYPE, REPORTS_TABLE_KEY, EntityType
from mld.properties.settings import FleetSettings

SUPPORT_CODE = 1
"""The value of `sup` in every report. It means that this worker can work with a single table."""
UPDATED_AT = "lut"
SAMPLES = "sts"
RANGES = "opr"
SUPPORT = "sup"
SUPPORT_AT = "slu"
"""Java's attributes of a report: its time, the samples, the operating ranges, the support code and the code's time."""
VERSION = "mldVersion"
DRAIN = "mldDrain"
"""An operator's note, present while the worker is drained: it should have no leases. The worker's own reports preserve
it.
"""
LEAVING = "mldLeaving"
"""Since when the worker has been stopping, in epoch seconds. The first report of its next process removes it."""
STREAM = "mldStream"
"""The name of the stream, which lease rows do not have; absent if the application reads several streams."""
TABLE_STREAM_PARTS = 4  # region, account, table, label
STREAM_CHARACTERS_MAX = 512  # the name of a DynamoDB stream has its region, account, table and label
HOST, PID, STARTED = "mldHost", "mldPid", "mldStarted"
"""For people: the host and process of the worker, and its start, in epoch seconds."""
HOST_CHARACTERS_MAX = 64  # the limit of Linux
METER = "mldMeter"
"""Identifies the CPUs to which the CPU figures belong, those of a machine or a container. Workers with the same
meter measure the same CPUs.
"""
METER_CHARACTERS_MAX = 200
ENDS = "mldEnds"
"""For people: workers that this one has lately found dead and whose leases it took, as JSON."""
ENDS_MAX = 5
ENDS_CHARACTERS_MAX = 300
PID_DIGITS_MAX = 10

FAILED = -1.0
"""The figure that stands for an interval in which a metric could not be measured."""
RANGE_PERCENT = 100
"""Operating range of every metric that mld reports."""
THROUGHPUT_NAME = "THROUGHPUT"
"""A worker whose samples have this metric is a default worker."""
EXPIRED_AFTER_PERIODS = 2
"""A report is valid for this many report periods."""
FIGURE_MAX = 10**15  # far beyond any time in seconds, share or speed; squares and sums of such figures stay finite
SHOWN_MAX = 100  # characters of a value that a message shows: an attribute may have 400 KB
_SIX_DECIMALS = Decimal("0.000001")
NOTHING: Mapping[str, str] = MappingProxyType({})


def _seconds(found: Any) -> str:
    """Return a time in epoch seconds as a text, for `OwnAttribute`."""
    return str(integer(FIGURE_MAX)(found))


OWN_MEMBERS = {
    "version": OwnAttribute(VERSION, "S", some_text(), "0.2"),
    "drain": OwnAttribute(DRAIN, "S", some_text(), "by ops"),
    "leaving": OwnAttribute(LEAVING, "S", some_text(), "1763661600"),
    "stream": OwnAttribute(STREAM, "S", text_cut_to(STREAM_CHARACTERS_MAX), "clicks"),
    "host": OwnAttribute(HOST, "S", text_cut_to(HOST_CHARACTERS_MAX), "ip-10-0-1-23"),
    "pid": OwnAttribute(PID, "S", some_text(PID_DIGITS_MAX), "4711"),
    "started": OwnAttribute(STARTED, "S", _seconds, "1763661600"),
    "meter": OwnAttribute(METER, "S", some_text(METER_CHARACTERS_MAX), "6f9c2f1e-4e7b-4a8e-9f3a-0d5c8b7a6e5d"),
}
"""The attribute of each member of `WorkerReport.mld`."""
WRITTEN_MEMBERS = frozenset(OWN_MEMBERS) - {"drain"}
"""The members that a worker writes with each report."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The report of a worker, as read from its row."""

    worker: str
    updated_at_s: int | None
    """The time in the report, by the worker's own wall clock, in epoch seconds; None if the row lacks it."""
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Averages of intervals by metric, the oldest first; -1 for an interval in which the metric failed."""
    ranges: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Operating ranges by metric; only index 0 counts, the highest percentage."""
    legacy: bool = False
    """Whether the report was read from the legacy worker-metrics table."""
    mld: Mapping[str, str] = field(default_factory=dict)
    """The attributes that an mld worker adds, by member of `OWN_MEMBERS`; empty for a Java worker."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """Workers that this worker has lately found dead, each with the time at which it did, in epoch seconds."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The leases and reports that one run of the assigner has read. `reports` includes expired reports, and may have
    several of one worker.
    """

    leases: tuple[Lease, ...]
    reports: tuple[WorkerReport, ...]
    expired: frozenset[str]
    """Keys of the leases that have no owner, or an owner that does not renew them."""


@dataclass(frozen=True, slots=True)
class ReportRules:
    """The reader's settings workerMetricsReporterFreqInMillis, staleWorkerMetricsEntryCleanupDuration and EMAAlpha."""

    report_period_s: float = 30.0
    stale_after_s: float = 86_400.0
    ema_alpha: float = 0.5

    @classmethod
    def of(cls, fleet: FleetSettings) -> ReportRules:
        """Return the rules of this fleet's settings."""
        return cls(fleet.report_period_s, fleet.stale_report_s, fleet.ema_alpha)


@dataclass(frozen=True, slots=True)
class ReportScan:
    """The reports among some rows. `corrupt` has the key of each row that cannot be read, with the reason."""

    reports: tuple[WorkerReport, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SortedReports:
    """All workers' reports, the newest of each worker, by the state of the worker. A leaving worker counts as expired.

    `stale` are all reports that should be deleted; several of them may be of one worker.
    """

    active: tuple[WorkerReport, ...] = ()
    failing: tuple[WorkerReport, ...] = ()
    expired: tuple[WorkerReport, ...] = ()
    invalid: tuple[WorkerReport, ...] = ()
    stale: tuple[WorkerReport, ...] = ()


def is_drained(report: WorkerReport) -> bool:
    """Return whether an operator drains the worker: it should have no leases."""
    return "drain" in report.mld


def is_leaving(report: WorkerReport) -> bool:
    """Return whether the worker is stopping, so that it must not get leases."""
    return "leaving" in report.mld


def application_of(report: WorkerReport) -> str | None:
    """Return what identifies the worker's application (`application_on`); None if the report has no stream."""
    return application_on(report.mld["stream"]) if "stream" in report.mld else None


def application_on(stream: str) -> str | None:
    """Return a text that distinguishes an application that reads `stream` from others in the same table. Return None if
    `stream` is empty, because the application reads several streams.

    The text is the stream's name. The name of a DynamoDB stream ends with a label that changes when the stream is
    switched off and on, so the label is left out.
    """
    region, *table = stream.split("$")  # of a DynamoDB stream: region, account, table, label
    name = "$".join((region, *table[:2])) if len(table) == TABLE_STREAM_PARTS - 1 else stream
    return name[:STREAM_CHARACTERS_MAX] or None


# --- rows -------------------------------------------------------------------------------------------------------------


class CorruptReportError(ValueError):
    """A row is a report, but cannot be read."""


def is_report(row: Row, key: str) -> bool:
    """Return whether a row is a report. `key` is the name of the table's hash key; in the legacy table every row is
    one.
    """
    return key == REPORTS_TABLE_KEY or row.get(ENTITY_TYPE, {}).get("S") == EntityType.WORKER_METRIC_STATS.value


def parse_row(row: Row, key: str) -> WorkerReport:
    """Return the report in a row; `key` is the name of the table's hash key. Raises CorruptReportError.

    mld's additional attributes, by which workers are not judged, are dropped if they are damaged. The support code is
    not read; only a Java leader reads it.
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
    """Return the reports among `rows`, and the keys of the damaged ones with what is wrong with them."""
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
    """Return the attributes that a worker writes with each of its reports, without the key. The note DRAIN
    is not among them, because it belongs to an operator.

    SUPPORT and its time are for Java leaders. ENDS is written only if workers were found dead. `report` must be
    complete: no empty list, and a range for each metric.
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
    own = {name: value for name, value in report.mld.items() if name in WRITTEN_MEMBERS}
    written |= {OWN_MEMBERS[name].name: {"S": value} for name, value in own.items()}
    return written | ({ENDS: {"S": _ends_text(report.ends)}} if report.ends else {})


def own_report(
    worker: str,
    figures: Mapping[str, Sequence[float]],
    now_s: float,
    version: str,
    ends: Sequence[tuple[str, float]] = (),
    *,
    leaving: bool = False,
    members: Mapping[str, str] = NOTHING,
) -> WorkerReport:
    """Return a worker's own report at wall time `now_s`.

    `figures` has the means of the last intervals by metric. A metric that was never measured is left out. If it were
    written, the worker would count as failing and never get a lease; without it the worker is a default worker. `ends`
    has workers that were found dead, each with the time in epoch seconds; only the newest are written. `members` are
    further members of `OWN_MEMBERS`; empty ones are left out.
    """
    samples = {name: tuple(means) for name, means in figures.items() if any(value != FAILED for value in means)}
    return WorkerReport(
        worker=worker,
        updated_at_s=int(now_s),
        samples=samples,
        ranges=dict.fromkeys(samples, (RANGE_PERCENT,)),
        mld={
            "version": version,
            **({"leaving": str(int(now_s))} if leaving else {}),
            **{name: value for name, value in members.items() if value},
        },
        ends={worker: int(at_s) for worker, at_s in ends},
    )


def _ends_text(ends: Mapping[str, int]) -> str:
    """Return the text of the attribute ENDS: the newest of these workers, each with the time at which it was found
    dead; as many as fit.
    """
    newest = sorted(ends.items(), key=lambda end: end[1])[-ENDS_MAX:]
    while len(text := json.dumps(newest)) > ENDS_CHARACTERS_MAX:
        newest = newest[1:]
    return text


def _ends(text: str) -> dict[str, int]:
    """Return the workers that were found dead, each with the time, from a text of `_ends_text`. Raises ValueError or
    another error if the text is damaged.
    """
    ends = {str(worker): int(at_s) for worker, at_s in json.loads(text)[:ENDS_MAX]}
    if not all(0 <= at_s <= FIGURE_MAX for at_s in ends.values()):
        raise ValueError("no times")
    return ends


_ENDS = OwnAttribute(ENDS, "S", _ends, '[["w1", 1763661600]]')


# --- figures ----------------------------------------------------------------------------------------------------------


def mean(samples: Sequence[float]) -> float:
    """Return the mean of an interval's samples, rounded half up to six decimals; `FAILED` if there are none."""
    if not samples:
        return FAILED
    average = math.fsum(samples) / len(samples)
    return float(Decimal(repr(average)).quantize(_SIX_DECIMALS, ROUND_HALF_UP))


def extended(figures: Sequence[float], value: float, length: int) -> tuple[float, ...]:
    """Return `figures`, the oldest first, with `value` added at the end, cut to the newest `length`."""
    return (*figures, value)[-length:]


def average(samples: Iterable[float], alpha: float) -> float:
    """Return the exponential moving average by which a worker is judged; 0 if there are no figures. Failed intervals
    are skipped.
    """
    value: float | None = None
    for sample in samples:
        if sample != FAILED:
            value = sample if value is None else alpha * sample + (1 - alpha) * value
    return 0.0 if value is None else value


# --- judgement --------------------------------------------------------------------------------------------------------


def is_default(report: WorkerReport) -> bool:
    """Return whether this is a default worker (see the module): it has no metrics, or Java's throughput metric."""
    return not report.samples or THROUGHPUT_NAME in report.samples


def is_valid(report: WorkerReport) -> bool:
    """Return whether the report has all that is needed to judge the worker: a time, and unless it is a default worker,
    an operating range above 0 for each metric.
    """
    if report.updated_at_s is None:
        return False
    ranges = report.ranges
    return is_default(report) or (
        report.samples.keys() <= ranges.keys() and all(values and values[0] != 0 for values in ranges.values())
    )


def is_expired(report: WorkerReport, now_s: float, rules: ReportRules) -> bool:
    """Return whether the report is too old. A report without a time, or with a time in the future, is not."""
    if report.updated_at_s is None:
        return False
    return now_s - report.updated_at_s > EXPIRED_AFTER_PERIODS * rules.report_period_s


def is_failing(report: WorkerReport) -> bool:
    """Return whether a metric of the worker could not be measured in the newest interval, or has no figure at all. Such
    a worker gets no leases.
    """
    return not is_default(report) and any(not values or values[-1] == FAILED for values in report.samples.values())


def is_stale(report: WorkerReport, now_s: float, rules: ReportRules) -> bool:
    """Return whether the report is so old that its row should be deleted."""
    return report.updated_at_s is None or now_s - report.updated_at_s > rules.stale_after_s


def newest_of_each(reports: Iterable[WorkerReport]) -> tuple[WorkerReport, ...]:
    """Return the newest report of each worker, in the order in which the workers first occur. A worker may have one in
    the lease table and one in the legacy table (`legacy`); if both are equally old, that in the lease table is
    returned.
    """
    newest: dict[str, WorkerReport] = {}
    for report in reports:
        other = newest.get(report.worker)
        if other is None or _age_order(report) > _age_order(other):
            newest[report.worker] = report
    return tuple(newest.values())


def sort_out(
    reports: Iterable[WorkerReport], now_s: float, rules: ReportRules, moving: Container[str] = ()
) -> SortedReports:
    """Sort the reports of all tables by the state of their workers. Only a worker's newest report decides its state,
    but each report may be stale.

    `moving` are workers that were seen to write a new report lately. Their reports do not expire, whatever time is in
    them.
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
    """Return a key that sorts reports from old to new; of two equally old ones, the one in the lease table is last."""
    return (-math.inf if report.updated_at_s is None else report.updated_at_s), not report.legacy


# --- attribute values -------------------------------------------------------------------------------------------------


def _list(texts: Iterable[str]) -> dict[str, Any]:
    return {"L": [{"N": text} for text in texts]}


def _double_text(value: float) -> str:
    """Return a number as text, with one to six decimals, as Java prints it, but without an exponent."""
    text = f"{value:.6f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def _number(value: Mapping[str, Any], name: str) -> Decimal:
    """Return a finite number of bounded size from an attribute value; `name` is for the error. Raises
    CorruptReportError.
    """
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
    """Return the members of an attribute that is a map of lists of numbers; none if it is absent or NULL."""
    value = row.get(name)
    if value is None or "NULL" in value:
        return ()
    members = value.get("M")
    if not isinstance(members, Mapping):
        raise CorruptReportError(f"{name} is not a map")
    return [(member, _numbers(content, f"{name}.{member[:SHOWN_MAX]}")) for member, content in members.items()]


def _numbers(value: Mapping[str, Any], name: str) -> tuple[Decimal, ...]:
    """Return the numbers of a list. Raises CorruptReportError if it is no list of numbers."""
    numbers = value.get("L")
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        raise CorruptReportError(f"{name} is not a list")
    return tuple(_number(number, name) for number in numbers)
