"""`handle`: answers the requests under ``/_mld/``, by which tests control the running server.

=================================  ===================================================================================
``GET /_mld/health``               ``{"ready": true, "now": <epoch seconds>}``
``POST /_mld/faults``              a JSON list of faults (or one) is added; see `mld.local.faults`
``DELETE /_mld/faults``            no more faults
``GET /_mld/faults``               ``{"active": <number>}``
``GET /_mld/log``                  ``{"kinesis.GetRecords": 12, ...}``: calls since the start or the last DELETE
``DELETE /_mld/log``               start counting again
``GET /_mld/clock``                ``{"offset_s": ...}``
``POST /_mld/clock``               ``{"offset_s": 301}`` sets, ``{"advance_s": 301}`` moves the clock of the
                                   streams
``POST /_mld/delays``              ``{"create_s": 1, "update_s": 1, "delete_s": 1, "consumer_s": 1}``, any of them:
                                   how long streams and consumers show their passing states
``POST /_mld/enforce``             ``{"enforce": true}``: throughput limits on or off
``POST /_mld/dynamodb/split``      ``{"table": "t"}`` or ``{"stream": <ARN>}``, and perhaps ``"shard"``: the shard of
                                   the table's stream, or its first open one, splits into two; ``{"children": [...]}``
``POST /_mld/dynamodb/roll``       with the same body: every open shard gets one child, as after four hours
``POST /_mld/dynamodb/expire``     items of any table whose time to live is over are deleted; ``{"expired": <number>}``
=================================  ===================================================================================

Bodies and answers are JSON, with ``Content-Type: application/json``. If a body cannot be understood, the answer is 400
and ``{"error": <a sentence>}``; if it has another Content-Type, 415.

`mld.local.faults` describes the fields of a fault.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any, Protocol

from mld.local.change_stream import DynamoStreamsError
from mld.local.faults import ControlError, FaultPlan, parse_fault
from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis import StateDelays
from mld.local.table_streams import TableStreams

PREFIX = "/_mld/"
CONTENT_TYPE = "application/json"
SECONDS_MAX = 1e9
"""About thirty years. With more, times would be outside the range of dates."""


class ControlledServer(Protocol):
    """The parts of the server that `handle` reads and changes."""

    faults: FaultPlan
    calls: dict[str, int]
    offset_s: float
    delays: StateDelays
    dynamo_streams: TableStreams

    def now(self) -> float: ...

    def set_offset(self, seconds: float) -> None: ...

    def set_delays(self, delays: StateDelays) -> None: ...

    def set_enforce(self, enforce: bool) -> None: ...


def is_expiry(request: HttpRequest) -> bool:
    """Return whether a request wants items to expire. `handle` cannot do that: moto has the items, and waiting for moto
    takes time.
    """
    return (request.method, request.target.rstrip("/")) == ("POST", f"{PREFIX}dynamodb/expire")


def handle(server: ControlledServer, request: HttpRequest) -> HttpResponse:
    """Do what a request under ``/_mld/`` asks for, and return the answer: 400 if its body cannot be understood, 404 if
    there is no such control.
    """
    if request.body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        return json_answer({"error": f"the body has to be JSON: send it with Content-Type: {CONTENT_TYPE}"}, 415)
    try:
        name = request.target.removeprefix(PREFIX).rstrip("/")
        answer = _act(server, request.method, name, _parsed(request.body))
    except (ControlError, DynamoStreamsError) as error:
        return json_answer({"error": str(error)}, 400)
    if answer is None:
        return json_answer({"error": f"no such control: {request.method} {request.target}"}, 404)
    return json_answer(answer)


def _parsed(body: bytes) -> Any:
    """Return the value in a JSON body; None if the body is empty. Raises ControlError."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise ControlError(f"the body is not JSON: {error}") from None


def _numbers(body: Any, keys: Collection[str]) -> dict[str, float]:
    """Return the members of an object as numbers. Raises ControlError if it has other keys than these, or none."""
    if not isinstance(body, dict) or not body or not body.keys() <= set(keys):
        raise ControlError(f"the body has to be an object with {', '.join(keys)}")
    numbers = {}
    for key, value in body.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= SECONDS_MAX:
            raise ControlError(f"{key} has to be a number of seconds, at most {SECONDS_MAX:g}")
        numbers[key] = float(value)
    return numbers


def _act(server: ControlledServer, method: str, name: str, body: Any) -> Any:
    """Do what a request asks for, and return the answer; None if there is no such control. Raises ControlError."""
    match method, name:
        case "GET", "health":
            return {"ready": True, "now": server.now()}
        case "POST", "faults":
            server.faults.add([parse_fault(item) for item in (body if isinstance(body, list) else [body])])
            return {"active": len(server.faults)}
        case "DELETE", "faults":
            server.faults.clear()
            return {"active": 0}
        case "GET", "faults":
            return {"active": len(server.faults)}
        case "GET", "log":
            return dict(sorted(server.calls.items()))
        case "DELETE", "log":
            server.calls.clear()
        case "GET", "clock":
            return {"offset_s": server.offset_s}
        case "POST", "clock":
            given = _numbers(body, ("offset_s", "advance_s"))
            server.set_offset(given["offset_s"] if "offset_s" in given else server.offset_s + given["advance_s"])
            return {"offset_s": server.offset_s}
        case "POST", "delays":
            server.set_delays(replace(server.delays, **_numbers(body, [field.name for field in fields(StateDelays)])))
        case "POST", "enforce":
            if not isinstance(body, dict) or not isinstance(body.get("enforce"), bool):
                raise ControlError("the body has to be an object with enforce, true or false")
            server.set_enforce(body["enforce"])
        case "POST", "dynamodb/split" | "dynamodb/roll":
            return _change_stream(server.dynamo_streams, name.partition("/")[2], body, server.now())
        case _:
            return None
    return {}


def _change_stream(streams: TableStreams, act: str, body: Any, now: float) -> dict[str, Any]:
    """Split a shard of a table's stream, or roll all of its open shards, as `act` says; return the ids of the children.
    Raises ControlError, and ResourceNotFound.
    """
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise ControlError("the body has to be an object with table or stream, and perhaps shard, all texts")
    if len(body.keys() & {"table", "stream"}) != 1 or not body.keys() <= {"table", "stream", "shard"}:
        raise ControlError("the body has to be an object with table or stream, and perhaps shard")
    stream = streams.newest_of(body["table"], now) if "table" in body else streams.stream(body["stream"], now)
    return {"children": stream.roll(now) if act == "roll" else stream.split(body.get("shard"), now)}


def json_answer(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(json.dumps(value).encode(), status, CONTENT_TYPE)
