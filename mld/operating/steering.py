"""Plans of the commands that steer a running fleet: move, release, drain, pause, resume, restart-child, skip. Pure.

Leases move by the usual handoff. The row names the next owner; the present owner finishes its batch, lets its child
checkpoint, and transfers the lease (leases#handoff-on-the-owner-side). Workers of mld and of KCL 3.x both do this. In
the modes of KCL 2.x workers take leases by themselves, so there a lease can only be released.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mld.core.positions import SUB_MAX, Position
from mld.fleet.membership import spread
from mld.fleet.report import reports
from mld.leases import writes
from mld.leases.lease import Lease, loads_of
from mld.leases.rows import LEASE_TABLE_KEY, LEFT_OUT_MAX, Place
from mld.leases.table import Condition, Value
from mld.operating.fleet_status import FleetStatus
from mld.operating.naming import full_key
from mld.operating.plan import ActPlan, ActRefusedError, Change
from mld.operating.shard_view import ShardView, Verdict
from mld.operating.short_ids import is_worker
from mld.operating.worker_view import JAVA, UNREPORTED, WorkerView

PIN_S = 3_600
"""How long leaders of mld leave a lease with the worker to which an operator moved it, unless that worker stops or
dies.
"""
IN_2X = (
    "the fleet works by the rules of KCL 2.x, where each worker takes leases by itself: release the shard instead, or "
    "stop the worker"
)


def plan_move(fleet: FleetStatus, shard: str, target: str, *, is_3x: bool, now_s: float) -> ActPlan:
    """Plan to move one shard to the worker `target`, and to keep it there for `PIN_S`. Raises ActRefusedError."""
    _require_3x(is_3x)
    view = _open_shard(fleet, shard)
    worker = _living_worker(fleet, target)
    target = worker.worker
    if worker.drained is not None:
        raise ActRefusedError(f"worker {target} is drained ({worker.drained}): end that first, or choose another")
    lease = view.lease
    if lease.actual_owner == target and lease.checkpoint_owner is None:
        raise ActRefusedError(f"{lease.key} belongs to {target} already")
    change = _move_to(lease, target, pinned_until_s=int(now_s) + PIN_S)
    kept = f"leaders of mld leave it there for {PIN_S // 60} minutes; a leader of Java may move it sooner"
    return ActPlan(f"move {lease.key} to {target}", (change,), (kept,))


def plan_release(fleet: FleetStatus, shards: Iterable[str], leases_max: int, *, is_3x: bool) -> ActPlan:
    """Plan to move shards to other workers, first to those with the fewest leases. No worker gets more than
    `leases_max`.

    In the modes of 2.x the shards are only taken from their owners. Raises ActRefusedError.
    """
    views = [_open_shard(fleet, shard) for shard in shards]
    owned = [view.lease for view in views if view.lease.actual_owner is not None]
    for worker in fleet.workers:
        if any(lease.actual_owner == worker.worker for lease in owned):
            _require_ours(worker)
    if not owned:
        raise ActRefusedError("nobody owns " + ", ".join(view.key for view in views))
    if not is_3x:
        changes = [
            Change(f"taken from {lease.actual_owner}, for nobody", writes.release(lease, writes_max=1))
            for lease in owned
        ]
        note = "the first worker that looks for leases takes it, perhaps the same one"
        return ActPlan(_title("release", owned), tuple(changes), (note,))
    changes, notes = _spread(fleet, owned, leases_max)
    if not changes:
        raise ActRefusedError("; ".join(notes))
    return ActPlan(_title("release", owned), tuple(changes), notes)


def plan_drain(
    fleet: FleetStatus, name: str, report_place: Place, note: str, leases_max: int, *, is_3x: bool
) -> ActPlan:
    """Plan to mark a worker as drained, so that other workers get leases before it, and to move its leases to them.
    `note` is a text for its report, which is in `report_place`.

    Raises ActRefusedError.
    """
    _require_3x(is_3x)
    worker = _living_worker(fleet, name)
    name = worker.worker
    leases = [view.lease for view in fleet.open_shards if view.owner == name]
    _require_receivers(fleet, {name})
    changes, notes = _spread(fleet, leases, leases_max)
    if worker.drained is None:
        mark = ((reports.DRAIN, Value(":words", {"S": note})),)
        what = "gets no more leases while others have room"
        changes.insert(0, _change_report(name, report_place, what, Condition.absent(reports.DRAIN), sets=mark))
    if worker.kind in (JAVA, UNREPORTED):
        notes = (*notes, "a Java worker gives away what it has now; a leader of Java does not know the mark")
    return ActPlan(f"drain {name}: it has {len(leases)} open shards", tuple(changes), notes)


def plan_undrain(fleet: FleetStatus, name: str, report_place: Place) -> ActPlan:
    """Plan to end the drain of a worker, so that it may have leases again. Raises ActRefusedError."""
    worker = known_worker(fleet, name)
    name = worker.worker
    if worker.drained is None:
        raise ActRefusedError(f"worker {name} is not drained")
    is_drained = Condition.present(reports.DRAIN)
    change = _change_report(name, report_place, "may have leases again", is_drained, removes=(reports.DRAIN,))
    return ActPlan(
        f"end the drain of {name} ({worker.drained})", (change,), ("leaders give it leases in their next runs",)
    )


def plan_pause(fleet: FleetStatus, shard: str, note: str) -> ActPlan:
    """Plan to mark a shard as paused, so that its holder delivers no more records. `note` is a text for the row. Raises
    ActRefusedError.
    """
    view = _open_shard(fleet, shard)
    if view.lease.paused is not None:
        raise ActRefusedError(f"{view.key} is paused already: {view.lease.paused}")
    _require_not_java(fleet, view, "cannot pause")
    what = "nothing more is delivered after the batch in its child's hands"
    change = Change(what, writes.pause(view.lease, note))
    return ActPlan(f"pause {view.key}", (change,), ("the lease stays held; it is seen with the next renewal",))


def plan_resume(fleet: FleetStatus, shard: str) -> ActPlan:
    """Plan to end the pause of a shard. Raises ActRefusedError."""
    view = _shard(fleet, shard)
    if view.lease.paused is None:
        raise ActRefusedError(f"{view.key} is not paused")
    change = Change(f"goes on ({view.lease.paused})", writes.resume(view.lease))
    return ActPlan(f"resume {view.key}", (change,))


def plan_restart(fleet: FleetStatus, shard: str, note: str) -> ActPlan:
    """Plan to ask the holder of a shard's lease to kill the child and start a new one. `note`, a text for the row,
    makes this request different from earlier ones. Raises ActRefusedError.
    """
    view = _open_shard(fleet, shard)
    if view.owner is None:
        raise ActRefusedError(f"nobody owns {view.key}: whoever takes it starts a child")
    _require_not_java(fleet, view, "cannot be asked for that")
    what = f"{view.owner} kills its child and starts another one at the checkpoint"
    change = Change(what, writes.ask_restart(view.lease, note))
    return ActPlan(f"restart the child of {view.key}", (change,), ("it is seen with the next renewal",))


def plan_leave_out(fleet: FleetStatus, shard: str, *records: str) -> ActPlan:
    """Plan to mark records, each ``SEQUENCE`` or ``SEQUENCE/SUB``, in their shard's row, so that they are not
    delivered.

    Marks of earlier commands stay, because a batch may hold several such records, except for marks that the checkpoint
    has passed. Raises ActRefusedError.
    """
    view = _open_shard(fleet, shard)
    lease = view.lease
    _require_not_java(fleet, view, "cannot leave records out")
    named = records[0] if len(records) == 1 else f"{len(records)} records"
    for record in records:
        if end_of(record) <= lease.checkpoint:
            raise ActRefusedError(f"the checkpoint of {view.key} is {lease.checkpoint}, past {record}")
    title = f"leave {named} out of {view.key}"
    if lease.left_out.issuperset(records):
        return ActPlan(title, (), (f"{named} is left out already",))
    kept = frozenset(one for one in lease.left_out if end_of(one) > lease.checkpoint).union(records)
    if len(kept) > LEFT_OUT_MAX:
        raise ActRefusedError(
            f"at most {LEFT_OUT_MAX} records of {view.key} can be left out: let the processor get past those that are, "
            "or `mld reset --shard` to a later record"
        )
    verb = "is" if len(records) == 1 else "are"
    words = f"{named} {verb} not delivered; what comes before and after is"
    change = Change(words, writes.leave_out(lease, kept))
    note = "it is seen with the next renewal; a child that hangs in a record needs `mld restart-child` as well"
    return ActPlan(title, (change,), (note,))


def end_of(record: str) -> Position:
    """Return the position of ``SEQUENCE/SUB``; for ``SEQUENCE`` the position of the last user record that it may
    hold.
    """
    sequence, _, sub = record.partition("/")
    return Position(sequence, int(sub) if sub else SUB_MAX)


# --- what may be done -------------------------------------------------------------------------------------------------


def _require_3x(is_3x: bool) -> None:
    """Raise ActRefusedError if the fleet works by the rules of 2.x."""
    if not is_3x:
        raise ActRefusedError(IN_2X)


def _shard(fleet: FleetStatus, name: str) -> ShardView:
    """Return the shard that `name` means, also if it was read to its end. Raises ActRefusedError if there is none."""
    by_key = {shard.key: shard for shard in fleet.shards}
    return by_key[full_key(by_key, name, fleet.labels)]


def _open_shard(fleet: FleetStatus, name: str) -> ShardView:
    """Return the shard that `name` means. Raises ActRefusedError if there is none, or it was read to its end."""
    shard = _shard(fleet, name)
    if shard.verdict is Verdict.ENDED:
        raise ActRefusedError(f"{shard.key} was read to its end: nothing of it is left to do")
    return shard


def known_worker(fleet: FleetStatus, name: str) -> WorkerView:
    """Return the worker that an operator means by `name`. Raises ActRefusedError unless exactly one fits."""
    found = [worker for worker in fleet.workers if is_worker(worker.worker, name)]
    exact = [worker for worker in found if worker.worker == name]
    if len(exact or found) != 1:
        others = ", ".join(worker.worker for worker in found or fleet.workers) or "none"
        many = "several workers are shown as" if found else "there is no worker"
        raise ActRefusedError(f"{many} {name}; the table knows {others}")
    return (exact or found)[0]


def _living_worker(fleet: FleetStatus, name: str) -> WorkerView:
    """Return the worker that `name` means. Raises ActRefusedError unless it is known to be alive, and if it belongs to
    another application.
    """
    found = known_worker(fleet, name)
    _require_ours(found)
    if not found.is_alive:
        raise ActRefusedError(f"worker {name} has not reported lately: it is dead, or it reports nothing")
    return found


def _require_ours(worker: WorkerView) -> None:
    """Raise ActRefusedError if the worker belongs to another application: one that uses this lease table by mistake."""
    if worker.is_stranger:
        raise ActRefusedError(
            f"worker {worker.worker} reads stream {worker.application}, which this file does not name: it belongs to "
            "another application, which must not share the lease table"
        )


def _require_not_java(fleet: FleetStatus, view: ShardView, what: str) -> None:
    """Raise ActRefusedError if the shard's owner runs Java or is not known to run mld; `what` completes the message."""
    owner = next((worker for worker in fleet.workers if worker.worker == view.owner), None)
    if owner is not None and owner.kind in (JAVA, UNREPORTED):
        who = "a Java worker, which" if owner.kind == JAVA else "which never reports; a Java worker"
        raise ActRefusedError(f"{view.key} belongs to {owner.worker}, {who} {what}: move it to a worker of mld first")


