"""One request on a connection of its own: what the answer costs the event loop."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

from mld.aws.wire.single_exchange import READ_BYTES, exchange


async def test_the_loop_turns_between_the_pieces_of_an_answer_that_has_come_already() -> None:
    pieces = 10
    reader = asyncio.StreamReader()
    reader.feed_data(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (pieces * READ_BYTES // 6)
    )
    reader.feed_data(b"0\r\n\r\n")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    writer: Any = Mock()
    assert (await exchange((reader, writer), b"")).status == 200
    counting.cancel()
    assert turns >= pieces
    writer.transport.abort.assert_called_once()
