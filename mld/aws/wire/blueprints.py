"""`Blueprint`: what the requests of one operation have in common, copied from a request that botocore makes.

`Canned` makes a botocore client run a call without a network: we give the answer ourselves, in a handler of botocore's
public events. There are two uses. With an empty answer, the handler sees the request that the client would have sent,
with its endpoint, headers and the scope of its signature (`blueprint`). With the answer to a request that the wire
client has sent, botocore finds out what the answer means (`explain`).
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from mld.aws.wire.answers import Answer
from mld.aws.wire.connection import Origin
from mld.aws.wire.proxies import Proxy, proxies_of
from mld.aws.wire.signing import SCOPE, Scope
from mld.aws.wire.unusual import UnusualError

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from botocore.client import BaseClient


_PER_REQUEST = frozenset(
    {
        "accept-encoding",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "connection",
        "content-length",
        "host",
        "x-amz-date",
        "x-amz-security-token",
    }
)
"""Headers of botocore that are not copied: the wire client sets those that a request needs itself."""
_KNOWN = frozenset({"content-type", "user-agent", "x-amz-target", "x-amzn-query-mode"})
"""Headers that are copied, because they are the same in all requests of an operation. Any further header is unusual."""
STREAMS = frozenset({"SubscribeToShard"})
"""Operations that are answered by a stream of events."""
# A frame of the type initial-response with the payload {}. botocore expects it at the beginning of a stream.
_FIRST_EVENT = bytes.fromhex(
    "0000007200000060ab820d9e0b3a6576656e742d74797065070010696e697469616c2d726573706f6e73650d3a636f6e7465"
    "6e742d7479706507001a6170706c69636174696f6e2f782d616d7a2d6a736f6e2d312e310d3a6d6573736167652d74797065"
    "0700056576656e747b7dacae6b7d"
)
_PORTS = {"http": 80, "https": 443}


class Blueprint(NamedTuple):
    """What all requests of one operation have in common. `head` is the part of their head that is always the same.
    `scope` is None if they are not signed.
    """

    origin: Origin
    host: str
    content_type: str
    target: str
    head: str
    scope: Scope | None


class Canned:
    """Runs calls of a client with answers that are given, without a network. Several threads may use it at a time."""

    def __init__(self, client: BaseClient) -> None:
        """Register the handler with the client. Raises UnusualError if the client reaches AWS in a way that only
        botocore knows.
        """
        self._client = client
        self._proxy_for = proxies_of(client)
        self._proxy_for(client.meta.endpoint_url)  # raises UnusualError if only botocore can use the proxy
        self._here = threading.local()
        handler: Any = self._before_send
        client.meta.events.register("before-send", handler, unique_id=f"mld-wire-{id(self)}")

    def _before_send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        """Note the request, and return the answer that `explain` was given. None: botocore sends the request itself."""
        answer: Answer | None = getattr(self._here, "answer", None)
        if answer is None:
            return None
        from botocore.awsrequest import AWSResponse

        self._here.request = request
        headers: Any = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers.items()}
        raw: Any = _Raw(answer.body)
        return AWSResponse(request.url, answer.status, headers, raw)

    def explain(self, operation: str, params: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
        """Give `answer` to botocore as the answer to this call, and return what botocore parses from it. Raises the
        exception that botocore raises for it.
        """
        import botocore

        self._here.answer = answer
        try:
            made: dict[str, Any] = getattr(self._client, botocore.xform_name(operation))(**params)
            return made
        finally:
            self._here.answer = None

    def blueprint(self, operation: str, params: Mapping[str, Any], context: ssl.SSLContext | None) -> Blueprint:
        """Return the blueprint of an operation. `context` is for a TLS endpoint.

        Raises UnusualError, and whatever botocore raises, for example for wrong parameters.
        """
        self.explain(operation, params, Answer(200, {}, _FIRST_EVENT if operation in STREAMS else b"{}"))
        request: AWSPreparedRequest = self._here.request
        url = str(request.url)
        headers = dict(request.headers.items())
        return _blueprint(str(request.method), url, headers, context, self._proxy_for(url))


class _Raw:
    """Stands in for urllib3's response, with only the method that botocore calls."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


def _blueprint(
    method: str, url: str, raw_headers: dict[str, Any], context: ssl.SSLContext | None, proxy: Proxy | None
) -> Blueprint:
    """Return the blueprint of a request of botocore: its method, its URL, its headers, and the way to the server.

    Raises UnusualError if the wire client could not send such a request.
    """
    address = urlsplit(url)
    if method != "POST" or address.path not in ("", "/") or address.query or address.username:
        raise UnusualError(f"{method} to the path {address.path}")
    if address.scheme not in _PORTS or not address.hostname:
        raise UnusualError(f"the scheme {address.scheme}")
    headers = {name.lower(): value.decode() if isinstance(value, bytes) else str(value)
               for name, value in raw_headers.items()}  # fmt: skip
    if unknown := headers.keys() - _PER_REQUEST - _KNOWN:
        raise UnusualError(f"the header {min(unknown)}")
    authorization = headers.get("authorization")
    match = None if authorization is None else SCOPE.match(authorization)
    if authorization is not None and match is None:
        raise UnusualError("another signature than version 4")
    fixed = {name: headers[name] for name in sorted(_KNOWN & headers.keys())}
    is_tls = address.scheme == "https"
    forward = None if is_tls else proxy  # such a proxy forwards the request, which therefore has the whole URL
    head = f"POST {'/' if forward is None else f'http://{address.netloc}/'} HTTP/1.1\r\n"
    head += f"Host: {address.netloc}\r\nAccept-Encoding: identity\r\n{'' if forward is None else forward.header}"
    head += "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
    return Blueprint(
        Origin(address.hostname, address.port or _PORTS[address.scheme], context if is_tls else None, proxy),
        address.netloc,
        headers["content-type"],
        headers["x-amz-target"],
        head,
        None if match is None else Scope(match[1], match[2]),
    )