def _receivers(fleet: FleetStatus, without: set[str]) -> dict[str, int]:
    """Return the loads of the workers that may get leases of the workers `without`.

    These are the other living workers of this application, except for drained ones.
    """
    loads = loads_of(view.lease for view in fleet.shards)
    return {
        worker.worker: loads[worker.worker]
        for worker in fleet.workers
        if worker.is_alive and worker.drained is None and worker.worker not in without and not worker.is_stranger
    }


def _require_receivers(fleet: FleetStatus, without: set[str]) -> None:
    """Raise ActRefusedError if no worker may get leases of the workers `without`."""
    if not _receivers(fleet, without):
        raise ActRefusedError("no other worker lives that may have leases: start one first")


# --- changes ----------------------------------------------------------------------------------------------------------


def _spread(fleet: FleetStatus, leases: Sequence[Lease], leases_max: int) -> tuple[list[Change], tuple[str, ...]]:
    """Return changes that move the leases to other workers, and notes on leases that do not move. Raises
    ActRefusedError if there is no other worker.
    """
    owners = {lease.actual_owner for lease in leases if lease.actual_owner is not None}
    _require_receivers(fleet, owners)
    moving = {lease.key: lease for lease in leases if lease.handoff_to is None}
    receivers = spread(moving.values(), _receivers(fleet, owners), leases_max)
    changes = [_move_to(lease, receivers[key]) for key, lease in sorted(moving.items()) if key in receivers]
    going = [lease for lease in leases if lease.handoff_to is not None]
    notes = [f"{lease.key} is on its way to {lease.handoff_to} already" for lease in going]
    if left := sorted(moving.keys() - receivers.keys()):
        notes.append(f"no other worker has room for {', '.join(left)} (maxLeasesForWorker={leases_max})")
    return changes, tuple(notes)


