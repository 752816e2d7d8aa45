"""`StreamPorts` and `SourcePorts`: the interfaces by which a worker finds, describes and reads its streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mld.core.streams import FanOut, StreamKind, Streams, StreamSummary
from mld.properties.values import InitialPositionSetting
from mld.tracking.list_follower import WantedStream
from mld.tracking.stream_list import ListedStream


@dataclass(frozen=True, slots=True)
class StreamPorts:
    """The ports of one stream."""

    streams: Streams
    fan_out: FanOut | None = None
    """Set if records are read by enhanced fan-out."""
    consumer_arn: str | None = None
    """The registered consumer that fan-out uses; with None, the worker registers one."""
    initial: InitialPositionSetting | None = None
    """Where reading begins in this stream; with None, at the position that the settings give for all streams."""
    kind: StreamKind = StreamKind.KINESIS


@dataclass(frozen=True, slots=True)
class SourcePorts:
    """The ports of all streams of a worker. A worker of a single stream calls only `open`."""

    open: Callable[[ListedStream | None], Awaitable[StreamPorts]]
    """Opens a stream of the list; with None, the stream that the settings name."""
    read_wanted: Callable[[], Awaitable[Sequence[WantedStream]]]
    """Reads the list of streams in the settings again."""
    describe: Callable[[WantedStream], Awaitable[StreamSummary]]
    """Describes a stream of the list."""
