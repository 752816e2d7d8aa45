"""Real daemons whose files, environment and proxies hold secrets, in health and in trouble: none of them comes out.

Looked through are standard output and error, in text and JSON at debug level, what `mld check` says, dead letters, and
the command lines of all processes. What a child or a record says itself is theirs, but for what the daemon knows to be
secret; and what a child writes makes no line of the log that is not its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.world import ENVIRONMENT, ONLY_BOTOCORE, MakeWorld, World
from tests.support.daemon import ROOT, Daemon
from tests.support.forward_proxy import ForwardProxy
from tests.support.servers import free_port
from tests.support.tiers import sliced
from tests.unit.properties.planted import found, secret

WITHIN_S = 100.0
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) +[\w.]+ ")
FORGED = "2026-01-31T18:44:23.390Z ERROR   mld.daemon.worker lease table deleted  action=forged"
BREAKS = ("\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029")
CHILD = """\
import json, os, sys
error = open(2, "w", encoding="utf-8", errors="surrogateescape")
error.write("\\n".join([{forged!r}, {foul!r}, "cannot open jdbc:x://u:" + {told!r} + "@db and " + {known!r}, ""]))
error.flush()
for line in sys.stdin:
    message = json.loads(line)
    if message["action"] == "processRecords" and message["records"]:
        raise ValueError({forged!r} + "\\n" + {known!r})
    print(json.dumps({{"action": "status", "responseFor": message["action"]}}), flush=True)
"""


class Planted:
    """Hands out secrets, and looks for them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(5000)
        self.where: dict[str, str] = {}

    def __call__(self, where: str) -> str:
        self.where[where] = secret(next(self._numbers))
        return self.where[where]

    def assert_not_in(self, text: str) -> None:
        out = {where: [line for line in text.splitlines() if found(one, line)][:3] or ["?"]
               for where, one in self.where.items() if found(one, text)}  # fmt: skip
        assert not out


@pytest.fixture
def planted() -> Planted:
    return Planted()


def free_form(planted: Planted) -> dict[str, object]:
    """Keys that change nothing here, and must show nothing either."""
    return {
        "mld__spark__pipeline": "pipeline.py:transform",
        "mld__spark__conf__spark__hadoop__fs__s3a__access__key": planted("conf: access key"),
        "mld__spark__conf__fs__azure__account__key__mine__dfs__core__windows__net": planted("conf: account key"),
        "mld__spark__conf__spark__driver__extraJavaOptions": f"-Xmx1g -Dfoo.auth={planted('-D')}",
        "mld__spark__sink__out__path": f"s3a://AKIA:{planted('user of a path')}@bucket/clicks",
        "mld__spark__sink__out__options__url": f"jdbc:oracle:thin:scott/{planted('user of JDBC')}@db:1521/XE",
        "mld__spark__sink__out__options__header__auth": f"Bearer {planted('bearer')}",
        "mld__spark__sink__out__options__password": "${PLANTED_REFERENCE}",
        "mld__leaseTableTags": f"owner={planted('tag')}",
        "unknown__key": planted("unknown key"),
        "shardPrioritization": planted("key without effect"),
        "AwsCredentialsProviderCloudWatch": "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|"
        f"externalId={planted('external id')}",
    }


