"""The narrow door to AWS: an async call with plain values, and errors of our own tree.

`mld.aws.client` implements it with botocore in a bounded thread pool, `mld.aws.wire.client` with sockets of its own;
in-memory twins implement it in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Service(Protocol):
    """One AWS service client (Kinesis, DynamoDB)."""

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Call `operation` (API name, ``UpdateItem``) once, without retries; return its answer as botocore parses it.

        Raises `errors.AwsError` if AWS refused, `errors.AwsUnreachableError` if there was no answer within
        `timeout_s` (default: the client's own read time-out).
        """
        ...


class RawService(Service, Protocol):
    """A service that also hands out the bodies of answers."""

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """As `call`, but the answer is what `read` makes of the body of a good answer, in a thread.

        What `read` raises comes out here.
        """
        ...
