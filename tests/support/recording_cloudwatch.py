"""A CloudWatch that takes PutMetricData in every protocol of the SDKs, and remembers the requests.

boto3 sends JSON or CBOR, the SDK for Java CBOR or forms, by version; both may compress. `refuse` makes it answer with
errors. Not for anything but tests: nothing is verified, nothing is stored.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl

import cbor2

OPERATION = "PutMetricData"
_MEMBER = re.compile(r"MetricData\.member\.(?P<datum>\d+)\.(?P<rest>.+)")
_DIMENSION = re.compile(r"Dimensions\.member\.(?P<number>\d+)\.(?P<part>Name|Value)")
_SIGNER = re.compile(r"Credential=([^/]+)/")
FORM_ANSWER = (
    '<PutMetricDataResponse xmlns="http://monitoring.amazonaws.com/doc/2010-08-01/">'
    "<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></PutMetricDataResponse>"
)
FORM_ERROR = (
    '<ErrorResponse xmlns="http://monitoring.amazonaws.com/doc/2010-08-01/"><Error><Type>Sender</Type>'
    "<Code>{code}</Code><Message>refused</Message></Error><RequestId>r</RequestId></ErrorResponse>"
)


@dataclass(frozen=True, slots=True)
class SentDatum:
    """One datum as it came; `values` has SampleCount, Sum, Minimum and Maximum, `stamp_s` is its time if it has one."""

    name: str
    unit: str
    dimensions: Mapping[str, str]
    values: Mapping[str, float]
    stamp_s: float | None

    @property
    def operation(self) -> str:
        return self.dimensions.get("Operation", "")


@dataclass(frozen=True, slots=True)
class PutRequest:
    """One request; `size_bytes` as it came, compressed or not."""

    namespace: str
    datums: tuple[SentDatum, ...]
    encoding: str
    size_bytes: int
    protocol: str = field(compare=False, default="")
    access_key: str = field(compare=False, default="")
    """Of who signed it; empty if nobody did."""


class RecordingCloudWatch(ThreadingHTTPServer):
    """A context manager; `requests` has what came, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[PutRequest] = []
        self.refused: list[str] = []
        """Codes with which requests were refused."""
        self._refusals: list[tuple[int, str]] = []
        self._always: tuple[int, str] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.shutdown()
        self.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def datums(self) -> list[SentDatum]:
        """Of all requests."""
        return [datum for request in list(self.requests) for datum in request.datums]

    def refuse(self, status: int, code: str, *, times: int | None = None) -> None:
        """Answer the next requests so; all from now on without `times`."""
        with self._lock:
            if times is None:
                self._always = (status, code)
            else:
                self._refusals += [(status, code)] * times

    def accept(self) -> None:
        with self._lock:
            self._always, self._refusals = None, []

    def judged(self, request: PutRequest) -> tuple[int, str] | None:
        """None if it is taken."""
        with self._lock:
            refusal = self._refusals.pop(0) if self._refusals else self._always
            if refusal is None:
                self.requests.append(request)
            else:
                self.refused.append(refusal[1])
            return refusal


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RecordingCloudWatch

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        encoding = self.headers.get("Content-Encoding", "")
        body = gzip.decompress(raw) if "gzip" in encoding else raw
        kind = self.headers.get("Content-Type", "")
        if "cbor" in kind:
            assert self.path.endswith(f"/operation/{OPERATION}"), self.path
            protocol, document = "cbor", cbor2.loads(body)
        elif "json" in kind:
            assert self.headers["X-Amz-Target"].endswith(f".{OPERATION}")
            protocol, document = "json", json.loads(body)
        else:
            protocol, document = "form", _of_form(body.decode())
        signer = _SIGNER.search(self.headers.get("Authorization", ""))
        request = _request(document, encoding, len(raw), protocol)
        refusal = self.server.judged(replace(request, access_key=signer[1] if signer else ""))
        self._answer(protocol, refusal)

    def _answer(self, protocol: str, refusal: tuple[int, str] | None) -> None:
        status = 200 if refusal is None else refusal[0]
        code = "" if refusal is None else refusal[1]
        error = {} if refusal is None else {"__type": code, "message": "refused"}
        content, body = {
            "cbor": ("application/cbor", cbor2.dumps(error)),
            "json": ("application/x-amz-json-1.0", json.dumps(error).encode()),
            "form": ("text/xml", (FORM_ERROR.format(code=code) if code else FORM_ANSWER).encode()),
        }[protocol]
        self.send_response(status)
        self.send_header("Content-Type", content)
        if protocol == "cbor":
            self.send_header("smithy-protocol", "rpc-v2-cbor")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _seconds(stamp: object) -> float | None:
    """Numbers of JSON, dates of CBOR, texts of forms."""
    match stamp:
        case None:
            return None
        case datetime():
            return stamp.timestamp()
        case str():
            return datetime.fromisoformat(stamp).timestamp()
    return float(str(stamp))


def _request(document: Mapping[str, Any], encoding: str, size_bytes: int, protocol: str) -> PutRequest:
    datums = tuple(
        SentDatum(
            one["MetricName"],
            one.get("Unit", ""),
            {dimension["Name"]: dimension["Value"] for dimension in one.get("Dimensions", [])},
            {name: float(value) for name, value in one["StatisticValues"].items()},
            _seconds(one.get("Timestamp")),
        )
        for one in document["MetricData"]
    )
    return PutRequest(document["Namespace"], datums, encoding, size_bytes, protocol)


def _of_form(text: str) -> dict[str, Any]:
    """The query protocol: MetricData.member.N.Dimensions.member.M.Name and the like."""
    fields = dict(parse_qsl(text, keep_blank_values=True))
    assert fields.get("Action") == OPERATION, fields.get("Action")
    datums: dict[int, dict[str, Any]] = {}
    for name, value in fields.items():
        if (member := _MEMBER.fullmatch(name)) is None:
            continue
        datum = datums.setdefault(int(member["datum"]), {"StatisticValues": {}, "by_number": {}})
        rest = member["rest"]
        if (dimension := _DIMENSION.fullmatch(rest)) is not None:
            datum["by_number"].setdefault(int(dimension["number"]), {})[dimension["part"]] = value
        elif rest.startswith("StatisticValues."):
            datum["StatisticValues"][rest.removeprefix("StatisticValues.")] = value
        else:
            datum[rest] = value
    for datum in datums.values():
        datum["Dimensions"] = [one for _, one in sorted(datum.pop("by_number").items())]
    return {"Namespace": fields["Namespace"], "MetricData": [one for _, one in sorted(datums.items())]}
