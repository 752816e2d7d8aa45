"""`StatusView`: makes the document of `/status.json`: the whole fleet, with more details about this worker's shards.
Pure.

A table may have 10,000 rows, so the long lists of the document are iterators, which are encoded in steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mld.metrics.declaring import Instant
from mld.metrics.events import Event
from mld.metrics.identity import Identity
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics
from mld.metrics.trend import TREND_STEP_S, trend_values
from mld.operating.faults import fault_value
from mld.operating.fleet_sight import FleetSight
from mld.operating.fleet_status import FleetStatus
from mld.operating.plain_values import event_value, shard_value, worker_value
from mld.operating.shard_view import (
    LAG_MAX_S,
    ShardView,
    Verdict,
    known_here,
    share_of,
    view_without_row,
)
from mld.operating.verdicts import fault_of, general_faults
from mld.properties.scrubber import Scrubber
from mld.serving.json_pieces import Document
from mld.serving.own_shards import processes_value

FOREIGN_TEXTS = ("why", "note", "lastError", "words", "remedy")
"""Fields whose texts may come from children, from AWS or from rows of the table, so that secrets are hidden in them."""

EVENTS_SHOWN = 20
DIGITS_OF_SHARES = 9  # a stream of 10,000 shards has shares of 0.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """Everything that the document is made of."""

    identity: Identity
    metrics: Metrics
    fleet: FleetStatus | None
    """None if the tables were never read: then the document has only the shards of this worker."""
    at: Instant
    mode: str
    why_not_alive: str | None = None
    why_not_ready: str | None = None
    trouble: str | None = None
    """Why the tables could not be read, or why their figures may be old."""
    lag_max_s: float = LAG_MAX_S
    spark: Sequence[Mapping[str, Any]] = ()
    """Session hosts of `mld-spark` on this machine."""
    events: Sequence[Event] = ()
    """The history, the oldest event first."""
    scrub: Scrubber = field(default_factory=Scrubber)
    """Hides secrets in texts that come from elsewhere."""
    sight: FleetSight = field(default_factory=FleetSight)
    """What is known of the fleet and of this worker; faults are found in it."""

    def head(self) -> Document:
        """Return the document without its long lists."""
        me, fleet = self.identity, self.fleet
        return {
            "application": me.application,
            "stream": me.stream,
            "version": me.version,
            "worker": me.worker,
            "mode": self.mode,
            "leader": None if fleet is None else fleet.leader,
            "whyNotAlive": self.why_not_alive,
            "whyNotReady": self.why_not_ready,
            "takenAt": self.at.wall_s,
            "tableReadAt": None if fleet is None else fleet.taken_s,
            "trouble": self.trouble,
            "configuration": self.metrics.worker.configuration.value(),
            "disks": self.metrics.worker.disks.value(),
            "spark": list(self.spark),
        }

    def lists(self) -> Mapping[str, Iterator[Document]]:
        """Return the long lists by name, with secrets hidden in texts that come from elsewhere."""
        lists = {
            "workers": self._workers(),
            "holes": self._holes(),
            "faults": map(fault_value, general_faults(self.sight)),
            "events": self._events(),
            "shards": self._shards(),
        }
        return {name: map(self._scrubbed, ones) for name, ones in lists.items()}

    def _scrubbed(self, one: Document) -> Document:
        """Return an entry of a list with secrets hidden in the fields of FOREIGN_TEXTS."""
        scrubbed = {name: self.scrub(text) for name in FOREIGN_TEXTS if isinstance(text := one.get(name), str)}
        return {**one, **scrubbed}

    def _workers(self) -> Iterator[Document]:
        """Yield the values of each worker of the fleet. This worker certainly lives, whatever its report shows."""
        for worker in () if self.fleet is None else self.fleet.workers:
            is_here = worker.worker == self.identity.worker
            yield worker_value(worker) | ({"isAlive": True, "why": None} if is_here else {}) | {"isHere": is_here}

    def _holes(self) -> Iterator[Document]:
        """Yield the ranges of hash keys that no lease covers, by stream, as fractions of all hash keys (0 to 1)."""
        for label, holes in {}.items() if self.fleet is None else self.fleet.holes_of.items():
            for begin, end in map(share_of, holes):
                yield {"stream": label, "from": begin, "to": end}

    def _events(self) -> Iterator[Document]:
        """Yield the newest events, and all older ones that have the last lines of a child; the newest first."""
        events = self.events
        for number, event in enumerate(reversed(events)):
            if number < EVENTS_SHOWN or event.lines:
                yield event_value(event)

    def _shards(self) -> Iterator[Document]:
        """Yield the values of each shard: from its row, and for a shard of this worker also from its own metrics."""
        own, me = dict(self.metrics.shards), self.identity.worker
        if self.fleet is None:
            for part in own.values():
                yield _own_only(part, self.at, me)
            return
        for view in self.fleet.shards:
            # If the row shows no owner, it was read before this worker took the lease.
            held = own.get(view.key) if view.owner in (me, None) else None
            if held is None or view.verdict is Verdict.ENDED:
                yield _of_table(view, self.at.wall_s, self._remedy(view))
            else:
                known = known_here(view, held, self.at.wall_s, self.lag_max_s)
                yield _shard_value(known, self._remedy(known)) | _of_own(held, self.at)

    def _remedy(self, view: ShardView) -> str | None:
        """Return what the operator can do about the shard's fault; None if it has no fault."""
        fault = fault_of(view, self.sight)
        return None if fault is None else fault.remedy


