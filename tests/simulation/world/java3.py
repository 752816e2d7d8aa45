"""A Java worker of KCL 3.x, flaws included, to live beside ours: reports, a lock, assignment, discovery, handoffs.

Rules: coordination#what-java-does-differently, leases#what-java-does-differently, shards#what-java-does-differently.
Two flavours: 3.5 (rows have a type) and 3.0-3.4 (legacy tables, and no row in the lease table may be anything but a
lease). It is written from a description of Java and from the model of 2.x (`java2`), and must never import our own
machinery. Left out: enhanced fan-out, multi-stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError, StreamError
from mld.core.positions import InitialPosition
from mld.core.streams import HASH_KEY_MAX, Shard, ShardFilterType, Streams
from tests.simulation.world.children import Ledger
from tests.simulation.world.java2 import (
    CLEANUP_TICK_S,
    EMPTY_POLL_S,
    EMPTY_WAIT_S,
    PASS_S,
    START_ATTEMPTS,
    START_BACKOFF_S,
    SYNC_IDLE_S,
    JavaWorker,
)
from tests.simulation.world.java2_consumer import Consumer, Reason, State
from tests.simulation.world.java2_table import END, EPSILON_S, TROUBLE, Exit, InvalidState, Lease, new_row
from tests.simulation.world.java3_lam import AssignmentManager, read_report
from tests.simulation.world.java3_lock import LockDecider, ShuffleDecider
from tests.simulation.world.java3_states import ROLLBACK, UPGRADE, V2X, V3X, V_INIT, Tables, Versions
from tests.simulation.world.java3_table import Lease3, Renewer3, Rows3, fresh
from tests.simulation.world.plan import Rates

REPORT_S, FIRST_REPORT_S = 30.0, 2.0
RING = 10
MONITOR_HANDOFF_S = 2.0
HANDOFF_TIMEOUT_S = 30.0
AUDIT_FIRST_S, AUDIT_S = 60.0, 120.0
CONFIDENCE = 3
INDEX_POLL_S, INDEX_WAIT_S = 10.0, 3600.0
ROWS_SUPPORT = "1"


class JavaWorker3(JavaWorker):
    """One process. `load()` is its processor's utilization in percent, None if it cannot measure any."""

    def __init__(
        self,
        worker_id: str,
        dynamo: Service,
        streams: Streams,
        ledger: Ledger,
        clock: Clock,
        rng: Random,
        *,
        table: str,
        failover_s: float,
        steals_max: int,
        initial: InitialPosition,
        idle_s: float,
        child_numbers: Iterator[int],
        rates: Rates,
        tagged: bool = True,
        config: str = "3X",
        migrate: bool = False,
        complete_bake_s: float = 3600.0,
        load: Callable[[], float | None] = lambda: None,
    ) -> None:
        super().__init__(
            worker_id,
            dynamo,
            streams,
            ledger,
            clock,
            rng,
            table=table,
            failover_s=failover_s,
            steals_max=steals_max,
            initial=initial,
            idle_s=idle_s,
            child_numbers=child_numbers,
            rates=rates,
        )
        self.failover_s = failover_s
        self.rows = Rows3(dynamo, clock, rng, table)
        self.rows.tagged = tagged
        self.renewer = Renewer3(self.rows, clock, failover_s)
        self.renewer.on_handoff = self._on_handoff
        self.ledger: Any = _Meter(ledger, self.renewer)
        self.tables = Tables(self, table, migrate=migrate, complete_bake_s=complete_bake_s)
        self.versions = Versions(self, config)
        self.decider: LockDecider | ShuffleDecider = ShuffleDecider(worker_id, self.rows, clock)
        self.load = load
        self.failure: str | None = None
        self.takes = self.assigns = self.reports = False
        self._decides_by_lock = False
        self._handing: dict[object, float] = {}
        self._handed: set[object] = set()
        self._ring: list[float] = []
        self._synced = False
        self._hole: tuple[Any, int] = (None, 0)

    # --- modes --------------------------------------------------------------------------------------------------------

    async def enter(self, state: str) -> None:
        """As coordination#initial-version, but remembered before it is entered."""
        by_lock = state in (ROLLBACK, V3X)
        if state == V2X:
            self.reports = False
        self.takes = state in (V_INIT, UPGRADE, V2X)
        if not by_lock:
            self.assigns = False
        if by_lock is not self._decides_by_lock:
            await self.decider.close()
            self.decider = self._new_decider(by_lock)
            self._decides_by_lock = by_lock
        if state == UPGRADE and await self.rows.index_status() is None:
            await self.rows.create_index()
        if state == V3X and self.versions.state is None:
            await self._wait_for_index()
        self.reports = state in (UPGRADE, ROLLBACK, V3X)
        self.assigns = by_lock

    def _new_decider(self, by_lock: bool) -> LockDecider | ShuffleDecider:
        if not by_lock:
            return ShuffleDecider(self.worker_id, self.rows, self.clock)
        return LockDecider(
            self.worker_id,
            self.rows,
            self.clock,
            self.rng,
            place=self.tables.lock_place,
            tagged=self.rows.tagged,
            hook=self.tables.hook,
            spawn=self.spawn,
        )

    async def _wait_for_index(self) -> None:
        give_up_at = self.clock.monotonic() + INDEX_WAIT_S
        while self.clock.monotonic() < give_up_at:
            status = await self.rows.index_status()
            if status == "ACTIVE":
                return
            if status is None:
                await self.rows.create_index()
            await self._pause(INDEX_POLL_S)
        raise InvalidState("the index does not become active")

    async def is_leader(self) -> bool:
        return await self.decider.is_leader()

    def leads(self) -> bool:
        """Whether it would act as leader now, without asking anybody."""
        return self.assigns and self.decider.holds()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        for _ in range(START_ATTEMPTS):
            try:
                await self.rows.ensure_table()
                await self.tables.initialize()
                await self.versions.initialize()
                await self._bootstrap()
                break
            except (*TROUBLE, StreamError, InvalidState):
                await self._pause(START_BACKOFF_S)
        else:
            raise Exit(0)
        await self.renewer.readopt(self.worker_id)
        self._cleaned_at = self.clock.monotonic()
        self.spawn(self._at_rate(self._failover_s / 3 - EPSILON_S, self.renewer.tick))
        self.spawn(self._at_rate(CLEANUP_TICK_S, self._clean))
        self.spawn(self._take_leases())
        self.spawn(self._at_rate(self._failover_s - EPSILON_S, self._discover))  # twice for each assignment run
        self.spawn(self._assign_leases())
        self.spawn(self._report())
        self.spawn(self._audit())
        self.spawn(self.versions.monitor())
        self.spawn(self._watch_leadership())
        self.spawn(self._watch_handoffs())
        while not self._stop.is_set():
            self._dispatch()
            await self.clock.sleep(PASS_S)
        self.takes = self.assigns = False
        self.spawn(self._close_decider())
        await self._shut_down()

    async def _close_decider(self) -> None:
        await self.clock.sleep(PASS_S)
        await self.decider.close()

    async def _bootstrap(self) -> None:
        """Since 3.4.3 the leader alone fills an empty table."""
        give_up_at = self.clock.monotonic() + self.rng.uniform(*EMPTY_WAIT_S)
        while self.clock.monotonic() < give_up_at:
            if not await self._is_table_empty():
                return
            await self._pause(EMPTY_POLL_S)
        if await self._is_table_empty() and await self.is_leader():
            await self._fill()
            await self._pause(SYNC_IDLE_S)

    async def _is_table_empty(self) -> bool:
        return await self.rows.is_empty()

    async def _fill(self) -> None:
        name = self.initial.sentinel.sequence
        for shard in await self._snapshot(ShardFilterType(name if name == "AT_TIMESTAMP" else f"AT_{name}")):
            ends = shard.hash_range
            await self.rows.create(new_row(shard.shard_id, name, sorted(shard.parents), ends.start, ends.end))

    async def _take_leases(self) -> None:
        while not self._stop.is_set():
            if self.takes:
                with contextlib.suppress(*TROUBLE):
                    self.renewer.add(await self._take_pass())
            await self.clock.sleep(2 * (self._failover_s + EPSILON_S))

    async def _watch_leadership(self) -> None:
        """The scheduler's loop asks once a second."""
        while not self._stop.is_set():
            with contextlib.suppress(*TROUBLE):
                self._synced = await self.is_leader()
            await self.clock.sleep(PASS_S)

    def _make_consumer(self, lease: Lease) -> Consumer:
        return Consumer3(self, lease)

    # --- discovery ----------------------------------------------------------------------------------------------------

    async def _discover(self) -> None:
        if not self.assigns or self._stop.is_set():
            return
        try:
            keys = await self.rows.keys_of(self.worker_id)
        except (AwsError, AwsUnreachableError):
            return
        held = self.held()
        found = await asyncio.gather(*(self._look(key) for key in keys if key not in held))
        if not self._stop.is_set():
            self.renewer.add([lease for lease in found if lease is not None])

    async def _look(self, key: str) -> Lease3 | None:
        try:
            lease = await self.rows.get(key)
        except TROUBLE:
            return None
        if lease is None or lease.owner != self.worker_id or lease.is_pending:
            return None
        return fresh(lease, self.clock.monotonic())

    # --- reports ------------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        await self.clock.sleep(FIRST_REPORT_S)
        due = self.clock.monotonic()
        while not self._stop.is_set():
            if self.reports:
                with contextlib.suppress(AwsError, AwsUnreachableError):
                    await self._write_report()
            due += REPORT_S
            await self.clock.sleep(max(0.0, due - self.clock.monotonic()))

    async def _write_report(self) -> None:
        table, key = self.tables.report_place()
        load, now = self.load(), str(int(self.clock.wall()))
        samples: dict[str, Any] = {}
        limits: dict[str, Any] = {}
        if load is not None:
            self._ring = [*self._ring, round(load, 6)][-RING:]
            samples["C"] = {"L": [{"N": f"{value:.6f}"} for value in self._ring]}
            limits["C"] = {"L": [{"N": "100"}]}
        sets: dict[str, Any] = {"sts": {"M": samples}, "opr": {"M": limits}, "lut": {"N": now}}
        if self.rows.tagged:
            sets |= {"entityType": {"S": "WORKER_METRIC_STATS"}, "sup": {"N": ROWS_SUPPORT}, "slu": {"N": now}}
        await self.rows.ask(
            "UpdateItem",
            TableName=table,
            Key={key: {"S": self.worker_id}},
            UpdateExpression="SET " + ", ".join(f"#a{i} = :a{i}" for i in range(len(sets))),
            ExpressionAttributeNames={f"#a{i}": name for i, name in enumerate(sets)},
            ExpressionAttributeValues={f":a{i}": value for i, value in enumerate(sets.values())},
        )

    async def reporting(self) -> set[str | None]:
        """Workers with a fresh report, in either table."""
        wall = self.clock.wall()
        _, others = await self.rows.everything()
        reports = [
            read_report(row, "leaseKey")
            for row in others
            if row.get("entityType", {}).get("S") == "WORKER_METRIC_STATS"
        ]
        legacy = self.tables.legacy_reports()
        if legacy is not None:
            reports += [read_report(row, "wid") for row in await self.rows.scan(TableName=legacy)]
        return {report.worker for report in reports if report.lut is not None and report.lut + 2 * REPORT_S > wall}

    # --- assignment and audit -----------------------------------------------------------------------------------------

    async def _assign_leases(self) -> None:
        manager = AssignmentManager(self)
        while not self._stop.is_set():
            if self.assigns:
                await manager.run_once()
            await self.clock.sleep(2 * self._failover_s)

    async def _audit(self) -> None:
        await self.clock.sleep(AUDIT_FIRST_S)
        while not self._stop.is_set():
            with contextlib.suppress(*TROUBLE, StreamError, InvalidState):
                if self._synced and await self.is_leader():
                    await self._audit_once()
            await self.clock.sleep(AUDIT_S)

    async def _audit_once(self) -> None:
        leases = await self.rows.all()
        if not leases:
            await self._fill()
            return
        hole = _hole(lease for lease in leases if lease.checkpoint != END)
        if hole is None:
            self._hole = (None, 0)
            return
        self._hole = (hole, self._hole[1] + 1 if self._hole[0] == hole else 1)
        if self._hole[1] >= CONFIDENCE:
            await self._sync(leases)

    async def _sync(self, leases: list[Lease]) -> None:
        """What a table with rows lacks (shards#leases-for-a-filled-table)."""
        shards = {shard.shard_id: shard for shard in await self.list_shards(None)}
        name = self.initial.sentinel.sequence
        new = _missing(shards, {lease.key for lease in leases}, name)
        for key in sorted(new, key=lambda key: (int(shards[key].starting_sequence), key)):
            ends = shards[key].hash_range
            await self.rows.create(new_row(key, new[key], sorted(shards[key].parents), ends.start, ends.end))

    # --- handoffs -----------------------------------------------------------------------------------------------------

    def _on_handoff(self, lease: Lease3) -> None:
        """The handler's enqueue (leases#handoff-on-the-owner-side)."""
        consumer = self._consumers.get(lease.token)
        if consumer is None or consumer.is_complete or lease.token in self._handing:
            return
        self._handing[lease.token] = self.clock.monotonic() + HANDOFF_TIMEOUT_S
        consumer.end(Reason.REQUESTED)

    async def transfer(self, lease: Lease3 | None) -> None:
        """Only once, by whoever is first: the consumer that has finished, or the monitor at the deadline."""
        if lease is None or lease.checkpoint_owner != self.worker_id or lease.token in self._handed:
            return
        assert lease.owner is not None
        await self.rows.assign(lease, lease.owner)
        self._handed.add(lease.token)

    async def _watch_handoffs(self) -> None:
        while True:
            await self.clock.sleep(MONITOR_HANDOFF_S)
            for token, deadline in list(self._handing.items()):
                lease = next((one for one in self.renewer.held() if one.token is token), None)
                if lease is None or token not in self._consumers:
                    del self._handing[token]
                    self._handed.discard(token)
                elif self.clock.monotonic() >= deadline and isinstance(lease, Lease3):
                    with contextlib.suppress(*TROUBLE):
                        await self.transfer(lease)


