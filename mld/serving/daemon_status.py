"""`DaemonStatus`: everything that a daemon knows of itself and its fleet, for pages, probes, commands and alerts.

It only reads, and the worker does not need it: if an answer fails, only its caller is affected. Liveness depends on the
loops of this process only. The tables are read only while somebody looks, and at most every few seconds. Whether the
lease table is in reach is known from the requests that the worker sends anyway (`mld.metrics.reach`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mld.core import error_boundary
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import MldError
from mld.core.steps import finish
from mld.core.turns import in_turns
from mld.logging.logs import QueuedStream
from mld.metrics.declaring import Instant
from mld.metrics.events import Event
from mld.metrics.identity import Identity
from mld.metrics.progress import LateLoop
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.metrics.spark_figures import SparkFigures
from mld.operating.faults import Probe, fault_value
from mld.operating.fleet_reader import FleetReader
from mld.operating.fleet_sight import DiskTrouble, FleetSight, Own
from mld.operating.fleet_status import FleetStatus
from mld.operating.shard_view import (
    LAG_MAX_S,
    THROTTLED,
    ShardView,
    own_view,
)
from mld.operating.verdicts import counts, general_faults, own_faults_steps, why_not
from mld.properties.scrubber import Scrubber
from mld.serving.json_pieces import Document, in_pieces
from mld.serving.status import StatusView

LOOK_PERIOD_S = 5.0
SILENCE = f"{THROTTLED}: silent workers may be alive, and figures of other workers may be old"
LOOP = "event loop"
"""Name of the event loop among the loops that `Progress` watches."""
LOOP_STEP_S = 1.0


async def nothing_seen() -> Document:
    """Return an account without applications; used where nobody looks for them."""
    return {"applications": [], "unseen": []}


@dataclass(eq=False)
class DaemonStatus:
    """The state of this daemon and the view of its fleet. `run` samples figures while the daemon runs."""

    identity: Identity
    metrics: Metrics
    reader: FleetReader
    clock: Clock
    reach: TableReach
    mode: Callable[[], str]
    """Returns the mode of the fleet as it is shown in the log."""
    is_ready: Callable[[], bool]
    """Returns whether initialization is over and no stop has been asked for."""
    spark_sessions: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """Returns the state of each session host of `mld-spark` on this machine."""
    spark_figures: Callable[[], SparkFigures | None] = lambda: None
    """Returns the figures of this daemon's own session host."""
    scrub: Scrubber = field(default_factory=Scrubber)
    """Hides the secrets of the properties file; the log uses the same."""
    own_events: Callable[[], Sequence[Event]] = tuple
    """Returns the latest events of this worker, which are shown if the table has no history."""
    account: Callable[[], Awaitable[Document]] = nothing_seen
    """Returns the applications of the account and region, as `mld apps` does. Raises TableError."""
    file: str = ""
    """The path of the properties file, which remedies contain if they propose a command."""

    def __post_init__(self) -> None:
        self._looking = asyncio.Lock()
        self._looked_at: float | None = None
        """When the tables were last read (monotonic)."""
        self._fleet: FleetStatus | None = None
        """The fleet as the tables showed it then."""
        self._trouble: str | None = None
        """Why the tables could not be read then."""

    async def run(self) -> None:
        """Measure how late the event loop is, and sample values for the page, until cancelled.

        The loop is late by the time that a sleep of LOOP_STEP_S takes longer than that. Every LOOK_PERIOD_S the shards
        are sampled, and the faults of this worker are counted by kind.
        """
        sampled_at = self.clock.monotonic()
        while True:
            asleep_at = self.clock.monotonic()
            self.metrics.progress.timely_step(LOOP, asleep_at, LOOP_STEP_S)
            await self.clock.sleep(LOOP_STEP_S)
            now = self.clock.monotonic()
            self.metrics.worker.unexpected_errors = error_boundary.total()
            self.metrics.worker.log_lines_dropped = QueuedStream.dropped_total
            self.metrics.worker.loop_delay.note(max(0.0, now - asleep_at - LOOP_STEP_S))
            if now - sampled_at >= LOOK_PERIOD_S:
                sampled_at = now
                self.metrics.worker.spark = self.spark_figures()
                for part in self.metrics.shards.values():
                    part.sample(now)
                faults = await in_turns(own_faults_steps(self._own(), self._own_views(), self.file), self.clock)
                self.metrics.worker.fault_counts = counts(faults)

    def why_not_ready(self) -> str | None:
        """Return why this daemon is not ready; None if it is initialized, is not stopping, and has no fault that makes
        the readiness probe fail.
        """
        return self._why_not(Probe.READY) if self.is_ready() else "not initialized, or stopping"

    def why_not_alive(self) -> str | None:
        """Return a sentence about the loops that make no progress; None if all loops do."""
        return self._why_not(Probe.LIVE)

    def _why_not(self, probe: Probe) -> str | None:
        """Return the faults of this worker that make the probe fail, as a text without secrets; None if it succeeds."""
        why = why_not(probe, general_faults(self.own_sight()))
        return None if why is None else self.scrub(why)

    def own_sight(self) -> FleetSight:
        """Return what this worker knows now about itself, without details of its shards."""
        return FleetSight(own=self._own(), file=self.file)

    def _own(self) -> Own:
        """Return what this worker knows about itself without a request; `mld.operating.verdicts` finds faults in it."""
        now, table = self.clock.monotonic(), self.metrics.worker.table
        labels = self.metrics.stream_labels
        return Own(
            worker=self.identity.worker,
            late=self.overdue(),
            unreached=self.reach.why_out_of_reach(now),
            slow=self.metrics.slow_services(now),
            contested=self.metrics.contested(self.clock.wall()),
            spent=self.metrics.spent_budgets(self.clock.wall()),
            left_behind=self.metrics.worker.left_behind,
            unread=self.metrics.why_unread(self.clock.wall()),
            is_throttled=self.reach.is_throttled(now),
            corrupt=table.corrupt_rows,
            holes={None if id_ is None else labels.get(id_, id_): count for id_, count in table.holes_of.items()},
            strangers=table.strangers or 0,
            rows=table.lease_counts,
            clocks_off=table.clocks_off or {},
            refused=self.metrics.worker.configuration.reasons(),
            waiting=self.metrics.worker.configuration.waiting,
            lost=self.metrics.lost_lately(self.clock.wall()),
            disks=[DiskTrouble(*one) for one in self.metrics.worker.disks.troubles()],
        )

    def _own_views(self) -> Iterator[ShardView]:
        """Yield the views of this worker's shards, from its own metrics."""
        wall_s, me = self.clock.wall(), self.identity.worker
        return (own_view(part, me, wall_s, LAG_MAX_S) for part in list(self.metrics.shards.values()))

    def overdue(self) -> list[LateLoop]:
        """Return the loops that make no progress."""
        return self.metrics.progress.overdue(self.clock.monotonic())

    def instant(self) -> Instant:
        """Return the time at which the metrics are read."""
        return Instant(self.clock.monotonic(), self.clock.wall())

    async def body(self, *, zipped: bool) -> tuple[bytes, ...]:
        """Return the data of the status page as JSON, in pieces, compressed by gzip if `zipped`.

        They show the whole fleet, with more details about this worker.
        """
        view = await self._view()
        return await in_turns(in_pieces(view.head(), view.lists(), zipped=zipped), self.clock)

    def own(self, up_s: float) -> Document:
        """Return the state of this daemon, without reading any table. Times are in seconds; unknown values are None."""
        me, at, why_not_alive, why_not_ready = self.identity, self.instant(), self.why_not_alive(), self.why_not_ready()
        return {
            "application": me.application,
            "stream": me.stream,
            "worker": me.worker,
            "version": me.version,
            "pid": os.getpid(),
            "upSeconds": round(up_s, 3),
            "takenAt": at.wall_s,
            "mode": self.mode(),
            "isLeader": self.metrics.worker.is_leader,
            "isAlive": why_not_alive is None,
            "whyNotAlive": why_not_alive,
            "isReady": why_not_ready is None,
            "whyNotReady": why_not_ready,
            "logLevel": logging.getLevelName(logging.getLogger().level).lower(),
            "behindSeconds": self.metrics.furthest_behind_s(at),
            "leasesLost": self.metrics.worker.leases_lost,
            "unexpectedErrors": self.metrics.worker.unexpected_errors,
            "configuration": self.metrics.worker.configuration.value(),
            "disks": self.metrics.worker.disks.value(),
            "faults": [fault_value(one) for one in finish(own_faults_steps(self._own(), self._own_views(), self.file))],
        }

    async def apps(self) -> Document:
        """Return the applications of the account and region. Raises TableError if the tables cannot be listed."""
        account = await self.account()
        applications = [one | {"note": one["note"] and self.scrub(one["note"])} for one in account["applications"]]
        return {"applications": applications, "unseen": [*map(self.scrub, account["unseen"])]}

    async def look(self) -> tuple[FleetStatus | None, str | None]:
        """Return the fleet, and the reason if its tables could not be read or its figures may be old."""
        fleet = await self._look()
        is_throttled = self.reach.is_throttled(self.clock.monotonic())
        return fleet, self._trouble or (SILENCE if is_throttled else None)

    async def _view(self) -> StatusView:
        """Return everything that the status page shows, as of now."""
        fleet, trouble = await self.look()
        return StatusView(
            identity=self.identity,
            metrics=self.metrics,
            fleet=fleet,
            at=self.instant(),
            mode=self.mode(),
            why_not_alive=self.why_not_alive(),
            why_not_ready=self.why_not_ready(),
            trouble=trouble,
            lag_max_s=self.reader.lag_max_s,
            spark=self.spark_sessions(),
            events=(fleet and fleet.events) or tuple(self.own_events()),
            scrub=self.scrub,
            sight=FleetSight(fleet=fleet, unread=self._trouble, own=self._own(), file=self.file),
        )

    async def _look(self) -> FleetStatus | None:
        """Return the state of the fleet, at most LOOK_PERIOD_S old. If the tables cannot be read, keep the reason in
        `_trouble`, and return the last known state; None if there is none.
        """
        async with self._looking:
            now = self.clock.monotonic()
            if self._looked_at is None or now - self._looked_at >= LOOK_PERIOD_S:
                try:
                    self._fleet = await self.reader.look(is_throttled=self.reach.is_throttled(now))
                    self._trouble = None
                except Exception as error:
                    failure: MldError = survived(error, "looking at the fleet")
                    self._trouble = self.scrub(f"the tables cannot be read: {failure}")
                self._looked_at = self.clock.monotonic()
            return self._fleet
