"""Another user of the machine does not reach the control socket, not even through modes that somebody opened.

As root only: the server runs as we do, and he as nobody.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from mld.core import control_place
from mld.core.control_place import ControlPlace
from mld.serving.control import Answer, ControlServer, Request
from mld.serving.control_start import serve_control
from tests.integration.test_other_users import NOBODY, as_nobody
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="becomes another user: as root"
)
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect(sys.argv[1])
        s.sendall(b'{"ask": "who"}\\n')
        print(repr(s.recv(1000)))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Open to all, as a test's own directory is not."""
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp") as directory:
        Path(directory).chmod(0o1777)
        yield Path(directory)


async def who(_: Request) -> AsyncGenerator[Answer, None]:
    yield {"worker": "w1"}


async def asked_by_nobody(path: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *as_nobody(), "-c", ASK, path, stdout=asyncio.subprocess.PIPE, cwd="/"
    )
    async with asyncio.timeout(PATIENCE_S):
        out, _ = await process.communicate()
    return out.decode().strip()


async def test_he_cannot_connect_and_where_the_modes_let_him_he_is_not_answered(place: Path) -> None:
    server = ControlServer({"who": who})
    path = await server.start(ControlPlace(place / "run", "a.sock"), is_named=True)
    try:
        assert await asked_by_nobody(path) == "PermissionError"
        (place / "run").chmod(0o755)
        assert await asked_by_nobody(path) == "PermissionError", "the socket itself is closed, too"
        Path(path).chmod(0o777)
        assert await asked_by_nobody(path) in {"b''", "ConnectionResetError", "BrokenPipeError"}
    finally:
        await server.close()


async def test_he_stops_nobody_by_making_the_directory_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_place, "FALLBACK", str(place))
    squatted = place / f"mld-{os.geteuid()}"
    squatted.mkdir(0o700)
    os.chown(squatted, NOBODY, NOBODY)
    server = ControlServer({"who": who})
    path = await serve_control(server, "clicks", None, {})
    try:
        assert path is not None and not path.startswith(f"{squatted}/")
        assert path in [one.path for one in control_place.sockets_of("clicks", {}, os.geteuid())]
        assert list(squatted.iterdir()) == []
    finally:
        await server.close()


async def test_a_variable_left_from_his_session_does_not_put_the_socket_there(place: Path) -> None:
    his = place / "user"
    his.mkdir(0o700)
    os.chown(his, NOBODY, NOBODY)
    server = ControlServer({"who": who})
    path = await serve_control(server, "clicks", None, {"XDG_RUNTIME_DIR": str(his)})
    try:
        assert path is not None and not path.startswith(f"{his}/")
        assert list(his.iterdir()) == []
    finally:
        await server.close()
