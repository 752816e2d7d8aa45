"""`living`: finds out whether the owners of leases are alive, by reading the tables several times.

A worker is alive if one of its leases, or its report, changes between two reads. A row that is missing from one read,
or is new in one, has not changed: it is compared with what it showed when it was last seen. The times in rows prove no
life, because clocks differ; they only decide which workers without leases are watched. A worker is taken for dead if
its rows do not change for the lease duration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mld.core.clock import Clock
from mld.core.stillness import Stillness
from mld.leases import rows
from mld.operating.operator_id import is_operator
from mld.operating.plan import RawTable, Row
from mld.operating.short_ids import names_of

LOOKS_PER_LEASE = 5
MARGIN_S = 1.0
"""How much longer than the lease duration is watched, so that a renewal at its very end is still seen."""
RECENT_REPORTS = 4
"""A worker without leases is watched if its report is at most this many times the reporting period old."""
OWNERS_NAMED_MAX = 3
_LEASE, _REPORT = "lease", "report"


@dataclass(frozen=True, slots=True)
class Observed:
    """One read: the lease table, and the rows of the report table that fleets of KCL 3.0 to 3.4 have."""

    table: RawTable
    reports: tuple[Row, ...] = ()


Look = Callable[[], Awaitable[Observed]]


def owners_of(observed: Observed) -> dict[str, list[str]]:
    """Return the keys of the leases of each actual owner."""
    owners: dict[str, list[str]] = {}
    for lease in observed.table.scan.leases:
        if lease.actual_owner is not None:
            owners.setdefault(lease.actual_owner, []).append(lease.key)
    return owners


def _signs_of_life(observed: Observed) -> dict[tuple[str, str], object]:
    """Return what workers rewrite while they live, by kind and key: owner and counter of each lease, and each
    report.
    """
    found: dict[tuple[str, str], object] = {
        (_LEASE, lease.key): (lease.actual_owner, lease.counter) for lease in observed.table.scan.leases
    }
    return {**found, **{(_REPORT, worker): row for worker, row in _reports(observed).items()}}


def _reports(observed: Observed) -> dict[str, Row]:
    """Return the rows that are worker reports, by worker."""
    found = {}
    # `wid` is the worker's id and `lut` the time of its last update, as Java names these attributes.
    for row in (*observed.table.scan.others, *observed.reports):
        name = row.get("wid", row.get(rows.KEY, {})).get("S")
        if isinstance(name, str) and ("lut" in row or row.get(rows.ENTITY_TYPE, {}).get("S") == "WORKER_METRIC_STATS"):
            found[name] = row
    return found


def reporting_workers(observed: Observed) -> frozenset[str]:
    """Return the workers that have a report, however old. Workers of KCL 2.x have none."""
    return frozenset(_reports(observed))


def _reporting(observed: Observed, now_s: float, age_max_s: float) -> set[str]:
    """Return the workers whose reports are at most `age_max_s` old, by the time in the report. A report without a time
    counts as new.
    """
    found = set()
    for worker, row in _reports(observed).items():
        text = row.get("lut", {}).get("N", "")
        reported_s = int(text) if text.isascii() and text.isdigit() else now_s
        if now_s - reported_s <= age_max_s:
            found.add(worker)
    return found


async def living(
    look: Look,
    first: Observed,
    clock: Clock,
    lease_duration_s: float,
    *,
    idle_report_s: float | None = None,
    whom: Callable[[str], bool] = lambda _: True,
) -> set[str]:
    """Watch the tables, and return the living workers as soon as one is found; an empty set if none is found within a
    lease duration (two if leases appear meanwhile).

    Only workers for which `whom` returns True count, also if they get their first lease meanwhile. Workers without
    leases count only if `idle_report_s`, the time between two reports, is given; then the watch lasts at least that
    long if a report is recent. Raises TableError.
    """
    owners = owners_of(first)
    recent = set() if idle_report_s is None else _reporting(first, clock.wall(), RECENT_REPORTS * idle_report_s)
    watched = {one for one in owners.keys() | recent if whom(one)}
    watch_s = max(lease_duration_s, (idle_report_s or 0.0) if recent else 0.0) + MARGIN_S
    began_s = clock.monotonic()
    # The last seen value of each sign of life; `has_moved` returns whether a later look showed another value.
    signs: Stillness[tuple[str, str], object] = Stillness()
    for sign, value in _signs_of_life(first).items():
        signs.saw(sign, value, began_s)
    deadline_s = began_s + watch_s
    while watched and clock.monotonic() < deadline_s:
        await clock.sleep(lease_duration_s / LOOKS_PER_LEASE)
        now, now_s = await look(), clock.monotonic()
        for sign, value in _signs_of_life(now).items():
            is_new_lease = sign not in signs and sign[0] == _LEASE
            signs.saw(sign, value, now_s)
            if is_new_lease and now_s <= began_s + watch_s:
                deadline_s = max(deadline_s, now_s + lease_duration_s + MARGIN_S)
        owners_now = owners_of(now)
        moved = {worker for worker, keys in owners_now.items() if any(signs.has_moved((_LEASE, key)) for key in keys)}
        moved |= {worker for kind, worker in signs if kind == _REPORT and signs.has_moved((_REPORT, worker))}
        alive = {one for one in moved if one in watched or (one in owners_now and whom(one))}
        if alive:
            return alive
    return set()


def refusal(alive: set[str], owners: Mapping[str, list[str]], remedy: str) -> str:
    """Return the sentence that refuses a command because these workers are alive."""
    operators = sorted(one for one in alive if is_operator(one))
    if operators:
        return f"another operator is at work on this table ({operators[0]}): wait until that command has ended"
    named = [f"{worker} ({len(owners.get(worker, ()))} leases)" for worker in sorted(alive)]
    return f"workers are alive: {names_of(named, OWNERS_NAMED_MAX)}; {remedy}"
