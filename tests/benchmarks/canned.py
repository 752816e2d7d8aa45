"""A Kinesis that costs next to nothing: ready-made pages from a process of its own.

    python -m tests.benchmarks.canned SHARDS PAGES RECORDS BYTES

Every shard has the same pages, of RECORDS records of BYTES random bytes; then it is at the tip. It prints its endpoint,
and counts calls: ``GET /calls``. Written as Kinesis writes: payload first, times as 1.763661600123E9.
"""

from __future__ import annotations

import base64
import json
import os
import socketserver
import sys
import threading
from collections import Counter

PAGE = b"@@@@@@@@@@"  # stands for the number of the page in the template, inside each sequence number
SEQUENCE_HEAD = "4959033827149025660855969253836157109"
FIRST_MS = 1_763_661_600_123
LAG_MS = 3_600_000


def template(records: int, size: int) -> bytes:
    """A page, but for its number."""
    items = []
    for number in range(records):
        digits = str(FIRST_MS + number).rstrip("0")
        items.append(
            f'{{"Data":"{base64.b64encode(os.urandom(size)).decode()}","PartitionKey":"key-{number:08d}",'
            f'"ApproximateArrivalTimestamp":{digits[0]}.{digits[1:]}E9,'
            f'"SequenceNumber":"{SEQUENCE_HEAD}{PAGE.decode()}{number:09d}"}}'
        )
    return ",".join(items).encode()


class Kinesis:
    def __init__(self, shards: int, pages: int, records: int, size: int) -> None:
        self.shards = shards
        self.pages = pages
        self.calls: Counter[str] = Counter()
        self._template = template(records, size) if pages else b""

    def answer(self, operation: str, params: dict[str, str]) -> bytes:
        self.calls[operation] += 1
        match operation:
            case "ListShards":
                return json.dumps({"Shards": [self._shard(number) for number in range(self.shards)]}).encode()
            case "DescribeStreamSummary":
                name = params["StreamName"]
                arn = f"arn:aws:kinesis:us-east-1:123456789012:stream/{name}"
                summary = {"StreamName": name, "StreamARN": arn, "StreamStatus": "ACTIVE"}
                return json.dumps({"StreamDescriptionSummary": summary}).encode()
            case "GetShardIterator":
                return json.dumps({"ShardIterator": f"{params['ShardId']}/0"}).encode()
            case "GetRecords":
                shard, _, page = params["ShardIterator"].partition("/")
                return self._page(shard, int(page))
        raise ValueError(operation)

    def _page(self, shard: str, page: int) -> bytes:
        if page >= self.pages:
            return b'{"MillisBehindLatest":0,"NextShardIterator":"%b/%d","Records":[]}' % (shard.encode(), page)
        lag_ms = LAG_MS if page + 1 < self.pages else 0
        head = b'{"MillisBehindLatest":%d,"NextShardIterator":"%b/%d","Records":[' % (lag_ms, shard.encode(), page + 1)
        return head + self._template.replace(PAGE, b"%010d" % page) + b"]}"

    def _shard(self, number: int) -> dict[str, object]:
        keys = 2**128
        ends = {
            "StartingHashKey": str(number * keys // self.shards),
            "EndingHashKey": str((number + 1) * keys // self.shards - 1),
        }
        return {
            "ShardId": f"shardId-{number:012d}",
            "HashKeyRange": ends,
            "SequenceNumberRange": {"StartingSequenceNumber": "1"},
        }


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    rbufsize = 65536
    kinesis: Kinesis

    def handle(self) -> None:
        while line := self.rfile.readline():
            operation = ""
            length = 0
            while (header := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                if name.lower() == b"x-amz-target":
                    operation = value.strip().rpartition(b".")[2].decode()
                elif name.lower() == b"content-length":
                    length = int(value)
            params = json.loads(self.rfile.read(length) or b"{}")
            if line.startswith(b"GET /calls"):
                body = json.dumps(self.kinesis.calls).encode()
            else:
                body = self.kinesis.answer(operation, params)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n"
            self.connection.sendall(head % len(body))
            self.connection.sendall(body)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""


def main() -> None:
    Handler.kinesis = Kinesis(*map(int, sys.argv[1:5]))
    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until whoever started it is gone


if __name__ == "__main__":
    main()
