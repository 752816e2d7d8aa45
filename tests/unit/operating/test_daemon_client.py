"""Commands find the daemon that is meant, and say in a sentence why they do not."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mld.core import control_place
from mld.core.control_place import ControlPlace
from mld.operating.daemon_link import DaemonLink, DaemonRefusedError, NotReachedError, WantedDaemon, find_daemon
from mld.serving.control import Answer, ControlServer, Request
from tests.support.patience import PATIENCE_S

APPLICATION = "clicks-of-a-test"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: the path of a unix socket has 107 characters at most."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    tmp_path.chmod(0o700)
    return {"RUNTIME_DIRECTORY": str(tmp_path)}


@contextmanager
def listening(path: Path, answer: bytes | None) -> Iterator[None]:
    """A server that sends `answer` for each line it gets; None: it never does."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(8)
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            held.append(connection)
            if answer is not None and connection.recv(4096):
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(PATIENCE_S)
        for connection in held:
            connection.close()


def daemon(directory: Path, worker: str, pid: int, application: str = APPLICATION) -> Any:
    words = f'{{"answer":{{"application":"{application}","worker":"{worker}","pid":{pid}}}}}\n'
    return listening(directory / control_place.new_name(application), words.encode())


def wanted(**more: Any) -> WantedDaemon:
    fields: dict[str, Any] = {"application": APPLICATION, "setting": None, "pid": None, "worker": None}
    return WantedDaemon(**{**fields, **more}, timeout_s=PATIENCE_S)


def test_the_only_daemon_of_the_application_is_found(tmp_path: Path, environ: dict[str, str]) -> None:
    with daemon(tmp_path, "w1", 11), daemon(tmp_path, "other", 12, "another application"):
        assert find_daemon(wanted(), environ).ask("who")["pid"] == 11


def test_a_dead_daemon_s_socket_is_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / control_place.new_name(APPLICATION)))
    with daemon(tmp_path, "w1", 11):
        assert find_daemon(wanted(), environ).ask("who")["pid"] == 11


def test_of_several_one_is_chosen_by_pid_or_worker(tmp_path: Path, environ: dict[str, str]) -> None:
    with daemon(tmp_path, "w1", 11), daemon(tmp_path, "w2", 12):
        assert find_daemon(wanted(pid=12), environ).ask("who")["worker"] == "w2"
        assert find_daemon(wanted(worker="w1"), environ).ask("who")["pid"] == 11
        with pytest.raises(NotReachedError, match=r"choose one of 2 daemons by --pid or --worker: .*pid 1[12] .*w"):
            find_daemon(wanted(), environ)
        with pytest.raises(NotReachedError, match=r"no daemon with pid 13 answers here; there are: pid"):
            find_daemon(wanted(pid=13), environ)


def test_without_a_daemon_the_sentence_names_the_application(environ: dict[str, str]) -> None:
    with pytest.raises(NotReachedError, match=f"no daemon of application {APPLICATION} answers"):
        find_daemon(wanted(), environ)


def test_a_chosen_path_is_the_only_place(tmp_path: Path, environ: dict[str, str]) -> None:
    with daemon(tmp_path, "w1", 11), listening(tmp_path / "mine", b'{"answer":{"pid":99}}\n'):
        assert find_daemon(wanted(setting=str(tmp_path / "mine")), environ).ask("who") == {"pid": 99}
    with pytest.raises(NotReachedError, match=r"no daemon listens at .*/mine"):
        find_daemon(wanted(setting=str(tmp_path / "mine")), environ).ask("who")


def test_off_is_said(environ: dict[str, str]) -> None:
    with pytest.raises(NotReachedError, match=r"mld\.controlSocket is off"):
        find_daemon(wanted(setting="off"), environ)


def link_to(tmp_path: Path, timeout_s: float = PATIENCE_S) -> DaemonLink:
    tmp_path.chmod(0o700)
    return DaemonLink(ControlPlace(tmp_path, "a.sock"), timeout_s)


