"""A Kinesis that costs next to nothing: ready-made records, sent straight from a file, by a process of its own.

    python -m tests.benchmarks.path.canned RECORDS BYTES [CERTIFICATE KEY]

Streams need not be created; a stream's name says what is in it (`Stream`). It prints its endpoint, and with
a certificate one without TLS after it; on stdin it takes
commands, one a line: ``open`` (the records are there from now on) and ``report`` (prints what was asked, as JSON). It
ends with its stdin.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from mld.local import event_frames
from tests.benchmarks.path.records import (
    FIRST_MS,
    LAG_MS,
    Records,
    answer_records_max,
    chunk,
    index_of,
    record_text,
    records_event,
)

ACCOUNT = "123456789012"
PIECE_BYTES = 256 * 1024
HEARTBEAT_S = 5.0
LATENESS_MAX = 200_000
GOLDEN = 0.618033988749895  # spreads the shards' phases evenly, however many they are
LIVE_PAYLOAD = "bGl2ZQ=="


@dataclass(frozen=True, slots=True)
class Stream:
    """What a name says: kind, shards, figure.

    * ``backlog-4-1000``: a thousand records in each of four shards, once the gate is open;
    * ``few-4-5``: five new ones at every poll, and the tip is always reached;
    * ``live-4-10``: ten a second in each shard from the first look on; the key of a record is the time it was put.
    """

    name: str
    kind: str
    shards: int
    figure: int

    @classmethod
    def named(cls, name: str) -> Stream:
        kind, shards, figure = name.split("-")
        return cls(name, kind, int(shards), int(figure))

    def phase_s(self, shard: int) -> float:
        return (shard * GOLDEN % 1.0) / self.figure


class Kinesis:
    def __init__(self, records: Records) -> None:
        self.records = records
        self.calls: Counter[str] = Counter()
        self.lateness_us: list[int] = []
        self.opened = threading.Event()
        self.began_at = 0.0
        """When the first records went out."""
        self.sent_bytes = 0
        self._live_since = time.time()
        self._streams: dict[str, Stream] = {}
        self._events_lock = threading.Lock()

    def open(self) -> None:
        self.began_at = 0.0
        self.opened.set()

    def close(self) -> None:
        self.opened.clear()

    def report(self) -> dict[str, Any]:
        late, self.lateness_us = sorted(self.lateness_us), []
        sent, self.sent_bytes = self.sent_bytes, 0
        return {"calls": dict(self.calls), "began_at": self.began_at, "sent_bytes": sent, "lateness_us": late}

    def stream(self, name: str) -> Stream:
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Stream.named(name)
        return found

    def available(self, stream: Stream, shard: int, start: int, now: float) -> int:
        """How many records of the shard there are."""
        match stream.kind:
            case "live":
                return max(0, int((now - self._live_since - stream.phase_s(shard)) * stream.figure))
            case "few":
                count = start + stream.figure
            case _:
                count = stream.figure if self.opened.is_set() else 0
        return min(count, self.records.count)

    def put_at(self, stream: Stream, shard: int, index: int) -> float:
        """When a live record is put: `available` counts it from then on."""
        return self._live_since + stream.phase_s(shard) + (index + 1) / stream.figure

    def live_texts(self, stream: Stream, shard: int, start: int, end: int) -> bytes:
        texts = []
        for index in range(start, end):
            at = self.put_at(stream, shard, index)
            texts.append(record_text(index, LIVE_PAYLOAD, f"{at:.6f}", int(at * 1000)))
        return ",".join(texts).encode()

    def began(self) -> None:
        if not self.began_at:
            self.began_at = time.time()

    def late(self, now: float, at: float) -> None:
        if len(self.lateness_us) < LATENESS_MAX:
            self.lateness_us.append(int((now - at) * 1e6))

    def make_events(self) -> None:
        with self._events_lock:
            self.records.events()

    def small(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Everything but records."""
        match operation:
            case "ListShards":
                stream = self.stream(params["StreamName"])
                return {"Shards": [_shard(stream, number) for number in range(stream.shards)]}
            case "DescribeStreamSummary":
                name = params.get("StreamName") or params["StreamARN"].rpartition("/")[2]
                summary = {
                    "StreamName": name, "StreamARN": _arn(name), "StreamStatus": "ACTIVE",
                    "StreamCreationTimestamp": FIRST_MS // 1000,
                }  # fmt: skip
                return {"StreamDescriptionSummary": summary}
            case "GetShardIterator":
                number = int(params["ShardId"].rpartition("-")[2])
                sequence = params.get("StartingSequenceNumber")
                after = params["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER"
                start = 0 if sequence is None else index_of(sequence) + after
                return {"ShardIterator": f"{params['StreamName']}/{number}/{start}"}
            case "DescribeStreamConsumer" | "RegisterStreamConsumer":
                arn = params.get("ConsumerARN") or f"{params['StreamARN']}/consumer/bench:1"
                consumer = {
                    "ConsumerName": "bench", "ConsumerARN": arn, "ConsumerStatus": "ACTIVE",
                    "ConsumerCreationTimestamp": FIRST_MS // 1000, "StreamARN": arn.partition("/consumer/")[0],
                }  # fmt: skip
                return {"Consumer": consumer, "ConsumerDescription": consumer}
        raise ValueError(operation)


def _arn(name: str) -> str:
    return f"arn:aws:kinesis:us-east-1:{ACCOUNT}:stream/{name}"


def _shard(stream: Stream, number: int) -> dict[str, object]:
    keys = 2**128
    ends = {
        "StartingHashKey": str(number * keys // stream.shards),
        "EndingHashKey": str((number + 1) * keys // stream.shards - 1),
    }
    return {
        "ShardId": f"shardId-{number:012d}",
        "HashKeyRange": ends,
        "SequenceNumberRange": {"StartingSequenceNumber": "1"},
    }


class Handler(socketserver.BaseRequestHandler):
    kinesis: Kinesis
    context: ssl.SSLContext | None = None
    connection: socket.socket

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = (
            self.request if self.context is None else self.context.wrap_socket(self.request, server_side=True)
        )

    def handle(self) -> None:
        with self.connection.makefile("rb", 65536) as reader:
            while reader.readline():
                operation, length = "", 0
                while (header := reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.partition(b":")
                    match name.lower():
                        case b"x-amz-target":
                            operation = value.strip().rpartition(b".")[2].decode()
                        case b"content-length":
                            length = int(value)
                params = json.loads(reader.read(length) or b"{}")
                self.kinesis.calls[operation] += 1
                match operation:
                    case "GetRecords":
                        self._records(params)
                    case "SubscribeToShard":
                        self._subscription(params)
                    case _:
                        body = json.dumps(self.kinesis.small(operation, params)).encode()
                        self.connection.sendall(_head(len(body)) + body)

    # --- polling -----------------------------------------------------------------------------------------------------

    def _records(self, params: dict[str, Any]) -> None:
        kinesis = self.kinesis
        name, number, at = params["ShardIterator"].split("/")
        stream, shard, start = kinesis.stream(name), int(number), int(at)
        there = kinesis.available(stream, shard, start, time.time())
        most = min(answer_records_max(kinesis.records.record_bytes), params.get("Limit") or 10_000)
        end = max(start, min(there, start + most))
        lag_ms = LAG_MS if end < there else 0
        opening = b'{"MillisBehindLatest":%d,"NextShardIterator":"%b/%b/%d","Records":[' % (
            lag_ms, name.encode(), number.encode(), end,
        )  # fmt: skip
        if end == start:
            self.connection.sendall(_head(len(opening) + 2) + opening + b"]}")
        elif stream.kind == "live":
            texts = kinesis.live_texts(stream, shard, start, end)
            self.connection.sendall(_head(len(opening) + len(texts) + 2) + opening + texts + b"]}")
        else:
            self._ready_made(opening, start, end)

    def _ready_made(self, opening: bytes, start: int, end: int) -> None:
        kinesis = self.kinesis
        kinesis.began()
        first, last = kinesis.records.span(start, end)
        head = _head(len(opening) + last - first + 2) + opening
        kinesis.sent_bytes += last - first
        if last - first < PIECE_BYTES // 4 or self.context is not None:
            self._ready_made_copied(head, start, end)
            return
        self.connection.sendall(head, socket.MSG_MORE)
        _send_file(self.connection, kinesis.records.descriptor, first, last)
        self.connection.sendall(b"]}")

    def _ready_made_copied(self, head: bytes, start: int, end: int) -> None:
        text = self.kinesis.records.text(start, end)
        rest = max(0, len(text) - PIECE_BYTES) // PIECE_BYTES * PIECE_BYTES
        if rest:
            self.connection.sendall(head + text[:PIECE_BYTES])
            if rest > PIECE_BYTES:
                self.connection.sendall(text[PIECE_BYTES:rest])
            head, text = b"", text[rest:]
        self.connection.sendall(b"".join((head, text, b"]}")))

    # --- subscriptions -----------------------------------------------------------------------------------------------

    def _subscription(self, params: dict[str, Any]) -> None:
        kinesis = self.kinesis
        stream = kinesis.stream(params["ConsumerARN"].partition("/consumer/")[0].rpartition("/")[2])
        shard = int(params["ShardId"].rpartition("-")[2])
        position = params["StartingPosition"]
        sequence = position.get("SequenceNumber")
        start = 0 if sequence is None else index_of(sequence) + (position["Type"] == "AFTER_SEQUENCE_NUMBER")
        if stream.kind != "live":
            kinesis.make_events()
        self.connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunk(event_frames.initial_response())
        )
        if stream.kind == "live":
            self._live(stream, shard, start)
        while not kinesis.opened.wait(HEARTBEAT_S):
            self._heartbeat(start)
        end = kinesis.available(stream, shard, start, time.time())
        if end > start:
            self._events(start, end)
        while True:
            time.sleep(HEARTBEAT_S)
            self._heartbeat(end)

    def _heartbeat(self, at: int) -> None:
        self.connection.sendall(chunk(records_event(b"", at - 1, 0)))

    def _events(self, start: int, end: int) -> None:
        kinesis = self.kinesis
        kinesis.began()
        events = kinesis.records.events()
        span = events.span(start, end)
        kinesis.sent_bytes += span[1] - span[0]
        if self.context is None:
            _send_file(self.connection, events.descriptor, *span)
            return
        for piece in events.pieces(span, PIECE_BYTES):
            self.connection.sendall(piece)

    def _live(self, stream: Stream, shard: int, start: int) -> None:
        kinesis = self.kinesis
        while True:
            at = kinesis.put_at(stream, shard, start)
            time.sleep(max(0.0, at - time.time()))
            end = max(start + 1, kinesis.available(stream, shard, start, time.time()))
            data = chunk(records_event(kinesis.live_texts(stream, shard, start, end), end - 1, 0))
            self.connection.sendall(data)
            kinesis.late(time.time(), at)
            start = end


class TlsHandler(Handler):
    """Has a context."""


def _send_file(connection: socket.socket, descriptor: int, first: int, last: int) -> None:
    while first < last:
        first += os.sendfile(connection.fileno(), descriptor, first, last - first)


def _head(length: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n" % length


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def obey(kinesis: Kinesis) -> None:
    """Commands on stdin, until its end."""
    for command in sys.stdin:
        match command.strip():
            case "open":
                kinesis.open()
                print("{}", flush=True)
            case "close":
                kinesis.close()
                print("{}", flush=True)
            case "report":
                print(json.dumps(kinesis.report()), flush=True)


def _serve(scheme: str, handler: type[Handler]) -> str:
    """From a thread; the endpoint."""
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"{scheme}://127.0.0.1:{server.server_address[1]}"


def main() -> None:
    kinesis = Handler.kinesis = Kinesis(Records(int(sys.argv[1]), int(sys.argv[2])))
    if len(sys.argv) > 3:
        TlsHandler.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        TlsHandler.context.load_cert_chain(sys.argv[3], sys.argv[4])
        print(_serve("https", TlsHandler), end=" ")
    print(_serve("http", Handler), flush=True)
    obey(kinesis)


if __name__ == "__main__":
    main()
