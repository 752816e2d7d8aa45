"""`Service`: the port to AWS: async calls with plain values, which raise only errors of `mld.core.errors`.

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
        """Call `operation` (an API name such as ``UpdateItem``) once, without retries. Return the answer as botocore
        parses it.

        Raises `AwsError` if AWS refuses the call. Raises `AwsUnreachableError` if no answer comes within `timeout_s`
        (default: the client's own limit), or if anything goes wrong on this machine.
        """
        ...


class PartReader(Protocol[T_co]):
    """Reads one body while it is being received."""

    def feed(self, part: bytes) -> None:
        """Take the next part of the body. Never raises: if the part is bad, `end` raises the error."""
        ...

    def end(self, last: bytes = b"") -> T_co:
        """Return the result for the whole body, of which `last` is the last part."""
        ...


@runtime_checkable
class PartwiseRead(Protocol[T_co]):
    """A function that makes a value from a whole body, and can also make it from the parts of a body."""

    def __call__(self, body: bytes) -> T_co: ...

    @property
    def wants_parts(self) -> bool:
        """Whether the next large body takes less time in parts than in one piece."""
        ...

    def in_parts(self) -> PartReader[T_co]: ...


class RawService(Service, Protocol):
    """A service that also gives access to the unparsed bodies of answers."""

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """Call as `call` does, but return the result of `read` for the body of a successful answer.

        `read` may run in a thread. If it is a `PartwiseRead`, it may get a large body in parts. An error that it raises
        is raised here, too, if it is one of `mld.core.errors`; any other error becomes an `AwsUnreachableError`.
        """
        ...


class FrameSource(Protocol):
    """The frames of an open event stream, not decoded, each in the pieces in which it was received."""

    async def next(self) -> tuple[memoryview, ...] | None:
        """Return the next frame; None when the stream has ended in order. Raises an Exception for a broken connection.

        May be cancelled; no frame is lost then.
        """
        ...

    def close(self) -> None: ...


class StreamService(RawService, Protocol):
    """A service that also opens event streams."""

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> FrameSource:
        """Return the event stream that answers `operation`, as soon as the head of the answer says that the call was
        accepted. Raises as `call` does.
        """
        ...

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """Return what `work` returns. It runs in a thread, because it would hold up the loop. Raises like `fetch`."""
        ...
