"""What a service manager is told when, over a real socket and with times that are given."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mld.daemon.announcements import Announcements, LifePhase
from mld.daemon.signals import HangUp, meaning_of_hang_up
from mld.daemon.systemd import ServiceManager, claim_manager
from mld.metrics.progress import LateLoop

Told = list[str]
KEEPALIVE_S, GRACE_S = 15.0, 25.0
HANGING = [LateLoop("renewals", 42.4), LateLoop("reading shardId-000000000000", 31.0)]


class Listening:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.announcements = Announcements(ServiceManager(str(path), KEEPALIVE_S), GRACE_S)

    def step(self, now: float, phase: LifePhase, text: str = "", late: Sequence[LateLoop] = ()) -> Told:
        """What is told at `now`."""
        self.announcements.step(now, phase, late, text)
        told = []
        while True:
            try:
                told.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return told


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Listening]:
    listening = Listening(tmp_path / "notify")
    yield listening
    listening.socket.close()


def test_a_start_asks_for_time_until_it_is_ready(manager: Listening) -> None:
    assert manager.step(0.0, LifePhase.STARTING, "starting") == [
        "EXTEND_TIMEOUT_USEC=20000000",
        "WATCHDOG=1",
        "STATUS=starting",
    ]
    assert manager.step(1.0, LifePhase.STARTING, "starting") == []
    assert manager.step(5.0, LifePhase.STARTING, "starting") == ["EXTEND_TIMEOUT_USEC=20000000"]
    assert manager.step(5.5, LifePhase.RUNNING, "no shards") == ["READY=1", "STATUS=no shards"]
    assert manager.step(30.0, LifePhase.RUNNING, "no shards") == ["WATCHDOG=1"]


def test_signs_of_life_come_in_their_period_and_a_status_when_it_changes_not_too_often(manager: Listening) -> None:
    manager.step(0.0, LifePhase.RUNNING, "1 shard")
    told = {now: manager.step(now, LifePhase.RUNNING, f"{now:.0f} shards") for now in map(float, range(1, 31))}
    assert [now for now, texts in told.items() if "WATCHDOG=1" in texts] == [15.0, 30.0]
    assert [now for now, texts in told.items() if any("STATUS" in text for text in texts)] == [
        3.0 * i for i in range(1, 11)
    ]
    assert not [texts for texts in told.values() if "READY=1" in texts]


def test_there_is_no_sign_of_life_while_a_loop_hangs_and_the_status_names_it(manager: Listening) -> None:
    manager.step(0.0, LifePhase.RUNNING, "1 shard")
    assert manager.step(20.0, LifePhase.RUNNING, "1 shard", HANGING) == [
        "STATUS=no progress for 42 s: renewals and 1 more"
    ]
    assert manager.step(60.0, LifePhase.RUNNING, "1 shard", HANGING) == []
    assert manager.step(61.0, LifePhase.RUNNING, "1 shard") == ["WATCHDOG=1", "STATUS=1 shard"]


def test_a_stop_asks_for_time_while_it_goes_on_but_not_for_ever(manager: Listening) -> None:
    manager.step(0.0, LifePhase.RUNNING, "1 shard")
    asked = "STOPPING=1\nEXTEND_TIMEOUT_USEC=20000000"
    assert manager.step(1.0, LifePhase.STOPPING, "stopping") == [asked, "STATUS=stopping"]
    told = {now: manager.step(now, LifePhase.STOPPING, "stopping") for now in map(float, range(2, 200))}
    extended = [now for now, texts in told.items() if asked in texts]
    assert extended == [1.0 + 5 * i for i in range(1, 18)]  # the grace and a minute


def test_a_stop_that_makes_no_progress_is_granted_no_more_time(manager: Listening) -> None:
    manager.step(0.0, LifePhase.STOPPING, "stopping")
    assert not [text for text in manager.step(10.0, LifePhase.STOPPING, "stopping", HANGING) if "EXTEND" in text]


def test_supervision_is_taken_from_the_environment_so_that_no_child_answers_for_us() -> None:
    environ = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7", "PATH": "/bin"}
    manager = claim_manager(environ, 7)
    assert manager.is_there
    assert manager.keepalive_s == 15.0
    assert environ == {"PATH": "/bin"}
    assert not claim_manager(environ, 7).is_there


@pytest.mark.parametrize(
    ("is_supervised", "has_terminal", "is_ignored", "expected"),
    [
        pytest.param(True, False, False, HangUp.RELOAD, id="Type=notify"),
        pytest.param(True, True, False, HangUp.RELOAD, id="Type=notify with TTYPath"),
        pytest.param(True, False, True, HangUp.RELOAD, id="Type=notify, ignored before"),
        pytest.param(False, True, False, HangUp.STOP, id="by hand"),
        pytest.param(False, True, True, HangUp.NOTHING, id="nohup"),
        pytest.param(False, False, False, HangUp.RELOAD, id="container, cron"),
        pytest.param(False, False, True, HangUp.NOTHING, id="nohup without a terminal"),
    ],
)
def test_what_sighup_means(is_supervised: bool, has_terminal: bool, is_ignored: bool, expected: HangUp) -> None:
    found = meaning_of_hang_up(is_supervised=is_supervised, has_terminal=has_terminal, is_ignored=is_ignored)
    assert found is expected
