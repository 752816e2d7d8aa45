"""`assemble`: makes a worker from settings and from implementations of the ports, for AWS or for a simulation."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random

from mld.aws.letters import LetterBox
from mld.aws.service import Service
from mld.consumer.consumer_parts import ConsumerParts, Signal
from mld.consumer.ports import ProcessorHost
from mld.consumer.record_budgets import RecordBudgets
from mld.core.clock import Clock
from mld.core.streams import ChildBatch
from mld.daemon.stream_opener import StreamOpener
from mld.daemon.stream_ports import SourcePorts
from mld.daemon.worker import Worker, WorkerSignals
from mld.fleet.fleet import DetectLoad, Fleet, no_load
from mld.fleet.report.reports import NOTHING
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import ShardStatus, status_of
from mld.leases.table import StoredTable
from mld.leases.table_view import TableView
from mld.leases.taker import LeaseTaker
from mld.metrics.declaring import Instant
from mld.metrics.registry import Metrics
from mld.properties.printable import printable
from mld.properties.settings import Settings
from mld.retrieval.prefetch import Budget
from mld.retrieval.reader import ReaderShares
from mld.tracking.followed_streams import FollowedStreams
from mld.tracking.list_follower import ListFollower
from mld.tracking.list_table import ListTable
from mld.tracking.stream_rows import RecentRows, VisibleTable, VisibleViews
from mld.tracking.stream_set import TrackedStreams
from mld.tracking.tracked_stream import TrackingNeeds


def assemble(
    settings: Settings,
    worker_id: str,
    ports: SourcePorts,
    table: StoredTable,
    dynamo: Service,
    host: ProcessorHost,
    clock: Clock,
    rng: Random,
    *,
    detect_load: DetectLoad = no_load,
    place: Mapping[str, str] = NOTHING,
    polls_on_a_beat: bool = False,
    letters: LetterBox | None = None,
    metrics: Metrics | None = None,
    prepare: Callable[[ChildBatch, RecordBudgets], Awaitable[ChildBatch]] | None = None,
    fit: Callable[[str], str] = printable,
) -> Worker:
    """Return a worker that uses these implementations of the ports. `dynamo` is the service behind `table`.

    `place` describes where the worker runs, and is part of its reports (`reports.OWN_MEMBERS`). With `polls_on_a_beat`
    readers at the tip wake together (`retrieval.pacing`), which saves CPU, but only on a real machine. `letters` is
    required if the settings have a dead letter. `prepare` decodes records that were written with a schema registry.
    `fit` makes text that others wrote fit for a row or a dead letter, where people read it.
    """
    signals = WorkerSignals()
    metrics = Metrics() if metrics is None else metrics
    metrics.worker.prefetch_limit_bytes = settings.reader.prefetch_bytes_max
    # `leases` and `visible` show only the rows of streams that this worker consumes, `table` and `views` all rows.
    leases = VisibleTable(table) if settings.is_multi_stream else VisibleTable(table, None)
    views = TableView(table, clock)
    visible = VisibleViews(views, leases)
    status_of_key = partial(_status_of_shard, metrics, clock, fit)
    keeper = LeaseKeeper(
        leases,
        clock,
        rng,
        worker_id=worker_id,
        settings=settings.leases,
        new_token=lambda: str(uuid.uuid4()),
        on_change=signals.changed.set,
        status_of=status_of_key,
        metrics=metrics,
    )
    fleet = Fleet(
        settings,
        worker_id=worker_id,
        service=dynamo,
        table=leases,
        stored=table,
        views=views,
        visible=visible,
        keeper=keeper,
        taker=LeaseTaker(keeper, visible),
        clock=clock,
        rng=_independent(rng),
        detect_load=detect_load,
        place=place,
        status_of=status_of_key,
        metrics=metrics,
    )
    parents_changed = Signal()
    tracking = TrackingNeeds(fleet, clock, rng, settings, metrics, parents_changed)
    memory = Budget(settings.reader.prefetch_bytes_max)  # one for all streams
    shares = ReaderShares(clock, rng, budget=memory, on_a_beat=polls_on_a_beat)
    opener = StreamOpener(settings, worker_id, ports, shares, clock, prepare)
    streams = _streams(tracking, leases, RecentRows(views, clock), opener, dynamo, signals)
    parts = ConsumerParts(
        keeper=keeper,
        host=host,
        source_of=streams.source_of,
        care=streams,
        parents_changed=parents_changed,
        clock=clock,
        rng=rng,
        on_gave_up=signals.gave_up,
        letters=letters,
        fit=fit,
        budget=shares.budget,
        metrics=metrics,
    )
    return Worker(settings, signals, table, fleet, streams, parts)


def _status_of_shard(metrics: Metrics, clock: Clock, fit: Callable[[str], str], key: str) -> ShardStatus | None:
    """Return the status of a shard for its row; None if nothing is known of the shard yet. `fit` makes the reason fit
    for a row, because it may repeat what a record or a child contains.
    """
    status = status_of(metrics.shards.get(key), Instant(clock.monotonic(), clock.wall()))
    return status if status is None or status.why is None else replace(status, why=fit(status.why))


def _streams(
    tracking: TrackingNeeds,
    leases: VisibleTable,
    recent: RecentRows,
    opener: StreamOpener,
    dynamo: Service,
    signals: WorkerSignals,
) -> TrackedStreams:
    """Return the only stream of the settings, or the streams of a list that may change while the worker runs."""
    settings, ports = tracking.settings, opener.ports
    if not settings.is_multi_stream:
        return TrackedStreams(tracking, leases, recent, opener.open)
    table = ListTable(dynamo, settings.lease_table.name)
    follower = ListFollower(table, tracking.clock, ports.read_wanted, ports.describe)
    return FollowedStreams(tracking, leases, recent, opener.open, follower, on_change=signals.changed.set)


def _independent(rng: Random) -> Random:
    """Return a generator that is seeded from the state of `rng`, without drawing from it.

    So the number of draws from one does not change the numbers that the other yields.
    """
    copied = Random()
    copied.setstate(rng.getstate())
    return Random(copied.getrandbits(64))
