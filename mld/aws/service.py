"""The narrow door to AWS: an async call with plain values, and errors of our own tree.

`mld.aws.client` implements it with botocore in a bounded thread pool; in-memory twins implement it in tests.
"""

from __future__ import annotations

from typing import Any, Protocol


class Service(Protocol):
    """One AWS service client (Kinesis, DynamoDB)."""

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Call `operation` (API name, ``UpdateItem``) once, without retries; return its answer as botocore parses it.

        Raises `errors.AwsError` if AWS refused, `errors.AwsUnreachableError` if there was no answer within
        `timeout_s` (default: the client's own read time-out).
        """
        ...
