"""`Placement`: finds out whether all records of a stream are in the shard to which their partition key belongs.

Rule: retrieval#hash-range-rule. A stream in on-demand mode has a RecordDistributionStrategy, by which Kinesis may
choose the shard of a record without regard to its key. The strategy may change at any time. Records stay in their shard
then, and do not show which strategy placed them. So only on streams without a strategy is each record known to be in
the shard of its key. On all other streams, no record is dropped for being in the wrong shard.
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
"""How long an answer is used. A stream gets a strategy only by a change to on-demand mode, which takes longer."""
ANSWER_S = 5.0
"""Longest wait for the description of the stream."""


class Placement:
    """Answers for one stream whether its records are placed by their keys. AWS is asked only when a shard of the worker
    needs the answer, and once for all shards.
    """

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._is_by_key = Shared(self._ask, clock, FRESH_S)

    async def range_of(self, hash_range: HashRange | None) -> HashRange | None:
        """Return the hash range to which the keys of a shard's records must belong: `hash_range`, the range of the
        shard.

        Return None if the keys may belong to other ranges, or if that is unknown.
        """
        return hash_range if hash_range is not None and await self._is_by_key.get() else None

    async def _ask(self) -> bool:
        """Return whether the stream is known to have no RecordDistributionStrategy, so that all its records are placed
        by their keys. False if Kinesis does not answer.
        """
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