def variables(planted: Planted) -> dict[str, str]:
    return {
        **ENVIRONMENT,
        "AWS_SECRET_ACCESS_KEY": planted("secret key"),
        "AWS_SESSION_TOKEN": planted("session token"),
        "PLANTED_REFERENCE": planted("reference"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
    }


def start(world: World, planted: Planted, *, log_format: str, child: str = "", **keys: object) -> Daemon:
    arguments = ["--log-level", "debug", "--log-format", log_format]
    environment = {**variables(planted), **keys.pop("environment", {})}  # type: ignore[dict-item]
    return world.daemon(
        child=child, process={"arguments": arguments, "environment": environment}, **(free_form(planted) | keys)
    )


def checked(daemon: Daemon) -> str:
    """What `mld check` says of its file, as text and as JSON, with everything."""
    outputs = []
    for more in (["--all"], ["-o", "json"]):
        command = [sys.executable, "-m", "mld", "check", str(daemon.file), *more]
        done = subprocess.run(command, cwd=ROOT, env=daemon.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "***" in done.stdout
        assert done.stdout.replace("\n", "").isprintable()
        outputs += [done.stdout, done.stderr]
    return "\n".join(outputs)


def command_lines(daemon: Daemon) -> str:
    found = []
    for pid in {daemon.process.pid, *daemon.survivors()}:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
    return "\n".join(found)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForwardProxy]:
    """Wants a password that nobody has."""
    with ForwardProxy(tmp_path_factory.mktemp("proxy"), user="user:right") as server:
        yield server


@pytest.mark.parametrize("log_format", sliced(["text", "json"], "json"))
def test_a_child_that_fails_and_forges(make_world: MakeWorld, planted: Planted, log_format: str) -> None:
    world = make_world(shards=1)
    letters = world.directory / "letters"
    world.put(3)
    known, told = planted("known to the daemon"), planted("user of a URL of the child")
    script = world.directory / "child.py"
    foul = "".join(f"{line_break}{FORGED}" for line_break in BREAKS) + "\x1b[31m\x9b2J\u202e"
    script.write_text(CHILD.format(forged=FORGED, foul=foul, told=told, known=known))
    daemon = start(
        world,
        planted,
        log_format=log_format,
        child=f"{sys.executable} -S -E {script}",
        mld__spark__conf__my__own=known,
        mld__poisonAttempts=2,
        mld__deadLetter=letters,
    )
    assert daemon.file.read_text().count("pl4nt") >= len(planted.where) - 4
    world.until(lambda: len(list(letters.rglob("*.json"))) == 3, within_s=WITHIN_S, what="three letters")
    world.until(lambda: str(script) in command_lines(daemon), what="the next child")
    lines_of_commands = command_lines(daemon)
    assert daemon.stop(timeout_s=50) == 0
    log = daemon.log()
    assert "lease table deleted" in log and "child_stderr" in log
    planted.assert_not_in(log)
    planted.assert_not_in(lines_of_commands)
    planted.assert_not_in(checked(daemon))
    for letter in map(json.loads, (path.read_text() for path in letters.rglob("*.json"))):
        planted.assert_not_in(json.dumps({name: value for name, value in letter.items() if name != "stderr"}))
    assert_only_our_events(daemon, log_format)


QUOTES = ("child_stderr", "child_last_words")
"""Events that quote what a child has written."""


def assert_only_our_events(daemon: Daemon, log_format: str) -> None:
    lines = daemon.log().split("\n")
    if log_format == "json":
        assert all(line.isascii() and line.isprintable() for line in lines)
        forged = [json.loads(line) for line in lines if "lease table deleted" in line]
        assert forged and all(event["action"] in QUOTES for event in forged)
        return
    for line in lines:
        assert line.splitlines() == [line] and line.isprintable()
        assert STAMP.match(line) or line.startswith("    ")
        assert "lease table deleted" not in line or any(f"action={quote}" in line for quote in QUOTES)


@pytest.mark.parametrize(
    "case",
    sliced(
        [
            ("wrong password", "lean"),
            ("wrong password", "botocore"),
            ("nobody there", "lean"),
            ("nobody there", "botocore"),
            ("no such host", "lean"),
            ("of the environment", "botocore"),
        ],
        ("wrong password", "lean"),
        ("of the environment", "botocore"),
    ),
    ids=" by ".join,
)
def test_a_proxy_that_does_not_help(
    make_world: MakeWorld, planted: Planted, proxy: ForwardProxy, case: tuple[str, str]
) -> None:
    trouble, wire = case
    world = make_world(shards=1)
    address = {"nobody there": f"127.0.0.1:{free_port()}", "no such host": "proxy.invalid:3128"}.get(
        trouble, proxy.address
    )
    url = f"http://user:{planted('password of a proxy')}@{address}"
    keys: dict[str, object] = {}
    environment = dict(ONLY_BOTOCORE) if wire == "botocore" else {}
    if trouble == "of the environment":
        environment |= {"http_proxy": url, "HTTP_PROXY": url, "NO_PROXY": "", "no_proxy": ""}
    else:
        keys |= {"kinesisClient__proxyUrl": url, "dynamoDbClient__proxyUrl": url}
    daemon = start(world, planted, log_format="text", environment=environment, **keys)
    assert daemon.wait(WITHIN_S) == 1
    assert "proxy" in daemon.log()
    planted.assert_not_in(daemon.log())
    assert_only_our_events(daemon, "text")


CREDENTIALS = """\
def broken(*arguments):
    raise RuntimeError(f"cannot log in with {arguments}")

def wrong(*arguments):
    return arguments
"""


@pytest.mark.parametrize("function", sliced(["broken", "wrong", "missing"], "wrong"))
def test_credentials_that_nobody_yields(make_world: MakeWorld, planted: Planted, function: str) -> None:
    world = make_world(shards=1)
    (world.directory / "planted_credentials.py").write_text(CREDENTIALS)
    chain = f"planted_credentials:{function}|{planted('argument')},StaticCredentialsProvider|AKIA|{planted('static')}"
    daemon = start(
        world,
        planted,
        log_format="text",
        AwsCredentialsProvider=chain,
        environment={"PYTHONPATH": str(world.directory)},
    )
    assert daemon.wait(WITHIN_S) == 1
    assert "no credentials provider yields credentials" in daemon.log()
    planted.assert_not_in(daemon.log())
    planted.assert_not_in(checked(daemon))


PIPELINE = """\
import os, sys
print("pipeline is loaded with", {known!r}, file=sys.stderr, flush=True)
def transform(records, batch):
    return records
"""


@pytest.mark.full
def test_a_session_host_that_finds_no_cluster(make_world: MakeWorld, planted: Planted) -> None:
    """`mld-spark` as it runs, up to where a JVM would be started."""
    pytest.importorskip("pyspark")
    world = make_world(shards=1)
    world.put(3)
    known = planted("setting of Spark")
    (world.directory / "pipeline.py").write_text(PIPELINE.format(known=known))
    with tempfile.TemporaryDirectory(prefix="z", dir="/tmp") as short:
        daemon = start(
            world,
            planted,
            log_format="text",
            child="mld-spark",
            mld__spark__pipeline=f"{world.directory}/pipeline.py:transform",
            mld__spark__master=f"spark://u:{planted('user of the master')}@127.0.0.1:{free_port()}",
            mld__spark__spool=world.directory / "spool",
            mld__spark__conf__my__own=known,
            mld__spark__startTimeoutMillis=20_000,  # half of it for dialling; importing PySpark must fit in all of it
            mld__childFailurePolicy="exit",
            environment={"TMPDIR": short},
        )
        world.until(lambda: "child_failed" in daemon.log(), within_s=WITHIN_S, what="the end of the host")
        lines_of_commands = command_lines(daemon)
        said: list[Any] = [path.read_text(errors="replace") for path in Path(short).rglob("*") if path.is_file()]
        daemon.wait(WITHIN_S)
    assert "pipeline is loaded with ***" in daemon.log()
    for text in (daemon.log(), lines_of_commands, checked(daemon), *said):
        planted.assert_not_in(text)
    assert_only_our_events(daemon, "text")