def _move_to(lease: Lease, target: str, pinned_until_s: int | None = None) -> Change:
    """Return a change that moves the lease to `target`, by a handoff if it has an owner.

    An owner whose reports are late may still live, and only a watch for a lease duration would tell. If it is dead, the
    handoff does no harm: the workers take the lease from it when they would anyway, the next owner first.
    """
    if lease.handoff_to is not None:
        raise ActRefusedError(f"{lease.key} is on its way to {lease.handoff_to}: wait until it is there")
    if lease.owner is None:
        words, write = f"nobody's, given to {target}", writes.assign_expired(lease, target)
    else:
        words, write = f"handed by {lease.owner} to {target}", writes.begin_handoff(lease, target)
    return Change(words, write if pinned_until_s is None else writes.pinned(write, pinned_until_s))


def _title(verb: str, leases: Sequence[Lease]) -> str:
    return f"{verb} {leases[0].key}" if len(leases) == 1 else f"{verb} {len(leases)} shards"


def _change_report(name: str, place: Place, words: str, condition: Condition, **more: object) -> Change:
    """Return a change of a worker's report, which `words` describe in the plan. The write is refused if there is no
    report, or if `condition` does not hold.
    """
    write = writes.yes_or_no("drain", name, Condition.present(reports.UPDATED_AT), condition, **more)
    return Change(words, write, None if place.key == LEASE_TABLE_KEY else place)
