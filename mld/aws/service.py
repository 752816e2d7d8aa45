"""The narrow door to AWS: an async call with plain values, and errors of our own tree.

`mld.aws.client` implements it with botocore in a bounded thread pool, `mld.aws.wire.client` with sockets of its own;
in-memory twins implement it in tests.

Nothing but our own errors leaves a port (`raises_only`), whatever the machine throws below. A thread that cannot be
started, a body for which there is no memory, an answer that no code of ours expected: to the caller each is one more
call whose outcome is unknown. The caller knows what to do about that; nobody knows what to do about a `RuntimeError`.
Broken invariants of our own (`AssertionError`) pass, and so do cancellations.

`TableCalls`: one request to a DynamoDB table, and what its failure means. No retries. Rules: leases#table-errors.
Client-side errors are of the same kind as the service's own. What is not a definite answer leaves as a `TableError`.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    MldError,
    TableError,
    TableMissingError,
    TableThrottledError,
    TableUnavailableError,
)
from mld.core.hedging import first_answer
from mld.properties.scrubber import Scrubber

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
THROTTLING_CODES = frozenset(
    ("ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded", "LimitExceededException")
    + ("ThrottlingException", "Throttling", "ThrottledException", "KMSThrottlingException")
    + ("RequestLimitExceeded", "RequestThrottled", "RequestThrottledException")
    + ("TooManyRequestsException", "SlowDown")
)
"""What services answer to calls that come too fast."""


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
        """Take the next part. Raises nothing: whatever is wrong with it, `end` says."""
        ...

    def end(self, last: bytes = b"") -> T_co:
        """Return what is made of the body that ends with `last`."""
        ...


@runtime_checkable
class PartwiseRead(Protocol[T_co]):
    """What reads a whole body, and one that comes in parts."""

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
        """Return what `work` makes, in a thread: for computations that would hold up the loop. Raises as `fetch`
        does.
        """
        ...


# --- the boundary -----------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

PortT = TypeVar("PortT")
OUR_OWN = (MldError, AssertionError)
"""What passes as it is."""
_SCRUB = Scrubber()
"""For the address of a proxy, which botocore does not always hide."""


def reason_of(error: BaseException) -> str:
    """Return an exception in words, without the password of a URL and the like."""
    return f"{type(error).__name__}: {_SCRUB(str(error))}"


class Surprises:
    """Logs each kind of surprise with its trace once, which is enough to find its cause."""

    def __init__(self) -> None:
        self._told: set[tuple[str, type[BaseException]]] = set()

    def tell(self, what: str, error: BaseException) -> None:
        """Note that `error` is taken for a call without an answer."""
        if (what, type(error)) in self._told:
            return
        self._told.add((what, type(error)))
        log.error(
            "%s: %s; taken for a call without an answer",
            what,
            reason_of(error),
            exc_info=error,
            extra={"action": "unexpected_error"},
        )


def raises_only(kind: Callable[[str], MldError]) -> Callable[[type[PortT]], type[PortT]]:
    """Make the public coroutines of a class that implements a port raise `kind` for everything that is not ours."""

    surprises = Surprises()

    def guard(port: type[PortT]) -> type[PortT]:
        for name, method in list(vars(port).items()):
            if not name.startswith("_") and inspect.iscoroutinefunction(method):
                setattr(port, name, _guarded(f"{port.__name__}.{name}", method, kind, surprises))
        return port

    return guard


def _guarded(
    what: str, method: Callable[..., Awaitable[Any]], kind: Callable[[str], MldError], surprises: Surprises
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def guarded(*args: Any, **options: Any) -> Any:
        try:
            return await method(*args, **options)
        except OUR_OWN:
            raise
        except Exception as error:
            surprises.tell(what, error)
            raise kind(f"{what}: {reason_of(error)}") from error

    return guarded


ANSWER_S_MAX = 60.0
"""How long an answer of DynamoDB is waited for, as by Java: what is late still counts. What may not wait so long for a
lost one asks again meanwhile."""
READ_AGAIN_S = 3.0
"""A read without an answer for so long is sent again beside the first: a connection may lead nowhere."""
READS_MAX = 20
"""Of one read: one is under way whenever the way to the table becomes free."""
READ_OPERATIONS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "DescribeTable"})
REFUSED_CODE = "ConditionalCheckFailedException"
MISSING_CODE = "ResourceNotFoundException"
THROTTLING_STATUS = 429
Row: TypeAlias = Mapping[str, Mapping[str, Any]]


def table_error(error: AwsError | AwsUnreachableError, table: str) -> TableError:
    """Return the `TableError` to raise from `error`."""
    if isinstance(error, AwsUnreachableError):
        return TableUnavailableError(str(error))
    if error.code in THROTTLING_CODES or error.status == THROTTLING_STATUS:
        return TableThrottledError(str(error))
    if error.code == MISSING_CODE:
        return TableMissingError(f"table {table}: {error}")
    return TableUnavailableError(str(error))


class RefusedError(Exception):
    """An expected refusal: `code` is the service's, `row` the old row if the service sent it."""

    def __init__(self, error: AwsError) -> None:
        super().__init__(str(error))
        self.code = error.code
        self.row: Row | None = error.item


