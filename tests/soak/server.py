"""A server that answers well, mostly, and else in every way in which a network fails. A process of its own.

It prints its port. On a line ``calm`` it answers well until the next line ``rough``, and says the word once it does.
An answer carries the name that its request asked for, so that one can see whose answer it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import ssl
import sys
import zlib
from random import Random

SLOW_S = 0.02
LARGE_BYTES_MAX = 60_000
REFUSAL_S = 0.01
CONNECTIONS_PER_REFUSAL = 400
"""After so many nobody listens for `REFUSAL_S`."""
REQUESTS_PER_SILENCE = 8_000
"""After so many every connection there is falls silent; new ones work."""
WAYS = {
    "good": 620,
    "large": 60,
    "chunked": 40,
    "pieces": 60,
    "slow": 40,
    "good, then closed": 40,
    "good, then reset": 10,
    "closing": 20,
    "refused": 50,
    "failed": 10,
    "closed": 15,
    "reset": 15,
    "truncated": 15,
    "reset in the middle": 10,
    "more than asked for": 5,
    "nonsense": 5,
    "wrong checksum": 5,
    "stalled": 4,
    "stalled in the middle": 3,
    "trickling": 3,
}
HEAD = "HTTP/1.1 {} X\r\nContent-Type: application/x-amz-json-1.0\r\n"


class Rough:
    def __init__(self, rng: Random, context: ssl.SSLContext | None) -> None:
        self._rng = rng
        self._context = context
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._connections = self._requests = 0
        self._listening = asyncio.Event()
        self.is_calm = False
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        self._listening.set()

    async def calm(self) -> None:
        self.is_calm = True
        await self._listening.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        if self._connections % CONNECTIONS_PER_REFUSAL == 0 and not self.is_calm and self._listening.is_set():
            await self._refuse_for_a_moment()
        self._open.add(writer)
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            self._silent.discard(writer)
            writer.close()

    async def _refuse_for_a_moment(self) -> None:
        assert self._server is not None
        self._listening.clear()
        self._server.close()
        await asyncio.sleep(REFUSAL_S)
        await self.listen()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        request = json.loads(await reader.readexactly(length))
        self._requests += 1
        if self._requests % REQUESTS_PER_SILENCE == 0 and not self.is_calm:
            self._silent |= self._open
        if writer in self._silent:
            await reader.read()
            return False
        name = request["Key"]["leaseKey"]["S"]
        way = "good" if self.is_calm else self._rng.choices(list(WAYS), list(WAYS.values()))[0]
        return await self._go(way, name, reader, writer)

    async def _go(self, way: str, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        size = self._rng.randrange(LARGE_BYTES_MAX) if way in ("large", "pieces", "truncated") else 0
        body = document(name, size)
        crc = f"x-amz-crc32: {zlib.crc32(body) ^ (way == 'wrong checksum')}\r\n"
        whole = (HEAD.format(200) + crc + f"Content-Length: {len(body)}\r\n\r\n").encode() + body
        cut = self._rng.randrange(1, len(whole))
        match way:
            case "slow":
                await asyncio.sleep(self._rng.random() * SLOW_S)
                writer.write(whole)
            case "chunked":
                middle = len(body) // 2
                writer.write((HEAD.format(200) + crc + "Transfer-Encoding: chunked\r\n\r\n").encode())
                writer.write(
                    b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (middle, body[:middle], len(body) - middle, body[middle:])
                )
            case "pieces":
                writer.write(whole[:cut])
                await asyncio.sleep(0.001)
                writer.write(whole[cut:])
            case "closing":
                writer.write(whole.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                return False
            case "refused":
                writer.write(refusal("ProvisionedThroughputExceededException", 400))
            case "failed":
                writer.write(refusal("InternalServerError", 500))
            case "good, then closed":
                writer.write(whole)
                return False
            case "good, then reset":
                writer.write(whole)
                await writer.drain()
                abort(writer)
                return False
            case "closed":
                return False
            case "reset":
                abort(writer)
                return False
            case "truncated":
                writer.write(whole[:cut])
                return False
            case "reset in the middle":
                writer.write(whole[:cut])
                await writer.drain()
                abort(writer)
                return False
            case "more than asked for":
                writer.write(whole + b"HTTP/1.1 200 OK\r\n")
            case "nonsense":
                writer.write(self._rng.randbytes(50) + b"\r\n\r\n")
            case "stalled":
                await reader.read()
                return False
            case "stalled in the middle":
                writer.write(whole[:cut])
                await reader.read()
                return False
            case "trickling":
                for byte in whole:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.005)
            case _:
                writer.write(whole)
        await writer.drain()
        return True


def document(name: str, size: int) -> bytes:
    row = {"leaseKey": {"S": name}, "filler": {"S": "x" * size}}
    return json.dumps({"Item": row, "Attributes": row}).encode()


def refusal(code: str, status: int) -> bytes:
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "no"}).encode()
    return (HEAD.format(status) + f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def abort(writer: asyncio.StreamWriter) -> None:
    """A reset, where a close would end in good order."""
    plain = writer.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()


async def serve(seed: int, certificate: list[str]) -> None:
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # broken connections are what this is about
    rough = Rough(Random(seed), context)
    await rough.listen()
    print(rough.port, flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).strip():
        if line == b"calm":
            await rough.calm()
        else:
            rough.is_calm = False
        print(line.decode(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--certificate", nargs=2, default=[])
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.seed, arguments.certificate))
