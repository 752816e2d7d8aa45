"""The narrow door to AWS: an async call with plain values, and errors of our own tree.

`mld.aws.client` implements it with botocore in a bounded thread pool, `mld.aws.wire.client` with sockets of its own;
in-memory twins implement it in tests.

Nothing but our own errors leaves a port (`raises_only`), whatever the machine throws below. A thread that cannot be
started, a body for which there is no memory, an answer that no code of ours expected: to the caller each is one more
call whose outcome is unknown. The caller knows what to do about that; nobody knows what to do about a `RuntimeError`.
Broken invariants of our own (`AssertionError`) pass, and so do cancellations.

`TableCalls`: one request to a DynamoDB table, and what its failure means. No retries. Rules: leases#table-errors.
Client-side errors are of the same kind as the service's own. What is not a definite answer leaves as a `TableError`.

`ServiceTime`: what time it is at AWS, for all that signs requests or judges whether credentials have expired.

AWS refuses a signature that is more than five minutes off its own clock. Its refusal has a `Date` header, which says by
how much our clock is wrong; one measurement serves all clients of a daemon. The lean client asks for `now`. botocore
signs with this machine's clock and corrects nothing, so `attach` adds to a session what is missing, by its events:
a request is signed again with AWS's time, and one that was refused for its time is sent once more. Clients made by
that session have this too, those that assume roles included.

Importing this module must stay cheap: botocore is imported when it is needed.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    MldError,
    TableError,
    TableMissingError,
    TableThrottledError,
    TableUnavailableError,
)
from mld.properties.redaction import Scrubber

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from botocore.session import Session
    from botocore.signers import RequestSigner

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
        self, service: Service, table_name: str, timeout_s: float, on_missing: Callable[[], None] = lambda: None
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
    ) -> dict[str, Any]:
        """Send one request. Raises RefusedError for the codes in `refusals`, else the TableError of
        leases#table-errors.

        `one_table`: the operation has the parameter TableName.
        """
        named = {"TableName": self.table_name, **params} if one_table else dict(params)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return await self._service.call(operation, named, timeout_s=limit_s)
        except AwsUnreachableError as error:
            raise table_error(error, self.table_name) from error
        except AwsError as error:
            if error.code in refusals:
                raise RefusedError(error) from error
            if error.code == MISSING_CODE:
                self._on_missing()
            raise table_error(error, self.table_name) from error


logger = logging.getLogger(__name__)

SKEW_MIN_S = 60.0
"""A signature is good for five minutes; a smaller difference is not why one was refused."""
SKEWED_CODES = frozenset(
    {
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "RequestInTheFuture",
        "ExpiredToken",
        "ExpiredTokenException",
        "AuthFailure",
    }
)
"""What services answer to a signature that is too old or too new; most of them mean other things too."""
ATTEMPTS_MAX = 5
"""Of one call of a botocore client: an end for a service whose dates are never the same."""
SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request,")
"""Region and service in an Authorization header."""
_SIGNER = "mld_signer"
_SIGNED_WITH = "mld_signed_with_s"


class Scope(NamedTuple):
    """What a signature is good for."""

    region: str
    service: str


class ServiceTime:
    """`wall` is this machine's clock, in epoch seconds. Used by all threads."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self.offset_s = 0.0
        """AWS's clock minus ours."""
        self.is_measured = False

    def now(self) -> float:
        """Return AWS's time in epoch seconds, as far as it is known."""
        return self._wall() + self.offset_s

    def learn(self, date: str | None) -> bool:
        """Take the `Date` header of a refusal; whether the time is known better now."""
        if date is None:
            return False
        try:
            offset_s = parsedate_to_datetime(date).timestamp() - self._wall()
        except (ValueError, OverflowError):
            return False
        if abs(offset_s - self.offset_s) < SKEW_MIN_S:
            return False
        self.offset_s, self.is_measured = offset_s, True
        logger.warning(
            "the clock of this machine is %+.0f s off that of AWS: requests are signed with AWS's time; set the clock",
            -offset_s,
            extra={"action": "clock_skew", "skew_s": round(offset_s, 1)},
        )
        return True

    def attach(self, session: Session) -> None:
        """Watch all clients that `session` will make."""
        # Handlers of a whole event come after those of a client's own part of it: after botocore's signature.
        handlers: dict[str, Any] = {
            "before-sign": self._note_signer,
            "request-created": self._sign_again,
            "needs-retry": self._pause_before_retry,
        }
        for event, handler in handlers.items():
            session.register(event, handler, unique_id=f"mld-time-{event}")

    # --- events of botocore, in its threads --------------------------------------------------------------------------

    def _note_signer(self, request: AWSRequest, request_signer: RequestSigner, **_: Any) -> None:
        request.context[_SIGNER] = request_signer

    def _sign_again(self, request: AWSRequest, **_: Any) -> None:
        signer: RequestSigner | None = request.context.pop(_SIGNER, None)
        authorization: Any = request.headers.get("Authorization")
        if isinstance(authorization, bytes):
            authorization = authorization.decode()
        scope = None if authorization is None else SCOPE.match(authorization)
        if signer is None or scope is None:
            return  # unsigned, or otherwise than with a time of ours
        offset_s = self.offset_s
        request.context[_SIGNED_WITH] = offset_s
        if offset_s:
            _sign(request, signer, scope[1], scope[2], self._wall() + offset_s)

    def _pause_before_retry(self, request_dict: dict[str, Any], response: Any, attempts: int, **_: Any) -> float | None:
        """Return 0 if the request is to be sent again at once; None if that is for others to say."""
        if response is None or response[1].get("Error", {}).get("Code") not in SKEWED_CODES:
            return None
        self.learn(response[0].headers.get("Date"))
        signed_with_s = request_dict["context"].get(_SIGNED_WITH, self.offset_s)
        is_worth_it = abs(self.offset_s - signed_with_s) >= SKEW_MIN_S and attempts < ATTEMPTS_MAX
        return 0.0 if is_worth_it else None


def _sign(request: AWSRequest, signer: RequestSigner, region: str, service: str, at_s: float) -> None:
    """Sign in place of the signature that is there."""
    from botocore.auth import SigV4Auth

    class Timed(SigV4Auth):
        def _modify_request_before_signing(self, request: AWSRequest) -> None:
            request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
            super()._modify_request_before_signing(request)  # type: ignore[misc]

    credentials = signer.get_auth_instance(service, region).credentials
    Timed(credentials, service, region).add_auth(request)
