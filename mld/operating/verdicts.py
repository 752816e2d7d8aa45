"""`faults_of`: everything that is wrong with a fleet, as pages, commands, probes, metrics and alerts show it. Pure.

To add a kind of fault:

1. Give `FleetSight`, `Own` or `Listed` (`mld.operating.fleet_sight`) a field for the fact that shows the fault, unless
there is one. The default of the field means *not known*.
2. Write the generator that finds the fault, in `worker_verdicts`, `table_verdicts` or `stream_verdicts`, and decorate
it with `@kind(name, severity, meaning, first, runbook)`. It yields a `Found` for each subject, with words and the
remedy, in which file and shard are filled in. `FaultKind` describes the other things that can be declared.

Everything else follows from the declaration. The fault is in the notes and exit codes of `mld lag`, `leases`,
`workers` and `status`, in `mld doctor`, on the status page, in `mld_faults{kind=…}` and in posts of the notifier. An
alert with its runbook is generated, unless `templates/alerts.yaml` has a rule with the name in `alert`. With `probe`,
that probe fails. Tests require the heading in docs/use/operations.md and a row in the table of
docs/use/status-page.md. A fleet without faults is called green.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mld.core.steps import SLICE, Steps, at_once

# The modules that declare kinds. Faults are shown in the order of this list.
# isort: off
from mld.operating import worker_verdicts, table_verdicts, stream_verdicts, shard_verdicts  # noqa: F401

# isort: on
from mld.operating.faults import (
    KINDS,
    SHARD_JUDGES,
    FaultKind,
    FleetFault,
    Probe,
    Severity,
)
from mld.operating.fleet_sight import FleetSight, Own
from mld.operating.shard_verdicts import UNTOLD
from mld.operating.shard_view import ShardView, Verdict

OWN_SLICE = 50
"""How many shards of a worker are judged (20 µs each) before other tasks of the event loop get their turn."""


def faults_steps(sight: FleetSight) -> Steps[tuple[FleetFault, ...]]:
    """Return all faults of the fleet: first those of the table and the workers, then those of single shards."""
    found = general_faults(sight)
    for number, shard in enumerate(sight.shards):
        if number % SLICE == 0:
            yield
        if (fault := fault_of(shard, sight)) is not None:
            found.append(fault)
    return tuple(found)


def own_faults_steps(own: Own, shards: Iterable[ShardView], file: str) -> Steps[tuple[FleetFault, ...]]:
    """Return the faults that a worker knows of without reading any table, in steps (`core.steps`).

    `shards` are the shards whose leases the worker holds; each is judged when it is taken from the iterable.
    """
    views = []
    for number, view in enumerate(shards):
        if number % OWN_SLICE == 0:
            yield
        views.append(view)
    return (yield from faults_steps(FleetSight(own=replace(own, shards=views), file=file)))


def general_faults(sight: FleetSight) -> list[FleetFault]:
    """Return all faults except those of single shards. A fault is left out if another fault of the same stream explains
    it (`FaultKind.hides`).
    """
    found = [FleetFault(kind.name, *fields) for kind in KINDS.values() for fields in kind.find(sight)]
    hidden = {(name, fault.stream) for fault in found for name in fault.declared.hides}
    return [fault for fault in found if (fault.kind, fault.stream) not in hidden]


faults_of = at_once(faults_steps)
"""`faults_steps`, computed in one go."""


def all_kinds() -> Sequence[FaultKind]:
    """Return every declared kind of fault."""
    return tuple(KINDS.values())


def fault_of(shard: ShardView, sight: FleetSight) -> FleetFault | None:
    """Return the fault of one shard; None if the shard is well, or was read to its end."""
    name = _kind_of(shard)
    judge = SHARD_JUDGES.get(name)
    if judge is None:
        return None
    words, remedy = judge(sight, shard, short_name(shard))
    since_s = None if shard.failing is None or name != Verdict.FAILING.value else shard.failing.since_s
    return FleetFault(name, shard.name, words, remedy, shard.key, shard.owner, shard.label, since_s)


def _kind_of(shard: ShardView) -> str:
    """Return the name of the kind of fault that the shard's verdict stands for. It is UNTOLD, not ``unknown``, if the
    row has no status at all, as with Java's workers.
    """
    is_untold = shard.verdict is Verdict.UNKNOWN and shard.age_s is None
    return UNTOLD if is_untold else shard.verdict.value


def short_name(shard: ShardView) -> str:
    """Return the shortest name that commands accept for the shard: ``3``, or ``orders:3`` if there are several
    streams.
    """
    head, _, number = shard.lease.shard_id.rpartition("-")
    plain = str(int(number)) if head == "shardId" and number.isascii() and number.isdigit() else shard.lease.shard_id
    return shlex.quote(plain if shard.label is None else f"{shard.label}:{plain}")


def is_green(faults: Iterable[FleetFault], *, strictly: bool) -> bool:
    """Return whether a command that looks at a fleet exits with 0: no fault wakes somebody (severity PAGE), or with
    `strictly` there is no fault at all.
    """
    return not any(strictly or fault.severity is Severity.PAGE for fault in faults)


def why_not(probe: Probe, faults: Iterable[FleetFault]) -> str | None:
    """Return the sentence of the first fault that makes the probe fail; None if the probe passes."""
    return next((fault.sentence for fault in faults if fault.declared.probe is probe), None)


def counts(faults: Iterable[FleetFault]) -> dict[str, int]:
    """Return the number of faults of each kind; kinds without faults have 0."""
    found = dict.fromkeys(KINDS, 0)
    for fault in faults:
        found[fault.kind] += 1
    return found
