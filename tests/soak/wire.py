"""``python -m tests.soak.wire``: the wire client against `tests.soak.server`, call by call. What `make soak` runs.

Every so many calls the server turns well-behaved: then each of fifty reads has to succeed, no place may be left in
use, and each idle one must have an open connection. In the end no thread and no descriptor may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any

import botocore.session
from botocore.config import Config
from botocore.credentials import Credentials

from mld.aws.client import BotoService
from mld.aws.service_time import ServiceTime
from mld.aws.wire.client import WireService
from mld.core.errors import AwsError, AwsUnreachableError, MldError
from tests.soak.shared import SoakError, descriptors, resident_bytes
from tests.support.certificates import write_certificate

CALLERS = 48
CALLS_MAX = 20
THREADS_MAX = 8
CALLS_PER_LEG = 5_000
PROBES = 50
CALL_TIMEOUT_S = 0.5
READ_TIMEOUT_S = 0.75
CONNECT_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 60.0
CANCELLED_SHARE = 0.01
UNREADABLE_SHARE = 0.01
SERVER_S_MAX = 30.0
RSS_GROWTH_MAX_BYTES = 64 * 1024 * 1024
"""From before the client is made, so what it imports counts, too; it was 20 MiB."""
UNREADABLE = (MemoryError, UnicodeError, ValueError, RuntimeError, OSError)


class Soak:
    def __init__(self, service: WireService, rng: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._service = service
        self._rng = rng
        self._left = 0
        self._number = 0

    async def leg(self, calls: int) -> None:
        self._left = calls
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(self._caller())

    async def _caller(self) -> None:
        while self._left > 0:
            self._left -= 1
            self._number += 1
            call = asyncio.create_task(self._call(f"name-{self._number}"))
            if self._rng.random() < CANCELLED_SHARE:
                asyncio.get_running_loop().call_later(self._rng.random() * CALL_TIMEOUT_S / 2, call.cancel)
            try:
                self.counts[await call] += 1
            except asyncio.CancelledError:
                self.counts["cancelled"] += 1

    async def _call(self, name: str) -> str:
        params = {"TableName": "t", "Key": {"leaseKey": {"S": name}}}
        unreadable = self._rng.choice(UNREADABLE) if self._rng.random() < UNREADABLE_SHARE else None

        def read(body: bytes) -> Any:
            if unreadable is not None:
                raise unreadable("unreadable")
            return json.loads(body)

        operation, member = self._rng.choice((("GetItem", "Item"), ("UpdateItem", "Attributes")))
        try:
            if self._rng.random() < 0.5:
                answer = await self._service.call(operation, params, timeout_s=CALL_TIMEOUT_S)
            else:
                answer = await self._service.fetch(operation, params, read, timeout_s=CALL_TIMEOUT_S)
        except AwsError:
            return "refused"
        except AwsUnreachableError:
            return "unanswered"
        except MldError as error:
            raise SoakError(f"{name}: {error!r}") from error
        if answer[member]["leaseKey"]["S"] != name:
            raise SoakError(f"{name} got the answer of {answer[member]}")
        return "answered"

    async def probe(self) -> None:
        """While the server is calm."""
        for number in range(PROBES):
            name = f"probe-{number}"
            params = {"TableName": "t", "Key": {"leaseKey": {"S": name}}}
            try:
                answer = await self._service.call("GetItem", params, timeout_s=PROBE_TIMEOUT_S)
            except MldError as error:
                raise SoakError(f"the client is poisoned: probe {number}: {error}") from error
            if answer["Item"]["leaseKey"]["S"] != name:
                raise SoakError(f"{name} got the answer of {answer}")
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            while self._service._places._busy:  # those whose callers have gone end as their threads notice
                await asyncio.sleep(0.01)
        for place in self._service._places._idle:
            if place.on_loop is None or place.connection is not None or place.on_loop.connection.socket.fileno() < 0:
                raise SoakError("an idle place without an open connection")


class Server:
    """The other process."""

    def __init__(self, seed: int, certificate: tuple[Path, Path] | None) -> None:
        command = [sys.executable, "-m", "tests.soak.server", "--seed", str(seed)]
        command += ["--certificate", *map(str, certificate)] if certificate else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self.port = int(self._out.readline())

    def say(self, word: str) -> None:
        self._in.write(f"{word}\n".encode())
        if self._out.readline().strip() != word.encode():
            raise SoakError("the server is gone")

    def stop(self) -> None:
        self._in.close()
        self._out.close()
        self._process.kill()
        self._process.wait(SERVER_S_MAX)


@contextmanager
def serving(seed: int, *, tls: bool) -> Iterator[tuple[Server, Path | None]]:
    with tempfile.TemporaryDirectory() as directory:
        certificate = write_certificate(Path(directory), "127.0.0.1") if tls else None
        server = Server(seed, certificate)
        try:
            yield server, certificate[0] if certificate else None
        finally:
            server.stop()


def wire_to(server: Server, trusted: Path | None) -> WireService:
    keys = Credentials("AKID", "secret")
    client = botocore.session.Session().create_client(
        "dynamodb",
        region_name="eu-west-1",
        endpoint_url=f"{'https' if trusted else 'http'}://127.0.0.1:{server.port}",
        aws_access_key_id="AKID",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )
    return WireService(
        BotoService(lambda: client, threads_max=1, name="soak"),
        credentials=lambda: keys,
        ca_bundle=lambda: None if trusted is None else str(trusted),
        threads_max=THREADS_MAX,
        calls_max=CALLS_MAX,
        name="soak",
        read_timeout_s=READ_TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        service_time=ServiceTime(),
    )


async def soaked(calls: int, seed: int, server: Server, trusted: Path | None) -> Counter[str]:
    """How the calls ended. Raises SoakError, and whatever left the client that must not."""
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(str(context)))
    gc.collect()
    before, resident = descriptors(), resident_bytes()
    service = wire_to(server, trusted)
    await service.open()
    soak = Soak(service, Random(seed))
    try:
        for start in range(0, calls, CALLS_PER_LEG):
            await soak.leg(min(CALLS_PER_LEG, calls - start))
            await asyncio.to_thread(server.say, "calm")
            await soak.probe()
            await asyncio.to_thread(server.say, "rough")
            if (grown := resident_bytes() - resident) > RSS_GROWTH_MAX_BYTES:
                raise SoakError(f"the process has grown by {grown / 2**20:.0f} MiB after {start + CALLS_PER_LEG} calls")
    finally:
        await service.close()
    del service
    await ended()
    gc.collect()
    if unheard:
        raise SoakError(f"{len(unheard)} exceptions that nobody fetched: {unheard[0]}")
    if (after := descriptors()) > before + 1:  # of the thread that talks to the server
        raise SoakError(f"{after - before} descriptors are left")
    return soak.counts


async def ended() -> None:
    """When the threads of the client have."""
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        while any(thread.name.startswith(("wire-", "aws-")) for thread in threading.enumerate()):
            await asyncio.sleep(0.01)


def run(calls: int, *, seed: int, tls: bool) -> Counter[str]:
    with serving(seed, tls=tls) as (server, trusted):
        return asyncio.run(soaked(calls, seed, server, trusted))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=200_000, help="each way (default: %(default)s)")
    parser.add_argument("--tls", choices=("on", "off", "both"), default="both", help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    arguments = parser.parse_args()
    logging.getLogger("mld").setLevel(logging.CRITICAL)  # answers that cannot be read are part of it
    for tls in {"on": [True], "off": [False], "both": [False, True]}[arguments.tls]:
        began = time.monotonic()
        counts = run(arguments.calls, seed=arguments.seed, tls=tls)
        took_s = time.monotonic() - began
        what = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
        print(f"{'TLS' if tls else 'plain'}: {counts.total():,} calls in {took_s:.0f} s: {what}", flush=True)


if __name__ == "__main__":
    main()
