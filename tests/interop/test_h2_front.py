"""The HTTP/2 front: answers larger than the client's windows, streams beside one another, and answers in pieces."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

from tests.support.certificates import write_certificate
from tests.support.h2_front import H2Front

LARGE = b"x" * 1_000_000  # the windows are 65,535 bytes at first


class _Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/cut":
            self.close_connection = True
            return
        self.send_response(200)
        if self.path == "/pieces":
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\nabc\r\n" + b"2\r\nde\r\n" + b"0\r\n\r\n")
            return
        answer = LARGE if self.path == "/large" else body[::-1] + self.headers["x-amz-target"].encode()
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[H2Front]:
    certificate = write_certificate(tmp_path, "127.0.0.1") if request.param else None
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    with H2Front(f"http://127.0.0.1:{server.server_address[1]}", certificate) as front:
        yield front
    server.shutdown()
    server.server_close()
    thread.join()


def _connection(host: str, port: int, *, tls: bool) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=10)
    if not tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    wrapped = context.wrap_socket(connection)
    assert wrapped.selected_alpn_protocol() == "h2"
    return wrapped


def _ask(front: H2Front, *paths: str) -> list[bytes | None]:
    """Answers to requests sent at once on one connection; None for one that was reset."""
    parts = urlsplit(front.endpoint)
    client = H2Connection()
    client.initiate_connection()
    found: dict[int, bytes | None] = {}
    with _connection(str(parts.hostname), int(parts.port or 0), tls=parts.scheme == "https") as sock:
        for number, path in enumerate(paths):
            stream = 1 + 2 * number
            pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", parts.netloc), (":path", path)]
            client.send_headers(stream, [*pseudo, ("x-amz-target", f"T.{number}")])
            client.send_data(stream, b"question", end_stream=True)
            found[stream] = b""
        open_streams = set(found)
        sock.sendall(client.data_to_send())
        while open_streams:
            for event in client.receive_data(sock.recv(65536)):
                match event:
                    case ResponseReceived():
                        assert dict(event.headers)[b":status"] == b"200"
                    case DataReceived():
                        found[event.stream_id] = (found[event.stream_id] or b"") + event.data
                        client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    case StreamEnded():
                        open_streams.discard(event.stream_id)
                    case StreamReset():
                        found[event.stream_id] = None
                        open_streams.discard(event.stream_id)
            sock.sendall(client.data_to_send())
    return list(found.values())


def test_a_request_and_its_answer_pass_unchanged(front: H2Front) -> None:
    assert _ask(front, "/") == [b"noitseuqT.0"]


def test_an_answer_beyond_the_windows_and_others_beside_it(front: H2Front) -> None:
    assert _ask(front, "/large", "/", "/large", "/pieces") == [LARGE, b"noitseuqT.1", LARGE, b"abcde"]


def test_a_lost_answer_resets_its_stream_only(front: H2Front) -> None:
    assert _ask(front, "/cut", "/") == [None, b"noitseuqT.1"]
