"""Workers sharing one table under lost requests, lost and late replies and pauses: what must hold whatever happens.

Every accepted write is in the twin's history with its true sender, so the rules are checked against what the table did,
not against what the workers believe:

- a checkpoint is accepted only from the row's actual owner: at most one writer per lease at a time;
- a counter goes up by exactly one with every write, so that every write fences all earlier ones;
- SHARD_END stays SHARD_END;
- a checkpoint reported as stored is in the history, written by its reporter;
- workers with ids of their own are never mistaken for twins, and a lease is called lost only if the table says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mld.core.errors import LeaseLostError, TableError
from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.rows import parse_row
from mld.leases.validity import HeldLease
from tests.twins.dynamo import Applied, Fault, lost_reply, lost_request, server_error, throttled
from tests.unit.leases.support import Worker, new_dynamo
from tests.virtual_time import VirtualTimeLoop

KEYS = ("a", "b", "c")
WORKERS = ("w1", "w2")
LATE = 4.0  # longer than a request's time-out
SETTLING_S = 200.0

FAULTS: dict[str, Fault | None] = {
    "fine": None,
    "slow": Fault(delay_before_s=0.5, delay_after_s=0.5),
    "lost request": lost_request(),
    "lost reply": lost_reply(),
    "server error": server_error(),
    "throttled": throttled(),
    "late request": Fault(delay_before_s=LATE),
    "very late request": Fault(delay_before_s=25.0),
    "late reply": Fault(delay_after_s=LATE),
}

workers = st.sampled_from(WORKERS)
keys = st.sampled_from(KEYS)


class LeaseFleet(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.alarms = _Alarms()
        logging.getLogger("mld.leases.keeper").addHandler(self.alarms)
        self.loop = VirtualTimeLoop()
        self.rng = random.Random(seed)
        self.mixtures: dict[str, list[str]] = {name: ["fine"] for name in WORKERS}
        self.position = 0
        self.checked = 0
        self.stored: list[tuple[str, str, Position]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.run(self._start())

    async def _start(self) -> None:
        self.dynamo = await new_dynamo()
        self.workers = {name: Worker(self.dynamo, name, seed=self.rng.randrange(1000)) for name in WORKERS}
        for key in KEYS:
            await self.workers["w1"].table.apply(writes.create(Lease(key, TRIM_HORIZON)))
        self.dynamo.faults = self._fault
        for worker in self.workers.values():
            self.tasks.append(asyncio.create_task(worker.keeper.run()))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def held(self, worker: str, key: str) -> HeldLease | None:
        async def ask() -> HeldLease | None:
            return self.workers[worker].keeper.held().get(key)

        answer: HeldLease | None = self.run(ask())
        return answer

    def _fault(self, sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        return FAULTS[self.rng.choice(self.mixtures[sender])]

    # --- what happens

    @rule(worker=workers, mixture=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=4))
    def network_changes(self, worker: str, mixture: list[str]) -> None:
        self.mixtures[worker] = mixture

    @rule(worker=workers)
    def network_recovers(self, worker: str) -> None:
        self.mixtures[worker] = ["fine"]

    @rule(seconds=st.sampled_from([0.01, 0.7, 3.0, 9.0, 12.0, 35.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(worker=workers)
    def a_worker_takes(self, worker: str) -> None:
        self.run(_tolerate(self.workers[worker].taker.take_once()))

    @rule(worker=workers, key=keys, is_end=st.integers(0, 9).map(lambda n: n == 0))
    def a_worker_checkpoints(self, worker: str, key: str, is_end: bool) -> None:
        held = self.held(worker, key)
        if held is None:
            return
        self.position += 1
        position = SHARD_END if is_end else Position(str(self.position))
        self.run(self._checkpoint(worker, key, held.token, position))

    @rule(key=keys)
    def both_checkpoint_at_once(self, key: str) -> None:
        self.position += 1

        async def both() -> None:
            await asyncio.gather(
                *(
                    self._checkpoint(name, key, held.token, Position(str(self.position)))
                    for name, worker in self.workers.items()
                    if (held := worker.keeper.held().get(key)) is not None
                )
            )

        self.run(both())

    @rule(worker=workers, key=keys, patience_s=st.sampled_from([0.0, 0.2, 3.5]))
    def a_checkpoint_is_cancelled(self, worker: str, key: str, patience_s: float) -> None:
        held = self.held(worker, key)
        if held is None:
            return
        self.position += 1
        work = self._checkpoint(worker, key, held.token, Position(str(self.position)))
        self.run(_tolerate(asyncio.wait_for(work, patience_s)))

    @rule(worker=workers, key=keys)
    def a_worker_releases(self, worker: str, key: str) -> None:
        held = self.held(worker, key)
        if held is not None:
            self.run(self.workers[worker].keeper.give_away(key, held.token))
            assert self.held(worker, key) is None

    @rule(worker=workers, key=keys)
    def a_worker_drops(self, worker: str, key: str) -> None:
        held = self.held(worker, key)
        if held is not None:
            self.workers[worker].keeper.drop(key, held.token)
            assert self.held(worker, key) is None

    @rule()
    def a_process_is_paused(self) -> None:
        """Timers of a stopped process fire late and all at once: nothing runs on the loop while time jumps."""
        self.loop._jumping.jumped_s += 15.0
        self.run(asyncio.sleep(0))

    @precondition(lambda self: self.position > 3)
    @rule()
    def faults_end_and_everything_is_held_again(self) -> None:
        self.mixtures = {name: ["fine"] for name in WORKERS}

        async def settle() -> None:
            for _ in range(int(SETTLING_S / 20)):
                for worker in self.workers.values():
                    await worker.taker.take_once()
                await asyncio.sleep(20.0)

        self.run(settle())
        holders = [{key for key in KEYS if self.held(name, key)} for name in WORKERS]
        assert holders[0] | holders[1] == set(KEYS)
        assert not holders[0] & holders[1]

    async def _checkpoint(self, worker: str, key: str, token: str, position: Position) -> None:
        try:
            stored = await self.workers[worker].keeper.checkpoint(key, token, position)
        except (TableError, LeaseLostError):
            return
        if stored == position:
            self.stored.append((worker, key, position))
        else:
            assert stored == SHARD_END

    # --- what must hold

    @invariant()
    def writes_are_fenced(self) -> None:
        for applied in self.dynamo.history[self.checked :]:
            _check_write(applied)
        self.checked = len(self.dynamo.history)

    @invariant()
    def stored_checkpoints_were_written_by_their_reporter(self) -> None:
        for worker, key, position in self.stored:
            assert any(
                applied.sender == worker
                and applied.after["leaseKey"]["S"] == key
                and applied.after["checkpoint"]["S"] == position.sequence
                and applied.before.get("checkpoint") is not None
                for applied in self.dynamo.history
            ), (worker, key, position)
        self.stored.clear()

    @invariant()
    def nobody_is_mistaken_for_a_twin(self) -> None:
        assert self.alarms.messages == []

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        logging.getLogger("mld.leases.keeper").removeHandler(self.alarms)

        async def stop() -> None:
            for task in self.tasks:
                assert not task.done(), task
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await asyncio.sleep(60.0)  # requests still under way

        self.run(stop())
        self.loop.close()


def _check_write(applied: Applied) -> None:
    after = parse_row(applied.after)
    assert after is not None
    if not applied.before:
        return
    before = parse_row(applied.before)
    assert before is not None
    assert after.counter == before.counter + 1
    if before.is_complete:
        assert after.is_complete
    if after.checkpoint != before.checkpoint:
        assert applied.sender == before.actual_owner == after.actual_owner
    if after.owner is None:
        assert applied.sender == before.owner
    elif after.owner != before.owner:
        assert applied.sender == after.owner


async def _tolerate(work: Any) -> None:
    with contextlib.suppress(TableError, TimeoutError):
        await work


class _Alarms(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


TestLeaseFleet = LeaseFleet.TestCase
TestLeaseFleet.settings = settings(max_examples=60, stateful_step_count=40)
