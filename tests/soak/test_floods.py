"""What judges the flood of a daemon finds what it has to; the flood itself is `make soak-floods`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.soak.floods import TO_PORT, TO_SOCKET, Prober, attacker, spread
from tests.soak.shared import SoakError
from tests.support.patience import PATIENCE_S
from tests.support.servers import free_port


def test_the_third_probe_in_a_row_that_is_missing_ends_the_run() -> None:
    prober = Prober(free_port(), "/livez")
    prober.once()
    prober.once()
    with pytest.raises(SoakError, match="3 in a row are missing, the last one: ConnectionRefused"):
        prober.once()
    assert (prober.missed, len(prober.took_s)) == (3, 3)


def test_times_are_told_in_milliseconds() -> None:
    assert spread([0.001] * 98 + [0.5, 2.0]) == "median 1 ms, 99 % 1985 ms, longest 2000 ms"


@pytest.mark.parametrize(
    ("at_port", "kind"), [*((True, kind) for kind in TO_PORT), *((False, kind) for kind in TO_SOCKET)]
)
def test_each_attacker_connects_and_comes_again(at_port: bool, kind: str, tmp_path: Path) -> None:
    async def check() -> None:
        came = asyncio.Semaphore(0)

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.release()
            writer.transport.abort()

        port = await asyncio.start_server(serve, "127.0.0.1", 0)
        place = str(tmp_path / "s")
        unix = await asyncio.start_unix_server(serve, place)
        target = str(port.sockets[0].getsockname()[1]) if at_port else place
        attacking = asyncio.create_task(attacker(target, 1, kind))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                await came.acquire()
        attacking.cancel()
        port.close()
        unix.close()

    asyncio.run(check())
