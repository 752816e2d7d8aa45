"""`Blueprint`: the request that botocore would send for an operation, seen through botocore's public events.

`Canned` lets a client run a call without a network, with an answer that we give it. With an empty answer the client
shows the request that it would have sent, with its endpoint, headers and the scope of its signature (`blueprint`). With
the answer to a real request the client says what the answer means (`explain`).
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
_KNOWN = frozenset({"content-type", "user-agent", "x-amz-target", "x-amzn-query-mode"})
STREAMS = frozenset({"SubscribeToShard"})
"""Operations that are answered by a stream of events."""
# A frame of the type initial-response with the payload {}, which botocore wants to see first.
_FIRST_EVENT = bytes.fromhex(
    "0000007200000060ab820d9e0b3a6576656e742d74797065070010696e697469616c2d726573706f6e73650d3a636f6e7465"
    "6e742d7479706507001a6170706c69636174696f6e2f782d616d7a2d6a736f6e2d312e310d3a6d6573736167652d74797065"
    "0700056576656e747b7dacae6b7d"
)
_PORTS = {"http": 80, "https": 443}


class Blueprint(NamedTuple):
    """What all requests of one operation have in common. `scope` is None if they go out unsigned."""

    origin: Origin
    host: str
    content_type: str
    target: str
    head: str
    scope: Scope | None


class Canned:
    """Answers the calls of a client without a network, for each thread by itself."""

    def __init__(self, client: BaseClient) -> None:
        """Prepare a client. Raises UnusualError for a client whose way to AWS only botocore knows."""
        self._client = client
        self._proxy_for = proxies_of(client)
        self._proxy_for(client.meta.endpoint_url)
        self._here = threading.local()
        handler: Any = self._before_send
        client.meta.events.register("before-send", handler, unique_id=f"mld-wire-{id(self)}")

    def _before_send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        answer: Answer | None = getattr(self._here, "answer", None)
        if answer is None:
            return None
        from botocore.awsrequest import AWSResponse

        self._here.request = request
        headers: Any = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers.items()}
        raw: Any = _Raw(answer.body)
        return AWSResponse(request.url, answer.status, headers, raw)

    def explain(self, operation: str, params: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
        """Return what botocore makes of an answer. Raises what botocore raises."""
        import botocore

        self._here.answer = answer
        try:
            made: dict[str, Any] = getattr(self._client, botocore.xform_name(operation))(**params)
            return made
        finally:
            self._here.answer = None

    def blueprint(self, operation: str, params: Mapping[str, Any], context: ssl.SSLContext | None) -> Blueprint:
        """Return the blueprint of an operation. Raises UnusualError, and what botocore raises, which checks the
        parameters.
        """
        self.explain(operation, params, Answer(200, {}, _FIRST_EVENT if operation in STREAMS else b"{}"))
        request: AWSPreparedRequest = self._here.request
        url = str(request.url)
        headers = dict(request.headers.items())
        return _blueprint(str(request.method), url, headers, context, self._proxy_for(url))


class _Raw:
    """The part of urllib3's response that botocore reads."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


def _blueprint(
    method: str, url: str, raw_headers: dict[str, Any], context: ssl.SSLContext | None, proxy: Proxy | None
) -> Blueprint:
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
    forward = None if is_tls else proxy
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
