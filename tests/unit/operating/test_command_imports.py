"""No command imports what it does not need, because people, cron and supervisors wait for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mld.core import control_place
from tests.support.patience import PATIENCE_S
from tests.unit.operating.test_daemon_client import listening

CALLED = """
import atexit, gc, os, sys

def note():
    with open(os.environ["MLD_TEST_NOTES"], "w") as file:
        print(gc.isenabled(), gc.get_freeze_count(), *sys.modules, file=file)

atexit.register(note)
from mld.cli import main
main()
"""
EXTRAS = ["boto3", "moto", "flask", "werkzeug", "pyspark", "pandas", "numpy", "pyarrow", "fastavro", "jsonschema"]
NEVER = [*EXTRAS, "prometheus_client", "aiohttp", "uvloop", "ctypes", "multiprocessing", "mld.daemon", "mld.local"]
"""Modules that no command needs that looks."""
DATA_PATH = ["mld.consumer", "mld.retrieval", "mld.schemas", "mld.serving"]
NETWORK = ["asyncio", "ssl", "botocore", "urllib3", "mld.aws"]
TABLES = ["mld.leases", "mld.fleet", "mld.shards", "mld.tracking", "mld.metrics"]
LISTS = [*NEVER, *NETWORK, *DATA_PATH, *TABLES, "rich", "json", "mld.properties", "mld.operating", "mld.check"]
CHECKS = [*NEVER, *NETWORK, *DATA_PATH, *TABLES, "socket", "subprocess", "mld.operating"]
ASKS_A_DAEMON = [*NEVER, *NETWORK, *DATA_PATH, *TABLES, "mld.operating.listings", "mld.operating.plan"]
SCANS = [*NEVER, *DATA_PATH, "mld.protocol", "mld.metrics.shard", "mld.metrics.declaring", "mld.aws.wire.client"]
APPLICATION = "imports-of-commands"
STATUS = {
    "application": APPLICATION,
    "stream": "clicks",
    "worker": "w",
    "pid": 1,
    "version": "1",
    "mode": "3X",
    "isLeader": True,
    "upSeconds": 1.0,
    "behindSeconds": 0.0,
    "isReady": True,
    "isAlive": True,
    "unexpectedErrors": 0,
    "faults": [],
    "shards": [],
    "isMet": True,
    "words": "it is well",
}


class EmptyTable(BaseHTTPRequestHandler):
    """DynamoDB, with empty tables."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        answers: dict[str, Any] = {"Scan": {"Items": [], "Count": 0}, "ListTables": {"TableNames": []}}
        body = json.dumps(answers.get(operation, {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def dynamo() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), EmptyTable)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A short directory, because the path of a unix socket has 107 characters at most."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o700)
        yield Path(directory)


def called(place: Path, dynamo: str, words: str, **environ: str) -> list[str]:
    """Whether garbage is collected when a command ends, how many objects never are, and the modules."""
    file, notes = place / "app.properties", place / "notes.json"
    file.write_text(
        "executableName = true\nstreamName = clicks\nregionName = eu-west-1\n"
        f"applicationName = {APPLICATION}\n"
        f"AwsCredentialsProvider = EnvironmentVariableCredentialsProvider\ndynamoDBEndpoint = {dynamo}\n"
    )
    notes.unlink(missing_ok=True)
    variables = os.environ | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "RUNTIME_DIRECTORY": str(place)}
    variables |= {"MLD_TEST_NOTES": str(notes), **environ}
    answer = json.dumps({"answer": STATUS}).encode() + b"\n"
    control_socket = place / control_place.new_name(APPLICATION)
    with listening(control_socket, answer):
        done = subprocess.run(
            [sys.executable, "-c", CALLED, *words.replace("FILE", str(file)).split()],
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    control_socket.unlink()
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, "it has shown what was asked"
    return notes.read_text().split()


def unneeded(modules: list[str], heavy: list[str]) -> list[str]:
    return [name for name in modules if any(name == one or name.startswith(f"{one}.") for one in heavy)]


COMPLETES = {"_MLD_COMPLETE": "bash_complete", "COMP_WORDS": "mld l", "COMP_CWORD": "1"}


@pytest.mark.parametrize(
    ("words", "heavy", "environ"),
    [
        pytest.param("--version", LISTS, {}),
        pytest.param("--help", LISTS, {}),
        pytest.param("help", LISTS, {}),
        pytest.param("", LISTS, COMPLETES, id="completion"),
        pytest.param("run --help", LISTS, {}),
        pytest.param("check FILE", CHECKS, {}),
        pytest.param("status FILE", ASKS_A_DAEMON, {}),
        pytest.param("status FILE -o json", [*ASKS_A_DAEMON, "rich"], {}),
        pytest.param("status FILE --live", [*ASKS_A_DAEMON, "rich"], {}),
        pytest.param("lag FILE", SCANS, {}),
        pytest.param("leases FILE", SCANS, {}),
        pytest.param("workers FILE", SCANS, {}),
        pytest.param("events FILE", SCANS, {}),
        pytest.param("apps FILE", SCANS, {}),
    ],
)
def test_no_command_imports_what_it_does_not_need(
    place: Path, dynamo: str, words: str, heavy: list[str], environ: dict[str, str]
) -> None:
    assert unneeded(called(place, dynamo, words, **environ)[2:], heavy) == []


def test_nothing_is_collected_at_the_end_of_a_command_but_while_it_runs(place: Path, dynamo: str) -> None:
    collects, frozen, *_ = called(place, dynamo, "lag FILE")
    assert collects == "True"
    assert int(frozen) > 0
