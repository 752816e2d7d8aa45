"""When a watched worker counts as silent, and which of its leases are orphaned. Pure.

A watcher looks at one lease of each watched worker. Java's leader learns of a dead worker from scans 20 s apart; a row
read every second shows the same within the lease duration (coordination spec, 4.4; leases spec, 15.4).

Evidence: the representative lease has not moved for a whole lease duration since it was first *seen* with its counter,
which is later than the worker's last renewal of it; so that lease has expired by the ordinary rule. For the worker's
other leases a base line is read when the representative is late, or as soon after that as it can be read. Those that
have not moved since, for longer than a renewal interval, share its fate. Each of them is re-assigned under the
condition that its counter is still the one of the base line, so a lease that was renewed meanwhile is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from mld.leases.lease import Lease

LATE_SHARE = 0.5
"""Share of the lease duration after which a representative is late: above the renewal interval (a third)."""
BASELINE_SHARE = 0.4
"""Share of the lease duration that a base line must be old before it proves anything: above the renewal interval."""
WATCHED_MAX = 64
"""Entries read from one publication; a ring names two per worker, the rest is for fleets with few mld workers."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A worker to watch, and the lease that stands for it."""

    worker: str
    key: str


class Verdict(Enum):
    ALIVE = "alive"
    LATE = "late"
    """Its leases may become orphans: a base line of them is needed."""
    SILENT = "silent"
    """Its leases are orphans, those that have not moved since the base line."""
    GONE = "gone"
    """The lease does not stand for the worker any more: choose another one."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of one representative."""

    counter: int | None = None
    since: float = 0.0
    verdict: Verdict = Verdict.ALIVE


def look(before: Look, watched: Watched, row: Lease | None, now: float, lease_duration_s: float) -> Look:
    """The next state after reading the representative's row at `now` (monotonic seconds, the time of the answer)."""
    if row is None or row.actual_owner != watched.worker or row.is_complete:
        return Look(verdict=Verdict.GONE)
    if before.counter != row.counter:
        return Look(row.counter, now)
    silent_s = now - before.since
    if silent_s > lease_duration_s:
        return replace(before, verdict=Verdict.SILENT)
    if silent_s > LATE_SHARE * lease_duration_s:
        return replace(before, verdict=Verdict.LATE)
    return before


def is_proof(baseline_age_s: float, lease_duration_s: float) -> bool:
    """Whether a lease that has not moved since a base line of that age has missed a renewal."""
    return baseline_age_s > BASELINE_SHARE * lease_duration_s


def orphans(worker: str, baseline: Mapping[str, Lease], now_rows: Iterable[Lease]) -> list[Lease]:
    """The leases of `worker` that have not moved since the base line; in key order.

    Completed ones too: somebody has to own them until they are cleaned up.
    """
    return sorted(
        (
            row
            for row in now_rows
            if row.actual_owner == worker
            and (old := baseline.get(row.key)) is not None
            and old.actual_owner == worker
            and old.counter == row.counter
        ),
        key=lambda row: row.key,
    )


def life_signs(baseline: Mapping[str, Lease], now_rows: Iterable[Lease]) -> tuple[frozenset[str], frozenset[str]]:
    """The workers none of whose leases has moved since the base line, and those that renewed one.

    The former are probably as dead as the worker that the base line was read for.
    """
    still: set[str] = set()
    moved: set[str] = set()
    for row in now_rows:
        old, owner = baseline.get(row.key), row.actual_owner
        if old is not None and owner is not None and old.actual_owner == owner:
            (still if old.counter == row.counter else moved).add(owner)
    return frozenset(still - moved), frozenset(moved)


def representative(worker: str, leases: Iterable[Lease]) -> str | None:
    """The lease that stands for `worker`: its first one that is neither complete nor being handed over."""
    keys = (
        lease.key
        for lease in leases
        if lease.owner == worker and lease.checkpoint_owner is None and not lease.is_complete
    )
    return min(keys, default=None)


def parse_watch(text: str | None) -> tuple[Watched, ...]:
    """What a leader published for us (`[["worker", "lease key"], ...]`); nothing for anything else."""
    try:
        entries = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    if not isinstance(entries, list):
        return ()
    return tuple(Watched(*entry) for entry in entries[:WATCHED_MAX] if _is_pair(entry))


def _is_pair(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)


def render_watch(watched: Iterable[Watched]) -> str:
    """`parse_watch` turned round."""
    return json.dumps([[one.worker, one.key] for one in watched], separators=(",", ":"))
