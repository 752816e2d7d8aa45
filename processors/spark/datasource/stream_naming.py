"""Which stream a properties file means, said as the daemon says it to its children, where there is no daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mld.core.clock import LoopClock
from mld.core.errors import MldError
from mld.operating.stream_access import streams_of
from mld.properties.lines import ConfigurationError
from mld.properties.loader import load
from mld.properties.settings import Settings
from mld.retrieval.reader_factory import StreamNaming


class NamingError(Exception):
    """The stream cannot be named; one sentence."""


def stream_variables(file: str, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return what `MLD_STREAM_…` variables say (`spark.writer_identity`); empty if Kinesis does not answer. Raises
    NamingError."""
    try:
        settings = load(file, (), env).settings
    except ConfigurationError as error:
        raise NamingError("\n".join(str(problem) for problem in error.problems)) from error
    if settings.is_multi_stream:
        return {"MLD_STREAM_ID": "(several)"}
    try:
        return {"MLD_STREAM_NAME": settings.stream_name, **asyncio.run(_described(settings))}
    except MldError as error:
        raise NamingError(str(error)) from error


async def _described(settings: Settings) -> Mapping[str, str]:
    async with streams_of(settings) as streams:
        return await StreamNaming(streams, LoopClock()).variables()
