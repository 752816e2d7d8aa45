"""`HeartbeatWriter`: one conditional write every third of the lease duration, for all leases of this worker.

Rules: `leases.validity` says why it is safe, `report.reports` what is written. Nothing here concerns a fleet whose
workers all renew lease by lease. What follows what:

    our report is written -> an epoch is claimed on it -> heartbeats; the keeper marks its leases as it renews them
    a heartbeat is refused -> everything covered is dropped at once, a new epoch is claimed
    a Java worker is seen -> every lease is renewed by itself, the heartbeats go on until no lease rests on them, and
    end for good

Each heartbeat also tells people how the covered shards are, as far as that fits (`leases.lease.pack`).

A heartbeat that somebody else left under our id is a predecessor's, or a twin's: it is taken over only when it has
stood still for a lease duration. Until then, and whenever there is no epoch, leases are renewed one by one.

`HeartbeatTable`: one request per call, no retries. What is not a definite answer leaves as a `TableError`: the write
may or may not have been applied.

`JavaPeers` looks for workers that are not mld among workers that send heartbeats: they are kept out at the start, and
told of later, because they cannot live together (`leases.validity`). Every leader looks, whichever way it renews
itself; while nobody sends heartbeats this costs nothing. It tells each worker that sends heartbeats, by `mldStranger`
on its report; the answer to the next heartbeat shows it. A Java leader tells nobody, so every such worker also looks at
the leader's lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from random import Random
from typing import Any

from mld.aws.service import ANSWER_S_MAX, REFUSED_CODE, RefusedError, Service, TableCalls, raises_only
from mld.core.clock import Clock, a_few_at_a_time, in_turns, wait_for_event
from mld.core.error_boundary import BackgroundTasks, survived
from mld.core.errors import StartupError, TableUnavailableError
from mld.core.periods import HEARTBEATS_PER_LEASE, LOOKS_PER_DURATION
from mld.core.steps import SLICE
from mld.fleet.migrate.states import ClientVersion
from mld.fleet.report import reports
from mld.fleet.report.reporter import StoredReports
from mld.fleet.report.reports import (
    FENCED,
    SHARDS,
    FleetSnapshot,
    ReportRules,
    WorkerReport,
    epoch_of,
    is_fenced,
)
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease, ShardStatus, pack
from mld.leases.own_writes import OPEN_MAX
from mld.leases.rows import (
    ENTITY_TYPE,
    HEARTBEAT,
    LEASE_TABLE_KEY,
    EntityType,
    OwnAttribute,
    Place,
    Row,
    names_in,
    room_for,
    some_text,
)
from mld.leases.table import LeaseTable
from mld.leases.validity import CHAIN_SHARE, Heartbeat, again_at, chain_end, counts_from, retry_delay_s
from mld.metrics.registry import Metrics
from mld.properties.settings import LeaseSettings, Settings
from mld.properties.values import HeartbeatSetting

log = logging.getLogger(__name__)

UNREPORTED_S_MIN = 8.0
"""A young mld worker has its first report within three seconds; a few attempts may fail."""


GROWTH_BYTES = 128
"""By how much a report may grow before the next heartbeat: a dozen samples more, or longer ones."""
JAVA_PEER = "mldStranger"
EPOCH_BITS = 64

_PEER = OwnAttribute(JAVA_PEER, "S", some_text(), "worker-1 (Java)")
_IS_OURS = f"#{ENTITY_TYPE} = :report AND attribute_exists(#{reports.VERSION})"
_REPORT = {":report": {"S": EntityType.WORKER_METRIC_STATS.value}}


def java_workers(found: Iterable[WorkerReport], now_s: float, rules: ReportRules) -> list[str]:
    """Return workers with a live report that was not written by mld."""
    return sorted(
        report.worker
        for report in reports.newest_of_each(found)
        if "version" not in report.mld
        and report.updated_at_s is not None
        and not reports.is_expired(report, now_s, rules)
    )


def unreported_owners(
    leases: Iterable[Lease], found: Iterable[WorkerReport], expired: Collection[str]
) -> dict[str, tuple[str, int]]:
    """Return owners of living leases that have no report: (key, counter) of one lease of each. Young mld workers
    look so, too.

    Those report within seconds, so a worker that goes on renewing without a report is a Java worker.
    """
    known = {report.worker for report in found}
    owners: dict[str, tuple[str, int]] = {}
    for lease in leases:
        owner = lease.actual_owner
        if owner is None or owner in known or lease.key in expired:
            continue
        if owner not in owners or lease.key < owners[owner][0]:
            owners[owner] = (lease.key, lease.counter)
    return owners


@dataclass(eq=False)
class JavaPeers:
    """Which Java workers share the table, and who must know of them."""

    table: LeaseTable
    stored: StoredReports
    heartbeats: HeartbeatTable
    clock: Clock
    settings: Settings

    def __post_init__(self) -> None:
        self._rules = ReportRules.of(self.settings.fleet)
        self._unreported_s_max = max(self.settings.leases.duration_s, UNREPORTED_S_MIN)
        self._unreported: dict[str, tuple[float, tuple[str, int]]] = {}
        self._telling = BackgroundTasks()

    async def refuse(self) -> None:
        """Raise StartupError if a Java worker is alive, TableError if it cannot be known now."""
        found = await self.stored.beside(await self.table.scan())
        if java := java_workers(found, self.clock.wall(), self._rules):
            raise StartupError(
                f"mld.heartbeat=worker, but {java[0]} shares the lease table and is no mld worker: Java workers would "
                "take leases that are not renewed one by one for dead. Set mld.heartbeat=lease, or stop the Java "
                "workers and wait until their reports have expired (a minute)"
            )

    def look(self, seen: FleetSnapshot) -> tuple[str, tuple[str, ...]] | None:
        """Return, as leader, (a Java worker, the workers that must know of it), from what an assignment run has
        read.
        """
        listeners = tuple(
            report.worker
            for report in seen.reports
            if not report.legacy and epoch_of(report.mld.get("heartbeat")) is not None
        )
        if not listeners:
            self._unreported.clear()
            return None
        java = java_workers(seen.reports, self.clock.wall(), self._rules) or self._late(seen)
        return (java[0], listeners) if java else None

    def _late(self, seen: FleetSnapshot) -> list[str]:
        """Return owners that have gone on renewing for longer than a young mld worker is without a report."""
        now = self.clock.monotonic()
        owners = unreported_owners(seen.leases, seen.reports, seen.expired)
        self._unreported = {owner: self._unreported.get(owner, (now, seen)) for owner, seen in owners.items()}
        counters = {lease.key: lease.counter for lease in seen.leases}
        return sorted(
            owner
            for owner, (since, (key, counter)) in self._unreported.items()
            if now - since > self._unreported_s_max and counters.get(key, counter) != counter
        )

    def on_loaded(self, seen: FleetSnapshot) -> None:
        """Let those who send heartbeats know of a Java worker, as leader."""
        if (found := self.look(seen)) is not None:
            self._telling.spawn(self.tell(*found))

    def abandon(self) -> None:
        """End without waiting."""
        self._telling.cancel()

    async def tell(self, java_worker: str, listeners: Sequence[str]) -> None:
        """Let these workers know. Who was not reached is told after the next run."""

        async def tell(worker: str) -> None:
            try:
                await self.heartbeats.tell(worker, java_worker)
            except Exception as error:
                failure = survived(error, "telling of a Java peer")
                log.info("%s not told of %s: %s", worker, java_worker, failure, extra={"action": "stranger_not_told"})

        await a_few_at_a_time(tell, listeners)


@dataclass(frozen=True, slots=True)
class HeartbeatRow:
    """What a worker's report says about heartbeats. `value` None: it sends none."""

    value: str | None
    java_peer: str | None = None
    is_mld: bool = True
    room: int = field(default=0, compare=False)
    """Bytes that `mldShards` may have on this row without costing a write unit."""

    @classmethod
    def of(cls, row: Row) -> HeartbeatRow:
        """Read a report. Damage is as good as absence."""
        members = reports.OWN_MEMBERS
        is_mld = members["version"].read(row) is not None
        return cls(members["heartbeat"].read(row), _PEER.read(row), is_mld, room_for(row, SHARDS, GROWTH_BYTES))


