"""`ShardDetector`: lists all shards of a stream, page by page, with a limited number of retries. Only this class calls
ListShards.

Rules: shards#listing-pages, shards#listing-retries (transient errors and time-outs are retried with jitter, an expired
page token restarts the listing) and shards#complete-listings ("not ready" is an answer of its own).

It never returns a part of a listing, and never returns an empty list because of an error.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from mld.core.clock import Clock
from mld.core.error_boundary import contained
from mld.core.errors import (
    InvalidStreamResponseError,
    IteratorExpiredError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.streams import STREAM_DISABLED, Shard, ShardFilter, ShardsPage, StreamKind, Streams

_log = logging.getLogger(__name__)

BACKOFF_S = 1.5  # listShardsBackoffTimeInMillis
ATTEMPTS_MAX = 50  # maxListShardsRetryAttempts, for each page: about 75 s of throttling
TRANSIENT_ATTEMPTS_MAX = 5
"""Attempts for each page after errors other than throttling. Far fewer, because some of these errors, such as access
denied, last until an operator acts.
"""
TRANSIENT_BACKOFF_FIRST_S = 0.2
RESTARTS_MAX = 3  # a page token is valid for 300 s; if four listings take longer, something else is wrong
PAGES_MAX = 10_000  # that would be 10 million shards, so the service is repeating itself


@dataclass(frozen=True, slots=True)
class ShardsListed:
    """A complete listing. It has no shards only if the service named none."""

    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class NotListed:
    """The stream cannot be listed; `reason` is a sentence that says why."""

    reason: str
    is_missing: bool
    """True after ResourceNotFound: this account and region has no such stream. False after ResourceInUse: try again
    later."""


Listing = ShardsListed | NotListed


@dataclass(eq=False)
class ShardDetector:
    """Lists the shards of one stream. `backoff_s` and `attempts_max` are the two listShards settings of the daemon."""

    streams: Streams
    clock: Clock
    rng: random.Random
    _: KW_ONLY
    backoff_s: float = BACKOFF_S
    attempts_max: int = ATTEMPTS_MAX
    kind: StreamKind = StreamKind.KINESIS

    def __post_init__(self) -> None:
        self._attempts_max = max(1, self.attempts_max)
        self.known: Mapping[str, Shard] = {}
        """The shards as they were last listed, by id. They may be out of date, but where a shard starts never changes.
        """

    async def list_all(self, shard_filter: ShardFilter | None = None) -> Listing:
        """Return all shards that the filter selects; without a filter, all shards within retention. Note them in
        `known`, too. Return `NotListed` if the stream does not exist, or is being created or deleted.

        Raises StreamThrottledError, StreamUnavailableError, IteratorExpiredError or InvalidStreamResponseError when the
        retries are used up, and other kinds of `errors.StreamError` at once.
        """
        try:
            shards = await self._complete_listing(shard_filter)
        except StreamInUseError as error:
            reason = f"the stream is neither ACTIVE nor UPDATING ({error}); it is asked again later"
            return NotListed(reason, is_missing=False)
        except StreamNotFoundError as error:
            if self.kind is StreamKind.DYNAMODB:
                reason = (
                    f"DynamoDB knows no such stream ({error}); check streamArn: it is the table's LatestStreamArn, "
                    "which changes when the stream is switched off and on, kinesisEndpoint and the credentials"
                )
            else:
                reason = (
                    f"Kinesis knows no such stream ({error}); check streamName or streamArn, regionName, "
                    "kinesisEndpoint and the AWS account of the credentials"
                )
            return NotListed(reason, is_missing=True)
        listed = {shard.shard_id: shard for shard in shards}
        self.known = listed if shard_filter is None else {**self.known, **listed}
        return ShardsListed(shards)

    async def takes_records(self) -> bool:
        """Return whether the stream may still get records and new shards. Only a DynamoDB stream that was switched off
        gets none.

        Raises `errors.StreamError`.
        """
        if self.kind is StreamKind.KINESIS:
            return True
        return (await contained(self.streams.describe(), "describing the stream")).status != STREAM_DISABLED

    async def _complete_listing(self, shard_filter: ShardFilter | None) -> tuple[Shard, ...]:
        """List all pages; start again from the first page if a page token has expired."""
        for restart in range(RESTARTS_MAX + 1):
            try:
                return await self._one_listing(shard_filter)
            except IteratorExpiredError:
                if restart == RESTARTS_MAX:
                    raise
                _log.info("page token of ListShards expired", extra={"action": "list_shards_restart"})
        raise AssertionError("unreachable")

    async def _one_listing(self, shard_filter: ShardFilter | None) -> tuple[Shard, ...]:
        """List all pages once."""
        found: dict[str, Shard] = {}
        token: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._page(shard_filter if token is None else None, token)
            # A shard may be listed twice if it was split after the first of two pages was read; the later answer is
            # newer.
            found.update((shard.shard_id, shard) for shard in page.shards)
            token = page.next_token
            if not token:
                return tuple(found.values())
        raise InvalidStreamResponseError(f"ListShards did not come to an end within {PAGES_MAX} pages")

    async def _page(self, shard_filter: ShardFilter | None, token: str | None) -> ShardsPage:
        """Fetch one page, with retries after throttling and transient errors."""
        throttled = transient = 0
        while True:
            try:
                return await contained(self.streams.list_shards(shard_filter, token), "listing shards")
            except StreamThrottledError as error:
                throttled += 1
                if throttled >= self._attempts_max:
                    raise
                # Java waits the same time in every worker. A random addition of up to half of that time spreads the
                # workers.
                delay_s = self.backoff_s * self.rng.uniform(1.0, 1.5)
                self._log_retry(error, delay_s)
            except (StreamUnavailableError, InvalidStreamResponseError) as error:
                transient += 1
                if transient >= min(TRANSIENT_ATTEMPTS_MAX, self._attempts_max):
                    raise
                ceiling_s = min(self.backoff_s, TRANSIENT_BACKOFF_FIRST_S * 2 ** (transient - 1))
                delay_s = ceiling_s * self.rng.uniform(0.5, 1.0)
                self._log_retry(error, delay_s)
            await self.clock.sleep(delay_s)

    @staticmethod
    def _log_retry(error: Exception, delay_s: float) -> None:
        """Log that a page is asked for again in `delay_s`, because of `error`."""
        _log.info(
            "ListShards is tried again",
            extra={"action": "list_shards_retry", "error": str(error), "in_s": round(delay_s, 2)},
        )