class Consumer3(Consumer):
    """With the transfer at the end of a handoff."""

    async def _notify(self) -> None:
        worker = self._worker
        assert isinstance(worker, JavaWorker3)
        try:
            self._perhaps_die()
            if worker.rng.random() < 0.8:
                await self._try_checkpoint()
            await self._hand_on()
        finally:
            worker.renewer.forget(self.shard)
            self.is_notified = True

    async def _hand_on(self) -> None:
        worker = self._worker
        assert isinstance(worker, JavaWorker3)
        lease = worker.renewer.owned.get(self.shard)
        if isinstance(lease, Lease3) and lease.token is self._token:
            with contextlib.suppress(*TROUBLE):
                await worker.transfer(lease)

    async def _task(self) -> bool:
        done = await super()._task()
        if self._state is State.SHUTTING_DOWN and self.reason is Reason.REQUESTED:
            await self._hand_on()
            self._worker.renewer.owned.pop(self.shard, None)
        return done


class _Meter:
    """The ledger, with an ear for how much was delivered."""

    def __init__(self, ledger: Ledger, renewer: Renewer3) -> None:
        self._ledger = ledger
        self._renewer = renewer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def delivered(self, worker: str, child: int, shard: str, places: list[tuple[int, int]]) -> None:
        self._ledger.delivered(worker, child, shard, places)
        self._renewer.delivered(shard, len(places))


