"""Checkers 7 and 15: what a worker has while it lives is bounded by its leases, it ends soon when it is told to, and
leaves nothing when it has ended: no task, child, subscription, reader or buffer; and if all stop, no lease.

Looks into processes, not into the code under test: at the tasks made in them, and at the readers of shards, which are
counted as they are made, and are gone once the garbage collector says so.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mld.daemon.worker import Worker
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.retrieval.reader import ShardReader
from tests.simulation.checkers import SHARD_END, Violation
from tests.simulation.world.loop import Process, current_process

if TYPE_CHECKING:
    from tests.simulation.world.world import Machine, World

TASKS_PER_LEASE_MAX = 5  # consumer, its stop, reader, the page it waits for; a renewal now and then
TASKS_PER_CHILD_MAX = 4  # of several for a shard: who reads what it says, who serves it, its start or action, a reply
TASKS_PER_WORKER_MAX = 16  # 11 at rest: the loops of keeper, fleet, auditor and clean-up
TASKS_PER_REQUEST = 3  # one that waits for its answer, and whoever waits for that
TASKS_PER_WORKER_MAX_3X = 60  # 15 loops, 10 looks of discovery, two times 15 writes at once
READERS_BESIDE_MAX = 2
"""Of leases that were lost and found again, whose former children still end."""
ENDING_MAX_S = 75.0
"""For so long a lost shard may have its consumer: a task (timeoutInSeconds), and what is sent to the child then."""
LEAVES_AT_ONCE_S = 1.0
FAREWELL_S_MAX = 1.0
"""A stopping worker has 7 s for its last writes, which are several one after the other."""
STOPS_MAX_S = 37.0
"""The grace, and the last writes and looks, which may go unanswered."""
START_STOPS_MAX_S = 10.0
"""The same of a worker that has not begun, so has no children."""


class Lives:
    """Told of stops and ends of our workers, and asked now and then to look."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._readers: dict[Process, list[weakref.ref[Any]]] = {}
        self._held_at: dict[Process, dict[str, float]] = {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the readers that are made meanwhile, and their buffers, by process. Note each lease when it is adopted,
        because it may last for less than the time between two looks.
        """
        init, adopt = ShardReader.__init__, LeaseKeeper.adopt

        def counted_init(reader: Any, *args: Any, **kwargs: Any) -> None:
            init(reader, *args, **kwargs)
            if (process := current_process()) is not None:
                self._readers.setdefault(process, []).extend((weakref.ref(reader), weakref.ref(reader._buffer)))

        def noted_adopt(keeper: Any, lease: Lease, *args: Any, **kwargs: Any) -> Any:
            if (process := current_process()) is not None:
                self._held_at.setdefault(process, {})[lease.key] = self._world.now()
            return adopt(keeper, lease, *args, **kwargs)

        with patch.object(ShardReader, "__init__", counted_init), patch.object(LeaseKeeper, "adopt", noted_adopt):
            yield

    def _readers_of(self, process: Process, most: int) -> int:
        """How many readers and buffers of a process there are; the garbage collector, which is off, looks if needed."""
        for collect in (False, True):
            if collect:
                gc.collect()
            refs = self._readers[process] = [ref for ref in self._readers.get(process, ()) if ref() is not None]
            if len(refs) <= most:
                break
        return len(refs)

    # --- while it lives -----------------------------------------------------------------------------------------------

    def note(self) -> None:
        """Once a second."""
        for process, worker in self._living():
            self._held_at.setdefault(process, {}).update(dict.fromkeys(worker.held(), self._world.now()))

    def _living(self) -> Iterator[tuple[Process, Worker]]:
        for machine in self._world.machines:
            if machine.process is not None and not machine.paused and isinstance(machine.worker, Worker):
                yield machine.process, machine.worker

    def check(self) -> None:
        """Raises Violation."""
        since = self._world.now() - ENDING_MAX_S
        for machine in self._world.machines:
            process = machine.process
            if process is None or machine.paused or not isinstance(machine.worker, Worker):
                continue
            requests = 0 if machine.dynamo is None else machine.dynamo.waiting
            leases = sum(at >= since for at in self._held_at.get(process, {}).values())
            readers_max = 2 * (leases + READERS_BESIDE_MAX)
            per_lease = TASKS_PER_LEASE_MAX + (TASKS_PER_CHILD_MAX * machine.children if machine.children > 1 else 0)
            per_worker = TASKS_PER_WORKER_MAX if self._world.plan.fleet is None else TASKS_PER_WORKER_MAX_3X
            for what, count, most in (
                ("readers and buffers", self._readers_of(process, readers_max), readers_max),
                (
                    "tasks",
                    len(process.tasks()),
                    per_worker + per_lease * leases + TASKS_PER_REQUEST * requests,
                ),
            ):
                if count > most:
                    raise self._violation(7, f"{process.name} has {count} {what}, and had {leases} leases lately")

    # --- its end ------------------------------------------------------------------------------------------------------

    async def stop(self, machine: Machine, stopping: Awaitable[Any]) -> None:
        """Check how long a process takes from SIGTERM until it has ended, or has to be killed."""
        process, worker = machine.process, machine.worker
        if process is None or not isinstance(worker, Worker):
            await stopping
            return
        has_begun, pauses, told_at = worker.signals.initialized.is_set(), machine.pauses, self._world.now()
        hears = not machine.paused
        await stopping
        took_s, most = self._world.now() - told_at, STOPS_MAX_S if has_begun else START_STOPS_MAX_S
        if hears and not process.dead and machine.pauses == pauses and not machine.paused and took_s > most:
            when = "" if has_begun else " in its start"
            self._fail(15, f"{process.name} needs {took_s:.1f} s to stop{when}")

    async def ended(self, process: Process, machine: Machine) -> None:
        """Check that a process of ours that has ended by itself leaves nothing."""
        children = [] if machine.host is None else [child.shard_id for child in machine.host.living()]
        subscribed = [] if machine.fan_out is None else machine.fan_out.open_shards()
        await asyncio.sleep(LEAVES_AT_ONCE_S)
        left: tuple[tuple[str, Any], ...] = (
            ("children", children),
            ("subscriptions", subscribed),
            ("tasks", process.tasks()),
            ("readers and buffers", self._readers_of(process, 0)),
        )
        for what, found in left:
            if found:
                self._fail(7, f"{process.name} has ended and leaves {what}: {found}"[:500])

    @contextmanager
    def all_stop(self, machines: Sequence[Machine]) -> Iterator[None]:
        """Everybody stops meanwhile. If each ended by itself, and the table answered, no open lease has an owner."""
        living = [machine for machine in machines if machine.process is not None]
        before = (self._is_undisturbed(living), len(self._world.graves), sum(machine.pauses for machine in living))
        yield
        after = (self._is_undisturbed(living), len(self._world.graves), sum(machine.pauses for machine in living))
        if before != after or not before[0]:
            return
        workers = {machine.worker_id for machine in living}
        for key, row in self._world.lease_rows().items():
            owners = {row[name]["S"] for name in ("leaseOwner", "checkpointOwner") if name in row}
            if row["checkpoint"]["S"] != SHARD_END and owners & workers:
                self._fail(15, f"everybody has stopped, and {key} still belongs to {' and '.join(sorted(owners))}")

    def _is_undisturbed(self, machines: Sequence[Machine]) -> bool:
        """Whether they are ours, go on, and the table has answered for a while."""
        world = self._world
        rates = world.machines[0].rates
        faulty = rates.dynamo_error or rates.dynamo_lost_reply or rates.dynamo_throttled or rates.dynamo_slow
        is_heard = world.now() - max(world.cut_at, world.dynamo.outage_until) > STOPS_MAX_S
        if world.dynamo.slowness is not None:
            is_heard = is_heard and world.dynamo.slowness.at(world.now()) <= FAREWELL_S_MAX
        is_ours = all(machine.spec.kind == "mld" and not machine.paused for machine in machines)
        return is_heard and is_ours and not (faulty or rates.surprise)

    def _fail(self, number: int, text: str) -> None:
        self._world.failures.append(str(self._violation(number, text)))

    def _violation(self, number: int, text: str) -> Violation:
        violation = f"checker {number} at {self._world.now():.2f} s: {text}"
        self._world.trace(violation)
        return Violation(violation)
