"""`next_request` and `send_answer`: one HTTP request and its answer on a connection, by `h11`, with bounds on sizes and
times.
"""

from __future__ import annotations

import asyncio

import h11

from mld.serving.http_answers import HttpAnswer

HEAD_BYTES_MAX = 16 * 1024
READ_BYTES = 16 * 1024
WRITE_BYTES = 64 * 1024
REQUEST_TIMEOUT_S = 10.0  # for the head of a request to arrive, and for the caller to take each WRITE_BYTES
UNREAD_BYTES_MAX = 1024 * 1024  # how much is read and dropped before a connection is closed; see `lingering_close`
_COMMON = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


async def next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the head of the next request; None if the caller has ended the connection.

    A body is not read. If there is one, the state of `connection` shows that the request has not come to its end.
    """
    found: h11.Request | None = None
    while True:
        match connection.next_event():
            case h11.Request() as request:
                found = request
            case h11.EndOfMessage() | h11.Data():
                return found
            case h11.ConnectionClosed() | h11.PAUSED:
                return found
            case h11.NEED_DATA:
                if found is not None:
                    return found  # what is still to come is the body
                connection.receive_data(await reader.read(READ_BYTES))


async def send_answer(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    answer: HttpAnswer,
    *,
    head_only: bool = False,
    close: bool = False,
) -> None:
    """Send an answer; with `head_only` without its body. `close`: announce that the connection ends."""
    body = (answer.body,) if isinstance(answer.body, bytes) else answer.body
    headers = _COMMON | {
        "content-type": answer.content_type,
        "content-length": str(sum(map(len, body))),
        **answer.headers,
        **({"connection": "close"} if close else {}),
    }
    await _write(writer, connection.send(h11.Response(status_code=answer.status, headers=list(headers.items()))))
    if not head_only:
        for piece in body:
            await _write(writer, connection.send(h11.Data(data=piece)))
    await _write(writer, connection.send(h11.EndOfMessage()))


async def _write(writer: asyncio.StreamWriter, data: bytes | None) -> None:
    """Write an answer in pieces. Raises TimeoutError if the client takes a piece too slowly."""
    left = memoryview(data or b"")
    for start in range(0, len(left), WRITE_BYTES):
        writer.write(left[start : start + WRITE_BYTES])
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await writer.drain()


async def lingering_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End our side of the connection, then read and drop what the caller still sends.

    If a connection is closed while data is unread, the caller may lose the end of the answer.
    """
    writer.write_eof()
    for _ in range(0, UNREAD_BYTES_MAX, READ_BYTES):
        if not await reader.read(READ_BYTES):
            return
