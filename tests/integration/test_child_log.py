"""What real children log, on stderr and on stdout, in the log of a real daemon."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.world import MakeWorld, World
from tests.support.daemon import Daemon

CHILD = r"""
import json, sys

def say(stream, line):
    print(line, file=stream, flush=True)

for line in sys.stdin:
    action = json.loads(line)["action"]
    if action == "initialize":
        for stream, name in ((sys.stderr, "stderr"), (sys.stdout, "stdout")):
            entry = {"level": "WARNING", "message": "late on " + name, "order": 7, "shard": "forged"}
            entry["password"] = "pl4nted"
            say(stream, json.dumps(entry))
            say(stream, "plain on " + name)
        say(sys.stdout, json.dumps({"action": "chekpoint"}))
    say(sys.stdout, json.dumps({"action": "status", "responseFor": action}))
"""


def start(make_world: MakeWorld, tmp_path: Path, **keys: object) -> tuple[World, Daemon]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    world = make_world()
    daemon = world.daemon(child=f"{sys.executable} -S -E {script}", **keys)
    daemon.wait_for_event("consumer_started")
    daemon.wait_for_event("child_stderr", message="plain on stderr")
    return world, daemon


def test_json_lines_become_fields_and_plain_ones_stay(make_world: MakeWorld, tmp_path: Path) -> None:
    _, daemon = start(make_world, tmp_path)
    for output in ("stderr", "stdout"):
        event = daemon.wait_for_event(f"child_{output}", message=f"late on {output}")
        assert (event["level"], event["order"], event["shard"]) == ("WARNING", 7, "shardId-000000000000")
        assert (event["child_shard"], event["password"]) == ("forged", "***")
        assert daemon.wait_for_event(f"child_{output}", message=f"plain on {output}")["level"] == "INFO"
    typo = [event for event in daemon.with_action("child_stdout") if "chekpoint" in event["message"]]
    assert [event["message"][:26] for event in typo] == ["unexpected line on stdout:"]
    assert "pl4nted" not in daemon.log()


@pytest.mark.full
def test_in_text_a_line_is_not_wrapped(make_world: MakeWorld, tmp_path: Path) -> None:
    words = "plain on stdout"
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    world = make_world()
    daemon = world.daemon(child=f"{sys.executable} -S -E {script}", process={"arguments": ["--log-format", "text"]})
    world.until(lambda: words in daemon.log(), what="the line")
    (line,) = [one for one in daemon.log().splitlines() if words in one]
    assert f" mld.consumer.processor {words}  action=child_stdout shard=" in line
