"""`Requests`: makes the requests of one service: where to, with which head and body, signed with which keys at which
time.

botocore is asked for the blueprint of each operation once, and for the keys every few seconds. Asking may take long, or
wait for new keys, so only threads ask (`asked`); what they were told is good for the loop for a while (`usual`).

`Signer` has AWS Signature Version 4 for POST requests to the path `/`: what every call of AWS's JSON protocol is.
Rules: the AWS General Reference, "Create a signed AWS API request". Only what a server needs is signed: content type,
host, date, session token and target. Bodies have parameters and answers as the SDK has them: times and bytes are its
own, the rest is JSON.

What is asked of botocore is asked through its public events. `Canned` lets a client's call run without a network: the
answer is given to it. With an empty answer one sees the request that botocore would have sent, endpoint, headers and
scope of the signature included (`blueprint`); with the answer to a real request botocore says what it means
(`explain`).
"""

from __future__ import annotations

import hmac
import json
import os
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from mld.aws.service_time import SCOPE, SKEWED_CODES, Scope, ServiceTime
from mld.aws.wire.answers import Answer
from mld.aws.wire.connection import Origin
from mld.aws.wire.proxies import Proxy, proxies_of
from mld.aws.wire.unusual import UnusualError

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from botocore.client import BaseClient
    from botocore.credentials import Credentials


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
DATE = b"date"
"""The header of an answer with the service's time."""


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


# --- requests ---------------------------------------------------------------------------------------------------------


class Keys(Protocol):
    """botocore's frozen credentials."""

    access_key: Any
    secret_key: Any
    token: Any


