"""Renders the text tables that commands print about a fleet. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from mld.core.clock import iso_time
from mld.core.positions import Position
from mld.core.stream_ids import shard_of_key
from mld.metrics.events import NOBODY, Event
from mld.operating.durations import duration
from mld.operating.faults import FleetFault, is_of_shard
from mld.operating.fleet_status import FleetStatus
from mld.operating.shard_view import (
    RANKS,
    ShardView,
    Verdict,
    furthest,
)
from mld.operating.short_ids import names_of
from mld.operating.text_table import FAULTS_SHOWN, Listing, listing_of
from mld.operating.worker_view import WorkerView

CHECKPOINT_DIGITS = 12
"""How many digits of a sequence number are shown, from its end. The numbers of one shard differ in these."""


def leases_listing(status: FleetStatus, shards: Sequence[ShardView], faults: Sequence[FleetFault] = ()) -> Listing:
    """Return a listing of `shards`, the worst first, with the faults of everything else below."""
    header = "stream, shard, state, owner, behind>, KB/s>, checkpoint, note"
    return _shards_listing(header, status, shards, faults)


def lag_listing(status: FleetStatus, faults: Sequence[FleetFault] = ()) -> Listing:
    """Return a listing of the open shards by verdict, the worst first, with the faults of everything else below."""
    return _shards_listing("stream, shard, verdict, behind>, owner, note", status, status.open_shards, faults)


def _shards_listing(
    header: str, status: FleetStatus, shards: Sequence[ShardView], faults: Sequence[FleetFault]
) -> Listing:
    """Return the listing of shards, the worst first. `header` names its columns, as for `listing_of`. The functions in
    `_SHARD_CELLS` make the cells; the last column is always ``note``.

    The note of a listed shard has the remedy for its fault. All other faults follow as lines below the listing.
    """
    cells = [_SHARD_CELLS[name] for name in header.split(", ") if name != "note"]
    remedies = {fault.shard: fault.remedy for fault in faults}
    rows = ((*(cell(shard) for cell in cells), note(shard, remedies.get(shard.key))) for shard in worst_first(shards))
    shown = {shard.key for shard in shards}
    return listing_of(
        header, rows, (*_totals(status), *_lines_of(fault for fault in faults if fault.shard not in shown))
    )


def _lines_of(faults: Iterable[FleetFault]) -> list[str]:
    """Return a line for each fault, with its remedy; at most `FAULTS_SHOWN` lines and the number of the rest."""
    lines = [fault.sentence for fault in faults]
    more = len(lines) - FAULTS_SHOWN
    return lines if more <= 0 else [*lines[:FAULTS_SHOWN], f"and {more} more"]


def _unless_ended(cell: Callable[[ShardView], str]) -> Callable[[ShardView], str]:
    """Return a function like `cell` whose text is empty for shards that were read to their end."""
    return lambda shard: "" if shard.verdict is Verdict.ENDED else cell(shard)


def _kbps(shard: ShardView) -> str:
    return "" if shard.lease.throughput_kbps is None else f"{shard.lease.throughput_kbps:.1f}"


def note(shard: ShardView, remedy: str | None = None) -> str:
    """Return the note on a shard: handoff, pause, reason for its verdict, parents, and the remedy; often empty."""
    lease = shard.lease
    parents = () if shard.verdict is Verdict.ENDED else sorted(map(_number, lease.parents))
    parts = (
        lease.handoff_to and f"goes to {lease.handoff_to}",
        None if lease.paused is None else f"paused: {lease.paused}",
        shard.why,
        "probed" if shard.is_probed else None,
        f"child of {', '.join(parents)}" if parents else None,
    )
    return " -> ".join(filter(None, ("; ".join(filter(None, parts)), remedy)))


_SHARD_CELLS: Mapping[str, Callable[[ShardView], str]] = {
    "stream": lambda shard: shard.label or "",
    "shard": lambda shard: shard.lease.shard_id,
    "state": lambda shard: shard.state,
    "verdict": lambda shard: shard.verdict.value,
    "owner": lambda shard: shard.owner or ("" if shard.verdict is Verdict.ENDED else NOBODY),
    "behind>": _unless_ended(lambda shard: duration(shard.behind_s)),
    "KB/s>": _unless_ended(_kbps),
    "checkpoint": lambda shard: short(shard.lease.checkpoint),
}
"""For each column about a shard, the function that returns its text."""


def worst_first(shards: Iterable[ShardView]) -> list[ShardView]:
    """Sort shards by verdict, the worst first, then by lag. Equal shards keep their order."""
    return sorted(shards, key=lambda shard: (RANKS[shard.verdict.value], -(shard.behind_s or 0.0)))


def _verdicts(shards: Iterable[ShardView]) -> str:
    """Return how many shards have each verdict, in words, the worst verdict first."""
    counts = Counter(shard.verdict for shard in shards)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])


def _totals(status: FleetStatus) -> list[str]:
    """Return a line that counts the shards by verdict."""
    words = _verdicts(status.open_shards)
    ended = status.count(Verdict.ENDED)
    more = f"; {ended} ended" if ended else ""
    if not status.open_shards:
        return [f"no open shard{more}"]
    return [f"{len(status.open_shards)} open shards: {words}{more}; furthest behind: {duration(status.behind_s)}"]


def streams_listing(status: FleetStatus, faults: Sequence[FleetFault] = ()) -> Listing:
    """Return a listing of several streams: the verdicts of their shards, their lag, and their holes."""
    rows = []
    ids = {shard.label: shard.lease.stream for shard in status.shards}
    for label, shards in groupby(status.shards, key=lambda shard: shard.label):
        found = tuple(shards)
        opened = [shard for shard in found if shard.verdict is not Verdict.ENDED]
        rows.append(
            (
                label or "",
                ids[label] or "",
                str(len(opened)),
                _verdicts(opened),
                duration(furthest(opened)) if opened else "",
                f"{sum(shard.lease.throughput_kbps or 0.0 for shard in opened):.1f}",
                str(len(status.holes_of.get(label, ()))),
            )
        )
    header = "stream, identifier, open shards>, verdicts, furthest behind>, KB/s>, holes>"
    return listing_of(header, rows, (*_totals(status), *_lines_of(fault for fault in faults if not is_of_shard(fault))))


def workers_listing(status: FleetStatus, faults: Sequence[FleetFault] = ()) -> Listing:
    """Return a listing of the workers, with the faults below."""
    header = "worker, kind, where, up>, leases>, share>, CPU>, furthest behind>, last heard>, note"
    # A worker without a report that has written into a row counts as alive: it needs no `why`.
    unsure = sum(worker.is_alive is None and worker.why is not None for worker in status.workers)
    alive = sum(worker.is_alive is not False for worker in status.workers) - unsure
    workers = ("worker" if alive == 1 else "workers") + (f", {unsure} unknown" if unsure else "")
    leader = f"led by {status.leader}" if status.leader else "nobody leads"
    if status.leader and status.leader not in {one.worker for one in status.workers if one.is_alive is not False}:
        leader += ", which is not among them"
    rows = (_worker_row(worker, status.taken_s) for worker in status.workers)
    notes = _lines_of(faults)
    return listing_of(header, rows, (f"{alive} live {workers}, {leader}", *notes))


def _worker_row(worker: WorkerView, now_s: float) -> tuple[str, ...]:
    """Return the cells of one worker."""
    started_s = worker.place.started_s
    notes = (
        "leader" if worker.is_leader else None,
        "dead" if worker.is_alive is False else None,
        worker.why,
        None if worker.drained is None else f"drained {worker.drained}",
    )
    return (
        worker.worker,
        worker.kind,
        worker.where,
        "" if started_s is None or worker.is_alive is False else duration(max(0.0, now_s - started_s)),
        str(worker.leases),
        f"{worker.share:.0%}",
        "" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %",
        duration(worker.behind_s) if worker.leases else "",
        _heard(worker),
        ", ".join(filter(None, notes)),
    )


def _heard(worker: WorkerView) -> str:
    """Return in words how long ago a worker last wrote its report or the status of a lease."""
    if worker.heard_s is None:
        return "no report"
    return "in the future" if worker.is_ahead else f"{duration(max(0.0, worker.heard_s))} ago"


def events_listing(events: Sequence[Event]) -> Listing:
    """Return a listing of the events in their order; the newest is last."""
    rows = ((iso_time(one.at_s), one.kind.value, one.worker, shard_of_key(one.shard), one.text) for one in events)
    return listing_of("time, event, worker, shard, text", rows, (f"{len(events)} events",))


def apps_listing(account: Mapping[str, Any]) -> Listing:
    """Return a listing of the applications of an account, with the tables that could not be read below."""
    header = "application, streams, workers>, open shards>, furthest behind>, note"
    apps = account["applications"]
    count = f"{len(apps)} application{'' if len(apps) == 1 else 's'}"
    return listing_of(header, map(_app_row, apps), (count, *account["unseen"]))


def _app_row(app: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of one application."""
    workers, shards = ("" if app[name] is None else str(app[name]) for name in ("workers", "openShards"))
    behind = "" if app["openShards"] == 0 else duration(app["behindSeconds"])
    legacy_tables = "tables of KCL 3.0 to 3.4 beside it" if app["companions"] else None
    note = "; ".join(filter(None, (legacy_tables, app["note"])))
    return app["table"], names_of(app["streams"] or ()) or "unknown", workers, shards, behind, note


def short(position: Position) -> str:
    """Return a position in a few characters: the last digits of its sequence number."""
    if position.is_sentinel:
        return position.sequence
    sub = f"/{position.sub}" if position.sub else ""
    return f"…{position.sequence[-CHECKPOINT_DIGITS:]}{sub}"


def _number(shard_id: str) -> str:
    """Return the number in a shard id, without leading zeros."""
    return shard_id.rsplit("-", 1)[-1].lstrip("0") or "0"
