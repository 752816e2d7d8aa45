"""`StreamsReader`: reads the list of streams (`mld.streamsFile`) again while the daemon runs, every 20 s."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.daemon.file_reads import FileReads
from mld.metrics.events import EventKind
from mld.metrics.registry import Metrics
from mld.properties.loader import bytes_of_list
from mld.properties.remarks import ConfigurationError, Level
from mld.properties.scrubber import Scrubber
from mld.properties.settings import StreamSetting
from mld.properties.stream_list import StreamList, StreamsFile

log = logging.getLogger(__name__)

SETTLED_S = 1.0  # a changed file is used once it has not changed again for this long


async def _settled() -> None:
    await asyncio.sleep(SETTLED_S)


class StreamsReader:
    """Reads the file, and keeps the list of the last read without an error.

    A damaged file changes nothing. A changed file is used only if a second read a moment later returns the same: a
    program that writes the file in place may have written half of it, which looks like a shorter list.
    """

    def __init__(
        self,
        streams: Sequence[StreamSetting],
        file: StreamsFile | None,
        scrub: Scrubber,
        pause: Callable[[], Awaitable[None]] = _settled,
    ) -> None:
        """Make a reader that begins with the list `streams`. Without a `file` the list never changes.

        Secrets in the file are given to `scrub`. `pause` waits between the two reads of a changed file.
        """
        self._streams = streams
        self._file = file
        self._reads = FileReads("streams-file")
        self.scrub = scrub
        self._pause = pause
        self._logged: frozenset[str] = frozenset()  # the warnings, or the reason of a refusal, that were logged last
        self.on_look: Callable[[str, str | None], None] = lambda file, why: None
        """Called after each read of the file, with its path and the reason why it could not be used; None if it could.
        """
        self._data: bytes | None = None
        """Content of the file at the last read, if it could be used; else None."""

    async def read(self) -> Sequence[StreamSetting]:
        """Return the streams that the file lists now; if it cannot be read, those of the last good read.

        Raises nothing.
        """
        if self._file is None:
            return self._streams
        try:
            data = await self._reads.run(partial(bytes_of_list, self._file))
            if data == self._data:
                self.on_look(self._file.path, None)
                return self._streams  # parsing a thousand streams with their keys takes 0.15 s
            if (listed := await self._parsed(data)) is None:
                return self._streams
        except ConfigurationError as error:
            self._complain("; ".join(str(problem) for problem in error.problems))
            return self._streams
        except Exception as error:
            self._complain(str(survived(error, "reading the list of streams")))
            return self._streams
        self._take(self._file.path, listed, data)
        return self._streams

    async def _parsed(self, data: bytes) -> StreamList | None:
        """Return the list that `data`, the content of the file, holds; None if the file is changing.

        If the list is new or has an error, the file is read once more after a pause. If it then has another content,
        somebody is writing it. Raises ConfigurationError.
        """
        assert self._file is not None
        try:
            listed = await self._reads.run(partial(self._file.parse, data))
            if listed.streams == self._streams:
                return listed
        except ConfigurationError:
            await self._pause()
            if data == await self._reads.run(partial(bytes_of_list, self._file)):
                raise
            return None
        await self._pause()
        return listed if data == await self._reads.run(partial(bytes_of_list, self._file)) else None

    def _take(self, path: str, listed: StreamList, data: bytes) -> None:
        """Use a new list from now on, hide its secrets, and log warnings that were not logged before."""
        self.scrub.hide(listed.secrets)
        warnings = frozenset(str(remark) for remark in listed.remarks if remark.level is not Level.INFO)
        for text in sorted(warnings - self._logged):
            log.warning("%s", text, extra={"action": "configuration"})
        self._logged = warnings
        self._streams, self._data = listed.streams, data
        self.on_look(path, None)

    def _complain(self, why: str) -> None:
        """Log why the file could not be used, unless the same reason was logged last."""
        assert self._file is not None
        self._data = None
        self.on_look(self._file.path, why)
        text = f"the list of streams is not read, nothing changes: {why}"
        if text not in self._logged:
            log.error("%s", text, extra={"action": "streams_file_refused"})
        self._logged = frozenset({text})


def note_looks(reader: StreamsReader, metrics: Metrics, clock: Clock) -> None:
    """Have the reader note in the metrics, after each read, whether the file could be used."""

    def note(file: str, why: str | None) -> None:
        """Note that the list was read, or why it was refused. Only the first refusal in a row makes an event."""
        configuration, now = metrics.worker.configuration, clock.wall()
        if why is None:
            configuration.note_read(file, now)
            return
        why = reader.scrub(why)
        if file not in configuration.refused:
            metrics.events.note(EventKind.CONFIG, f"list of streams refused: {why}")
        configuration.note_refused(file, why, now)

    reader.on_look = note
