"""`Placement`: whether each record of a stream is in the shard that its key belongs to (retrieval#hash-range-rule).

A stream in on-demand mode has a RecordDistributionStrategy, by which Kinesis may choose the shard instead of the key.
The strategy may change at any time; records stay where they are, and do not show which strategy placed them. So records
are known to be where their keys belong only on streams without a strategy. On all others, no record is dropped for
being in the wrong shard.
"""

from __future__ import annotations

import asyncio
import logging

from mld.core.clock import Clock
from mld.core.error_boundary import contained
from mld.core.errors import MldError
from mld.core.streams import HashRange, Streams
from mld.retrieval.shared_answer import Shared

log = logging.getLogger(__name__)

FRESH_S = 60.0
"""How long an answer counts. Before a stream gets a strategy it is changed to on-demand mode, which takes longer."""
ANSWER_S = 5.0
"""Longest wait for the description of the stream."""


class Placement:
    """Answers for one stream. It asks AWS only when somebody wants to know, once for all shards of the worker."""

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._is_by_key = Shared(self._ask, clock, FRESH_S)

    async def range_of(self, hash_range: HashRange | None) -> HashRange | None:
        """Return the hash range to which the records of a shard must belong; None if they need not, or if that is
        unknown.
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
