"""Whatever hands out credentials over HTTP: the agents of containers and instances, and STS."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

from tests.support.strict_aws import StrictAws

NAMES = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")


class CredentialsEndpoint:
    """Hands out the keys AK1, AK2 and so on, which `aws` accepts; may go away and come back.

    `requests` are the parameters and the Authorization header of requests to STS, which answers `refusal` if there is
    one.
    """

    def __init__(self, *, life: timedelta = timedelta(minutes=5), aws: StrictAws | None = None) -> None:
        self.requests: list[dict[str, str]] = []
        self.refusal = ""
        self.issued = 0
        self._life = life
        self._aws = aws
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.come()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def come(self) -> None:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if "/availability-zone" in self.path:
                    self._say("sa-east-1a")
                else:
                    self._say("role" if self.path.endswith("/security-credentials/") else endpoint.keys())

            def do_PUT(self) -> None:
                self._say("imds-token")

            def do_POST(self) -> None:
                request = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                endpoint.requests.append(request | {"auth": self.headers.get("Authorization", "")})
                if endpoint.refusal:
                    self._say(endpoint.refusal, status=403)
                    return
                action, keys = request["Action"], json.loads(endpoint.keys())
                fields = "".join(f"<{name}>{keys[name]}</{name}>" for name in NAMES)
                self._say(
                    f"<{action}Response><{action}Result><Credentials>{fields}</Credentials>"
                    f"</{action}Result></{action}Response>"
                )

            def _say(self, text: str, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}).start()

    def go(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def keys(self) -> str:
        self.issued += 1
        key = f"AK{self.issued}"
        expiry = datetime.fromtimestamp(time.time() if self._aws is None else self._aws.now(), UTC) + self._life
        if self._aws is not None:
            self._aws.secrets[key] = "SK"
            self._aws.expiries_s[key] = expiry.timestamp()
        return json.dumps(
            {"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "x", "Version": 1, "AccessKeyId": key,
             "SecretAccessKey": "SK", "Token": "T", "SessionToken": "T", "Expiration": f"{expiry:%Y-%m-%dT%H:%M:%SZ}"}
        )  # fmt: skip
