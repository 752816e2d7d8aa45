"""Every error the daemon raises on purpose, as one small tree.

Three questions decide the class: does the operator have to change something (`StartupError`, and `properties`'
`ConfigurationError`), did AWS answer "no" or not answer at all (`TableError`, `StreamError`), or did a child break the
protocol (`conversation.ProcessorError`)? An exception from AWS means *unknown*, never *lost* and never *done*.
"""

from __future__ import annotations


class MldError(Exception):
    """Base of everything below; its text is one sentence fit for the log."""


class StartupError(MldError):
    """The daemon cannot start, for a reason outside the properties file (permissions, network, a foreign table)."""


# --- AWS, as seen by `mld.aws` ---------------------------------------------------------------------------------------


class AwsError(MldError):
    """AWS answered with an error.

    `code` is the service's error code without a namespace (``ConditionalCheckFailedException``), `status` the HTTP
    status, `item` the old row of a refused conditional write in DynamoDB JSON, if the service sent it.
    """

    def __init__(
        self,
        operation: str,
        code: str,
        message: str = "",
        *,
        status: int = 400,
        item: dict[str, dict[str, object]] | None = None,
    ) -> None:
        super().__init__(f"{operation}: {code}: {message}" if message else f"{operation}: {code}")
        self.operation = operation
        self.code = code
        self.status = status
        self.item = item


class AwsUnreachableError(MldError):
    """No answer: connection, DNS, TLS, credentials or a time-out. A write may or may not have been applied."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"{operation}: no answer: {reason}")
        self.operation = operation


# --- the lease table -------------------------------------------------------------------------------------------------


class TableError(MldError):
    """A lease-table call failed and its effect is unknown. The lease is kept until its local expiry."""


class TableThrottledError(TableError):
    """The table is throttled (ProvisionedThroughputExceeded, Throttling, RequestLimitExceeded); retry with back-off."""


class TableMissingError(TableError):
    """The lease table does not exist (any more)."""


class TableUnavailableError(TableError):
    """Any other failure: network, time-out, 5xx, access denied."""


class LeaseLostError(MldError):
    """The lease is not ours any more: refused by its condition, expired locally, or held under a new token."""

    def __init__(self, lease_key: str, why: str) -> None:
        super().__init__(f"lease {lease_key} lost: {why}")
        self.lease_key = lease_key


# --- the stream ------------------------------------------------------------------------------------------------------


class StreamError(MldError):
    """A Kinesis call failed; positions are unchanged."""


class StreamUnavailableError(StreamError):
    """Network, time-out, 5xx, access denied, KMS: retry later with back-off."""


class StreamThrottledError(StreamError):
    """LimitExceeded or ProvisionedThroughputExceeded."""


class StreamNotFoundError(StreamError):
    """ResourceNotFound: the shard is past retention, or the stream is gone, or it is the wrong stream or region."""


class PositionRefusedError(StreamNotFoundError):
    """The stream refuses a sequence number as not its own: it was made again, or is another stream."""


class StreamInUseError(StreamError):
    """ResourceInUse: the stream is neither ACTIVE nor UPDATING."""


class IteratorExpiredError(StreamError):
    """The shard iterator (5 minutes) or a ListShards page token (300 s) has expired."""


class StreamTrimmedError(IteratorExpiredError):
    """TrimmedDataAccess, of DynamoDB Streams: the record at the position has left retention."""


class InvalidStreamArgumentError(StreamError):
    """InvalidArgument or ValidationException, for example a sequence number of another stream."""


class MalformedBodyError(MldError, ValueError):
    """The body of an answer or an event is not as documented; the text says how."""


class InvalidStreamResponseError(StreamError):
    """An answer that contradicts itself, for example the end of a shard without child shards."""


# --- dead letters ----------------------------------------------------------------------------------------------------


class DeadLetterError(MldError):
    """A dead letter may not have been written: its record stays where it is."""


# --- schemas ---------------------------------------------------------------------------------------------------------


class SchemaUnknownError(MldError):
    """The schema registry does not have a version with this id, or not for us."""


class SchemaUnreachableError(MldError):
    """The schema registry cannot tell now: no answer, throttling, access denied."""


# --- metrics ---------------------------------------------------------------------------------------------------------


class MetricsError(MldError):
    """Metrics were not published; `kind` is the same for failures that need to be told only once."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# --- both ------------------------------------------------------------------------------------------------------------


class UnexpectedError(TableUnavailableError, StreamUnavailableError):
    """Stands for an unexpected exception (`mld.core.error_boundary`): the outcome of the call is unknown."""
