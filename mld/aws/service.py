"""`Service`: the port to AWS: async calls with plain values, and errors of our own tree.

`mld.aws.client` implements it with botocore in a bounded thread pool, `mld.aws.wire.client` with sockets of its own;
in-memory twins implement it in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Service(Protocol):
    """One AWS service client (Kinesis, DynamoDB)."""

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Call `operation` (API name, ``UpdateItem``) once, without retries; return its answer as botocore parses it.

        Raises `errors.AwsError` if AWS refused, `errors.AwsUnreachableError` if there was no answer within
        `timeout_s` (default: the client's own read time-out), or none because of anything else that went wrong here.
        """
        ...


class PartReader(Protocol[T_co]):
    """Reads one body while it comes in."""

    def feed(self, part: bytes) -> None:
        """Take the next part. Never raises: `end` reports what is wrong with it."""
        ...

    def end(self, last: bytes = b"") -> T_co:
        """Return what is made of the body that ends with `last`."""
        ...


@runtime_checkable
class PartwiseRead(Protocol[T_co]):
    """Reads a whole body, or one that comes in parts."""

    def __call__(self, body: bytes) -> T_co: ...

    @property
    def wants_parts(self) -> bool:
        """Whether the next large body costs less in parts than in one piece."""
        ...

    def in_parts(self) -> PartReader[T_co]: ...


class RawService(Service, Protocol):
    """A service that also hands out the bodies of answers."""

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """Call as `call` does, but return what `read` makes of the body of a good answer, maybe in a thread.

        A large body may come in parts if `read` is a `PartwiseRead`.

        What `read` raises comes out here if it is an error of our tree, else as `AwsUnreachableError`.
        """
        ...


class FrameSource(Protocol):
    """The frames of an open event stream, undecoded and each in the pieces in which it came."""

    async def next(self) -> tuple[memoryview, ...] | None:
        """Return the next part; None at the ordinary end. Raises an Exception for a broken connection; may be
        cancelled without loss.
        """
        ...

    def close(self) -> None: ...


class StreamService(RawService, Protocol):
    """A service that also opens event streams."""

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> FrameSource:
        """Return the stream that answers `operation`, once its head says that it was accepted. Raises as `call`
        does.
        """
        ...

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """Return what `work` returns in a thread, for computations that would hold up the loop. Raises like `fetch`."""
        ...
