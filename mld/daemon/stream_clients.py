"""`StreamClients`: opens the streams of a worker. Streams of one kind, region and set of credentials share a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mld.aws.counted_service import CountedService
from mld.core.clock import Clock
from mld.core.streams import StreamKind, Streams, StreamSummary
from mld.daemon.stream_ports import SourcePorts, StreamPorts
from mld.properties.credentials import CredentialsChain
from mld.properties.settings import Settings, StreamSetting
from mld.retrieval.reader_factory import fan_out_of, kind_of, streams_port
from mld.tracking.list_follower import WantedStream
from mld.tracking.stream_list import ListedStream, account_and_name


@dataclass(frozen=True, slots=True)
class _Place:
    """The kind, region and credentials of some streams. All streams with the same ones are read through one client."""

    kind: StreamKind
    region: str | None
    credentials: CredentialsChain


@dataclass(frozen=True, slots=True)
class ReadStream:
    """A stream that was opened."""

    streams: Streams
    own: StreamSetting | None
    """The settings of this stream in the properties file, if it has any of its own."""


class StreamClients:
    """Opens each client when the first stream needs it, and keeps it until `close`."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        new_service: Callable[[Settings, StreamKind], CountedService],
        read_streams: Callable[[], Awaitable[Sequence[StreamSetting]]],
    ) -> None:
        """Begin without clients.

        `new_service` makes a client for one kind of streams, which still has to be opened. `read_streams` reads again
        the list of streams to which the settings point. If that list is damaged, it returns the last good one.
        """
        self._settings = settings
        self._clock = clock
        self._read: dict[str | None, ReadStream] = {}
        """The opened streams by their identifiers in the lease table; None is that of a worker's only stream."""
        self._only: StreamPorts | None = None
        """The ports of the only stream, if the settings name no list of streams."""
        self._new_service = new_service
        self._read_streams = read_streams
        self._known: Mapping[str, StreamSetting] = {stream.name: stream for stream in settings.streams}
        """The streams of the list as it was read last, by their names in the list."""
        self._services: dict[_Place, CountedService] = {}  # the clients that were opened
        self._opening = asyncio.Lock()

    def ports(self) -> SourcePorts:
        """Return the ports through which a worker uses these clients."""
        return SourcePorts(self.open_stream, self.wanted, self.describe)

    async def wanted(self) -> Sequence[WantedStream]:
        """Read again the list of streams to which the settings point, and return it."""
        streams = await self._read_streams()
        self._known = {stream.name: stream for stream in streams}
        return [WantedStream(item.name, None if item.arn is None else item.arn.text, item.epoch) for item in streams]

    async def describe(self, wanted: WantedStream) -> StreamSummary:
        """Return the description of a stream that its service gives. Raises `errors.StreamError`."""
        _, streams = await self._streams(wanted.label, wanted.arn)
        return await streams.describe()

    async def open_stream(self, listed: ListedStream | None) -> StreamPorts:
        """Open a stream of the list, or with None the only stream that the settings name, and return its ports.

        The list may give a stream credentials, a consumer and an initial position of its own. They are found by the
        stream's label.
        """
        settings = self._settings
        if listed is None and self._only is not None:
            return self._only
        if listed is None:
            own, arn, consumer_arn = None, settings.stream_arn, settings.fanout.consumer_arn
            service = await self._service_at(self._place(arn, settings.kinesis.region))
            streams = streams_port(service, self._clock, settings, settings.stream_name, arn)
        else:
            own, arn = self._known.get(listed.label), listed.arn
            consumer_arn = None if own is None else own.consumer_arn
            service, streams = await self._streams(listed.label, arn)
            settings = replace(settings, stream_name=account_and_name(arn)[1], stream_arn=arn)
        self._read[None if listed is None else listed.stream] = ReadStream(streams, own)
        kind = kind_of(arn)
        return StreamPorts(
            streams,
            fan_out_of(settings, service, streams) if kind is StreamKind.KINESIS else None,
            consumer_arn,
            None if own is None else own.initial_position,
            kind,
        )

    def read_stream(self, stream: str | None) -> ReadStream:
        """Return the opened stream with this identifier; with None, the worker's only stream."""
        return self._read[stream]

    async def open(self) -> None:
        """Open the worker's only stream. Do nothing for a list of streams: their clients are opened when needed.

        Raises StartupError if the stream cannot be read as the settings want.
        """
        if not self._settings.is_multi_stream:
            self._only = await self.open_stream(None)

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(service.close() for service in self._services.values()))

    async def _streams(self, label: str, arn: str | None) -> tuple[CountedService, Streams]:
        """Return the client for a stream, and the port by which the stream is described and listed."""
        service = await self._service(label, arn)
        name = label if arn is None else account_and_name(arn)[1]
        return service, streams_port(service, self._clock, self._settings, name, arn)

    async def _service(self, label: str, arn: str | None) -> CountedService:
        """Return the client for a stream: in the region of its ARN, with the credentials that the list gives it."""
        own = self._known.get(label)
        region = self._settings.kinesis.region if arn is None else arn.split(":")[3]
        return await self._service_at(self._place(arn, region, None if own is None else own.credentials))

    def _place(self, arn: str | None, region: str | None, credentials: CredentialsChain | None = None) -> _Place:
        """Return the kind, region and credentials that select the client of a stream; by default the credentials of the
        settings.
        """
        return _Place(kind_of(arn), region, credentials or self._settings.kinesis.credentials)

    async def _service_at(self, place: _Place) -> CountedService:
        """Return the client for this kind, region and credentials. The first call makes and opens it."""
        async with self._opening:
            if place not in self._services:
                kinesis = replace(self._settings.kinesis, region=place.region, credentials=place.credentials)
                settings = replace(self._settings, kinesis=kinesis)
                service = self._new_service(settings, place.kind)
                try:
                    await service.open()
                except BaseException:
                    await service.close()
                    raise
                self._services[place] = service
            return self._services[place]
