"""`KinesisStreams`: the `Streams` port over the Kinesis API, for one stream.

Rules: retrieval#kinesis-requests (StreamARN is sent when known) and shards#listing-pages.
It turns answers into values and errors into `StreamError`s. It never retries, and never decides what an error means.

The function that makes pages of records is passed in: it belongs to `retrieval`, which `aws` must not import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from mld.aws.aws_failures import PARAMETERS_REFUSED
from mld.aws.boundary import raises_only
from mld.aws.service import PartwiseRead, RawService, Service
from mld.aws.table_calls import THROTTLING_CODES
from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    InvalidStreamArgumentError,
    InvalidStreamResponseError,
    IteratorExpiredError,
    MalformedBodyError,
    StreamError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamTrimmedError,
    StreamUnavailableError,
)
from mld.core.streams import (
    Page,
    Shard,
    ShardFilter,
    ShardsPage,
    StartingPoint,
    StreamSummary,
    hash_range_of,
)

RECORDS_TIMEOUT_S = 30.0
"""Time limit of GetShardIterator and GetRecords: Java's kinesisRequestTimeout."""
LIST_TIMEOUT_S = 60.0
"""Time limit of ListShards and DescribeStreamSummary, as in Java."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_HALF_MILLISECOND = timedelta(microseconds=500)

_ERRORS: dict[str, type[StreamError]] = {
    "ResourceNotFoundException": StreamNotFoundError,
    "ResourceInUseException": StreamInUseError,
    "ExpiredIteratorException": IteratorExpiredError,
    "TrimmedDataAccessException": StreamTrimmedError,
    "ExpiredNextTokenException": IteratorExpiredError,
    "InvalidArgumentException": InvalidStreamArgumentError,
    "ValidationException": InvalidStreamArgumentError,
    PARAMETERS_REFUSED: InvalidStreamArgumentError,
    **dict.fromkeys(THROTTLING_CODES, StreamThrottledError),
}
"""The error for each code of AWS. Any other code becomes a StreamUnavailableError."""


ServiceT = TypeVar("ServiceT", bound=Service)


class StreamAdapter(Generic[ServiceT]):
    """Base of the adapters of one stream, which turns errors into `StreamError`s. `label` names the stream in them."""

    def __init__(self, service: ServiceT, label: str) -> None:
        self._service = service
        self._label = label

    async def _call(self, operation: str, params: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Make one call, and return the answer. Raises StreamError."""
        with stream_errors(self._label):
            return await self._service.call(operation, dict(params), timeout_s=timeout_s)

    def _malformed(self, operation: str, error: Exception) -> InvalidStreamResponseError:
        """Return the error for an answer that could not be read because of `error`."""
        what = str(error) if isinstance(error, MalformedBodyError) else f"{type(error).__name__}: {error}"
        return InvalidStreamResponseError(f"stream {self._label}: {operation}: the answer is not as documented: {what}")


