"""What a daemon shows: to `/status.json` and the page the whole fleet by its tables, and more of the shards of this
worker, the last hour of each included; over its control socket its own shards, without a look at any table. Pure.

A table may have 10,000 rows, so the document is made, encoded and compressed in steps.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mld.core.steps import Steps
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
    RANKS,
    ShardView,
    Verdict,
    known_here,
    share_of,
    view_without_row,
)
from mld.operating.verdicts import fault_of, general_faults
from mld.properties.scrubber import Scrubber

SAID_BY_OTHERS = ("why", "note", "lastError", "words", "remedy")
"""Texts that children, AWS and rows of the table have a part in."""

EVENTS_SHOWN = 20
SHARDS_PER_STEP = 20  # between two turns of the loop, 10 µs for each
COMPRESSION_LEVEL = 3  # a twentieth of the size; more effort saves little
DIGITS_OF_SHARES = 9  # a stream of 10,000 shards has shares of 0.0001

Document = dict[str, Any]


class RecordRates:
    """Records a second of each shard between the last two looks."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}
        self._rates: dict[str, float] = {}

    def note(self, parts: Mapping[str, ShardMetrics], now: float) -> None:
        """Look at all shards; what is gone, or is another holding than before, has no rate."""
        seen = {key: (part.batches.total, now) for key, part in parts.items()}
        pairs = ((key, self._seen[key], count) for key, (count, _) in seen.items() if key in self._seen)
        self._rates = {
            key: (count - before) / (now - at) for key, (before, at), count in pairs if count >= before and now > at
        }
        self._seen = seen

    def of(self, key: str) -> float | None:
        """Return the rate of a shard; None before the second look."""
        return self._rates.get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """Everything the document is made of. Without a `fleet`, because its tables were never read, the shards of this
    worker remain. The reasons are None while the daemon is well."""

    identity: Identity
    metrics: Metrics
    fleet: FleetStatus | None
    rates: RecordRates
    at: Instant
    mode: str
    why_not_alive: str | None = None
    why_not_ready: str | None = None
    trouble: str | None = None
    """Why the tables could not be read, or why what they say may be old."""
    lag_max_s: float = LAG_MAX_S
    spark: Sequence[Mapping[str, Any]] = ()
    """Session hosts of `mld-spark` on this machine."""
    events: Sequence[Event] = ()
    """What happened, the oldest first."""
    scrub: Scrubber = field(default_factory=Scrubber)
    """For what children and others have said."""
    seen: FleetSight = field(default_factory=FleetSight)
    """What faults are found in."""

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
        """Return the long lists, by their names, without secrets in what others have said."""
        lists = {
            "workers": self._workers(),
            "holes": self._holes(),
            "faults": map(fault_value, general_faults(self.seen)),
            "events": self._events(),
            "shards": self._shards(),
        }
        return {name: map(self._scrubbed, ones) for name, ones in lists.items()}

    def _scrubbed(self, one: Document) -> Document:
        told = {name: self.scrub(text) for name in SAID_BY_OTHERS if isinstance(text := one.get(name), str)}
        return {**one, **told}

    def _workers(self) -> Iterator[Document]:
        for worker in () if self.fleet is None else self.fleet.workers:
            is_here = worker.worker == self.identity.worker
            yield worker_value(worker) | ({"isAlive": True, "why": None} if is_here else {}) | {"isHere": is_here}

    def _holes(self) -> Iterator[Document]:
        for label, holes in {}.items() if self.fleet is None else self.fleet.holes_of.items():
            for begin, end in map(share_of, holes):
                yield {"stream": label, "from": begin, "to": end}

    def _events(self) -> Iterator[Document]:
        """Yield the newest events, and those with the last lines of a child, the newest first."""
        events = self.events
        for number, event in enumerate(reversed(events)):
            if number < EVENTS_SHOWN or event.lines:
                yield event_value(event)

    def _shards(self) -> Iterator[Document]:
        own, me = dict(self.metrics.shards), self.identity.worker
        if self.fleet is None:
            for part in own.values():
                yield _own_only(part, self.at, me, self.rates)
            return
        for view in self.fleet.shards:
            held = own.get(view.key) if view.owner in (me, None) else None
            if held is None or view.verdict is Verdict.ENDED:
                yield _of_table(view, self.at.wall_s, self._remedy(view))
            else:
                known = known_here(view, held, self.at.wall_s, self.lag_max_s)
                yield _shard_value(known, self._remedy(known)) | _of_own(held, self.at, self.rates)

    def _remedy(self, view: ShardView) -> str | None:
        fault = fault_of(view, self.seen)
        return None if fault is None else fault.remedy


