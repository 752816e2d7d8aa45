"""`DynamoDBStreams`: the `Streams` port over DynamoDB Streams, for the stream of one table.

Rules: retrieval#dynamodb-streams. It calls the API of DynamoDB Streams, and returns values in the terms of Kinesis:
shards without hash keys of their own, pages of records in the form of Kinesis, and the children of a closed shard
together with its last page. The only thing it retries is a listing that lacks the children of a closed shard. It never
decides what an error means.

DynamoDB does not report how far a page is from the tip, and a page in the middle of a shard may be empty. Only the age
of the newest record of a page is known. After an empty page the lag is unknown (None). Once as many pages as
`QUIET_PAGES`, over a time of `QUIET_S`, have been empty, the lag counts as 0; if reading began at LATEST, it counts as
0 from the start. That is evidence that the reader is at the tip, and no proof. A reader goes on in any case, and reads
a shard that has ended to its end, even if it has taken an earlier place for the tip.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.change_records import created_s, kinesis_record
from mld.aws.kinesis import LIST_TIMEOUT_S, RECORDS_TIMEOUT_S, StreamAdapter, stream_errors
from mld.aws.service import RawService
from mld.core.clock import Clock
from mld.core.errors import (
    InvalidStreamResponseError,
    StreamError,
    StreamNotFoundError,
    StreamTrimmedError,
    StreamUnavailableError,
)
from mld.core.streams import (
    STREAM_DISABLED,
    ChildShard,
    HashRange,
    IteratorType,
    Page,
    Shard,
    ShardFilter,
    ShardFilterType,
    ShardsPage,
    StartingPoint,
    StreamSummary,
)

_log = logging.getLogger(__name__)

HASH_RANGE = HashRange(0, 1)
"""The hash range of every shard, as in Amazon's adapter: DynamoDB reports none."""
RECORDS_MAX = 1_000  # in one GetRecords
CHILDREN_ATTEMPTS_MAX = 6  # to find the children of a shard that has ended
CHILDREN_BACKOFF_FIRST_S = 0.05
CHILDREN_BACKOFF_MAX_S = 1.0
PAGES_MAX = 10_000  # a page has 100 shards, and a stream a few hundred
UNKNOWN_END = "9" * 40
"""The end of a shard that is closed, because it has a child, but whose last number is not reported. No position is
higher.
"""
QUIET_PAGES = 10
QUIET_S = 30.0
"""This many pages in a row without a record, over this long a time, are taken for the tip of a shard."""


@dataclass(frozen=True, slots=True)
class ChangePlace:
    """An iterator of DynamoDB Streams (`token`), and our own notes for reading on with it.

    Records older than `since_s` are left out; this replaces AT_TIMESTAMP, which the service does not have. The latest
    `quiet_pages` pages had no record; the first of them came at `quiet_from_s` (monotonic seconds).
    """

    shard_id: str
    token: str
    since_s: float | None = None
    quiet_pages: int = 0
    quiet_from_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> ChangePlace:
        """Return the place that a text of `__str__` describes."""
        shard_id, _, rest = text.partition(" ")
        *notes, token = rest.split(" ")
        since, pages, start = notes or ("", "0", "0")
        return cls(shard_id, token, float(since) if since else None, int(pages), float(start))

    def __str__(self) -> str:
        """Return the place as text, for use as an iterator: shard, token, and between them the notes, if any is set."""
        if self.since_s is None and not self.quiet_pages:
            return f"{self.shard_id} {self.token}"
        since = "" if self.since_s is None else self.since_s
        return f"{self.shard_id} {since} {self.quiet_pages} {self.quiet_from_s} {self.token}"

    def after_nothing(self, now: float) -> ChangePlace:
        """Return the place with one more empty page counted."""
        start = self.quiet_from_s if self.quiet_pages else now
        return replace(self, quiet_pages=self.quiet_pages + 1, quiet_from_s=start)

    def is_tip(self, now: float) -> bool:
        """Return whether enough empty pages have come, over enough time, to take the place for the tip of the shard."""
        return self.quiet_pages >= QUIET_PAGES and now - self.quiet_from_s >= QUIET_S


