"""A cheap DynamoDB for the lease tables: the twin of the tests behind HTTP, in a process of its own.

    python -m tests.benchmarks.path.leases [CERTIFICATE KEY]

It prints its endpoint, answers ``report`` on stdin with the calls so far, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import threading
import zlib
from collections import Counter

from mld.aws.wire.json_bodies import decode_answer, encode_params
from mld.core.clock import LoopClock
from mld.core.errors import AwsError
from mld.local.http import HttpConnection, HttpRequest, HttpResponse
from mld.local.http2 import Http2Connection
from tests.twins.dynamo import MemoryDynamo

CONTENT_TYPE = "application/x-amz-json-1.0"
BACKLOG = 1024
FORGET_EVERY = 10_000  # writes: the twin remembers all of them, for tests


class Tables:
    """The handler of `mld.local.http`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._dynamo = MemoryDynamo(LoopClock())

    async def handle(self, request: HttpRequest, connection: HttpConnection) -> None:
        operation = request.headers.get("x-amz-target", "").rpartition(".")[2]
        self.calls[operation] += 1
        status = 200
        try:
            body = encode_params(await self._dynamo.call(operation, decode_answer(request.body)))
        except AwsError as error:
            status = error.status or 400
            said = {"__type": f"com.amazonaws.dynamodb.v20120810#{error.code}", "message": str(error)}
            body = encode_params(said if not error.item else {**said, "Item": error.item})
        if len(self._dynamo.history) > FORGET_EVERY:
            self._dynamo.history.clear()
            self._dynamo.calls.clear()
        checked = [("x-amz-crc32", str(zlib.crc32(body)))]
        connection.respond(HttpResponse(body, status, CONTENT_TYPE, checked))


async def serve(context: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    tables = Tables()
    server = await loop.create_server(
        lambda: HttpConnection(tables.handle, set(), Http2Connection), "127.0.0.1", 0, ssl=context, backlog=BACKLOG
    )
    scheme = "http" if context is None else "https"
    print(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()

    def listen() -> None:
        for command in sys.stdin:
            if command.strip() == "report":
                print(json.dumps({"calls": dict(tables.calls)}), flush=True)
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=listen, daemon=True).start()
    await ended.wait()


def main() -> None:
    context = None
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
    asyncio.run(serve(context))


if __name__ == "__main__":
    main()
