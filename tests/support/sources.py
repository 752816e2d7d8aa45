"""The ports of a worker that has one stream."""

from __future__ import annotations

from collections.abc import Sequence

from mld.core.streams import StreamSummary
from mld.daemon.stream_ports import SourcePorts, StreamPorts
from mld.tracking.list_follower import WantedStream
from mld.tracking.stream_list import ListedStream


def one_stream(ports: StreamPorts) -> SourcePorts:
    """A worker that is given these never asks for a list."""

    async def open_stream(listed: ListedStream | None) -> StreamPorts:
        assert listed is None
        return ports

    async def read_wanted() -> Sequence[WantedStream]:
        return []

    async def describe(_wanted: WantedStream) -> StreamSummary:
        return await ports.streams.describe()

    return SourcePorts(open_stream, read_wanted, describe)
