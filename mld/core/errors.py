"""Every error that the daemon raises on purpose, as one small tree.

Three questions decide the class. Must the operator change something (`StartupError`, and `ConfigurationError` in
`properties`)? Did AWS refuse a call, or not answer it at all (`TableError`, `StreamError`)? Did a child break the
protocol (`conversation.ProcessorError`)? After an exception from AWS, the outcome of the call is *unknown*: it counts
neither as failed nor as done.
"""

from __future__ import annotations

AWS_WORDS_CHARS_MAX = 1_000
"""Longest message, and longest code, that is kept of an error of AWS. A proxy may answer in place of AWS, with a whole
page as the message."""


class MldError(Exception):
    """Base of all errors below. The text is one sentence that can be logged."""


class StartupError(MldError):
    """The daemon cannot start, for a reason outside the properties file (permissions, network, a foreign table)."""


# --- AWS, as seen by `mld.aws` ---------------------------------------------------------------------------------------


class AwsError(MldError):
    """AWS answered with an error.

    `code` is the error code without namespace (``ConditionalCheckFailedException``), and `status` the HTTP status.
    `item` is the old row of a refused conditional write, as DynamoDB JSON, if the service sent it.
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
        """Make the error for the answer to `operation`. A very long code or message is cut off."""
        code, message = _bounded(code), _bounded(message)
        super().__init__(f"{operation}: {code}: {message}" if message else f"{operation}: {code}")
        self.operation = operation
        self.code = code
        self.status = status
        self.item = item


def _bounded(text: str) -> str:
    """Return the text, cut after `AWS_WORDS_CHARS_MAX` characters."""
    return text if len(text) <= AWS_WORDS_CHARS_MAX else f"{text[:AWS_WORDS_CHARS_MAX]}…"


class AwsUnreachableError(MldError):
    """There was no answer: connection, DNS, TLS, credentials or a time-out. A write may or may not have
    been applied.
    """

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"{operation}: no answer: {reason}")
        self.operation = operation


# --- the lease table -------------------------------------------------------------------------------------------------


class TableError(MldError):
    """A call of the lease table failed, and its effect is unknown. The lease is kept until it expires locally."""


class TableThrottledError(TableError):
    """The table is throttled (ProvisionedThroughputExceeded, Throttling, RequestLimitExceeded); retry with backoff."""


class TableMissingError(TableError):
    """The lease table does not exist; it may have been deleted."""


class TableForeignError(TableError):
    """The table has another key than a table of KCL: it belongs to something else."""


class TableUnavailableError(TableError):
    """Any other failure of the table: network, time-out, 5xx, access denied."""


class LeaseLostError(MldError):
    """The lease is no longer ours: its condition did not hold, it expired locally, or it is held under a new token."""

    def __init__(self, lease_key: str, why: str) -> None:
        super().__init__(f"lease {lease_key} lost: {why}")


# --- the stream ------------------------------------------------------------------------------------------------------


class StreamError(MldError):
    """A Kinesis call failed; positions are unchanged."""


class StreamUnavailableError(StreamError):
    """Network, time-out, 5xx, access denied, KMS: retry later with backoff."""


class StreamThrottledError(StreamError):
    """LimitExceeded or ProvisionedThroughputExceeded."""


class StreamNotFoundError(StreamError):
    """ResourceNotFound: the shard is past retention, the stream is gone, or it is the wrong stream or region."""


class PositionRefusedError(StreamNotFoundError):
    """The stream refuses a sequence number that it did not issue: it was deleted and made again, or it is another
    stream.
    """


class StreamInUseError(StreamError):
    """ResourceInUse: the stream is neither ACTIVE nor UPDATING."""


class IteratorExpiredError(StreamError):
    """The shard iterator (5 minutes) or a ListShards page token (300 s) has expired."""


class StreamTrimmedError(IteratorExpiredError):
    """TrimmedDataAccess of DynamoDB Streams: the record at this position has left retention."""


class InvalidStreamArgumentError(StreamError):
    """InvalidArgument or ValidationException, for example a sequence number of another stream."""


class MalformedBodyError(MldError, ValueError):
    """The body of an answer or of an event is not as documented; the text says how."""


class InvalidStreamResponseError(StreamError):
    """An answer contradicts itself, for example the end of a shard without child shards."""


# --- dead letters ----------------------------------------------------------------------------------------------------


class DeadLetterError(MldError):
    """A dead letter may not have been written, so its record must not be skipped."""


# --- schemas ---------------------------------------------------------------------------------------------------------


class SchemaUnknownError(MldError):
    """The schema registry does not have a version with this id, or we may not read it."""


class SchemaUnreachableError(MldError):
    """The schema registry gives no usable answer now: none at all, throttling, or access denied."""


class BudgetSpentError(MldError):
    """A record asks for work beyond the budget of its shard, so the work is not done."""


# --- metrics ---------------------------------------------------------------------------------------------------------


class MetricsError(MldError):
    """Metrics were not published. Failures of the same `kind` need to be reported only once."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# --- the lease table and the stream ----------------------------------------------------------------------------------


class UnexpectedError(TableUnavailableError, StreamUnavailableError):
    """Stands for an exception that no port may raise (`mld.core.error_boundary`): the outcome of the call is
    unknown.
    """
