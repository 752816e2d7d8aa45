"""`StreamOpener`: opens a stream, and makes the `ShardSource` from which the consumers of its shards read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mld.consumer.consumer_parts import ShardSource
from mld.consumer.dead_letters import Sender
from mld.consumer.record_budgets import RecordBudgets
from mld.core.clock import Clock
from mld.core.streams import ChildBatch
from mld.daemon.stream_ports import SourcePorts
from mld.properties.settings import Settings
from mld.protocol.messages import StreamLabel
from mld.retrieval import starting_points
from mld.retrieval.placement import Placement
from mld.retrieval.reader import ReaderShares
from mld.retrieval.reader_factory import readers_of
from mld.tracking.stream_list import ListedStream
from mld.tracking.tracked_stream import OpenedStream


@dataclass(frozen=True, slots=True)
class StreamOpener:
    """Opens the streams of one worker."""

    settings: Settings
    worker_id: str
    ports: SourcePorts
    shares: ReaderShares
    """Objects that the readers of all streams share, such as the budget of memory for records that wait."""
    clock: Clock
    prepare: Callable[[ChildBatch, RecordBudgets], Awaitable[ChildBatch]] | None
    """Decodes records that were written with a schema registry; with None, records are passed on unchanged."""

    async def open(self, listed: ListedStream | None) -> OpenedStream:
        """Open a stream of the list; with None, the only stream that the settings name."""
        settings = self.settings
        opened = await self.ports.open(listed)
        initial = settings.initial_position if opened.initial is None else opened.initial
        name = settings.stream_name if listed is None else listed.stream
        source = ShardSource(
            readers_of(settings, opened.streams, opened.fan_out, self.shares, opened.consumer_arn, opened.kind),
            starting_points.initial_position(initial),
            Sender(settings.application_name, name, self.worker_id),
            None if listed is None else StreamLabel(listed.id.name, listed.arn, listed.stream),
            self.prepare,
            Placement(opened.streams, self.clock),
        )
        shown = name if listed is None else listed.label
        return OpenedStream(shown, opened.streams, source, opened.kind)