def _hole(leases: Any) -> tuple[Any, Any] | None:
    """The first hole of the hash keys (shards#holes-in-coverage, as Java sees them)."""
    ranges = sorted((int(lease.hash_range[0]), int(lease.hash_range[1])) for lease in leases if lease.hash_range)
    if not ranges:
        return (None, None)
    if ranges[0][0] != 0 or ranges[-1][1] != HASH_KEY_MAX:
        return ranges[0], ranges[-1]
    end, reporter = ranges[0][1], ranges[0]
    for one in ranges[1:]:
        if one[0] > end + 1:
            return reporter, one
        if one[0] == end + 1:
            reporter = one
        end = max(end, one[1])
    return None


def _missing(shards: dict[str, Shard], leased: set[str], name: str) -> dict[str, str]:
    """Which leases a table with rows lacks, and where they begin."""
    new: dict[str, str] = {}
    wanted: set[str] = set()
    known: dict[str, bool] = {}

    def visit(key: str) -> bool:
        if key not in known:
            known[key] = look(key)
        return known[key]

    def look(key: str) -> bool:
        if key not in shards:
            return False
        if key in leased:
            return True
        parents = sorted(p for p in shards[key].parents if p in shards)
        covered = {p for p in parents if visit(p) or p in wanted}
        if not covered:
            if name in ("TRIM_HORIZON", "AT_TIMESTAMP"):
                wanted.add(key)
            return False
        for parent in parents:
            if parent in leased:
                continue
            if parent not in new and (parent in wanted or parent not in covered):
                new[parent] = name
            if parent in new:
                new[parent] = "TRIM_HORIZON" if parent in covered and name != "AT_TIMESTAMP" else name
        return True

    for key, shard in shards.items():
        if shard.is_open and key not in leased and not visit(key):
            new[key] = name
    return new
