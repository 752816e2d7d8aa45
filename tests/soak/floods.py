"""`make soak-floods`: a real daemon whose port and control socket are flooded with connections for minutes.

Two processes hold hundreds of connections each, to `mld.http` and to the control socket. They ask for nothing, for half
a request, for much without reading the answer, or for nonsense, and connect again whenever they are ended. Meanwhile
records flow, probes are asked as a supervisor asks them, and an operator runs `mld status`. No three probes in a row
may miss their second, each command has to be answered, no lease may be lost, and each record has to be delivered. Once
the flood ends, the daemon's descriptors have to be as few as before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

from tests.integration.world import World
from tests.soak.shared import Repeated, SoakError, descriptors, resident_bytes
from tests.support.daemon import ROOT, Daemon, until
from tests.support.servers import EmbeddedAws

CONNECTIONS = 500
PEERS = 250
"""Half of the connections to the port come from one address, half from so many others."""
AGAIN_S = 0.05
"""How long an attacker whose connection was ended waits until it connects again."""
DRIP_S = 1.0
LOOK_EVERY_S = 0.5
READ_BYTES = 65536
PROBE_EVERY_S = PROBE_S = 1.0
"""As Kubernetes asks, and how long it waits for the answer."""
MISSED_IN_A_ROW_MAX = 2
"""With one more, a supervisor would restart the daemon or take it out."""
COMMAND_EVERY_S = 10.0
COMMAND_S_MAX = 40.0
PUT_EVERY_S = 0.5
PUTS = 5
REPORT_EVERY_S = 60.0
WARNINGS_PER_MINUTE_MAX = 60
DESCRIPTORS_MORE_MAX = 10
PAGES = ("/livez", "/readyz")
RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: the connection is reset when it is closed."""

HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"
TO_PORT = {
    "nothing": b"",
    "half a head": b"GET /metrics HTTP/1.1\r\nHost: ",
    "requests, no reading": (b"GET /status.json" + HEAD + b"\r\n") * 200,
    "the page, again and again": b"GET /" + HEAD + b"\r\n",
    "a body without end": b"POST /livez" + HEAD + b"Content-Length: 99999999999\r\n\r\n" + b"x" * READ_BYTES,
    "a head without end": b"GET /livez" + HEAD + b"X: " + b"x" * READ_BYTES,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "drops": b"GET /livez" + HEAD + b"\r\n",
    "resets": b"GET /livez" + HEAD,
}
TO_SOCKET = {
    "nothing": b"",
    "half a line": b'{"ask": "sta',
    "lines, no reading": b'{"ask": "status"}\n' * 200,
    "a question": b'{"ask": "status"}\n',
    "a line without end": b"x" * READ_BYTES,
    "deep": b"[" * 4000 + b"\n",
    "no JSON": b"\xff\xfe\x00\n",
    "drops": b'{"ask": "status"}\n',
    "resets": b'{"ask": "status"}\n',
}


# --- the attackers, in a process of their own ------------------------------------------------------------------------


async def attack(target: str, connections: int) -> None:
    """Hold so many connections to a port of loopback or to a socket, until the parent process ends."""
    kinds = itertools.cycle(TO_PORT if target.isdigit() else TO_SOCKET)
    attackers = [
        asyncio.create_task(attacker(target, number, kind))
        for number, kind in zip(range(connections), kinds, strict=False)
    ]
    parent = os.getppid()
    while os.getppid() == parent and not any(one.done() for one in attackers):
        await asyncio.sleep(LOOK_EVERY_S)