@raises_only(StreamUnavailableError)
class DynamoDBStreams(StreamAdapter[RawService]):
    """The stream of one table."""

    def __init__(
        self,
        service: RawService,
        clock: Clock,
        *,
        stream_arn: str,
        page_of: Callable[[bytes], Page],
        keyed_by_item: bool = False,
    ) -> None:
        """Make the port for the stream `stream_arn`. `page_of` makes a page (a frozen dataclass) from the body of a
        Kinesis answer.

        With `keyed_by_item`, the partition key of a record is the primary key of its item. If several children share a
        shard, all changes of an item then go to the same child.
        """
        super().__init__(service, stream_arn)
        self._record_of = partial(kinesis_record, keyed_by_item=keyed_by_item)
        self._clock = clock
        self._arn = stream_arn
        self._page_of = page_of

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        """Return all shards in one page, whatever `next_token` is; with AT_LATEST only open ones. Raises
        StreamError.
        """
        shards, _ = await self._all_shards()
        if shard_filter is not None and shard_filter.type is ShardFilterType.AT_LATEST:
            shards = [shard for shard in shards if shard.is_open]
        return ShardsPage(tuple(shards))

    async def describe(self) -> StreamSummary:
        """Return what DescribeStream tells of the stream. `status` may also be ENABLING, ENABLED, DISABLING or
        DISABLED. Raises StreamError.
        """
        answer = await self._call("DescribeStream", {"StreamArn": self._arn, "Limit": 1}, LIST_TIMEOUT_S)
        try:
            found = answer["StreamDescription"]
            created = found.get("CreationRequestDateTime")
            millis = round(created.timestamp() * 1000) if isinstance(created, datetime) else None
            return StreamSummary(found["StreamArn"].split("/")[1], found["StreamArn"], found["StreamStatus"], millis)
        except (KeyError, TypeError, IndexError) as error:
            raise self._malformed("DescribeStream", error) from error

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str:
        """Return an iterator with which `get_records` reads on from `start`: the token of the service with our notes
        (`ChangePlace`). Raises StreamError.

        For AT_TIMESTAMP, reading begins at the oldest record, and records from before that time are left out. A
        position whose record was trimmed leads to the oldest record that is left, as in Kinesis.
        """
        kind = start.type.value
        if start.type is IteratorType.AT_TIMESTAMP:
            kind = IteratorType.TRIM_HORIZON.value
        params = {"StreamArn": self._arn, "ShardId": shard_id, "ShardIteratorType": kind}
        if start.sequence is not None:
            params["SequenceNumber"] = start.sequence
        try:
            answer = await self._call("GetShardIterator", params, RECORDS_TIMEOUT_S)
        except StreamTrimmedError:
            if start.sequence is None:
                raise
            return await self.shard_iterator(shard_id, StartingPoint(IteratorType.TRIM_HORIZON))
        iterator = answer.get("ShardIterator")
        if not isinstance(iterator, str) or not iterator:
            raise self._malformed("GetShardIterator", KeyError("ShardIterator"))
        place = ChangePlace(shard_id, iterator, start.timestamp_s)
        if start.type is IteratorType.LATEST:  # at the tip already, as if enough empty pages had come
            place = replace(place, quiet_pages=QUIET_PAGES, quiet_from_s=self._clock.monotonic() - QUIET_S)
        return str(place)

    async def get_records(self, iterator: str, limit: int | None) -> Page:
        """Call GetRecords once, and return its records as a page. The last page of a shard names the children that
        DescribeStream lists by then; it may wait some time for them. Raises StreamError.
        """
        place = ChangePlace.parse(iterator)
        count = RECORDS_MAX if limit is None else min(limit, RECORDS_MAX)
        params: dict[str, Any] = {"ShardIterator": place.token, "Limit": count}
        with stream_errors(self._arn):
            asked_at_s, wall_s = self._clock.monotonic(), self._clock.wall()
            read = partial(self._read, place=place, asked_at_s=asked_at_s, wall_s=wall_s)
            page = await self._service.fetch("GetRecords", params, read, timeout_s=RECORDS_TIMEOUT_S)
        if page.next_iterator is None:
            children = await self._children_of(place.shard_id)
            return replace(page, child_shards=children)  # type: ignore[type-var]
        return page

    async def _children_of(self, shard_id: str) -> tuple[ChildShard, ...]:
        """Return the children of a shard that has ended; empty if there are none yet, or never will be.

        A child may be listed some time after its parent has ended, so this asks several times, with pauses. It asks
        only once if the stream is disabled, because no child will come then.
        """
        delay_s = CHILDREN_BACKOFF_FIRST_S
        for attempt in range(CHILDREN_ATTEMPTS_MAX):
            if attempt:
                await self._clock.sleep(delay_s)
                delay_s = min(2 * delay_s, CHILDREN_BACKOFF_MAX_S)
            children, status = await self._listed_children(shard_id)
            if children or status == STREAM_DISABLED:
                return children
        return ()

    async def _listed_children(self, shard_id: str) -> tuple[tuple[ChildShard, ...], str]:
        """Return the children of a shard that DescribeStream lists now, and the status of the stream. If the service
        fails when it is asked for the children only, the whole list is fetched.
        """
        params = {"StreamArn": self._arn, "ShardFilter": {"Type": "CHILD_SHARDS", "ShardId": shard_id}}
        try:
            answer = await self._call("DescribeStream", params, LIST_TIMEOUT_S)
            shards, status = self._shards_in(answer), str(answer["StreamDescription"].get("StreamStatus", ""))
        except StreamNotFoundError:
            raise
        except StreamError as error:  # some servers do not know the filter
            _log.info("children are looked up in the whole list: %s", error, extra={"action": "child_filter_failed"})
            shards, status = await self._all_shards()
        return tuple(
            ChildShard(shard.shard_id, shard.parents, HASH_RANGE) for shard in shards if shard_id in shard.parents
        ), status

    async def _all_shards(self) -> tuple[list[Shard], str]:
        """Return every shard, and the status of the stream. A parent of a listed shard is returned as closed, even
        if it was listed as open.
        """
        found: dict[str, Shard] = {}
        status = ""
        params: dict[str, Any] = {"StreamArn": self._arn}
        for _ in range(PAGES_MAX):
            answer = await self._call("DescribeStream", params, LIST_TIMEOUT_S)
            shards = self._shards_in(answer)
            found |= {shard.shard_id: shard for shard in shards}
            description = answer["StreamDescription"]
            status = str(description.get("StreamStatus", ""))
            last = description.get("LastEvaluatedShardId")
            if not last:
                return list(_closed_parents(found)), status
            params = {"StreamArn": self._arn, "ExclusiveStartShardId": last}
        raise InvalidStreamResponseError(f"stream {self._arn}: DescribeStream did not come to an end")

    def _shards_in(self, answer: Mapping[str, Any]) -> list[Shard]:
        """Return the shards in an answer to DescribeStream."""
        try:
            return [_shard(item) for item in answer["StreamDescription"].get("Shards", ())]
        except (KeyError, TypeError) as error:
            raise self._malformed("DescribeStream", error) from error

    def _read(self, body: bytes, *, place: ChangePlace, asked_at_s: float, wall_s: float) -> Page:
        """Make a page in the form of Kinesis from the body of an answer of DynamoDB Streams.

        Leaves out records older than `place.since_s`, until a page has a record that is new enough. The lag
        (MillisBehindLatest) is the age of the newest record. If there is no record, the lag is 0 at the end of the
        shard or after enough empty pages, and is left out otherwise. The next iterator carries our notes for the next
        page (`ChangePlace`).

        Called in a thread, because one item may take a tenth of a second. The clock belongs to the loop, so `_read` is
        given the time of the request: `asked_at_s` (monotonic seconds) and `wall_s` (epoch seconds).
        """
        try:
            answer = json.loads(body)
            if not isinstance(answer["Records"], list):
                raise TypeError("no list of records")
            since_s = place.since_s
            records = [record for record in answer["Records"] if since_s is None or created_s(record) >= since_s]
            written = ",".join(json.dumps(self._record_of(record), separators=(",", ":")) for record in records)
            following = answer.get("NextShardIterator") or None
            if not isinstance(following, str | None):
                raise TypeError("an iterator that is no text")
            others: dict[str, Any] = {}  # the members of the page besides its records
            if answer["Records"]:  # the empty pages are counted anew
                place = ChangePlace(place.shard_id, place.token, None if records else place.since_s)
                age_s = wall_s - created_s(answer["Records"][-1])
                others["MillisBehindLatest"] = max(1, round(age_s * 1000))  # 0 would mean that the page is at the tip
            else:
                place = place.after_nothing(asked_at_s)
                if place.is_tip(asked_at_s) or following is None:
                    others["MillisBehindLatest"] = 0
            if following is not None:
                others["NextShardIterator"] = str(replace(place, token=following))
            end = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in others.items())
            return self._page_of(f'{{"Records":[{written}]{end}}}'.encode())
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise self._malformed("GetRecords", error) from error


def _shard(item: Mapping[str, Any]) -> Shard:
    """Return a shard from its description. DynamoDB Streams has no hash ranges, so each shard gets the same one."""
    sequences = item["SequenceNumberRange"]
    return Shard(
        shard_id=item["ShardId"],
        hash_range=HASH_RANGE,
        starting_sequence=sequences["StartingSequenceNumber"],
        ending_sequence=sequences.get("EndingSequenceNumber") or None,
        parent_id=item.get("ParentShardId") or None,
    )


def _closed_parents(found: Mapping[str, Shard]) -> Iterator[Shard]:
    """Yield all shards. A parent that is listed as open together with its child is yielded as closed: such a listing
    mixes two moments, and the child is newer.
    """
    parents = {parent for shard in found.values() for parent in shard.parents}
    for shard in found.values():
        if shard.is_open and shard.shard_id in parents:
            yield replace(shard, ending_sequence=UNKNOWN_END)
        else:
            yield shard