@dataclass(frozen=True, slots=True)
class HeartbeatRefusal:
    """A condition did not hold; `seen` is the row that stood in the way, None if there is none."""

    seen: HeartbeatRow | None


@raises_only(TableUnavailableError)
class HeartbeatTable:
    """The heartbeats in the lease table `table_name`; `worker_id` is ours, for the fences."""

    def __init__(self, service: Service, table_name: str, worker_id: str) -> None:
        self._calls = TableCalls(service, table_name)
        self._worker_id = worker_id

    async def read(self, worker: str) -> HeartbeatRow | None:
        """Return a worker's report as it is now; None if it has none. Raises TableError."""
        row = await self._calls.get({LEASE_TABLE_KEY: {"S": worker}})
        return None if row is None else HeartbeatRow.of(row)

    async def claim(self, worker: str, seen: str | None, value: str) -> HeartbeatRow | HeartbeatRefusal:
        """Begin an epoch on our own report, over what was seen there. What a leader told an earlier epoch is forgotten.

        Raises TableError.
        """
        as_seen = f"attribute_not_exists(#{HEARTBEAT})" if seen is None else f"#{HEARTBEAT} = :seen"
        values = _REPORT | {":next": {"S": value}} | ({} if seen is None else {":seen": {"S": seen}})
        update = f"SET #{HEARTBEAT} = :next REMOVE #{JAVA_PEER}"
        return await self._write(worker, f"{_IS_OURS} AND {as_seen}", update, values)

    async def send(
        self, worker: str, before: Sequence[str], value: str, shards: bytes | None = None
    ) -> HeartbeatRow | HeartbeatRefusal:
        """Send the next heartbeat, if the row still has one of those `before` it; the row as it is then.

        `shards` None: nothing is told of them from now on. Raises TableError.
        """
        last = {":last": {"S": before[-1]}}
        condition = f"#{HEARTBEAT} = :last"
        if len(before) > 1:
            last = {f":last{number}": {"S": one} for number, one in enumerate(before)}
            condition = f"#{HEARTBEAT} IN ({', '.join(last)})"
        values: dict[str, Any] = {**last, ":next": {"S": value}}
        told = f" REMOVE #{SHARDS}" if shards is None else f", #{SHARDS} = :shards"
        values |= {} if shards is None else {":shards": {"B": shards}}
        return await self._write(worker, condition, f"SET #{HEARTBEAT} = :next{told}", values)

    async def clear(self, worker: str, last: str) -> bool:
        """End our epoch ourselves. Raises TableError."""
        update = f"REMOVE #{HEARTBEAT}, #{SHARDS}"
        answer = await self._write(worker, f"#{HEARTBEAT} = :last", update, {":last": {"S": last}})
        return isinstance(answer, HeartbeatRow)

    async def tell(self, worker: str, java_peer: str) -> bool:
        """Let a worker that sends heartbeats know that `java_peer` is no mld worker. Raises TableError."""
        condition = f"{_IS_OURS} AND attribute_exists(#{HEARTBEAT})"
        values = _REPORT | {":java_peer": {"S": java_peer}}
        answer = await self._write(worker, condition, f"SET #{JAVA_PEER} = :java_peer", values)
        return isinstance(answer, HeartbeatRow)

    async def fence(self, worker: str, seen: str | None, marks: Collection[str]) -> bool:
        """Return whether leases of `worker` with these marks may be given to others now.

        `seen` is its heartbeat, known to have stood still for more than a lease duration. If it stands for any of the
        leases, its epoch is ended first. Raises TableError.
        """
        if seen is not None and epoch_of(seen) in marks:
            values = {":seen": {"S": seen}, ":fence": {"S": FENCED + self._worker_id}}
            answer = await self._write(worker, f"#{HEARTBEAT} = :seen", f"SET #{HEARTBEAT} = :fence", values)
            if isinstance(answer, HeartbeatRow):
                return True
            return answer.seen is not None and is_fenced(answer.seen.value)
        row = await self.read(worker)
        return row is None or epoch_of(row.value) not in marks

    async def _write(
        self, worker: str, condition: str, update: str, values: Mapping[str, Any]
    ) -> HeartbeatRow | HeartbeatRefusal:
        params = {
            "Key": {LEASE_TABLE_KEY: {"S": worker}},
            "ConditionExpression": condition,
            "UpdateExpression": update,
            "ExpressionAttributeNames": names_in(condition + update),
            "ExpressionAttributeValues": dict(values),
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        try:
            answer = await self._calls.send("UpdateItem", params, refusals=(REFUSED_CODE,))
        except RefusedError as refused:
            return HeartbeatRefusal(HeartbeatRow.of(refused.row) if refused.row else await self.read(worker))
        return HeartbeatRow.of(answer["Attributes"])


UNREPORTED_SHARE = 0.45
"""How long a leader may go without a report, as young mld workers do, as a share of the lease duration. A leader that
is still without one at the next look is a Java worker."""
CLAIM_POLL_SHARE = 0.2
HEARTBEATS = "heartbeats"


class _Epoch:
    """The heartbeats of one epoch, several of which may be under way. Each names those that the row may have before it,
    so that a late one can neither be refused for an earlier one nor undo a later one.
    """

    def __init__(self, value: str, sent_at: float) -> None:
        epoch = epoch_of(value)
        assert epoch is not None
        self.name = epoch
        self.known = self.newest = int(value.rpartition(".")[2])
        """The number that the row is known to have had, and the last one that was sent."""
        self.counts_from = sent_at
        self.newest_at = sent_at
        self.is_refused = False
        self.failures = 0
        """Since the last answer."""
        self.open: list[float] = []
        """When those were sent that wait for an answer."""
        self.changed = asyncio.Event()
        self._sent_at = {self.newest: sent_at}

    def value(self, number: int) -> str:
        return f"{self.name}.{number}"

    def send(self, now: float) -> tuple[Sequence[str], int]:
        """Begin the next heartbeat: the values it may follow, and its number. After many in vain it is the same one."""
        self.newest = min(self.newest + 1, self.known + OPEN_MAX)
        self._sent_at.setdefault(self.newest, now)
        self.newest_at = now
        self.open.append(now)
        return [self.value(number) for number in range(self.known, self.newest)], self.newest

    def answered(self, number: int, sent_at: float, now: float, duration_s: float) -> None:
        """Note that the row has had this number, by a write that was sent then."""
        end = chain_end(sent_at, self.open, CHAIN_SHARE * duration_s)
        self.counts_from = max(self.counts_from, counts_from(sent_at, now, end, duration_s))
        self.known = max(self.known, number)
        self._sent_at = {one: at for one, at in self._sent_at.items() if one >= self.known}
        self.failures = 0

    def first_sent_at(self, value: str | None) -> float | None:
        """Return when the heartbeat of this value was sent first; None if it is none of ours that may be there."""
        number = (value or "").removeprefix(f"{self.name}.")
        return self._sent_at.get(int(number)) if number.isdigit() else None


@dataclass(eq=False)
class HeartbeatWriter:
    """`run` it in a task from when the leases may be covered. `leader` reads who holds the lock now, None for nobody.

    `on_dropped` is called when all that was covered has been dropped. `status_of` gives what a heartbeat tells people
    of a shard.
    """

    table: HeartbeatTable
    keeper: LeaseKeeper
    clock: Clock
    rng: Random
    _: KW_ONLY
    worker_id: str
    settings: LeaseSettings
    leader: Callable[[], Awaitable[str | None]]
    java_peers: JavaPeers
    on_dropped: Callable[[], None]
    status_of: Callable[[str], ShardStatus | None] = lambda _key: None
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.is_wanted = self.settings.heartbeat is HeartbeatSetting.WORKER
        """Whether the settings ask for heartbeats; otherwise nothing here does anything."""
        self._interval_s = self.settings.duration_s / HEARTBEATS_PER_LEASE
        self._validity = self.keeper.validity
        self._room = 0
        self._reported = asyncio.Event()
        self._java_peer: str | None = None
        """The worker of another kind that has ended the heartbeats."""
        self._known_leader: str | None = None
        self._unreported: tuple[str, float] | None = None
        self._claims: dict[str, float] = {}

    async def admit(self, place: Place | None) -> None:
        """Raise StartupError if heartbeats cannot stand for renewals here, TableError if it cannot be known now.

        `place` is where our report goes.
        """
        if not self.is_wanted:
            return
        if place is None or place.key != LEASE_TABLE_KEY:
            raise StartupError(
                "mld.heartbeat=worker needs the worker reports beside the leases, but this fleet keeps them in tables "
                "of KCL 3.0 to 3.4. Finish the migration (migrateAllEntitiesToLeaseTable), or set mld.heartbeat=lease"
            )
        await self.java_peers.refuse()

    def check_mode(self, version: ClientVersion) -> None:
        """Raise StartupError if the fleet is not in 3.x mode for good."""
        if self.is_wanted and version is not ClientVersion.V3X:
            raise StartupError(
                f"mld.heartbeat=worker, but the fleet is in state {version.value}: finish its migration to KCL 3.x, or "
                "set mld.heartbeat=lease"
            )

    def on_own_report(self) -> None:
        """Note that our report is in the table."""
        self._reported.set()

    def leave(self, java_peer: str) -> None:
        """Renew each lease again, for as long as this process runs: a worker that is not mld is there."""
        if self._java_peer is not None:
            return
        self._java_peer = java_peer
        log.warning(
            "%s is no mld worker: mld.heartbeat=worker ends here, each lease is renewed by itself again. When only mld "
            "workers are left, restart this one to return to worker heartbeats",
            java_peer,
            extra={"action": "heartbeat_left", "worker": java_peer},
        )
        self._validity.stop_marking()
        self.keeper.renew_each()

    async def run(self) -> None:
        """Claim epochs and send heartbeats until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look_at_leaders())
            while self._java_peer is None:
                value, sent_at = await self._claim()
                await self._send_on(value, sent_at)
            self.metrics.progress.rest(HEARTBEATS)
            looking.cancel()
            await asyncio.Event().wait()

    # --- epochs -------------------------------------------------------------------------------------------------------

    async def _claim(self) -> tuple[str, float]:
        """Begin an epoch: its first value, and when that was sent."""
        self._claims.clear()
        observed: tuple[str, float] | None = None
        while True:
            self.metrics.progress.rest(HEARTBEATS)
            await self._reported.wait()
            self._goes_on()
            try:
                row = await self.table.read(self.worker_id)
                if row is None or not row.is_mld:
                    self._reported.clear()  # it was deleted; the next report brings it back
                    continue
                self._room = row.room
                now = self.clock.monotonic()
                if row.value is not None and row.value in self._claims:
                    return row.value, self._claims[row.value]
                if epoch_of(row.value) is None:
                    observed = None
                elif row.value is not None and (observed is None or observed[0] != row.value):
                    observed = (row.value, now)
                if observed is None or now - observed[1] > self.settings.duration_s:
                    claimed = await self._try_claim(row.value)
                    if claimed is not None:
                        return claimed  # else wait before the next try: what refuses the claim may stay there for ever
            except Exception as error:
                failure = survived(error, "claiming a heartbeat")
                log.info("no heartbeat yet: %s", failure, extra={"action": "heartbeat_claim_failed"})
            await self.clock.sleep(CLAIM_POLL_SHARE * self.settings.duration_s)

    async def _try_claim(self, seen: str | None) -> tuple[str, float] | None:
        """Make one attempt, remembered: if its reply is lost, a later look at the row tells."""
        value = f"{self.rng.getrandbits(EPOCH_BITS):016x}.1"
        sent_at = self._claims[value] = self.clock.monotonic()
        answer = await self.table.claim(self.worker_id, seen, value)
        if isinstance(answer, HeartbeatRefusal):
            del self._claims[value]
            return None
        log.info("worker heartbeats begin", extra={"action": "heartbeat_begun"})
        return value, sent_at

    async def _send_on(self, value: str, sent_at: float) -> None:
        """Send the heartbeats of one epoch, until it is fenced, or until nothing rests on it after a Java peer was
        seen. One that is late keeps nobody from sending the next.
        """
        epoch = _Epoch(value, sent_at)
        sending = BackgroundTasks()
        try:
            while not epoch.is_refused:
                self._goes_on()
                self._validity.cover(Heartbeat(epoch.name, epoch.counts_from))
                self.keeper.look_again()
                if self._java_peer is not None and not self.keeper.covered():
                    await self._end(epoch.value(epoch.known))
                    return
                wait_s = self._next_at(epoch) - self.clock.monotonic()
                epoch.changed.clear()
                if wait_s > 0 and await wait_for_event(epoch.changed, None if wait_s == math.inf else wait_s):
                    continue
                sending.spawn(self._send(epoch))
                await asyncio.sleep(0)
        finally:
            sending.cancel()
        self._drop()

    def _next_at(self, epoch: _Epoch) -> float:
        """Return when the next heartbeat is due: a part of what remains after the last one, sooner if that is late."""
        if len(epoch.open) >= OPEN_MAX:
            return math.inf
        next_at = epoch.newest_at + self._interval_s
        until = epoch.counts_from + self.settings.duration_s
        if epoch.failures and not epoch.open:
            delay_s = retry_delay_s(epoch.failures, until - epoch.newest_at, self.rng)
            return next_at if delay_s is None else epoch.newest_at + delay_s
        if epoch.newest_at > epoch.counts_from:
            return min(next_at, again_at(epoch.newest_at, until, self.settings.duration_s))
        return next_at

    async def _send(self, epoch: _Epoch) -> None:
        """Send one heartbeat, and note what becomes of it."""
        sent_at = self.clock.monotonic()
        before, number = epoch.send(sent_at)
        try:
            shards = await self._told()
            answer = await self.table.send(self.worker_id, before, epoch.value(number), shards)
        except Exception as error:
            self._note(False, sent_at)
            failure = survived(error, "sending a heartbeat")
            epoch.failures += 1
            level = logging.WARNING if epoch.failures == 1 else logging.DEBUG
            log.log(level, "heartbeat failed: %s", failure, extra={"action": "heartbeat_failed"})
        else:
            self._judge(epoch, number, sent_at, answer)
        finally:
            epoch.open.remove(sent_at)
            epoch.changed.set()

    def _judge(self, epoch: _Epoch, number: int, sent_at: float, answer: HeartbeatRow | HeartbeatRefusal) -> None:
        now, duration_s = self.clock.monotonic(), self.settings.duration_s
        if isinstance(answer, HeartbeatRow):
            epoch.answered(number, sent_at, now, duration_s)
            self._room = answer.room
            self._note(True, sent_at)
            if answer.java_peer is not None:
                self.leave(answer.java_peer)
            return
        seen = None if answer.seen is None else answer.seen.value
        first_at = epoch.first_sent_at(seen)
        if first_at is None or seen is None:
            epoch.is_refused = True
        else:  # one of ours was faster, or its answer is lost
            epoch.answered(int(seen.rpartition(".")[2]), first_at, now, duration_s)

    def _note(self, ok: bool, sent_at: float) -> None:
        """Count a heartbeat that was answered, or failed: it stands for the renewals of the covered leases."""
        now = self.clock.monotonic()
        self.metrics.worker.operations.renewals.lease.note(ok, now - sent_at)
        for key in self.keeper.covered() if ok else ():
            if key in self.metrics.shards:
                self.metrics.shards[key].renewed_at = now

    async def _told(self) -> bytes | None:
        """Do as `_shards`; no heartbeat is lost to what goes wrong with that."""
        try:
            return await self._shards()
        except Exception as error:
            survived(error, "telling of the shards")
            return None

    async def _shards(self) -> bytes | None:
        """Return what the next heartbeat tells of the covered shards; None if that would cost a write unit."""
        told: dict[str, ShardStatus | None] = {}
        for number, key in enumerate(self.keeper.covered(), start=1):
            told[key] = self.status_of(key)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return await in_turns(pack(told, int(self.clock.wall()), self._room))

    def _goes_on(self) -> None:
        """Tell the probe of liveness: there is a wait and a request before this is called again."""
        self.metrics.progress.step(HEARTBEATS, self.clock.monotonic(), self._interval_s + ANSWER_S_MAX)

    def _drop(self) -> None:
        self._validity.end_epoch()
        keys = self.keeper.drop_covered()
        log.warning(
            "the worker heartbeat was refused: others hold this worker for dead, or its report was deleted. %d leases "
            "are dropped; what is still ours is found again",
            len(keys),
            extra={"action": "heartbeat_fenced", "leases": len(keys)},
        )
        self.on_dropped()

    async def _end(self, value: str) -> None:
        """End the epoch: every lease is renewed by itself. That the attribute stays, if this fails, harms nobody."""
        self._validity.end_epoch()
        self.keeper.drop_covered()
        try:
            await self.table.clear(self.worker_id, value)
        except Exception as error:
            failure = survived(error, "clearing the heartbeat")
            log.info("heartbeat not cleared: %s", failure, extra={"action": "heartbeat_not_cleared"})

    # --- Java peers ---------------------------------------------------------------------------------------------------

    async def _look_at_leaders(self) -> None:
        while self._java_peer is None:
            await self.clock.sleep(self.settings.duration_s / LOOKS_PER_DURATION)
            try:
                java_peer = await self._java_peer_who_leads()
            except Exception as error:
                failure = survived(error, "looking at the leader")
                log.debug("leader unknown: %s", failure, extra={"action": "leader_unknown"})
                continue
            if java_peer is not None:
                self.leave(java_peer)

    async def _java_peer_who_leads(self) -> str | None:
        leader = await self.leader()
        if leader is None or leader == self.worker_id or leader == self._known_leader:
            self._unreported = None
            return None
        row = await self.table.read(leader)
        if row is not None:
            if row.is_mld:
                self._known_leader = leader
            return None if row.is_mld else leader
        now = self.clock.monotonic()
        if self._unreported is None or self._unreported[0] != leader:
            self._unreported = (leader, now)
        is_late = now - self._unreported[1] >= UNREPORTED_SHARE * self.settings.duration_s
        return leader if is_late else None