async def attacker(target: str, number: int, kind: str) -> None:
    data = (TO_PORT if target.isdigit() else TO_SOCKET)[kind]
    source = "127.0.0.2" if number % 2 else f"127.0.1.{1 + number % PEERS}"
    while True:
        with contextlib.suppress(OSError):
            if target.isdigit():
                reader, writer = await asyncio.open_connection("127.0.0.1", int(target), local_addr=(source, 0))
            else:
                reader, writer = await asyncio.open_unix_connection(target)
            try:
                await one_connection(kind, data, reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(AGAIN_S * random.uniform(0.5, 2.0))


async def one_connection(kind: str, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other side ends it."""
    match kind:
        case "drops":
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(DRIP_S)
        case "resets":
            writer.write(data)
            own: socket.socket = writer.get_extra_info("socket")
            if own.family != socket.AF_UNIX:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            return
        case "requests, no reading" | "lines, no reading":
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that is read has it
            while True:
                writer.write(data)
                await writer.drain()
        case "a body without end" | "a head without end" | "a line without end":
            while not reader.at_eof():
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0)
        case "the page, again and again":
            while not reader.at_eof():
                writer.write(data)
                await reader.read(READ_BYTES)
        case _:
            writer.write(data)
    while await reader.read(READ_BYTES):
        pass


@contextlib.contextmanager
def flood(targets: list[str], connections: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.soak.floods", "--connections", str(connections), "--attack"]
    attackers = [subprocess.Popen([*command, target], cwd=ROOT) for target in targets]
    try:
        yield
        if ended := [one.args for one in attackers if one.poll() is not None]:
            raise SoakError(f"attackers ended: {ended}")
    finally:
        for one in attackers:
            one.kill()
            one.wait()


# --- who needs an answer meanwhile -----------------------------------------------------------------------------------


class Prober(Repeated):
    """Asks one path as a supervisor does. Raises SoakError at the third answer in a row that is missing or not 200."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(f"probe {path}", PROBE_EVERY_S)
        self.took_s: list[float] = []
        self.missed = 0
        self._in_a_row = 0
        self._port = port
        self._path = path

    def once(self) -> None:
        began_s = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PROBE_S)
        try:
            connection.request("GET", self._path, headers={"Host": "localhost"})
            why = "" if (status := connection.getresponse().status) == http.client.OK else f"answer {status}"
        except (OSError, http.client.HTTPException) as error:
            why = repr(error)
        finally:
            connection.close()
        self.took_s.append(time.monotonic() - began_s)
        self.missed += bool(why)
        self._in_a_row = self._in_a_row + 1 if why else 0
        if self._in_a_row > MISSED_IN_A_ROW_MAX:
            raise SoakError(f"{self._in_a_row} in a row are missing, the last one: {why}")


class Operator(Repeated):
    """Runs `mld status`. Raises SoakError if it is refused or not answered."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__("mld status", COMMAND_EVERY_S)
        self.took_s: list[float] = []
        self._daemon = daemon

    def once(self) -> None:
        began_s = time.monotonic()
        command = [sys.executable, "-m", "mld", "status", str(self._daemon.file)]
        environment = self._daemon.environment
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
        )
        self.took_s.append(time.monotonic() - began_s)
        if done.returncode != 0:
            raise SoakError(f"exit code {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")


class Producer(Repeated):
    def __init__(self, world: World) -> None:
        super().__init__("producer", PUT_EVERY_S)
        self._world = world

    def once(self) -> None:
        self._world.put(PUTS)


# --- one run ---------------------------------------------------------------------------------------------------------


def spread(took_s: list[float]) -> str:
    if len(took_s) < 2:
        return "too few"
    shares = quantiles(took_s, n=100)
    return f"median {shares[49] * 1000:.0f} ms, 99 % {shares[98] * 1000:.0f} ms, longest {max(took_s) * 1000:.0f} ms"


def run(minutes: float, connections: int, kind: str) -> dict[str, Any]:
    """Return the figures. Raises SoakError or AssertionError."""
    with tempfile.TemporaryDirectory(prefix="mld-floods-") as directory, EmbeddedAws() as aws:
        world = World(aws, Path(directory), shards=2)
        try:
            return _run_in(world, minutes, connections, kind)
        finally:
            world.close()


def _run_in(world: World, minutes: float, connections: int, kind: str) -> dict[str, Any]:
    place = world.directory / "control"
    place.mkdir(mode=0o700)
    control = str(place / "mld.sock")
    daemon = world.daemon(mld__http="127.0.0.1:0", mld__controlSocket=control)
    port = daemon.wait_for_event("http_serving")["address"].rsplit(":", 1)[1]
    world.until_delivered(world.put(10))
    pid = daemon.process.pid
    before = descriptors(pid)
    began_mb = resident_bytes(pid) / 1e6
    probers = [Prober(int(port), page) for page in PAGES]
    operator, producer = Operator(daemon), Producer(world)
    busy: list[Repeated] = [*probers, operator, producer]
    targets = {"port": [port], "socket": [control], "both": [port, control]}[kind]
    with flood(targets, connections):
        for one in busy:
            one.start()
        most, most_mb = _watch(daemon, busy, minutes)
        for one in busy:
            one.stop()
        world.until_delivered()
    until(lambda: descriptors(pid) <= before + DESCRIPTORS_MORE_MAX, what="the descriptors of the flood are closed")
    loud = Counter(event["action"] for event in daemon.events if event.get("level") in ("WARNING", "ERROR"))
    if loud.total() > WARNINGS_PER_MINUTE_MAX * max(1.0, minutes):
        raise SoakError(f"{loud.total()} warnings in {minutes} minutes: {loud}")
    if lost := daemon.with_action("lease_lost"):
        raise SoakError(f"{len(lost)} leases were lost\n{daemon.tail()}")
    ended_mb = resident_bytes(pid) / 1e6
    if (code := daemon.stop()) != 0:
        raise SoakError(f"the daemon stopped with exit code {code}\n{daemon.tail()}")
    world.check()
    return {
        "minutes": minutes,
        "connections": f"{connections} to each of: {', '.join(targets)}",
        **{f"{one.name}, {len(one.took_s)} times": f"{one.missed} missed; {spread(one.took_s)}" for one in probers},
        f"mld status, {len(operator.took_s)} times": spread(operator.took_s),
        "records": len(world.puts),
        "descriptors before, at most, after": f"{before}, {most}, at most {before + DESCRIPTORS_MORE_MAX}",
        "memory before, at most, after, MB": f"{began_mb:.0f}, {most_mb:.0f}, {ended_mb:.0f}",
        "warnings and errors in the log": dict(loud),
    }


def _watch(daemon: Daemon, busy: list[Repeated], minutes: float) -> tuple[int, float]:
    """Wait for so long, or until something fails; the most descriptors and memory that were seen."""
    pid, most, most_mb = daemon.process.pid, 0, 0.0
    end_s = time.monotonic() + 60 * minutes
    report_s = time.monotonic() + REPORT_EVERY_S
    while (now_s := time.monotonic()) < end_s and not any(one.error for one in busy):
        if daemon.process.poll() is not None:
            raise SoakError(f"the daemon ended by itself\n{daemon.tail()}")
        most, most_mb = max(most, descriptors(pid)), max(most_mb, resident_bytes(pid) / 1e6)
        if now_s > report_s:
            report_s = now_s + REPORT_EVERY_S
            print(f"{(end_s - now_s) / 60:.0f} minutes left; {most} descriptors, {most_mb:.0f} MB at most", flush=True)
        time.sleep(LOOK_EVERY_S)
    return most, most_mb


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak-floods", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="(default: %(default)s)")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="of each flood (default: %(default)s)")
    parser.add_argument("--flood", choices=["port", "socket", "both"], default="both", help="(default: %(default)s)")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack is not None:
        asyncio.run(attack(given.attack, given.connections))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and leave nothing behind
    figures = run(given.minutes, given.connections, given.flood)
    print("\n".join(f"{name}: {figure}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
