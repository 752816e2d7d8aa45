"""`Placement`: whether producers choose the shard of a record by its key, or Kinesis does (retrieval#hash-range-rule).

A stream in on-demand mode has a RecordDistributionStrategy, which may be changed at any time; records stay where they
are, and do not show which strategy placed them. So only a stream without one is known to have its records where their
keys belong. Unless that is known, no record is dropped for being in the wrong shard.
"""

from __future__ import annotations

import asyncio
import logging

from mld.core.clock import Clock
from mld.core.error_boundary import contained
from mld.core.errors import MldError
from mld.core.streams import HashRange, Streams
from mld.retrieval.reader_factory import Shared

log = logging.getLogger(__name__)

FRESH_S = 60.0
"""How long an answer counts. A stream is changed to on-demand mode, which takes a while, before its strategy is."""
ANSWER_S = 5.0


class Placement:
    """Knows it of one stream; asks only if somebody wants to know, and all of a worker's shards together."""

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._is_by_key = Shared(self._ask, clock, FRESH_S)

    async def range_of(self, hash_range: HashRange | None) -> HashRange | None:
        """Return the range of a shard to which its records belong; None if they need not belong to it, or nobody
        knows.
        """
        return hash_range if hash_range is not None and await self._is_by_key.get() else None

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return not (await contained(self._streams.describe(), "describing the stream")).has_strategy
        except (MldError, TimeoutError) as error:
            log.warning(
                "cannot tell whether records lie where their keys say, so all of KPL aggregates are delivered: %s",
                error or f"no answer within {ANSWER_S:g} s",
                extra={"action": "stream_not_described"},
            )
            return False
