"""When a watched worker counts as silent, and which of its leases are orphaned. Pure.

A watcher looks at one lease of each watched worker. Java's leader learns of a dead worker from scans 20 s apart; a row
read every second shows the same within the lease duration (coordination spec, 4.4; leases spec, 15.4).

Evidence: the representative lease has not moved for a whole lease duration since it was first *seen* with its counter,
which is later than the worker's last renewal of it; so that lease has expired by the ordinary rule. For the worker's
other leases a base line is read when the representative is late, or as soon after that as it can be read. Those that
have not moved since, for longer than a renewal interval, share its fate. Each of them is re-assigned under the
condition that its counter is still the one of the base line, so a lease that was renewed meanwhile is left alone.

A representative that its worker's heartbeat stands for does not move itself. Then the heartbeat is looked at instead,
and both when that is late. Silence of the heartbeat concerns every lease it stands for, after the worker was fenced
(`leases.carrying`); silence of a lease that is renewed by itself concerns no lease with a mark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from mld.fleet.heartbeats import epoch_of, is_fenced
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
    beat: str | None = None
    """The worker's heartbeat, if it stands for the representative."""
    mark: str | None = None
    """The mark on the representative's row, whether or not that heartbeat goes on."""


UNMARKED = Look()


def glance(before: Look, beat: str | None, now: float, lease_duration_s: float) -> Look | None:
    """The next state after reading only the heartbeat that carries the representative; None: read the row as well."""
    if epoch_of(beat) is None or epoch_of(beat) != epoch_of(before.beat):
        return None
    if beat != before.beat:
        return replace(before, since=now, beat=beat, verdict=Verdict.ALIVE)
    return before if now - before.since <= LATE_SHARE * lease_duration_s else None


def look(
    before: Look, watched: Watched, row: Lease | None, now: float, lease_duration_s: float, beat: str | None = None
) -> Look:
    """The next state after reading the representative's row at `now` (monotonic seconds, the time of the answer).

    `beat` is the worker's heartbeat, read as well if the row has a mark.
    """
    if row is None or row.actual_owner != watched.worker or row.is_complete:
        return Look(verdict=Verdict.GONE)
    carrying = _carrying(before, row, beat)
    if (before.counter, before.beat) != (row.counter, carrying):
        return Look(row.counter, now, beat=carrying, mark=row.heartbeat)
    silent_s = now - before.since
    if silent_s > lease_duration_s:
        return replace(before, verdict=Verdict.SILENT)
    if silent_s > LATE_SHARE * lease_duration_s:
        return replace(before, verdict=Verdict.LATE)
    return before


def _carrying(before: Look, row: Lease, beat: str | None) -> str | None:
    """The heartbeat that stands for the row. One that was fenced since the last look has not moved."""
    if row.heartbeat is None:
        return None
    if is_fenced(beat) and epoch_of(before.beat) == row.heartbeat:
        return before.beat
    return beat if epoch_of(beat) == row.heartbeat else None


def is_proof(baseline_age_s: float, lease_duration_s: float) -> bool:
    """Whether a lease that has not moved since a base line of that age has missed a renewal."""
    return baseline_age_s > BASELINE_SHARE * lease_duration_s


def orphans(
    worker: str, baseline: Mapping[str, Lease], now_rows: Iterable[Lease], silent: Look = UNMARKED
) -> list[Lease]:
    """The leases of `worker` that share the fate of the `silent` representative; in key order.

    If it rested on a heartbeat, fenced by now, all do that rested on the same. Of the others those that have not moved
    since the base line: the ones without a mark, and those with the representative's, if no heartbeat stands for it.
    Completed ones too: somebody has to own them until they are cleaned up.
    """
    fenced = epoch_of(silent.beat)
    return sorted(
        (
            row
            for row in now_rows
            if row.actual_owner == worker
            and (
                row.heartbeat == fenced
                if fenced is not None and row.heartbeat is not None
                else row.heartbeat in (None, silent.mark) and _stands_still(worker, baseline.get(row.key), row)
            )
        ),
        key=lambda row: row.key,
    )


def _stands_still(worker: str, old: Lease | None, row: Lease) -> bool:
    return old is not None and old.actual_owner == worker and old.counter == row.counter


def life_signs(
    baseline: Mapping[str, Lease], now_rows: Iterable[Lease], beating: Collection[str] = ()
) -> tuple[frozenset[str], frozenset[str]]:
    """The workers none of whose leases has moved since the base line, and those that renewed one, or are `beating`.

    The former are probably as dead as the worker that the base line was read for.
    """
    still: set[str] = set()
    moved: set[str] = set(beating)
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