class Signer:
    """Signs for one scope. Keeps the key of the day, which takes four of the six hashes."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._cached: tuple[tuple[str, str], bytes] = (("", ""), b"")
        self._stamped: tuple[int, str] = (-1, "")

    def headers(self, keys: Keys, at_s: float, *, content_type: str, host: str, target: str, body: bytes) -> str:
        """Return the headers to add, each with its line end; `at_s` is the service's time in epoch seconds."""
        stamp = self._stamp(int(at_s))
        day = stamp[:8]
        token_line = f"x-amz-security-token:{keys.token}\n" if keys.token else ""
        signed = f"content-type;host;x-amz-date;{'x-amz-security-token;' if keys.token else ''}x-amz-target"
        canonical = (
            f"POST\n/\n\ncontent-type:{content_type}\nhost:{host}\nx-amz-date:{stamp}\n{token_line}"
            f"x-amz-target:{target}\n\n{signed}\n{sha256(body).hexdigest()}"
        )
        scope = f"{day}/{self._scope.region}/{self._scope.service}/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key(keys.secret_key, day), to_sign.encode(), "sha256").hex()
        token_header = f"X-Amz-Security-Token: {keys.token}\r\n" if keys.token else ""
        return (
            f"X-Amz-Date: {stamp}\r\n{token_header}Authorization: AWS4-HMAC-SHA256 "
            f"Credential={keys.access_key}/{scope}, SignedHeaders={signed}, Signature={signature}\r\n"
        )

    def _stamp(self, at_s: int) -> str:
        known, stamp = self._stamped  # as below
        if known != at_s:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
            self._stamped = (at_s, stamp)
        return stamp

    def _key(self, secret: str, day: str) -> bytes:
        wanted = (secret, day)
        known, key = self._cached  # one read: threads may replace it meanwhile
        if known == wanted:
            return key
        key = f"AWS4{secret}".encode()
        for part in (day, self._scope.region, self._scope.service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._cached = (wanted, key)
        return key


ENDPOINT_PARAMS = ("StreamARN", "TableName", "ConsumerARN")
"""Parameters that an endpoint may depend on: accounts have their own."""
BLUEPRINTS_MAX = 64
"""A daemon has a handful of operations on a handful of tables."""
KEYS_AGE_MAX_S = 5.0
"""How long the loop signs with the same keys before a thread asks again; providers renew keys minutes early."""
_NEVER = float("-inf")


class Usual(NamedTuple):
    """What a request is made of, besides its body."""

    blueprint: Blueprint
    signer: Signer | None
    keys: Keys | None

    @property
    def origin(self) -> Origin:
        return self.blueprint.origin


class Requests:
    """Used by threads and by the loop."""

    def __init__(
        self, service_time: ServiceTime, canned: Canned, credentials: Credentials | None, context: ssl.SSLContext | None
    ) -> None:
        self._time = service_time
        self._canned = canned
        self._credentials = credentials
        self._context = context
        self._blueprints: dict[tuple[object, ...], tuple[Blueprint, Signer | None]] = {}
        self._keys: tuple[Keys | None, float] = (None, _NEVER)  # and until when they are used without asking
        self.explain = canned.explain

    def usual(self, operation: str, params: Mapping[str, Any]) -> Usual | None:
        """Return the usual request; None if a thread has to ask."""
        keys, until_s = self._keys
        if time.monotonic() > until_s:
            return None
        known = self._blueprints.get(_key(operation, params, keys))
        return None if known is None else Usual(*known, keys)

    def signed(self, usual: Usual, body: bytes) -> bytes:
        """Return a whole request."""
        blueprint, signer, keys = usual
        signature = ""
        if signer is not None and keys is not None:
            signature = signer.headers(
                keys,
                self._time.now(),
                content_type=blueprint.content_type,
                host=blueprint.host,
                target=blueprint.target,
                body=body,
            )
        return f"{blueprint.head}{signature}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    # --- in threads --------------------------------------------------------------------------------------------------

    def asked(self, operation: str, params: Mapping[str, Any]) -> Usual:
        """Ask botocore what a request is made of: anew with every change of the keys, as an endpoint may depend on
        their account. Raises UnusualError, and what botocore raises.
        """
        keys: Any = None if self._credentials is None else self._credentials.get_frozen_credentials()
        wanted = _key(operation, params, keys)
        known = self._blueprints.get(wanted)
        if known is None:
            blueprint = self._canned.blueprint(operation, params, self._context)
            known = blueprint, None if blueprint.scope is None else Signer(blueprint.scope)
            if len(self._blueprints) >= BLUEPRINTS_MAX:
                self._blueprints = {}
            self._blueprints[wanted] = known
        self._keys = (keys, time.monotonic() + KEYS_AGE_MAX_S)
        return Usual(*known, keys)

    def ask_for_keys(self) -> None:
        """Ask for keys before the next request."""
        self._keys = (None, _NEVER)

    def corrected_clock(self, error: Exception, answer: Answer) -> bool:
        """Return whether the error may have been about time, and AWS's time is known now: perhaps since it was sent
        only.
        """
        response: Any = getattr(error, "response", {})
        if response.get("Error", {}).get("Code") not in SKEWED_CODES:
            return False
        return self._time.learn(answer.headers.get(DATE)) or self._time.was_off


def _key(operation: str, params: Mapping[str, Any], keys: Keys | None) -> tuple[object, ...]:
    return (operation, None if keys is None else keys.access_key, *map(params.get, ENDPOINT_PARAMS))


# --- bodies -----------------------------------------------------------------------------------------------------------

_BLOB, _BLOBS = "B", "BS"


def encode_params(params: Mapping[str, Any]) -> bytes:
    """Return the body of a request. A time is rounded down to the millisecond, never up."""
    return _encode(params).encode()


def _plain(value: object) -> object:
    match value:
        case datetime():
            whole = int(value.replace(microsecond=0).timestamp())
            return whole if value.microsecond < 1000 else float(f"{whole}.{value.microsecond // 1000:03d}")
        case bytes() | bytearray():
            return b64encode(value).decode()
        case _:
            raise TypeError(f"{type(value).__name__} is not part of the JSON protocol")


_encode = json.JSONEncoder(default=_plain, separators=(",", ":")).encode


def decode_answer(body: bytes) -> dict[str, Any]:
    """Return an answer; attribute values of DynamoDB have their bytes decoded. Raises ValueError."""
    answer = json.loads(body) if body else {}
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")
    if b'"B"' in body or b'"BS"' in body:
        _restore_bytes(answer)
    return answer


def _restore_bytes(holder: Any) -> None:
    """Replace `{"B": "base64"}` and `{"BS": [...]}` where they stand as attribute values; names are not looked at.

    In place, and without a call for each text or number: one such value must not make a page of 1 MB expensive.
    """
    for place, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if type(value) is dict:
            if len(value) == 1:
                ((kind, content),) = value.items()
                if type(content) is str:
                    if kind == _BLOB:
                        holder[place] = {kind: b64decode(content)}
                    continue
                if kind == _BLOBS and isinstance(content, list) and all(isinstance(item, str) for item in content):
                    holder[place] = {kind: [b64decode(item) for item in content]}
                    continue
            _restore_bytes(value)
        elif type(value) is list:
            _restore_bytes(value)
