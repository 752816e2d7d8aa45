"""`assemble`: makes a worker from settings, over any implementations of the ports, from the bottom up."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from mld.aws.letters import LetterBox
from mld.aws.service import Service
from mld.consumer.dead_letters import Sender
from mld.consumer.ports import ConsumerParts, ProcessorHost, ShardSource, Signal
from mld.core.clock import Clock
from mld.core.streams import ChildBatch, FanOut, StreamKind, Streams, StreamSummary
from mld.daemon.worker import Worker, WorkerSignals
from mld.fleet.fleet import DetectLoad, Fleet, no_load
from mld.fleet.report.reports import NOTHING
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import ShardStatus, status_of
from mld.leases.table import StoredTable
from mld.leases.taker import LeaseTaker
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings
from mld.properties.values import InitialPositionSetting
from mld.protocol.messages import StreamLabel
from mld.retrieval import starting_points
from mld.retrieval.placement import Placement
from mld.retrieval.prefetch import Budget
from mld.retrieval.reader import ReaderShares
from mld.retrieval.reader_factory import readers_of
from mld.tracking.followed_streams import FollowedStreams
from mld.tracking.list_follower import ListFollower, WantedStream
from mld.tracking.list_table import ListTable
from mld.tracking.stream_list import ListedStream
from mld.tracking.stream_rows import VisibleTable
from mld.tracking.stream_set import TrackedStreams
from mld.tracking.tracked_stream import OpenedStream, TrackingNeeds


@dataclass(frozen=True, slots=True)
class StreamPorts:
    """One stream, as AWS offers it. With `fan_out` records are read by subscriptions, of `consumer_arn` if given."""

    streams: Streams
    fan_out: FanOut | None = None
    consumer_arn: str | None = None
    initial: InitialPositionSetting | None = None
    """Where reading begins; None: where the settings say."""
    kind: StreamKind = StreamKind.KINESIS


@dataclass(frozen=True, slots=True)
class SourcePorts:
    """The streams of a worker. `open` opens a stream of the list, or with None the one that the settings name.

    `read_wanted` reads the settings' list again, and `describe` finds a stream of it; nobody asks for the list of one.
    """

    open: Callable[[ListedStream | None], Awaitable[StreamPorts]]
    read_wanted: Callable[[], Awaitable[Sequence[WantedStream]]]
    describe: Callable[[WantedStream], Awaitable[StreamSummary]]


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
    prepare: Callable[[ChildBatch], Awaitable[ChildBatch]] | None = None,
) -> Worker:
    """Return a worker over any implementations of the ports. `dynamo` is the service behind `table`.

    `place` is what reports tell of where it runs (`reports.OWN_MEMBERS`). `polls_on_a_beat`: readers at the tip wake
    together (`retrieval.pacing`), which only pays on a real machine.
    `letters` must be there if the settings set records aside. `prepare` takes off what a schema registry put around
    records.
    """
    signals = WorkerSignals()
    metrics = Metrics() if metrics is None else metrics
    metrics.worker.prefetch_limit_bytes = settings.reader.prefetch_bytes_max

    leases = VisibleTable(table) if settings.is_multi_stream else VisibleTable(table, None)

    def status_of_shard(key: str) -> ShardStatus | None:
        return status_of(metrics.shards.get(key), clock.wall())

    keeper = LeaseKeeper(
        leases,
        clock,
        rng,
        worker_id=worker_id,
        settings=settings.leases,
        new_token=lambda: str(uuid.uuid4()),
        on_change=signals.changed.set,
        status_of=status_of_shard,
        metrics=metrics,
    )
    taker = LeaseTaker(keeper)
    fleet = Fleet(
        settings,
        worker_id=worker_id,
        service=dynamo,
        table=leases,
        stored=table,
        keeper=keeper,
        taker=taker,
        clock=clock,
        rng=_apart(rng),
        detect_load=detect_load,
        place=place,
        status_of=status_of_shard,
        metrics=metrics,
    )
    parents_changed = Signal()

    tracking = TrackingNeeds(
        fleet=fleet,
        clock=clock,
        rng=rng,
        settings=settings,
        metrics=metrics,
        parents_changed=parents_changed,
    )
    shares = ReaderShares(clock, rng, budget=Budget(settings.reader.prefetch_bytes_max), on_a_beat=polls_on_a_beat)
    """Memory for records that wait is one budget for all streams."""

    async def open_stream(listed: ListedStream | None) -> OpenedStream:
        opened = await ports.open(listed)
        initial = settings.initial_position if opened.initial is None else opened.initial
        name = settings.stream_name if listed is None else listed.stream
        new_reader = readers_of(settings, opened.streams, opened.fan_out, shares, opened.consumer_arn, opened.kind)
        source = ShardSource(
            new_reader,
            starting_points.initial_position(initial),
            Sender(settings.application_name, name, worker_id),
            None if listed is None else StreamLabel(listed.id.name, listed.arn, listed.stream),
            prepare,
            Placement(opened.streams, clock),
        )
        shown = name if listed is None else listed.label
        return OpenedStream(shown, opened.streams, source, opened.kind)

    if not settings.is_multi_stream:
        sources = TrackedStreams(tracking, leases, open_stream)
    else:
        follower = ListFollower(ListTable(dynamo, settings.lease_table.name), clock, ports.read_wanted, ports.describe)
        sources = FollowedStreams(tracking, leases, open_stream, follower, on_change=signals.changed.set)
    consumer_parts = ConsumerParts(
        keeper=keeper,
        host=host,
        source_of=sources.source_of,
        care=sources,
        parents_changed=parents_changed,
        clock=clock,
        rng=rng,
        on_gave_up=signals.gave_up,
        letters=letters,
        metrics=metrics,
    )
    return Worker(settings, signals, table, fleet, sources, consumer_parts)


def _apart(rng: Random) -> Random:
    """Return a generator of its own for the fleet, fixed by the state of `rng`: neither's draws shift the other's."""
    twin = Random()
    twin.setstate(rng.getstate())
    return Random(twin.getrandbits(64))
