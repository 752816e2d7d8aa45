"""What Amazon's DynamoDB Streams adapter 1.6.1 makes of records, recorded for tests that have no Java.

    python -m tests.interop.adapter.record

Maven resolves the adapter by `pom.xml`, every jar is compared with `jars.sha256`, and a few lines of Java in `src` ask
a server of ours for `records.json` with Amazon's own client. What its adapter gives to a child goes to `data.json`,
beside it. Needs Maven and a JDK 17.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.interop.recording import output_of

HERE = Path(__file__).parent
RECORDS = HERE / "records.json"
DATA = HERE / "data.json"


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"Records": json.loads(RECORDS.read_text())}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def ask_java() -> list[dict[str, object]]:
    """The data of each record as text, with its sequence number and time."""
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        told = output_of(HERE, "DataOfRecords", f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    found = []
    for line in told.splitlines():
        sequence, millis, data = line.split()
        found.append({"sequence": sequence, "millis": int(millis), "data": base64.b64decode(data).decode()})
    return found


if __name__ == "__main__":
    DATA.write_text(json.dumps(ask_java(), indent=1, ensure_ascii=True) + "\n")
    print(DATA)
