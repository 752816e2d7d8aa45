"""`Signer`: signs requests of AWS's JSON protocol with AWS Signature Version 4. They are all a POST to the path `/`.

Rules: the AWS General Reference, "Create a signed AWS API request". Only the headers that must be signed are: content
type, host, date, session token and target.
"""

from __future__ import annotations

import hmac
import re
import time
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request,")
"""Finds region and service in an Authorization header."""


class Scope(NamedTuple):
    """The region and the service for which a signature is valid."""

    region: str
    service: str


class Keys(Protocol):
    """botocore's frozen credentials."""

    access_key: Any
    secret_key: Any
    token: Any


class Signer:
    """Signs for one scope. It keeps the signing key of the day, which saves four of the six hashes per request."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._cached: tuple[tuple[str, str], bytes] = (("", ""), b"")  # (secret, day) and the signing key for them
        self._stamped: tuple[int, str] = (-1, "")  # the time that was written last, and its text

    def headers(self, keys: Keys, at_s: float, *, content_type: str, host: str, target: str, body: bytes) -> str:
        """Return the headers to add to a request, each with its line end: the date, the session token if the keys have
        one, and the signature. `at_s` is AWS's time in epoch seconds.

        The names are those of Signature Version 4: `canonical` is the request in canonical form, and the signature is
        an HMAC of the text `to_sign`, which has the hash of that form.
        """
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
        """Return a time as AWS writes it in signatures."""
        known, stamp = self._stamped  # read once, as in `_key`
        if known != at_s:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
            self._stamped = (at_s, stamp)
        return stamp

    def _key(self, secret: str, day: str) -> bytes:
        """Return the signing key for this day."""
        wanted = (secret, day)
        known, key = self._cached  # read once, because another thread may replace it meanwhile
        if known == wanted:
            return key
        key = f"AWS4{secret}".encode()
        for part in (day, self._scope.region, self._scope.service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._cached = (wanted, key)
        return key