class TableCalls:
    """A table as a place to send requests to; `on_missing` hears of each answer that there is no such table."""

    def __init__(
        self,
        service: Service,
        table_name: str,
        timeout_s: float = ANSWER_S_MAX,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        self.table_name = table_name
        self._on_missing = on_missing
        self._service = service
        self._timeout_s = timeout_s

    async def get(self, key: Mapping[str, Any], *, consistent: bool = True) -> Row | None:
        """Return the row with this key; None if there is none. Raises TableError."""
        answer = await self.send("GetItem", {"Key": key, "ConsistentRead": consistent})
        row: Row | None = answer.get("Item") or None
        return row

    async def pages(
        self,
        operation: str,
        params: Mapping[str, Any],
        *,
        refusals: tuple[str, ...] = (),
        timeout_s: float | None = None,
    ) -> AsyncIterator[Sequence[Row]]:
        """Yield the rows of a Scan or Query, page by page. Raises as `send` does."""
        while True:
            answer = await self.send(operation, params, refusals=refusals, timeout_s=timeout_s)
            yield answer.get("Items", ())
            if not answer.get("LastEvaluatedKey"):
                return
            params = {**params, "ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def accepts(self, operation: str, params: Mapping[str, Any]) -> bool:
        """Send one conditional write; False if its condition did not hold. Raises TableError."""
        try:
            await self.send(operation, params, refusals=(REFUSED_CODE,))
        except RefusedError:
            return False
        return True

    async def send(
        self,
        operation: str,
        params: Mapping[str, Any],
        *,
        refusals: tuple[str, ...] = (),
        timeout_s: float | None = None,
        one_table: bool = True,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Send one request; again, beside the first, while a read or a `repeatable` write has no answer.

        Raises RefusedError for the codes in `refusals`, else the TableError of leases#table-errors.
        `one_table`: the operation has the parameter TableName.
        """
        named = {"TableName": self.table_name, **params} if one_table else dict(params)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            if not repeatable and operation not in READ_OPERATIONS:
                return await self._service.call(operation, named, timeout_s=limit_s)
            return await first_answer(
                lambda left_s: self._service.call(operation, dict(named), timeout_s=left_s),
                limit_s=limit_s,
                again_s=READ_AGAIN_S,
                asks_max=READS_MAX,
            )
        except AwsUnreachableError as error:
            raise table_error(error, self.table_name) from error
        except AwsError as error:
            if error.code in refusals:
                raise RefusedError(error) from error
            if error.code == MISSING_CODE:
                self._on_missing()
            raise table_error(error, self.table_name) from error
