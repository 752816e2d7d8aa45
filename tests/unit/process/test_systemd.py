"""What the service manager is told, over a real socket."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.daemon.systemd import STATUS_CHARACTERS_MAX, ServiceManager, claim_manager, keepalive_s


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[ServiceManager, socket.socket]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        yield claim_manager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 1), manager


def test_each_message_is_one_datagram(listening: tuple[ServiceManager, socket.socket]) -> None:
    ours, manager = listening
    ours.ready()
    ours.status("12 shards,\n340 ms behind")
    ours.alive()
    ours.reloading(1.5)
    ours.stopping(90.0)
    assert [manager.recv(4096).decode() for _ in range(5)] == [
        "READY=1",
        "STATUS=12 shards,\\n340 ms behind",
        "WATCHDOG=1",
        "RELOADING=1\nMONOTONIC_USEC=1500000",
        "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000",
    ]


def test_a_status_is_bounded(listening: tuple[ServiceManager, socket.socket]) -> None:
    ours, manager = listening
    ours.status("x" * 10_000)
    assert len(manager.recv(65536)) == len("STATUS=") + STATUS_CHARACTERS_MAX


def test_an_abstract_name_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(b"")  # the system chooses a name
        manager.settimeout(30)
        name = manager.getsockname()
        claim_manager({"NOTIFY_SOCKET": "@" + name[1:].decode()}, 1).ready()
        assert manager.recv(4096) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}], ids=str)
def test_without_a_manager_nothing_is_told(environ: dict[str, str]) -> None:
    manager = claim_manager(environ, 1)
    assert not manager.is_there
    manager.ready()


def test_a_manager_that_is_gone_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        manager = ServiceManager(str(tmp_path / "gone"))
        for _ in range(3):
            manager.alive()
    assert [getattr(record, "action", None) for record in caplog.records] == ["notify_failed"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"WATCHDOG_USEC": "30000000"}, 15.0, id="half the time"),
        pytest.param({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0, id="for us"),
        pytest.param({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None, id="for another process"),
        pytest.param({}, None, id="no watchdog"),
        pytest.param({"WATCHDOG_USEC": "soon"}, None, id="not a number"),
        pytest.param({"WATCHDOG_USEC": "0"}, None, id="off"),
    ],
)
def test_how_often_a_sign_of_life_is_wanted(environ: dict[str, str], expected: float | None) -> None:
    assert keepalive_s(environ, 7) == expected
