"""`exchange`: sends one request on a connection of its own, which is closed after the answer.

It is meant for rare requests: to the metadata service of this host, a webhook, the page of another process here.
Everything happens on the event loop. The size of the answer is bounded here; the caller has to bound the time. A
redirect is not followed, but returned like any other answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import SplitResult, urlunsplit

from mld.aws.wire.answers import Answer, Incoming
from mld.aws.wire.connection import Origin
from mld.aws.wire.proxies import Proxy, ProxyAnswer, tunnel_request

READ_BYTES = 16 * 1024
"""Most bytes that are parsed in one turn of the loop. At worst, if each chunk has one byte, they take 5 ms."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(origin: Origin, address: str) -> Streams:
    """Connect to `address`, the IP address of the origin or, if it has a proxy, of the proxy. Raises OSError.

    The caller has to look the address up. asyncio would do this in a thread that has to end before the process can end.
    """
    proxy, context = origin.proxy, origin.context
    if proxy is None:
        server_name = None if context is None else origin.host
        return await asyncio.open_connection(
            address, origin.port, ssl=context, server_hostname=server_name, limit=READ_BYTES
        )
    reader, writer = await asyncio.open_connection(address, proxy.port, limit=READ_BYTES)
    try:
        if context is not None:
            writer.write(tunnel_request(proxy, origin.host, origin.port))
            answer = ProxyAnswer(proxy)
            while not answer.feed(await reader.read(READ_BYTES)):
                pass
            await writer.start_tls(context, server_hostname=origin.host)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


def request(
    method: str, address: SplitResult, headers: Mapping[str, str], body: bytes = b"", *, through: Proxy | None = None
) -> bytes:
    """Return a whole request for the URL `address`. `through` is the proxy, if the request is sent to one without a
    tunnel; the first line of the request then has the whole URL.

    Raises ValueError for characters that are not allowed in a request, such as line ends.
    """
    target = urlunsplit(("", "", address.path or "/", address.query, ""))
    if through is not None:
        target = f"http://{address.netloc}{target}"
    own = {"Host": address.netloc, "Connection": "close", **({"Content-Length": str(len(body))} if body else {})}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**own, **headers}.items())]
    if through is not None and through.header:
        lines.append(through.header.rstrip())
    if " " in target or not all(line.isascii() and line.isprintable() for line in lines):
        raise ValueError("characters that no request has")
    return "\r\n".join((*lines, "", "")).encode("ascii") + body


async def exchange(
    streams: Streams, asked: bytes, *, body_bytes_max: int | None = None, head_only: bool = False
) -> Answer:
    """Return the answer to the request `asked`, and close the connection. With `head_only` its body is not read.

    Raises OSError, BrokenAnswerError or NothingSentBackError.
    """
    reader, writer = streams
    incoming = Incoming(body_bytes_max)
    answer: Answer | None = None
    try:
        writer.write(asked)
        while answer is None:
            data = await reader.read(READ_BYTES)
            if not data:
                answer = incoming.end()
            elif not head_only:
                answer = incoming.feed(data)
            elif incoming.feed_head(data):
                answer = Answer(incoming.status, incoming.headers, b"")
            await asyncio.sleep(0)  # if more bytes have come already, `read` returns them in the same turn of the loop
        return answer
    finally:
        writer.transport.abort()
