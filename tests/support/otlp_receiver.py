"""A collector of OpenTelemetry: it speaks OTLP over HTTP and remembers what it was sent, decoded by the messages of the
protocol."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

PATH = "/v1/metrics"


@dataclass(frozen=True, slots=True)
class Point:
    """One data point with what it belongs to; `point` is the protocol's message."""

    resource: dict[str, str]
    scope: str
    name: str
    unit: str
    kind: str
    is_delta: bool
    attributes: dict[str, str]
    point: Any


class OtlpReceiver(ThreadingHTTPServer):
    """A context manager; `points` has what came, `headers` those of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.points: list[Point] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.shutdown()
        self.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def named(self, name: str) -> list[Point]:
        return [point for point in list(self.points) if point.name == name]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OtlpReceiver

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
        status = self.server.status if self.path == PATH else 404
        if status == 200:
            self.server.headers.append(dict(self.headers.items()))
            self.server.points += _points(ExportMetricsServiceRequest.FromString(body))
        answer = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def _points(request: ExportMetricsServiceRequest) -> list[Point]:
    found = []
    for resource in request.resource_metrics:
        about = _strings(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = str(metric.WhichOneof("data"))
                data = getattr(metric, kind)
                is_delta = getattr(data, "aggregation_temporality", 0) == 1
                head = (about, scope.scope.name, metric.name, metric.unit, kind, is_delta)
                found += [Point(*head, _strings(one.attributes), one) for one in data.data_points]
    return found


def _strings(attributes: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in attributes}
