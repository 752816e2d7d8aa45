"""Who chooses the shards of a stream's records: producers, by their keys, or Kinesis.

Rules: retrieval#hash-range-rule. A stream in on-demand mode has a RecordDistributionStrategy, which may be changed at
any time; records stay where they are, and do not show by which one they came there. So only a stream without one is
known to have its records where their keys say. What is not known is never dropped for it.
"""

from __future__ import annotations

import asyncio
import logging

from mld.core.clock import Clock
from mld.core.error_boundary import contained
from mld.core.errors import MldError
from mld.core.streams import HashRange, Streams

log = logging.getLogger(__name__)

FRESH_S = 60.0
"""How long an answer counts. A stream is changed to on-demand mode, which takes a while, before its strategy is."""
ANSWER_S = 5.0


class Placement:
    """Knows it of one stream; asks only if somebody wants to know, and all of a worker's shards together."""

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answered_at = -FRESH_S
        self._is_by_key = False

    async def range_of(self, hash_range: HashRange | None) -> HashRange | None:
        """Return the range of a shard to which its records belong; None if they need not belong to it, or nobody
        knows.
        """
        if hash_range is None:
            return None
        async with self._asking:
            if self._clock.monotonic() - self._answered_at >= FRESH_S:
                self._is_by_key = await self._ask()
                self._answered_at = self._clock.monotonic()
            return hash_range if self._is_by_key else None

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