def _of_table(view: ShardView, wall_s: float, remedy: str | None) -> Document:
    """Return the values of a shard that this worker does not hold, as its row shows them.

    Values that the row lacks are None. So are the figures of the child, if the row's status is not fresh.
    """
    row, child = view.lease.status, None if view.status is None else view.status.child
    return _shard_value(view, remedy) | {
        "isHere": False,
        "busySeconds": None if child is None else child.busy_s,
        "restarts": None if child is None else child.restarts,
        "recordsPerSecond": None if child is None else child.records_per_s,
        "lastError": view.why,
        "lastErrorAt": None if view.failing is None else view.failing.since_s,
        "behindHistory": None if row is None or not row.trend else trend_values(row.trend, row.at_s, wall_s),
        "behindStepSeconds": TREND_STEP_S,
    }


def _shard_value(view: ShardView, remedy: str | None = None) -> Document:
    """Return the entry of a shard in the status document."""
    value = shard_value(view, remedy)
    del value["isProbed"]  # a daemon never probes
    for name in ("from", "to", "toldSecondsAgo"):
        if value[name] is not None:
            value[name] = round(value[name], DIGITS_OF_SHARES)
    return value


def _of_own(own: ShardMetrics, at: Instant) -> dict[str, Any]:
    """Return the values of a shard that this worker holds: those that its row lacks, or shows later."""
    why = own.why_at(at.wall_s)
    return {
        "isHere": True,
        "behindSeconds": own.behind_s(at),
        "delivered": None if own.delivered is None else str(own.delivered),
        "busySeconds": own.busy_s(at),
        **processes_value(own, at),
        "restarts": own.restarts.total,
        "recordsPerSecond": own.records_per_s,
        "lastError": why or own.last_error,
        "lastErrorAt": own.last_error_wall_s if own.last_error and not why else None,
        "behindHistory": own.trend.values(at.wall_s),
        "behindStepSeconds": TREND_STEP_S,
    }


def _own_only(own: ShardMetrics, at: Instant, worker: str) -> dict[str, Any]:
    """Return the values of a shard that this worker holds, and whose row has not been read."""
    known = {"state": own.activity_at(at.wall_s).value, "checkpoint": None}
    return _shard_value(view_without_row(own, worker, at.wall_s)) | known | _of_own(own, at)
