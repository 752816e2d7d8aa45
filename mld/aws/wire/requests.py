"""`Requests`: makes the requests of one service: where to, with which head and body, signed with which keys at which
time.

botocore is asked for the blueprint of each operation once, and for the keys every few seconds. Asking may take long, or
wait for new keys, so only threads ask (`made`); what they were told is good for the loop for a while (`usual`).

`Signer` has AWS Signature Version 4 for POST requests to the path `/`: what every call of AWS's JSON protocol is.
Rules: the AWS General Reference, "Create a signed AWS API request". Only what a server needs is signed: content type,
host, date, session token and target. Bodies have parameters and answers as the SDK has them: times and bytes are its
own, the rest is JSON.
"""

from __future__ import annotations

import hmac
import json
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mld.aws.servicetime import SKEWED_CODES, Scope, ServiceTime
from mld.aws.wire.answers import Answer
from mld.aws.wire.botocore_side import Blueprint, Canned, UnusualError
from mld.aws.wire.connection import Origin

if TYPE_CHECKING:
    from botocore.credentials import Credentials


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

    def __init__(self, service_time: ServiceTime) -> None:
        self._time = service_time
        self._canned: Canned | None = None
        self._credentials: Credentials | None = None
        self._context: ssl.SSLContext | None = None
        self._blueprints: dict[tuple[object, ...], tuple[Blueprint, Signer | None]] = {}
        self._keys: tuple[Keys | None, float] = (None, _NEVER)  # and until when they are used without asking

    def prepare(self, canned: Canned, credentials: Credentials | None, context: ssl.SSLContext | None) -> None:
        self._canned, self._credentials, self._context = canned, credentials, context

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

    def made(self, operation: str, params: Mapping[str, Any], body: bytes) -> tuple[Origin, bytes]:
        """Return where a request goes, and the whole of it. Raises UnusualError, and what botocore raises."""
        keys: Any = None if self._credentials is None else self._credentials.get_frozen_credentials()
        blueprint, signer = self._blueprint(operation, params, keys)
        self._keys = (keys, time.monotonic() + KEYS_AGE_MAX_S)
        return blueprint.origin, self.signed(Usual(blueprint, signer, keys), body)

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
        date = answer.headers.get(b"date")
        return self._time.learn(None if date is None else date.decode("latin-1")) or self._time.is_measured

    def _blueprint(
        self, operation: str, params: Mapping[str, Any], keys: Keys | None
    ) -> tuple[Blueprint, Signer | None]:
        """Take the blueprint from botocore, anew with every change of the keys, as an endpoint may depend on their
        account.
        """
        wanted = _key(operation, params, keys)
        known = self._blueprints.get(wanted)
        if known is not None:
            return known
        if self._canned is None:
            raise UnusualError("not prepared")
        blueprint = self._canned.blueprint(operation, params, self._context)
        made = blueprint, None if blueprint.scope is None else Signer(blueprint.scope)
        if len(self._blueprints) >= BLUEPRINTS_MAX:
            self._blueprints = {}
        self._blueprints[wanted] = made
        return made


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
