"""What a refused or unanswered DynamoDB call means to a caller: one of the `TableError`s."""

from __future__ import annotations

from mld.errors import (
    AwsError,
    AwsUnreachableError,
    TableError,
    TableMissingError,
    TableThrottledError,
    TableUnavailableError,
)

REFUSED_CODE = "ConditionalCheckFailedException"
MISSING_CODE = "ResourceNotFoundException"
THROTTLING_STATUS = 429
THROTTLING_CODES = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceeded",
        "ThrottlingException",
        "Throttling",
        "ThrottledException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "LimitExceededException",
        "SlowDown",
    }
)


def is_refusal(error: AwsError) -> bool:
    """Whether a condition said no: a definite answer, and no `TableError`."""
    return error.code == REFUSED_CODE


def table_error(error: AwsError | AwsUnreachableError, table: str) -> TableError:
    """The `TableError` to raise from `error`."""
    if isinstance(error, AwsUnreachableError):
        return TableUnavailableError(str(error))
    if error.code in THROTTLING_CODES or error.status == THROTTLING_STATUS:
        return TableThrottledError(str(error))
    if error.code == MISSING_CODE:
        return TableMissingError(f"table {table}: {error}")
    return TableUnavailableError(str(error))
