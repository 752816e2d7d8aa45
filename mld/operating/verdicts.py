"""What is wrong with a fleet: `faults_of`, which page, commands, probes, metrics, notifier and `mld doctor` ask. Pure.

To add a kind of fault

1. give `FleetSight`, `Own` or `Listed` (`mld.operating.faults`) a field for what nobody has told yet, with a default
   that means *not known*;
2. write the generator that finds it, below or in `worker_verdicts`, under `@kind(name, severity, meaning, first,
   runbook)`. It yields a `Found` for each subject: words, and the remedy with file and shard filled in. What else can
   be declared: `FaultKind`.

The rest follows from the declaration: notes and exit codes of `mld lag`, `leases`, `workers` and `status`, a line of
`mld doctor`, the page, `mld_faults{kind=…}`, an alert with its runbook (generated, unless `templates/alerts.yaml` has a
rule of the name in `alert`), the notifier, and with `probe` a probe. Tests ask for the heading in
docs/use/operations.md and for a row in the table of docs/use/status-page.md. Green is: no fault.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mld.core.clock import iso_time
from mld.core.steps import SLICE, Steps, at_once, finish
from mld.core.streams import STREAM_DISABLED
from mld.leases.lease import Lease
from mld.operating import worker_verdicts  # noqa: F401  # declares its kinds, which come first
from mld.operating.faults import (
    KINDS,
    PAUSE_HOLD_S,
    ROWS,
    SHARD_JUDGES,
    STUCK,
    WORKER,
    FaultKind,
    FleetFault,
    FleetSight,
    Found,
    Own,
    Probe,
    Severity,
    kind,
    of_shards,
)
from mld.operating.fleet_status import ShardView, Verdict, duration
from mld.operating.naming import names_of
from mld.shards.graph import ShardGraph
from mld.shards.identity import foreign_evidence, oddity
from mld.tracking.stream_rows import within_stream

NAMED_MAX = 3
UNEVEN_HOLD_S = 600.0
"""Handoffs, and what an operator wants for a while, end."""
YOUNGER_S = 5.0
"""A table found missing is made again a lease duration later, which is more than this."""
AGE_TOLD_S = 2 * 86_400.0
OWN_SLICE = 50
"""Shards of a worker between two turns of the loop, 20 µs for each."""
UNTOLD = "untold"


# --- what is wrong ----------------------------------------------------------------------------------------------------


def faults_steps(seen: FleetSight) -> Steps[tuple[FleetFault, ...]]:
    """Return everything that is wrong with what is seen, what concerns all first, then the verdicts on shards."""
    found = general_faults(seen)
    for number, shard in enumerate(seen.shards):
        if number % SLICE == 0:
            yield
        if (fault := fault_of(shard, seen)) is not None:
            found.append(fault)
    return tuple(found)


def own_faults_steps(own: Own, shards: Iterable[ShardView], file: str) -> Steps[tuple[FleetFault, ...]]:
    """Return what a worker knows to be wrong, without a look at any table. `shards` are its own."""
    views = []
    for number, view in enumerate(shards):
        if number % OWN_SLICE == 0:
            yield
        views.append(view)
    return (yield from faults_steps(FleetSight(own=replace(own, shards=views), file=file)))


def general_faults(seen: FleetSight) -> list[FleetFault]:
    """Return what is wrong but for the verdicts on shards."""
    found = [FleetFault(one.name, *each) for one in KINDS.values() for each in one.find(seen)]
    hidden = {(name, fault.stream) for fault in found for name in KINDS[fault.kind].hides}
    return [fault for fault in found if (fault.kind, fault.stream) not in hidden]


faults_of = at_once(faults_steps)


def all_kinds() -> Sequence[FaultKind]:
    """Return every kind that is declared."""
    return tuple(KINDS.values())


def fault_of(shard: ShardView, seen: FleetSight) -> FleetFault | None:
    """Return what is wrong with one shard; None if it is well, or read to its end."""
    name = _kind_of(shard)
    judge = SHARD_JUDGES.get(name)
    if judge is None:
        return None
    words, remedy = judge(seen, shard, short_name(shard))
    since_s = None if shard.failing is None or name != Verdict.FAILING.value else shard.failing.since_s
    return FleetFault(name, shard.name, words, remedy, shard.key, shard.owner, shard.label, since_s)


def _kind_of(shard: ShardView) -> str:
    is_untold = shard.verdict is Verdict.UNKNOWN and shard.age_s is None
    return UNTOLD if is_untold else shard.verdict.value


def short_name(shard: ShardView) -> str:
    """Return a shard as commands take it, in a few characters: ``3``, ``orders:3``."""
    head, _, number = shard.lease.shard_id.rpartition("-")
    plain = str(int(number)) if head == "shardId" and number.isascii() and number.isdigit() else shard.lease.shard_id
    return shlex.quote(plain if shard.label is None else f"{shard.label}:{plain}")


def is_green(faults: Iterable[FleetFault], *, strictly: bool) -> bool:
    """Return whether a look at the fleet ends with 0: with nothing that wakes somebody, `strictly` with nothing."""
    return not any(strictly or fault.severity is Severity.PAGE for fault in faults)


def why_not(probe: Probe, faults: Iterable[FleetFault]) -> str | None:
    """Return why a probe fails: the sentence of the first fault that makes it fail; None if none does."""
    return next((fault.sentence for fault in faults if KINDS[fault.kind].probe is probe), None)


def counts(faults: Iterable[FleetFault]) -> dict[str, int]:
    """Return how many faults there are of each kind, 0 for the others."""
    found = dict.fromkeys(KINDS, 0)
    for fault in faults:
        found[fault.kind] += 1
    return found


# --- the kinds: the table ---------------------------------------------------------------------------------------------


@kind(
    "corrupt",
    Severity.PAGE,
    "A row of the lease table cannot be read: nobody reads its shard.",
    "mld leases names it; save the rows (mld export), then repair or delete the row.",
    ROWS,
    probe=Probe.READY,
    hides=("empty", "nothing-open"),
)
def _corrupt(seen: FleetSight) -> Iterator[Found]:
    for key, why in seen.corrupt.items():
        remedy = f"{seen.command('export')} saves all rows; then repair or delete this one"
        yield Found(key, f"the row cannot be read: {why}", remedy, shard=key, stream=seen.label_of(key))


@kind(
    "table-younger",
    Severity.TICKET,
    "The lease table was made again, or restored from a backup, under its fleet.",
    "mld events says when, mld lag whether all shards are read again; find out who deleted it.",
    ROWS,
    alert="MldTableLost",
    hold_s=None,
)
def _table_younger(seen: FleetSight) -> Iterator[Found]:
    created_s, fleet = seen.table_created_s, seen.fleet
    if fleet is None or created_s is None or fleet.taken_s - created_s > AGE_TOLD_S:
        return
    first_s = min(fleet.times_told, default=created_s)
    if first_s < created_s - YOUNGER_S:
        words = f"it is younger than its rows: made at {iso_time(created_s)}, and they tell of {iso_time(first_s)}"
        remedy = f"find out who deleted or restored it; {seen.command('events')} shows how it went on"
        yield Found("lease table", words, remedy)


@kind(
    "clocks-disagree",
    Severity.TICKET,
    "The clock of a worker is more than a minute off, so that what it writes of times means nothing.",
    "mld workers and mld events name it; set the clocks, and keep them set (NTP).",
    WORKER,
)
def _clocks_disagree(seen: FleetSight) -> Iterator[Found]:
    off = dict({} if seen.own is None else seen.own.clocks_off)
    off |= {one.worker: -(one.heard_s or 0.0) for one in (seen.fleet.workers if seen.fleet else ()) if one.is_ahead}
    for worker, ahead_s in sorted(off.items()):
        words = f"clocks disagree: its own is {duration(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}"
        yield Found(worker, words, "set the clock of its machine, and keep it set (NTP)", owner=worker)


@kind(
    "hole",
    Severity.PAGE,
    "A part of the hash range has no lease: its records are read by nobody.",
    "mld leases shows the hole; the leader fills it unless rows were deleted by hand.",
    ROWS,
    alert="MldHoles",
    probe=Probe.READY,
)
def _holes(seen: FleetSight) -> Iterator[Found]:
    remedy = seen.command("doctor")
    for label, holes in ({} if seen.fleet is None else seen.fleet.holes_of).items():
        where = "" if label is None else f" of stream {label}"
        for hole in holes:
            subject = f"{label or ''} hash keys from {hole.start}".strip()
            words = f"no open lease covers the hash keys from {hole.start} to {hole.end}{where}"
            yield Found(subject, words, remedy, stream=label)
    if seen.fleet is None and seen.own is not None:
        for label, count in seen.own.holes.items():
            if count:
                yield Found(
                    f"{label or ''} hash range".strip(), f"{count} parts of it have no lease", remedy, stream=label
                )


@kind(
    "applications",
    Severity.PAGE,
    "Workers that read another stream use the lease table of this application.",
    "mld workers shows who they are and where; set another applicationName (or tableName) for one, or stop it.",
    ROWS,
    alert="MldTwoApplications",
    probe=Probe.READY,
)
def _applications(seen: FleetSight) -> Iterator[Found]:
    remedy = "set another applicationName (or tableName) for one of them, or stop it"
    streams = {} if seen.fleet is None else seen.fleet.applications
    for stream, workers in streams.items():
        yield Found(stream, f"{names_of(workers, NAMED_MAX)} read it, and others another one, by one table", remedy)
    if seen.fleet is None and seen.own is not None and seen.own.strangers:
        words = f"{seen.own.strangers} of its workers read another stream than this one"
        yield Found("lease table", words, f"{seen.command('workers')} shows which; {remedy}")


@kind(
    "uneven",
    Severity.TICKET,
    "Workers of one machine, which measure the same CPU, have very different numbers of leases.",
    "A leader of mld evens them out within seconds; one of Java cannot tell them apart.",
    "a-worker-is-not-well",
    hold_s=UNEVEN_HOLD_S,
)
def _uneven(seen: FleetSight) -> Iterator[Found]:
    for workers in () if seen.fleet is None else seen.fleet.uneven:
        counts = ", ".join(f"{one.worker} {one.leases}" for one in workers[:NAMED_MAX])
        remedy = f"a leader of mld evens it out within seconds; under another one: {seen.command('move')}"
        yield Found(workers[0].place.host or workers[0].worker, f"its workers share unevenly: {counts}", remedy)


@kind(
    "empty",
    Severity.PAGE,
    "The lease table has no lease: nothing is read.",
    "Is a worker running? mld doctor looks at what it needs.",
    ROWS,
    of_setup=False,
)
def _empty(seen: FleetSight) -> Iterator[Found]:
    if _rows_of(seen) == (0, 0):
        yield Found("lease table", "it has no lease: nothing is read", seen.starts())


@kind(
    "nothing-open",
    Severity.PAGE,
    "All rows of the lease table are at SHARD_END: nothing is read any more.",
    "mld doctor compares them with the stream; a stream of DynamoDB that was switched off and on has a new ARN.",
    ROWS,
    probe=Probe.READY,
)
def _nothing_open(seen: FleetSight) -> Iterator[Found]:
    remedy = f"{seen.command('doctor')} compares them with the stream"
    rows = _rows_of(seen)
    if rows is not None and rows[0] > 0 and rows[1] == 0:
        yield Found("lease table", f"its {rows[0]} rows are all at SHARD_END: no shard is read any more", remedy)
        return
    if seen.fleet is not None and seen.fleet.labels:
        live = {shard.label for shard in seen.fleet.open_shards}
        for label in sorted({shard.label for shard in seen.fleet.shards if shard.label is not None} - live):
            yield Found(label, "its rows are all at SHARD_END: no shard is read any more", remedy, stream=label)


def _rows_of(seen: FleetSight) -> tuple[int, int] | None:
    """Return how many leases the table has, and how many of open shards; None if nobody has looked."""
    if seen.fleet is not None:
        return len(seen.fleet.shards), len(seen.fleet.open_shards)
    return None if seen.own is None else seen.own.rows


# --- the kinds: the table beside the stream ---------------------------------------------------------------------------


def _leases_of(seen: FleetSight, label: str | None) -> dict[str, Lease]:
    """Return the leases of a stream, by shard, as a table of that stream alone has them."""
    shards = () if seen.fleet is None else seen.fleet.shards
    return {one.lease.shard_id: within_stream(one.lease) for one in shards if one.label == label}


@kind(
    "foreign",
    Severity.PAGE,
    "The lease table belongs to another stream.",
    "mld doctor says which row proves it.",
    ROWS,
    alert="MldAbsent",
    hides=("hole", "row-missing", "unlisted", "odd", "ended-open", "nothing-open"),
)
def _foreign(seen: FleetSight) -> Iterator[Found]:
    for label, listed in seen.listed.items():
        leases = _leases_of(seen, label)
        why = finish(foreign_evidence(listed.shards, tuple(leases.values())))
        if why is not None:
            words, _, remedy = why.partition("; ")
            yield Found(label or "lease table", words, remedy, stream=label)
        elif leases and listed.shards and not leases.keys() & {shard.shard_id for shard in listed.shards}:
            remedy = (
                f"check streamName, regionName and applicationName; {seen.command('reset', '--to', 'trim-horizon')}"
            )
            words = f"none of its {len(leases)} rows is of a shard of this stream"
            yield Found(label or "lease table", words, f"{remedy} begins anew", stream=label)


@kind(
    "odd",
    Severity.PAGE,
    "A row cannot be of its shard, which is parked.",
    "mld doctor says what is odd, and which command puts it right.",
    ROWS,
    alert="MldShardParked",
)
def _odd(seen: FleetSight) -> Iterator[Found]:
    for label, listed in seen.listed.items():
        leases = _leases_of(seen, label)
        for shard in listed.shards:
            lease = leases.get(shard.shard_id)
            if lease is not None and (why := oddity(shard, lease)) is not None:
                words, _, remedy = why.partition("; ")
                yield Found(shard.shard_id, words, remedy, stream=label)


@kind(
    "ended-open",
    Severity.PAGE,
    "A row is at SHARD_END, and its shard is open: its records are read by nobody.",
    "mld reset --shard lets it begin at another place.",
    ROWS,
    alert="MldHoles",
    hides=("hole", "nothing-open"),
)
def _ended_open(seen: FleetSight) -> Iterator[Found]:
    for label, listed in seen.listed.items():
        leases = _leases_of(seen, label)
        for shard in listed.shards:
            lease = leases.get(shard.shard_id)
            if shard.is_open and lease is not None and lease.is_complete:
                name = shard.shard_id if label is None else f"{label}:{shard.shard_id}"
                remedy = seen.command("reset", "--shard", shlex.quote(name), "--to", "trim-horizon")
                words = "its row is at SHARD_END, and the shard is open: nobody reads it"
                yield Found(shard.shard_id, words, remedy, stream=label)


@kind(
    "row-missing",
    Severity.PAGE,
    "An open shard has no row, and none of its ancestors is still read: its records are read by nobody.",
    "A running fleet makes the row within minutes; mld doctor names the shard.",
    ROWS,
    alert="MldHoles",
    hides=("hole", "empty"),
)
def _row_missing(seen: FleetSight) -> Iterator[Found]:
    for label, listed in seen.listed.items():
        leases = _leases_of(seen, label)
        known = {*leases, *(key.rpartition(":")[2] for key in seen.corrupt if seen.label_of(key) == label)}
        graph, lacking = ShardGraph(listed.shards), []
        for shard in listed.shards if leases else ():
            if shard.is_open and shard.shard_id not in known:
                above = finish(graph.above([shard.shard_id]))
                if not any(one in leases and not leases[one].is_complete for one in above):
                    lacking.append(shard.shard_id)
        if lacking:
            names = names_of(lacking, NAMED_MAX)
            words = f"{len(lacking)} open shard{'s have' if len(lacking) > 1 else ' has'} no row"
            remedy = f"a running fleet makes them within minutes: {seen.starts()}"
            yield Found(names, words, remedy, stream=label)


@kind(
    "unlisted",
    Severity.NOTE,
    "Open rows are of shards that Kinesis does not list any more.",
    "The daemon ends them once it is certain that they are past retention.",
    ROWS,
    alert="MldShardParked",
    hold_s=None,
)
def _unlisted(seen: FleetSight) -> Iterator[Found]:
    for label, listed in seen.listed.items():
        names = {shard.shard_id for shard in listed.shards}
        gone = sorted(
            one for one, lease in _leases_of(seen, label).items() if one not in names and not lease.is_complete
        )
        if gone and listed.shards:
            words = (
                f"{len(gone)} open row{'s are of shards' if len(gone) > 1 else ' is of a shard'} not listed any more"
            )
            remedy = "the daemon ends them once it is certain that they are past retention"
            yield Found(names_of(gone, NAMED_MAX), words, remedy, stream=label)


@kind(
    "stream-off",
    Severity.PAGE,
    "The stream of the DynamoDB table is switched off: no change is recorded under this ARN.",
    "Set streamArn to the table's LatestStreamArn.",
    ROWS,
    alert="MldNothingOpen",
    hides=("nothing-open", "unlisted"),
)
def _stream_off(seen: FleetSight) -> Iterator[Found]:
    for label, listed in seen.listed.items():
        if listed.status == STREAM_DISABLED:
            words = "it is switched off: changes since are not recorded, or under the ARN of a stream switched on since"
            remedy = "set streamArn to the table's LatestStreamArn; what this one has lasts 24 hours"
            yield Found(label or "stream", words, remedy, stream=label)


# --- the kinds: shards, by their verdicts -----------------------------------------------------------------------------


def _because(shard: ShardView, otherwise: str) -> str:
    return shard.why or otherwise


def _joined(words: str, why: str | None) -> str:
    return words if why is None else f"{words}: {why}"


@of_shards(
    Verdict.STOPPED.value,
    Severity.PAGE,
    "Leases have no live owner.",
    "mld workers: is there a leader, and are there enough workers (maxLeasesForWorker)?",
    STUCK,
    alert="MldLeasesWithoutOwner",
)
def _stopped(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    has_living = seen.fleet is not None and any(one.is_alive is not False for one in seen.fleet.workers)
    return _because(shard, "nobody owns it"), seen.command("workers" if has_living else "run")


@of_shards(
    Verdict.UNREADABLE.value,
    Severity.PAGE,
    "All reads of a shard have failed for minutes.",
    "mld lag has the error; mld doctor tries the same calls with the same credentials.",
    STUCK,
    alert="MldUnreadable",
)
def _unreadable(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return _because(shard, "all of its reads fail"), seen.command("doctor")


@of_shards(
    Verdict.PARKED.value,
    Severity.PAGE,
    "A shard waits for an operator.",
    "mld leases says why; repair the processor, or mld skip past the record.",
    STUCK,
    alert="MldShardParked",
)
def _parked(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return _because(shard, "it waits for an operator"), seen.command("doctor")


@of_shards(
    Verdict.FAILING.value,
    Severity.PAGE,
    "The record processor of a shard fails on and on.",
    "mld peek --at checkpoint shows the record; mld lag has the error.",
    "a-shard-is-failing",
)
def _failing(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return _because(shard, "its record processor fails"), seen.command("peek", name, "--at", "checkpoint")


@of_shards(
    Verdict.STALLED.value,
    Severity.PAGE,
    "A record processor has neither answered nor checkpointed for minutes, with records in its hands.",
    "mld tap shows what its child says; mld restart-child ends it, and timeoutInSeconds does so by itself.",
    STUCK,
)
def _stalled(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return _because(shard, "its record processor stands still"), seen.command("restart-child", name)


@of_shards(
    Verdict.UNKNOWN.value,
    Severity.PAGE,
    "Nobody knows how far behind a shard is.",
    "mld lag says why: it is not read yet, it waits for its parent, or its worker is silent.",
    STUCK,
    alert="MldLagUnknown",
)
def _unknown(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return _because(shard, "its worker does not tell how far it is"), seen.command("workers")


@of_shards(
    UNTOLD,
    Severity.NOTE,
    "The worker of a shard tells nothing of it, as Java's do.",
    "mld lag --probe asks Kinesis.",
    STUCK,
    alert="MldLagUnknown",
    hold_s=None,
)
def _untold(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return _because(shard, "its worker does not tell"), seen.command("lag", "--probe")


@of_shards(
    Verdict.LAGGING.value,
    Severity.TICKET,
    "A shard is behind, and moving.",
    "mld lag --watch shows whether it catches up.",
    "why-is-it-behind",
    alert="MldBehind",
)
def _lagging(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return _joined(f"{duration(shard.behind_s)} behind", shard.why), seen.command("lag", "--watch")


@of_shards(
    Verdict.PAUSED.value,
    Severity.TICKET,
    "A shard has been paused for 4 hours: perhaps somebody forgot it.",
    "mld leases says who paused it, when and why; mld resume lets it go on.",
    "move-drain-pause-restart",
    alert="MldShardPaused",
    hold_s=PAUSE_HOLD_S,
)
def _paused(seen: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    return f"paused {shard.lease.paused or ''}".strip(), seen.command("resume", name)