def test_a_daemon_that_hangs_is_named_within_the_time(tmp_path: Path) -> None:
    with (
        listening(tmp_path / "a.sock", None),
        pytest.raises(NotReachedError, match=r"does not answer within 0.2 s: its event loop hangs"),
    ):
        link_to(tmp_path, 0.2).ask("live")


@contextmanager
def full(directory: Path) -> Iterator[socket.socket]:
    """A server whose queue of connections is full."""
    directory.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(directory / "a.sock"))
        server.listen(0)
        first.connect(str(directory / "a.sock"))
        first.close()
        yield server


def test_a_daemon_that_accepts_nothing_is_named_within_the_time(tmp_path: Path) -> None:
    with full(tmp_path), pytest.raises(NotReachedError, match=r"accepted no connection for 0\.01 s"):
        DaemonLink(ControlPlace(tmp_path, "a.sock"), 0.01).ask("status")


def test_a_command_waits_for_its_turn_among_many_callers(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    with full(tmp_path) as server:
        link = DaemonLink(ControlPlace(tmp_path, "a.sock"), PATIENCE_S)
        asking = threading.Thread(target=lambda: answers.append(link.ask("status")))
        asking.start()
        server.accept()[0].close()
        with server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b'{"answer": {"turn": 2}}\n')
        asking.join(PATIENCE_S)
    assert answers == [{"turn": 2}]


def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    with (
        listening(tmp_path / "a.sock", b'{"error":"no such shard"}\n'),
        pytest.raises(DaemonRefusedError, match="no such shard"),
    ):
        link_to(tmp_path).ask("tap")


@pytest.mark.parametrize(
    "answer", [b"\n", b"hello\n", b"[]\n", b"[" * 100_000 + b"\n", b'{"answer":1}\n', b"\xff\n", b"x"]
)
def test_what_is_no_answer_is_no_daemon(tmp_path: Path, answer: bytes) -> None:
    with listening(tmp_path / "a.sock", answer), pytest.raises(NotReachedError, match="gave no answer"):
        link_to(tmp_path).ask("live")


def test_lines_after_the_answer_are_followed_to_the_end(tmp_path: Path) -> None:
    with listening(tmp_path / "a.sock", b'{"answer":{"a":1}}\n{"b":2}\n{"b":3}\n'):
        assert list(link_to(tmp_path).follow("tap")) == [{"a": 1}, {"b": 2}, {"b": 3}]


def test_a_socket_in_an_open_directory_is_not_trusted(tmp_path: Path) -> None:
    with listening(tmp_path / "a.sock", b'{"answer":{}}\n'):
        link = link_to(tmp_path)
        tmp_path.chmod(0o755)
        with pytest.raises(NotReachedError, match="open to other users"):
            link.ask("live")


def test_a_long_path_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir(0o700)
    here = Path.cwd()
    os.chdir(deep)
    try:
        with listening(Path("a.sock"), b'{"answer":{"a":1}}\n'):
            assert DaemonLink(ControlPlace(deep, "a.sock"), PATIENCE_S).ask("who") == {"a": 1}
    finally:
        os.chdir(here)


def test_a_probe_fails_while_the_loop_of_the_daemon_is_blocked(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = ControlPlace(tmp_path, "a.sock")
    ready, blocked, over, asked = (threading.Event() for _ in range(4))

    async def live(_: Request) -> AsyncGenerator[Answer, None]:
        yield {"isMet": True}

    async def serve() -> None:
        server = ControlServer({"live": live})
        await server.start(place, is_named=True)
        ready.set()
        await asyncio.to_thread(blocked.wait)
        over.wait(PATIENCE_S)  # on the loop: nothing else runs
        await asyncio.to_thread(asked.wait, PATIENCE_S)
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        assert DaemonLink(place, PATIENCE_S).ask("live") == {"isMet": True}
        blocked.set()
        with pytest.raises(NotReachedError, match=r"its event loop hangs"):
            while True:
                DaemonLink(place, 0.2).ask("live")
        over.set()
        assert DaemonLink(place, PATIENCE_S).ask("live") == {"isMet": True}, "it has recovered"
    finally:
        blocked.set()
        over.set()
        asked.set()
        thread.join(PATIENCE_S)
