"""The daemon with an unmodified amazon_kclpy processor as forks of one server, against the embedded AWS."""

from __future__ import annotations

import os
import signal
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.fetch_kclpy import installed
from tests.support.patience import PATIENCE_S

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the fork server needs Linux"),
    pytest.mark.skipif(installed() is None, reason="amazon_kclpy is not fetched"),
]

ROOT = Path(__file__).resolve().parents[2]
PARENT = "shardId-000000000000"
# Says what it is given on standard error, checkpoints every batch.
PROCESSOR = """
    import os
    import sys

    from amazon_kclpy import kcl
    from amazon_kclpy.v3 import processor


    def say(text):
        sys.stderr.write(f"{text} parent={os.getppid()} pid={os.getpid()}\\n")
        sys.stderr.flush()


    class Processor(processor.RecordProcessorBase):
        def initialize(self, initialize_input):
            self.shard = initialize_input.shard_id
            say(f"init {self.shard}")

        def process_records(self, process_records_input):
            for record in process_records_input.records:
                say(f"got {record.sequence_number}")
            process_records_input.checkpointer.checkpoint()

        def lease_lost(self, lease_lost_input):
            say("lost")

        def shard_ended(self, shard_ended_input):
            shard_ended_input.checkpointer.checkpoint()
            say("ended")

        def shutdown_requested(self, shutdown_requested_input):
            say("shutdown")


    if __name__ == "__main__":
        kcl.KCLProcess(Processor()).run()
"""


class Fleet:
    """A world, and one daemon whose children are forks."""

    def __init__(self, world: World, directory: Path, source: str = PROCESSOR) -> None:
        self.world = world
        self.runtime = directory / "r"
        self.runtime.mkdir(mode=0o700)
        self.script = directory / "kid.py"
        self.script.write_text(textwrap.dedent(source))
        path = os.pathsep.join([str(installed()), str(ROOT)])
        environment = {**ENVIRONMENT, "XDG_RUNTIME_DIR": str(self.runtime), "PYTHONPATH": path}
        command = f"{ROOT / 'bin' / 'mld-zygote'} {self.script}"
        self.daemon: Daemon = world.daemon(child=command, process={"environment": environment})

    def said(self, word: str, shard: str | None = None) -> list[list[str]]:
        """The words of each such line on the children's standard error."""
        events = self.daemon.with_action("child_stderr")
        lines = [event["message"].split() for event in events if shard in (None, event["shard"])]
        return [words for words in lines if words[0] == word]

    def until_said(self, word: str, count: int, shard: str | None = None) -> list[list[str]]:
        self.world.until(lambda: len(self.said(word, shard)) >= count, PATIENCE_S, f"{count} x {word}")
        return self.said(word, shard)

    def until_delivered(self) -> None:
        def is_delivered() -> bool:
            return {put.sequence for put in self.world.puts} <= {int(words[1]) for words in self.said("got")}

        self.world.until(is_delivered, PATIENCE_S, "all records delivered")
        self.world.until_caught_up()

    def until_nothing_lives(self) -> None:
        self.world.until(lambda: self.daemon.survivors() == [], PATIENCE_S, "the end of all processes")
        left = [
            path for path in self.runtime.glob("*/*") if path.parent.name != "mld"
        ]  # a killed daemon's socket stays
        assert left == []


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="z") as directory:  # the path of a socket has 107 bytes
        yield Path(directory)


def number(words: list[str], name: str) -> int:
    return next(int(word.removeprefix(f"{name}=")) for word in words if word.startswith(f"{name}="))


def test_kclpy_children_are_forked_through_a_split_a_killed_child_and_a_graceful_stop(
    make_world: MakeWorld, short: Path
) -> None:
    world = make_world(shards=2)
    fleet = Fleet(world, short)
    world.put(40)
    fleet.until_delivered()
    first = fleet.said("init")
    server = number(first[0], "parent")
    assert {number(words, "parent") for words in first} == {server}

    os.kill(number(fleet.said("init", PARENT)[0], "pid"), signal.SIGKILL)
    world.put(40)  # a quiet child's end is noticed when there is something for it
    fleet.daemon.wait_for_event("child_failed", shard=PARENT)
    fleet.until_delivered()

    world.split(PARENT)
    world.put(40)
    fleet.until_delivered()
    fleet.until_said("ended", 1, PARENT)
    assert {number(words, "parent") for words in fleet.said("init")} == {server}
    assert len(fleet.said("init")) == 5
    # Later children are the server's own, without a process that stands for them.
    pids = {event["pid"] for event in fleet.daemon.with_action("child_stderr")}
    assert len(pids & {number(words, "pid") for words in fleet.said("init")}) >= 3

    assert fleet.daemon.stop() == 0
    assert len(fleet.said("shutdown")) == len(fleet.said("lost")) == 3
    fleet.until_nothing_lives()


def test_shards_go_on_when_the_server_is_killed(make_world: MakeWorld, short: Path) -> None:
    world = make_world(shards=2)
    fleet = Fleet(world, short)
    world.put(20)
    fleet.until_delivered()
    server = number(fleet.said("init")[0], "parent")
    os.kill(server, signal.SIGKILL)
    world.put(20)
    fleet.until_delivered()
    assert len(fleet.said("init")) == 2
    for words in fleet.said("init"):
        os.kill(number(words, "pid"), signal.SIGKILL)
    world.put(20)
    again = fleet.until_said("init", 4)[2:]
    assert server not in {number(words, "parent") for words in again}
    fleet.until_delivered()
    assert fleet.daemon.stop() == 0
    fleet.until_nothing_lives()


def test_a_killed_daemon_leaves_nothing_behind(make_world: MakeWorld, short: Path) -> None:
    world = make_world(shards=3)
    fleet = Fleet(world, short)
    fleet.until_said("init", 3)
    fleet.daemon.kill()
    fleet.until_nothing_lives()


def test_a_script_that_starts_threads_while_it_is_imported_has_plain_children(
    make_world: MakeWorld, short: Path
) -> None:
    (short / "hazard.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    world = make_world(shards=2)
    fleet = Fleet(world, short, "import hazard\n" + textwrap.dedent(PROCESSOR))
    world.put(20)
    fleet.until_delivered()
    pids = {event["pid"] for event in fleet.daemon.with_action("child_stderr")}
    assert {number(words, "pid") for words in fleet.said("init")} <= pids
    warnings = fleet.said("mld-zygote:")
    assert len(warnings) == 1 and "threads" in " ".join(warnings[0])
    assert fleet.daemon.stop() == 0
    world.until(lambda: fleet.daemon.survivors() == [], PATIENCE_S, "the end of all processes")


def test_a_changed_script_is_what_the_next_child_runs(make_world: MakeWorld, short: Path) -> None:
    world = make_world(shards=1)
    fleet = Fleet(world, short)
    (first,) = fleet.until_said("init", 1)
    fleet.script.write_text(textwrap.dedent(PROCESSOR).replace('"init ', '"changed '))
    os.kill(number(first, "pid"), signal.SIGKILL)
    world.put(5)
    (second,) = fleet.until_said("changed", 1)
    assert number(first, "parent") != number(second, "parent")
    assert fleet.daemon.stop() == 0
    fleet.until_nothing_lives()
