"""What `/status.json` and the page show: the whole fleet by its tables, and more of the shards of this worker. Pure.

A table may have 10,000 rows, so the document is made, encoded and compressed in steps.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mld.metrics.registry import Metrics
from mld.metrics.rings import History
from mld.metrics.snapshot import Identity, ShardValue, value_of
from mld.operating.fleet_status import FleetStatus, ShardView, Verdict, share_of
from mld.operating.listings import shard_value, worker_value
from mld.steps import Steps

ENDED = "ended"
STOPPED = "stopped"
UNKNOWN = "unknown"
SLICE = 20  # shards between two turns of the loop, 10 µs for each
COMPRESSION_LEVEL = 3  # a twentieth of the size; more effort saves little
COMPRESSED_BYTES = 64 * 1024  # between two turns of the loop
DIGITS = 3  # after the point, of values of the last hour

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """When the document is made, and what only the daemon knows of itself. The reasons are None while it is well."""

    now: float
    """Monotonic seconds, those of the metrics."""
    wall_s: float
    mode: str
    why_not_alive: str | None = None
    why_not_ready: str | None = None
    trouble: str | None = None
    """Why the tables could not be read."""
    spark: Sequence[Mapping[str, Any]] = ()
    """Session hosts of `mld-spark` on this machine."""


def document(
    identity: Identity, metrics: Metrics, fleet: FleetStatus | None, history: History, moment: Moment
) -> Steps[Document]:
    """The page's data. Without a `fleet`, because its tables were never read, the shards of this worker remain."""
    value: Document = {
        "application": identity.application,
        "stream": identity.stream,
        "version": identity.version,
        "worker": identity.worker,
        "mode": moment.mode,
        "leader": None if fleet is None else fleet.leader,
        "whyNotAlive": moment.why_not_alive,
        "whyNotReady": moment.why_not_ready,
        "takenAt": moment.wall_s,
        "tableReadAt": None if fleet is None else fleet.taken_s,
        "trouble": moment.trouble,
        "historyStepSeconds": history.step_s,
        "workers": [],
        "holes": [],
        "corrupt": [],
        "spark": list(moment.spark),
    }
    own = dict(metrics.shards)
    shards = []
    if fleet is None:
        for number, part in enumerate(own.values()):
            if number % SLICE == 0:
                yield
            shards.append(_own_only(value_of(part, moment.now, moment.wall_s), identity.worker, history))
    else:
        value["workers"] = [worker_value(one) | {"isHere": one.worker == identity.worker} for one in fleet.workers]
        value["holes"] = [{"from": a, "to": b} for a, b in map(share_of, fleet.holes)]
        value["corrupt"] = [{"key": key, "reason": why} for key, why in fleet.corrupt]
        for number, view in enumerate(fleet.shards):
            if number % SLICE == 0:
                yield
            held = own.get(view.key) if view.owner in (identity.worker, None) else None
            shards.append(
                _of_table(view)
                if held is None or view.verdict is Verdict.ENDED
                else shard_value(view) | _of_own(value_of(held, moment.now, moment.wall_s), history)
            )
    return value | {"shards": shards}


def encoded(value: Document) -> Steps[bytes]:
    """The document as JSON in UTF-8, without needless blanks."""
    compact = json.JSONEncoder(separators=(",", ":")).encode
    head = compact({name: one for name, one in value.items() if name != "shards"})
    pieces = []
    for number, shard in enumerate(value["shards"]):
        if number % SLICE == 0:
            yield
        pieces.append(compact(shard))
    return f'{head[:-1]},"shards":[{",".join(pieces)}]}}\n'.encode()


def compressed(body: bytes) -> Steps[bytes]:
    """`body` in the format of gzip."""
    packer = zlib.compressobj(COMPRESSION_LEVEL, wbits=16 + zlib.MAX_WBITS)
    pieces = []
    for start in range(0, len(body), COMPRESSED_BYTES):
        pieces.append(packer.compress(body[start : start + COMPRESSED_BYTES]))
        yield
    return b"".join((*pieces, packer.flush()))


def _of_table(view: ShardView) -> dict[str, Any]:
    """A shard as its row tells; what only its worker knows is None."""
    return shard_value(view) | {
        "state": _state(view),
        "isHere": False,
        "busySeconds": None,
        "restarts": None,
        "recordsPerSecond": None,
        "lastError": _error(view),
        "lastErrorAt": None if view.failing is None else view.failing.since_s,
        "behindHistory": None,
        "rateHistory": None,
    }


def _error(view: ShardView) -> str | None:
    """What a row tells of errors."""
    if view.failing is not None:
        return f"failed {view.failing.failures} times without a checkpoint"
    return "parked: the log of its worker says why" if view.verdict is Verdict.PARKED else None


def _state(view: ShardView) -> str:
    match view.verdict:
        case Verdict.ENDED:
            return ENDED
        case Verdict.STOPPED:
            return STOPPED
        case Verdict.FAILING | Verdict.PARKED as known:
            return str(known.value)
    return UNKNOWN if view.status is None else view.status.activity


def _of_own(own: ShardValue, history: History) -> dict[str, Any]:
    """What only this worker knows of a shard of its own, and what it knows better than the row."""
    behind, rates = history.behind(own.key), history.rate(own.key)
    return {
        "state": own.activity.value,
        "isHere": True,
        "behindSeconds": own.behind_s,
        "delivered": own.delivered,
        "busySeconds": own.busy_s,
        "restarts": sum(own.restarts.values()),
        "recordsPerSecond": rates[-1] if rates else None,
        "lastError": own.last_error,
        "lastErrorAt": own.last_error_wall_s if own.last_error else None,
        "behindHistory": _rounded(behind),
        "rateHistory": _rounded(rates),
    }


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, DIGITS) for value in values]


def _own_only(own: ShardValue, worker: str, history: History) -> dict[str, Any]:
    return {
        "shard": own.key,
        "verdict": Verdict.UNKNOWN.value,
        "owner": worker,
        "handoffTo": None,
        "toldSecondsAgo": None,
        "checkpoint": None,
        "kbPerSecond": None,
        "parents": [],
        "children": [],
        "from": None,
        "to": None,
        "failures": 0,
        "note": "",
        **_of_own(own, history),
    }
