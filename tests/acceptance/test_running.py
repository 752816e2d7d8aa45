"""The daemon as users start it: every spelling of the command, under cron, with shipped and unmodified processors."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.commands import CRON_PATH, MLD, ROOT
from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.fetch_kclpy import LEGACY_VERSION, VERSION, installed
from tests.support.servers import ACCOUNT, require
from tests.support.tiers import sliced

CHILDREN = ROOT / "tests" / "conformance" / "children"
LOGBACK = '<configuration><root level="WARN"/><logger name="mld.daemon.worker" level="INFO"/></configuration>'


def work(world: World, daemon: Daemon) -> None:
    world.put(40)
    world.until_delivered()
    assert daemon.stop() == 0
    world.check()


@pytest.mark.parametrize("words", sliced([("run",), ("run", "-p"), ("-p",), ("--properties-file",)], ("run", "-p")))
def test_every_spelling_of_the_command_runs_the_daemon(make_world: MakeWorld, words: tuple[str, ...]) -> None:
    """Without any word: the tests below."""
    world = make_world(shards=2)
    work(world, world.daemon(process={"command": [str(MLD), *words]}))


def test_a_logback_file_sets_the_levels_and_says_what_it_does_not_do(make_world: MakeWorld, tmp_path: Path) -> None:
    (tmp_path / "logback.xml").write_text(LOGBACK)
    world = make_world()
    daemon = world.daemon(process={"command": [str(MLD), "-l", str(tmp_path / "logback.xml")]})
    work(world, daemon)
    assert {event["logger"] for event in daemon.events if event["level"] == "INFO"} == {"mld.daemon.worker"}
    (warning,) = daemon.with_action("log_configuration")
    assert "--log-format" in warning["message"]


def as_cron(world: World, home: Path) -> dict[str, object]:
    credentials = home / ".aws" / "credentials"
    credentials.parent.mkdir()
    credentials.write_text(f"[default]\naws_access_key_id = {ACCOUNT}\naws_secret_access_key = local\n")
    return {
        "command": [str(MLD)],
        "environment": {"PATH": CRON_PATH, "HOME": str(home)},
        "bare_environment": True,
        "cwd": Path("/"),
    }


def test_the_daemon_runs_under_an_environment_like_cron_s(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(shards=2)
    work(world, world.daemon(process=as_cron(world, tmp_path)))


@pytest.mark.parametrize("closed", sliced(["<&-", "<&- >&-"], "<&- >&-"))
def test_the_daemon_runs_without_standard_input_and_output(make_world: MakeWorld, closed: str) -> None:
    world = make_world(shards=2)
    command = ["/bin/sh", "-c", f'exec "$0" "$@" {closed}', str(MLD)]
    work(world, world.daemon(process={"command": command}))


def test_overrides_win_over_the_file(make_world: MakeWorld) -> None:
    world = make_world()
    command = [str(MLD), "run", "-D", "workerId=another"]
    daemon = world.daemon(process={"command": command}, dynamoDBEndpoint=world.aws.endpoint)
    work(world, daemon)
    assert daemon.wait_for_event("daemon_starting")["worker"] == "another"


def test_text_lines_are_the_default_and_one_line_per_event(make_world: MakeWorld) -> None:
    world = make_world()
    daemon = world.daemon(process={"arguments": ["--log-format", "text"]})
    work(world, daemon)
    stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) +mld\.\S+ ")
    assert daemon.lines
    assert not [line for line in daemon.lines if not stamp.match(line)]


def test_the_shipped_archive_processor_keeps_every_record_once(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(shards=2)
    archive = tmp_path / "archive"
    daemon = world.daemon(child=f"{sys.executable} {ROOT}/processors/archive.py {archive}")
    world.put(100)

    def lines() -> list[dict[str, object]]:
        return [json.loads(line) for file in archive.glob("*.jsonl") for line in file.read_text().splitlines()]

    world.until(lambda: len(lines()) >= 100, what="all records archived")
    world.until_caught_up()
    assert daemon.stop() == 0
    assert sorted(str(line["data"]) for line in lines()) == sorted(put.data for put in world.puts)


# --- amazon_kclpy ----------------------------------------------------------------------------------------------------


@pytest.fixture
def start_kclpy(make_world: MakeWorld) -> Callable[..., tuple[World, Daemon]]:
    def start(command: str, version: str = VERSION, **keys: object) -> tuple[World, Daemon]:
        directory = installed(version)
        require(directory is not None, f"amazon_kclpy {version}")
        world = make_world(shards=2)
        path = os.pathsep.join([str(directory), str(ROOT)])
        environment = {**ENVIRONMENT, "PYTHONPATH": path}
        return world, world.daemon(child=f"{sys.executable} {command}", process={"environment": environment}, **keys)

    return start


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "version", "dialect"),
    [
        (f"{CHILDREN}/echo_v3.py", VERSION, 2),
        (f"{CHILDREN}/kclpy_v1.py", VERSION, 2),
        (f"{CHILDREN}/kclpy_v2.py", VERSION, 2),
        (f"{CHILDREN}/kclpy_1x.py", LEGACY_VERSION, 1),
    ],
    ids=["v3", "v1", "v2", "1.x"],
)
def test_unmodified_kclpy_processors_checkpoint_everything_and_follow_a_split(
    start_kclpy: Callable[..., tuple[World, Daemon]], command: str, version: str, dialect: int
) -> None:
    world, daemon = start_kclpy(command, version, mld__protocolVersion=dialect)
    world.put(100)
    world.until(lambda: len(world.leases()) == 2, what="leases")
    world.until_caught_up()
    world.split("shardId-000000000000")
    world.put(100)
    world.until(lambda: len(world.leases()) == 4, what="the children's leases")
    world.until_caught_up()
    assert world.lease("0").is_complete
    assert daemon.stop() == 0
    assert daemon.with_action("child_failed") == []
