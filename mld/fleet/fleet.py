"""`Fleet`: makes run, in one worker, what the mode of the fleet asks for.

Rules: coordination#client-versions, coordination#leaving-workers, coordination#child-leases. The version machine says
which mode it is; this shell makes it so: the taker in the modes of 2.x, discovery, assigner and failover watcher in
those of 3.x, reports in between. Everything about one's own leases is the keeper's and the worker's.

A worker that stops deletes its report last, because others count on it while the worker owns leases.
"""

from __future__ import annotations

import asyncio
from functools import partial

from mld.fleet.migrate.versions import Components
from mld.fleet.parts import FleetParts
from mld.fleet.report.reporter import Activity, Reporter
from mld.fleet.table_care import ensure_index, keep_index, keep_table
from mld.fleet.tasks import OnFailure, Task, TaskList, Until
from mld.fleet.values import ClientVersion
from mld.leases.table import TableScan


class Fleet:
    """Start it after the lease table exists, `run` it while the worker runs, `leave` and `close` it at the end."""

    def __init__(self, parts: FleetParts) -> None:
        self._parts = parts
        self.leader = parts.leader
        self.failover_watcher = parts.failover_watcher
        self._components: Components | None = None
        self._is_led_by_lock: bool | None = None
        self._reporter: Reporter | None = None
        self._started = False
        self._leaving = False
        self._resigning: asyncio.Task[None] | None = None
        clock, index = parts.clock, parts.index
        self._tasks: TaskList[Components] = TaskList(
            (
                Task("assigner", parts.assigner.run, lambda on: on.assigner),
                Task("discovery", parts.discovery.run, lambda on: on.assigner),
                Task("heartbeat", parts.heartbeat.run, lambda _: parts.heartbeat.is_wanted, Until.RELEASED),
                Task("index", partial(keep_index, index, clock), lambda on: on.index),
                Task("late tables", self._watch_for_late_tables),
                Task("failover watcher", parts.failover_watcher.run, lambda on: on.assigner),
                Task("lost table", partial(keep_table, parts.stored, clock, parts.worker_id, parts.lease_duration_s)),
                Task("reports", self._report, lambda _: self._reporter is not None, Until.CLOSED),
                Task("taker", parts.taker.run, lambda on: on.taker),
                Task("versions", self._follow_version),
            ),
            clock,
        )

    @property
    def takes_leases(self) -> bool:
        """Whether workers take leases by themselves (2.x) instead of being given them."""
        return self._components is None or not self._components.assigner

    @property
    def version(self) -> ClientVersion:
        """The state entered last."""
        return self._parts.versions.version

    def running(self) -> frozenset[str]:
        """Return the names of the tasks that run."""
        return self._tasks.running()

    def ended(self, worker: str, until: float) -> None:
        """Hear that a worker of this group has ended, and that none of its name runs before `until` (monotonic
        seconds).
        """
        self.leader.ended(worker, until)
        self._parts.assigner.wake()
        self._parts.taker.ended(worker, until)
        self.failover_watcher.ended(worker, until)

    def wake_leases(self) -> None:
        """Look at once for leases without an owner, or of ours, that have appeared."""
        if self.takes_leases:
            self._parts.taker.wake()
        else:
            self._parts.assigner.wake()
            self._parts.discovery.wake()

    def adopt_children(self, keys: tuple[str, ...]) -> None:
        """Take, or have assigned, the leases of child shards that we have just created, for nobody yet.

        A leader assigns them now. Any other worker takes them itself, so that nobody waits for the next run; if that
        makes loads uneven, the leader will even them out.
        """
        if self.takes_leases or self.leader.leads:
            self.wake_leases()
        elif not self._parts.drain.is_on:
            self._parts.child_adopter.adopt(keys)

    # --- start and run ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the mode and enter it. May be called again after an error; does nothing once it worked.

        Raises MldError; StartupError if trying again is of no use.
        """
        if self._started:
            return
        await self._parts.migration.start()
        place = self._parts.migration.routes.report_place
        await self._parts.heartbeat.admit(place)
        if self._reporter is None and place is not None:
            self._reporter = await self._parts.new_reporter(place)
        await self._parts.versions.start(self._enter)
        self._started = True

    async def first_leases(self, scan: TableScan) -> None:
        """Take, or as leader assign, what is free, before the tasks begin."""
        if self.takes_leases:
            if self._components is None or self._components.taker:
                await self._parts.taker.take_once(scan)
        elif await self.leader.is_leader():
            await self._parts.assigner.run_once()

    async def run(self, on_failure: OnFailure) -> None:
        """Start the tasks of the mode; `on_failure` hears of one that ended by itself. Returns at once."""
        await self._tasks.allow(on_failure)

    async def _report(self) -> None:
        assert self._reporter is not None
        await self._reporter.run()

    async def _follow_version(self) -> None:
        await self._parts.versions.run(self._enter)
        await asyncio.Event().wait()  # nothing changes any more

    async def _watch_for_late_tables(self) -> None:
        await self._parts.migration.watch()
        await asyncio.Event().wait()

    # --- modes --------------------------------------------------------------------------------------------------------

    async def _enter(self, version: ClientVersion, components: Components) -> None:
        """Make a state's components run, in the order that a transition needs. Raises MldError; may be called again."""
        self._parts.heartbeat.check_mode(version)
        if not components.reporter:
            self._switch_reports(components)
        if not components.assigner:
            await self._want(components)
        if components.index:
            await ensure_index(self._parts.index)
        if components.reporter and self._started:
            await self._parts.migration.restore_reports_table()
        if components.assigner is not self._is_led_by_lock:
            await self.leader.switch(self._parts.new_election(by_lock=components.assigner))
            self._is_led_by_lock = components.assigner
        self._components = components
        self._switch_reports(components)
        await self._want(components)

    def _switch_reports(self, components: Components) -> None:
        if self._reporter is not None and not self._leaving:
            self._reporter.switch(
                Activity.REPORTING if components.reporter else Activity.SAMPLING if components.sampler else Activity.OFF
            )

    async def _want(self, components: Components) -> None:
        if not self._leaving:
            await self._tasks.enter(components)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Bring no more leases to us, because a stop was asked for, and tell the keeper who receives ours."""
        self._leaving = True
        self._parts.child_adopter.stop()
        await self._tasks.end(Until.LEAVING)
        if not self.takes_leases:
            if self._reporter is not None:  # before we name receivers: who names some later names us not
                await self._reporter.leave()
            await self._parts.departure.name_receivers()
        self._resigning = asyncio.ensure_future(self.leader.close())  # may take seconds; leases need not wait for it

    async def close(self) -> None:
        """Release what was assigned to us meanwhile, delete the report, end the tasks: nothing is held any more."""
        try:
            if not self.takes_leases:
                await self._parts.departure.release_late_leases()
        finally:
            await self._tasks.end(Until.RELEASED)
            if self._reporter is not None:
                await self._reporter.close()
            await self._tasks.end(Until.CLOSED)
            await self._parts.migration.close()
            await (self._resigning or self.leader.close())

    async def abort(self) -> None:
        """End at once, whatever the state: nothing more is sent. Does nothing after `close`."""
        self._leaving = True
        self.leader.abandon()
        self._parts.child_adopter.abandon()
        self._parts.java_peers.abandon()
        self._parts.drain.abandon()
        if self._resigning is not None:
            self._resigning.cancel()
        self._parts.migration.abandon()
        await self._tasks.end(Until.CLOSED)