def in_pieces(
    head: Document, lists: Mapping[str, Iterator[Document]], *, zipped: bool = False
) -> Steps[tuple[bytes, ...]]:
    """Return a document with long lists as JSON in UTF-8 without needless blanks; `zipped` in the format of gzip.

    It is never there as a whole, and in no other form than the one that is asked for.
    """
    packer = zlib.compressobj(COMPRESSION_LEVEL, wbits=16 + zlib.MAX_WBITS) if zipped else None
    pieces: list[bytes] = []
    for text in _texts(head, lists):
        piece = text.encode()
        if made := piece if packer is None else packer.compress(piece):
            pieces.append(made)
        yield
    return tuple(pieces) if packer is None else (*pieces, packer.flush())


def _texts(head: Document, lists: Mapping[str, Iterator[Document]]) -> Iterator[str]:
    """Yield the JSON in pieces."""
    compact = json.JSONEncoder(separators=(",", ":")).encode
    yield compact(head)[:-1]
    for name, ones in lists.items():
        before = f',"{name}":['
        while some := list(islice(ones, SHARDS_PER_STEP)):
            yield before + compact(some)[1:-1]
            before = ","
        yield "]" if before == "," else f"{before}]"
    yield "}\n"


def _of_table(view: ShardView, wall_s: float, remedy: str | None) -> Document:
    """Return a shard as its row tells; what only its worker knows is None."""
    told = view.lease.status
    return _shard_value(view, remedy) | {
        "isHere": False,
        "busySeconds": None,
        "restarts": None,
        "recordsPerSecond": None,
        "lastError": view.why,
        "lastErrorAt": None if view.failing is None else view.failing.since_s,
        "behindHistory": None if told is None or not told.trend else trend_values(told.trend, told.at_s, wall_s),
        "behindStepSeconds": TREND_STEP_S,
    }


def _shard_value(view: ShardView, remedy: str | None = None) -> Document:
    value = shard_value(view, remedy)
    del value["isProbed"]  # a daemon asks Kinesis for nobody's sake
    for name in ("from", "to", "toldSecondsAgo"):
        if value[name] is not None:
            value[name] = round(value[name], DIGITS_OF_SHARES)
    return value


def _of_own(own: ShardMetrics, at: Instant, rates: RecordRates) -> dict[str, Any]:
    """Return what only this worker knows of a shard of its own, and what it knows better than the row."""
    why = own.why_at(at.wall_s)
    return {
        "isHere": True,
        "behindSeconds": own.behind_s(at),
        "delivered": None if own.delivered is None else str(own.delivered),
        "busySeconds": own.busy_s(at),
        "restarts": own.restarts.total,
        "recordsPerSecond": rates.of(own.key),
        "lastError": why or own.last_error,
        "lastErrorAt": own.last_error_wall_s if own.last_error and not why else None,
        "behindHistory": own.trend.values(at.wall_s),
        "behindStepSeconds": TREND_STEP_S,
    }


def _own_only(own: ShardMetrics, at: Instant, worker: str, rates: RecordRates) -> dict[str, Any]:
    """Return a shard of this worker while nothing is known of its row."""
    known = {"state": own.activity_at(at.wall_s).value, "checkpoint": None}
    return _shard_value(view_without_row(own, worker, at.wall_s)) | known | _of_own(own, at, rates)


# --- one daemon alone -------------------------------------------------------------------------------------------------


def own_shards(metrics: Metrics, at: Instant) -> list[dict[str, Any]]:
    """Return the shards of this worker in plain values: those in trouble come first, then the furthest behind."""
    return sorted(
        (_shard(part, at) for part in metrics.shards.values()),
        key=lambda one: (RANKS.get(one["state"], len(RANKS)), -(one["behindSeconds"] or 0.0), one["key"]),
    )


def _shard(part: ShardMetrics, at: Instant) -> dict[str, Any]:
    return {
        "shard": part.shard_id,
        "stream": part.stream_label,
        "streamId": part.stream_id,
        "key": part.key,
        "state": part.activity_at(at.wall_s).value,
        "behindSeconds": part.behind_s(at),
        "toldSecondsAgo": part.behind_age_s(at),
        "busySeconds": part.busy_s(at),
        "records": math.floor(part.batches.total),
        "recordBytes": math.floor(part.record_bytes.total),
        "checkpointSecondsAgo": part.checkpoint_age_s(at),
        "delivered": None if part.delivered is None else str(part.delivered),
        "restarts": part.restarts.total,
        "why": part.why_at(at.wall_s),
        "lastError": part.last_error,
        "lastErrorAt": None if part.last_error is None else part.last_error_wall_s,
    }