@raises_only(StreamUnavailableError)
class KinesisStreams(StreamAdapter[RawService]):
    """The stream `stream_name`. If `stream_arn` is configured, every request has it (reads across accounts need it).

    `page_of` makes a page from the body of an answer, maybe in a thread and maybe part by part. It raises
    MalformedBodyError for a body that is not a page.
    """

    def __init__(
        self,
        service: RawService,
        *,
        stream_name: str,
        page_of: PartwiseRead[Page],
        stream_arn: str | None = None,
    ) -> None:
        super().__init__(service, stream_name)
        self._page_of = page_of
        self._arn = {} if stream_arn is None else {"StreamARN": stream_arn}

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        """Return one page of ListShards. With a token nothing else is sent, because the service refuses other
        parameters then. Raises StreamError.
        """
        params: dict[str, Any] = {"NextToken": next_token} if next_token else self._stream()
        if shard_filter is not None and not next_token:
            params["ShardFilter"] = _filter_params(shard_filter)
        answer = await self._call("ListShards", params, LIST_TIMEOUT_S)
        try:
            shards = tuple(_shard(item) for item in answer["Shards"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._malformed("ListShards", error) from error
        return ShardsPage(shards, answer.get("NextToken") or None)

    async def describe(self) -> StreamSummary:
        """Return what DescribeStreamSummary tells of the stream. Raises StreamError."""
        answer = await self._call("DescribeStreamSummary", self._stream(), LIST_TIMEOUT_S)
        try:
            summary = answer["StreamDescriptionSummary"]
            created = summary.get("StreamCreationTimestamp")
            return StreamSummary(
                name=summary["StreamName"],
                arn=summary["StreamARN"],
                status=summary["StreamStatus"],
                created_ms=None if created is None else _millis(created),
                has_strategy="RecordDistributionStrategy" in summary,
                retention_s=None if (hours := summary.get("RetentionPeriodHours")) is None else hours * 3600.0,
            )
        except (KeyError, TypeError) as error:
            raise self._malformed("DescribeStreamSummary", error) from error

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str:
        """Return an iterator with which `get_records` reads on from `start`. Raises StreamError. A starting time may be
        sent rounded down, never up.
        """
        params = {**self._stream(), "ShardId": shard_id, "ShardIteratorType": start.type.value}
        if start.sequence is not None:
            params["StartingSequenceNumber"] = start.sequence
        if start.timestamp_s is not None:
            params["Timestamp"] = time_param(start.timestamp_s)
        answer = await self._call("GetShardIterator", params, RECORDS_TIMEOUT_S)
        iterator = answer.get("ShardIterator")
        if not isinstance(iterator, str) or not iterator:
            raise self._malformed("GetShardIterator", KeyError("ShardIterator"))
        return iterator

    async def get_records(self, iterator: str, limit: int | None) -> Page:
        """Call GetRecords once, and return its records as a page. `limit` None: the service decides how many. Raises
        StreamError.
        """
        params: dict[str, Any] = {"ShardIterator": iterator, **self._arn}
        if limit is not None:
            params["Limit"] = limit
        try:
            return await self._service.fetch("GetRecords", params, self._page_of, timeout_s=RECORDS_TIMEOUT_S)
        except (AwsError, AwsUnreachableError) as error:
            raise stream_error(error, self._label) from error
        except MalformedBodyError as error:
            raise self._malformed("GetRecords", error) from error

    def _stream(self) -> dict[str, Any]:
        """Return the parameters that name the stream in a request."""
        return {"StreamName": self._label, **self._arn}


@contextmanager
def stream_errors(stream_name: str) -> Iterator[None]:
    """Turn an error of AWS that is raised inside this context into a StreamError."""
    try:
        yield
    except (AwsError, AwsUnreachableError) as error:
        raise stream_error(error, stream_name) from error


def stream_error(error: AwsError | AwsUnreachableError, stream_name: str) -> StreamError:
    """Return the StreamError to raise from `error`."""
    kind = _ERRORS.get(error.code, StreamUnavailableError) if isinstance(error, AwsError) else StreamUnavailableError
    return kind(f"stream {stream_name}: {error}")


def _filter_params(shard_filter: ShardFilter) -> dict[str, Any]:
    """Return the parameter ShardFilter of ListShards."""
    params: dict[str, Any] = {"Type": shard_filter.type.value}
    if shard_filter.timestamp_s is not None:
        params["Timestamp"] = time_param(shard_filter.timestamp_s)
    return params


def time_param(epoch_s: float) -> datetime:
    """Return a time in the form that the SDK wants."""
    return datetime.fromtimestamp(epoch_s, tz=UTC)


def _shard(item: Mapping[str, Any]) -> Shard:
    """Return a shard from its description in an answer."""
    sequences = item["SequenceNumberRange"]
    return Shard(
        shard_id=item["ShardId"],
        hash_range=hash_range_of(item["HashKeyRange"]),
        starting_sequence=sequences["StartingSequenceNumber"],
        ending_sequence=sequences.get("EndingSequenceNumber") or None,
        parent_id=item.get("ParentShardId") or None,
        adjacent_parent_id=item.get("AdjacentParentShardId") or None,
    )


def _millis(time: datetime) -> int:
    """Return a time in epoch milliseconds, rounded half up."""
    return (time - _EPOCH + _HALF_MILLISECOND) // _MILLISECOND
