"""`StreamNaming`: tells each child which stream it reads: the ARN of the stream, and the time of its creation.

A name alone is not enough, because another stream may have, or may have had, the same name. The Spark processor stores
positions in places that outlive the stream and that other streams may share. Kinesis is asked at the start of each
child, because a stream may be deleted and created again while the daemon runs; children that start together share one
answer. If Kinesis does not answer, children start without these variables, and a child that needs them reports an
error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from mld.core.clock import Clock
from mld.core.errors import StreamError
from mld.core.streams import Streams
from mld.retrieval.shared_answer import Shared

log = logging.getLogger(__name__)

NAMING_FRESH_S = 5.0
"""How long an answer, or a failure to get one, is shared. Kinesis takes longer to delete a stream and make it again."""
ATTEMPTS_MAX = 4
"""Most attempts. An account may call DescribeStreamSummary 20 times a second, and a whole fleet may start at once."""
RETRY_S = 1.0
NAMING_ANSWER_S = 10.0
"""Longest wait for one answer."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StreamNaming:
    """Names one stream to all children of a daemon."""

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._clock = clock
        self._shared = Shared(self._ask, clock, NAMING_FRESH_S)

    async def variables(self) -> Mapping[str, str]:
        """Return the environment variables that name the stream to a child; empty if Kinesis does not answer."""
        return await self._shared.get()

    async def _ask(self) -> dict[str, str]:
        """Ask Kinesis for the environment variables that name the stream. Return none if all attempts fail."""
        why = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._clock.sleep(RETRY_S * attempt)
            try:
                async with asyncio.timeout(NAMING_ANSWER_S):
                    summary = await self._streams.describe()
            except StreamError as error:
                why = str(error)
            except TimeoutError:
                why = f"no answer within {NAMING_ANSWER_S:g} s"
            else:
                if summary.created_ms is None:
                    why = "the answer has no StreamCreationTimestamp"
                    break
                return {"MLD_STREAM_ARN": summary.arn, "MLD_STREAM_CREATED": _written(summary.created_ms)}
        log.warning("cannot tell children which stream this is: %s", why, extra={"action": "stream_not_described"})
        return {}


def _written(created_ms: int) -> str:
    """Return a time as text like `2026-01-02T03:04:05.678Z`."""
    created = _EPOCH + timedelta(milliseconds=created_ms)
    return f"{created.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
