"""A server that refuses signatures as AWS does: by its own clock, which a test sets, and by checking every one.

It answers each operation of Kinesis and DynamoDB with the document a test gives it (else with an empty one), and STS
with credentials.
"""

from __future__ import annotations

import hmac
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TOLERANCE_S = 300.0
STS_SECRET = "SKSTS"
STS_LIFE_S = 3600.0
_NAMESPACE = "com.amazon.coral.service#"


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that does not trust us is no news."""


class StrictAws:
    """Its clock is `ahead_s` ahead of ours; `secrets` are the keys it knows, by access key."""

    def __init__(
        self,
        *,
        ahead_s: float = 0.0,
        secrets: Mapping[str, str],
        documents: Mapping[str, Any] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.ahead_s = ahead_s
        self.secrets = dict(secrets)
        self.expiries_s: dict[str, float] = {}
        """Of keys that are refused then."""
        self.documents = dict(documents or {})
        self.served: list[str] = []
        self.refused: list[str] = []
        self.keys_used: list[str] = []
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.port = self._server.server_address[1]
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def now(self) -> float:
        return time.time() + self.ahead_s

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        aws = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                target = self.headers.get("X-Amz-Target")
                operation = target.split(".")[-1] if target else dict(urllib.parse.parse_qsl(body.decode()))["Action"]
                refusal = aws._refusal_of(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                if refusal is None:
                    aws.served.append(operation)
                    answer, status = aws._answer_to(operation), 200
                else:
                    aws.refused.append(operation)
                    answer, status = _refused(*refusal, is_json=target is not None)
                self.send_response_only(status)
                self.send_header("Date", formatdate(aws.now(), usegmt=True))
                self.send_header("Content-Type", "application/x-amz-json-1.1" if target else "text/xml")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _answer_to(self, operation: str) -> bytes:
        if operation == "AssumeRole":
            self.secrets[key := f"AKSTS{self.served.count(operation)}"] = STS_SECRET
            return _assumed(key, self.now() + STS_LIFE_S)
        document = self.documents.get(operation, {})
        return document if isinstance(document, bytes) else json.dumps(document).encode()

    def _refusal_of(self, path: str, headers: dict[str, str], body: bytes) -> tuple[str, str] | None:
        """Code and message; None for a good signature."""
        algorithm, _, rest = headers["authorization"].partition(" ")
        fields = dict(field.strip().split("=", 1) for field in rest.split(","))
        key, day, region, service, _ = fields["Credential"].split("/")
        assert algorithm == "AWS4-HMAC-SHA256"
        stamp = headers["x-amz-date"]
        canonical = "\n".join(
            [
                "POST",
                path,
                "",
                *(f"{name}:{headers[name]}" for name in fields["SignedHeaders"].split(";")),
                "",
                fields["SignedHeaders"],
                sha256(body).hexdigest(),
            ]
        )
        scope = f"{day}/{region}/{service}/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        secret = f"AWS4{self.secrets[key]}".encode()
        for part in (day, region, service, "aws4_request"):
            secret = hmac.digest(secret, part.encode(), "sha256")
        code = "SignatureDoesNotMatch" if service == "sts" else "InvalidSignatureException"
        if hmac.digest(secret, to_sign.encode(), "sha256").hex() != fields["Signature"] or not stamp.startswith(day):
            return code, "The request signature we calculated does not match the signature you provided."
        at_s = datetime.strptime(stamp, "%Y%m%dT%H%M%S%z").timestamp()
        if abs(at_s - self.now()) > TOLERANCE_S:
            return code, f"Signature expired: {stamp} is now earlier or later than our time"
        if self.now() >= self.expiries_s.get(key, float("inf")):
            return "ExpiredTokenException", "The security token included in the request is expired"
        self.keys_used.append(key)
        return None


def _refused(code: str, message: str, *, is_json: bool) -> tuple[bytes, int]:
    if is_json:
        return json.dumps({"__type": _NAMESPACE + code, "message": message}).encode(), 400
    error = f"<Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>"
    return f"<ErrorResponse><Error>{error}</Error><RequestId>r</RequestId></ErrorResponse>".encode(), 403


def _assumed(key: str, expiry_s: float) -> bytes:
    expiry = f"{datetime.fromtimestamp(expiry_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return (
        "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
        f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{STS_SECRET}</SecretAccessKey>"
        f"<SessionToken>TOKEN</SessionToken><Expiration>{expiry}</Expiration>"
        "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
    ).encode()
