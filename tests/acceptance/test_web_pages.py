"""A page in a real browser gets nothing from a server of ours and changes nothing in it, wherever the page comes from.

Three pages try it: one of a foreign site, one of another server on this machine, and one whose name has been pointed at
our server after it was loaded (DNS rebinding), which is of the same origin. The same page is let loose on a server
without any protection first, so that a browser which protects it, or a page that does nothing, is noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser, find_browser
from tests.support.servers import ROOT, EmbeddedAws

PAGE = (Path(__file__).with_name("hostile_page.js")).read_text()
FOREIGN, REBOUND = "foreign.test", "rebound.test"
JSON, FORM = {"Content-Type": "application/json"}, {"Content-Type": "application/x-www-form-urlencoded"}
Attempt = dict[str, Any]


def attempt(method: str, path: str, body: str | None = None, **headers: str) -> Attempt:
    return {"method": method, "path": path, "headers": headers, "body": body}


def call(target: str, body: str) -> Attempt:
    """Of AWS: needs a preflight."""
    json_1_0 = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": target}
    signed = (
        "AWS4-HMAC-SHA256 Credential=page/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
    )
    return attempt("POST", "/", body, Authorization=signed, **json_1_0)


TABLE = (
    '{"TableName": "of-a-page", "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}], '
    '"AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}], "BillingMode": "PAY_PER_REQUEST"}'
)
ON_THE_EMBEDDED_AWS = [
    attempt("GET", "/"),
    attempt("GET", "/_mld/health"),
    attempt("GET", "/_mld/log"),
    attempt("GET", "/_mld/clock"),
    attempt("GET", "/_mld/faults"),
    *(
        attempt("POST", f"/_mld/{control}", body, **headers)
        for headers in ({}, JSON)
        for control, body in (
            ("clock", '{"advance_s": 3600}'),
            ("faults", '{"operation": "PutRecord", "code": "OfAPage"}'),
            ("delays", '{"create_s": 3600}'),
            ("enforce", '{"enforce": true}'),
        )
    ),
    attempt("DELETE", "/_mld/faults"),
    attempt("DELETE", "/_mld/log"),
    call("DynamoDB_20120810.ListTables", "{}"),
    call("DynamoDB_20120810.CreateTable", TABLE),
    call("DynamoDB_20120810.DeleteTable", '{"TableName": "mine"}'),
    call("Kinesis_20131202.ListStreams", "{}"),
    call("Kinesis_20131202.CreateStream", '{"StreamName": "of-a-page", "ShardCount": 1}'),
    call("Kinesis_20131202.DeleteStream", '{"StreamName": "mine"}'),
    attempt("POST", "/", "Action=GetCallerIdentity&Version=2011-06-15", **FORM),
    attempt(
        "POST",
        "/",
        "Action=PutMetricData&Version=2010-08-01&Namespace=page&MetricData.member.1.MetricName=m"
        "&MetricData.member.1.Value=1",
        **FORM,
    ),
    attempt("GET", "/moto-api/data.json"),
    attempt("GET", "//moto-api/data.json"),
    attempt("POST", "/moto-api/reset"),
    attempt("POST", "/moto-api/recorder/start-recording"),
    attempt("PUT", "/bucket-of-a-page"),
    attempt("OPTIONS", "/"),
]


@pytest.fixture
def victim() -> Iterator[EmbeddedAws]:
    """The one HTTP server of ours that a page could reach, as users run it, with a stream, a table and a fault."""
    with EmbeddedAws(streams={"mine": 1}) as aws:
        aws.client("dynamodb").create_table(
            TableName="mine",
            KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        aws.inject_faults({"operation": "NeverCalled", "code": "Kept"})
        aws.clear_log()
        yield aws


def state(aws: EmbeddedAws) -> Any:
    """What must be the same afterwards."""
    found = {
        "calls": aws.log(),
        "files": sorted(path.name for path in ROOT.glob("moto*")),
        "clock": aws.control("GET", "clock"),
        "faults": aws.control("GET", "faults"),
        "streams": aws.client("kinesis").list_streams()["StreamNames"],
        "tables": aws.client("dynamodb").list_tables()["TableNames"],
        "metrics": aws.client("cloudwatch").list_metrics()["Metrics"],
    }
    aws.clear_log()  # of what was asked here
    return found


class _Open(BaseHTTPRequestHandler):
    """Keeps nobody out, and remembers who came."""

    protocol_version = "HTTP/1.1"
    server: Unprotected

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.add((self.command, self.path))
        body = b"<!DOCTYPE html><title>t</title><body>a secret</body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "*")
        self.send_header("Access-Control-Allow-Methods", "*")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = _answer


class Unprotected(ThreadingHTTPServer):
    """Serves the attacker's page, and is what the page can do everything to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Open)
        self.seen: set[tuple[str, str]] = set()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def serve_in_background(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(find_browser(), hosts=(FOREIGN, REBOUND)) as running:
        yield running


@pytest.fixture
def attacker() -> Iterator[Unprotected]:
    with Unprotected() as server:
        server.serve_in_background()
        yield server
        server.shutdown()


def test_a_server_without_protection_is_read_and_written_in_every_way(browser: Browser, attacker: Unprotected) -> None:
    with Unprotected() as victim:
        victim.serve_in_background()
        attempts = [
            attempt("GET", "/read-{way}"),
            attempt("POST", "/write-{way}", "{}", **JSON),
            attempt("DELETE", "/delete-{way}"),
        ]
        answers = browser.run(f"http://{FOREIGN}:{attacker.port}/", PAGE, f"http://127.0.0.1:{victim.port}", attempts)
        victim.shutdown()
    reads = {"web-socket", "cors", "xhr", "no-cors", "image", "script", "frame", "event-source"}
    writes = {"cors", "xhr", "no-cors", "form", "beacon"}
    assert victim.seen >= {("GET", f"/read-{way}") for way in reads}
    assert victim.seen >= {("POST", f"/write-{way}") for way in writes}
    assert victim.seen >= {("DELETE", f"/delete-{way}") for way in ("cors", "xhr")}
    read = [answer for answer in answers if answer["outcome"] == "read" and "a secret" in answer["text"]]
    assert len(read) == 6  # cors and xhr, each with three methods


@pytest.mark.parametrize("page", [FOREIGN, "127.0.0.1", REBOUND])
def test_a_page_reads_and_changes_nothing(
    browser: Browser, attacker: Unprotected, victim: EmbeddedAws, page: str
) -> None:
    before = state(victim)
    is_rebound = page == REBOUND
    here = REBOUND if is_rebound else "127.0.0.1"
    # The answer to a rebound page is a refusal too; its origin is what counts.
    opened = f"http://{page}:{victim.port if is_rebound else attacker.port}/"
    answers = browser.run(opened, PAGE, f"http://{here}:{victim.port}", ON_THE_EMBEDDED_AWS)
    assert state(victim) == before
    assert len(answers) > 2 * len(ON_THE_EMBEDDED_AWS)
    got = [answer for answer in answers if answer["outcome"] not in ("failed", "error", "opaque")]
    if is_rebound:  # it may read that it is refused
        assert {answer["outcome"] for answer in got} == {"read"}
        assert all("are not served" in a["text"] or "Host header names" in a["text"] for a in got), got
        assert {answer["status"] for answer in got if "status" in answer} == {403}
    else:
        assert got == []
