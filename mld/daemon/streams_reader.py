"""Reads the list of streams of `mld.streamsFile` again while the daemon runs.

A damaged file changes nothing, and a changed one only if it is the same a moment later: one that is written in place
may be read half, which is a shorter list, or one with the half of a name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from mld.core.surviving import survived
from mld.properties.loader import bytes_of_list
from mld.properties.redaction import Scrubber
from mld.properties.remarks import ConfigurationError, Level
from mld.properties.settings import StreamSetting
from mld.properties.stream_list import StreamsFile

log = logging.getLogger(__name__)

SETTLED_S = 1.0


async def _settled() -> None:
    await asyncio.sleep(SETTLED_S)


class StreamsReader:
    """`streams` are those of the start; `file` None: they never change. Secrets of the file go to `scrub`.

    `pause` separates the two looks at a file that has changed.
    """

    def __init__(
        self,
        streams: Sequence[StreamSetting],
        file: StreamsFile | None,
        scrub: Scrubber,
        pause: Callable[[], Awaitable[None]] = _settled,
    ) -> None:
        self._streams = streams
        self._file = file
        self._scrub = scrub
        self._pause = pause
        self._said: frozenset[str] = frozenset()
        self._data: bytes | None = None
        """What the file held when it was last read without a complaint."""

    async def read(self) -> Sequence[StreamSetting]:
        """The streams of the file as it is now, or as it was when it could last be read. Raises nothing."""
        if self._file is None:
            return self._streams
        try:
            data = await asyncio.to_thread(bytes_of_list, self._file)
            if data == self._data:
                return self._streams  # a thousand streams with their keys take 0.15 s to look at
            await self._pause()
            if data != await asyncio.to_thread(bytes_of_list, self._file):
                return self._streams
            listed = await asyncio.to_thread(self._file.parse, data)
        except ConfigurationError as error:
            self._complain("; ".join(str(problem) for problem in error.problems))
            return self._streams
        except Exception as error:
            self._complain(str(survived(error, "reading the list of streams")))
            return self._streams
        self._scrub.hide(listed.secrets)
        warnings = frozenset(str(remark) for remark in listed.remarks if remark.level is not Level.INFO)
        for text in sorted(warnings - self._said):
            log.warning("%s", text, extra={"action": "configuration"})
        self._said = warnings
        self._streams, self._data = listed.streams, data
        return self._streams

    def _complain(self, why: str) -> None:
        """Say it once, and again when it has changed or was mended meanwhile."""
        self._data = None
        text = f"the list of streams is not read, nothing changes: {why}"
        if text not in self._said:
            log.error("%s", text, extra={"action": "streams_file_refused"})
        self._said = frozenset({text})
