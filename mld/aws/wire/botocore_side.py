"""What the wire client asks of botocore, through its public events only.

`Canned` lets a client's call run without a network: the answer is given to it. With an empty answer one sees the
request that botocore would have sent, endpoint, headers and scope of the signature included (`blueprint`); with the
answer to a real request botocore says what it means (`explain`).
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from mld.aws.servicetime import SCOPE, Scope
from mld.aws.wire.answers import Answer
from mld.aws.wire.connection import Origin, Proxy

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


class UnusualError(Exception):
    """Something the wire client had better leave to botocore; the text says what."""


class Blueprint(NamedTuple):
    """What all requests of one operation have in common. `scope` is None if they go out unsigned."""

    origin: Origin
    host: str
    content_type: str
    target: str
    head: str
    scope: Scope | None


class Canned:
    """A client whose calls can be answered from here, in each thread by itself."""

    def __init__(self, client: BaseClient) -> None:
        """Look at a client. Raises UnusualError for a client whose way to AWS only botocore knows."""
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
        """Return what botocore makes of an answer; raises what it raises."""
        import botocore

        self._here.answer = answer
        try:
            made: dict[str, Any] = getattr(self._client, botocore.xform_name(operation))(**params)
            return made
        finally:
            self._here.answer = None

    def blueprint(self, operation: str, params: Mapping[str, Any], context: ssl.SSLContext | None) -> Blueprint:
        """Raise UnusualError; and what botocore raises, who checks the parameters at this."""
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


def proxies_of(client: BaseClient) -> Callable[[str], Proxy | None]:
    """Return which proxy leads to an address, for the addresses of one client.

    As botocore decides: those of the client's configuration, else those of the environment unless `NO_PROXY` has the
    client's endpoint; of these the one for the scheme of the address. What it returns raises UnusualError for a proxy
    that only botocore can speak to.
    """
    from botocore.httpsession import ProxyConfiguration
    from botocore.utils import get_environ_proxies

    config: Any = client.meta.config
    proxies = get_environ_proxies(client.meta.endpoint_url) if config.proxies is None else config.proxies
    configured: Any = ProxyConfiguration(proxies, config.proxies_config)

    def proxy_for(url: str) -> Proxy | None:
        proxy_url = configured.proxy_url_for(url)
        if not proxy_url:
            return None
        try:
            address = urlsplit(proxy_url)
            port = address.port or _PORTS["http"]
            authorization = str(configured.proxy_headers_for(proxy_url).get("Proxy-Authorization", ""))
        except ValueError:
            raise UnusualError("a proxy whose address or credentials cannot be read") from None
        if address.scheme != "http" or not address.hostname or address.path not in ("", "/"):
            raise UnusualError("a proxy that is not spoken to in plain HTTP")
        return Proxy(address.hostname, port, authorization)

    return proxy_for


def tls_context(client: BaseClient, ca_bundle: str | None) -> ssl.SSLContext:
    """Trust whom botocore trusts: its own context, which the ssl module's defaults, stricter since 3.13, do not touch.

    `ca_bundle` is the session's. Raises UnusualError for what only botocore honours.
    """
    from botocore.httpsession import create_urllib3_context, get_cert_path

    config: Any = client.meta.config
    if config.client_cert:
        raise UnusualError("a client certificate")
    bundle: Any = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or True
    verify = str(get_cert_path(bundle))
    context: ssl.SSLContext = create_urllib3_context()
    context.check_hostname = True  # which urllib3 does itself, after the handshake
    context.set_alpn_protocols(["http/1.1"])  # as urllib3 says
    try:
        context.load_verify_locations(cafile=verify)
    except OSError as error:
        raise UnusualError(f"the CA bundle {verify}: {error}") from error
    return context
