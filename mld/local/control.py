"""The tests' way into the running server: everything under ``/_mld/``.

=================================  ===================================================================================
``GET /_mld/health``               ``{"ready": true, "now": <epoch seconds>}``
``POST /_mld/faults``              a JSON list of faults (or one) is added; see `mld.local.faults` for their fields
``DELETE /_mld/faults``            no more faults
``GET /_mld/faults``               ``{"active": <number>}``
``GET /_mld/log``                  ``{"kinesis.GetRecords": 12, ...}``: calls since the start or the last DELETE
``DELETE /_mld/log``               start counting again
``GET /_mld/clock``                ``{"offset_s": ...}``
``POST /_mld/clock``               ``{"offset_s": 301}`` sets, ``{"advance_s": 301}`` moves the clock of Kinesis
``POST /_mld/delays``              ``{"create_s": 1, "update_s": 1, "delete_s": 1, "consumer_s": 1}``, any of them:
                                   how long streams and consumers show their passing states
``POST /_mld/enforce``             ``{"enforce": true}``: throughput limits on or off
=================================  ===================================================================================

Bodies are JSON and say so (``Content-Type: application/json``). So are the answers; what cannot be understood is
answered with 400 and ``{"error": <a sentence>}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from mld.local.faults import FaultError, FaultPlan, parse_fault
from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis import StateDelays

PREFIX = "/_mld/"
CONTENT_TYPE = "application/json"


class Controlled(Protocol):
    """What the control endpoint changes."""

    faults: FaultPlan
    calls: dict[str, int]

    def now(self) -> float: ...

    @property
    def offset_s(self) -> float: ...

    def set_offset(self, seconds: float) -> None: ...

    @property
    def delays(self) -> StateDelays: ...

    def set_delays(self, delays: StateDelays) -> None: ...

    def set_enforce(self, enforce: bool) -> None: ...


def handle(server: Controlled, request: HttpRequest) -> HttpResponse:
    route = (request.method, request.target.removeprefix(PREFIX).rstrip("/"))
    action = _ROUTES.get(route)
    if action is None:
        return _json({"error": f"no such control: {request.method} {request.target}"}, 404)
    if request.body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        return _json({"error": f"the body has to be JSON: send it with Content-Type: {CONTENT_TYPE}"}, 415)
    try:
        return _json(action(server, json.loads(request.body) if request.body else None))
    except (FaultError, ValueError, TypeError, KeyError) as error:
        return _json({"error": str(error)}, 400)


def _health(server: Controlled, body: Any) -> Any:
    return {"ready": True, "now": server.now()}


def _add_faults(server: Controlled, body: Any) -> Any:
    server.faults.add([parse_fault(item) for item in (body if isinstance(body, list) else [body])])
    return {"active": len(server.faults)}


def _clear_faults(server: Controlled, body: Any) -> Any:
    server.faults.clear()
    return {"active": 0}


def _count_faults(server: Controlled, body: Any) -> Any:
    return {"active": len(server.faults)}


def _log(server: Controlled, body: Any) -> Any:
    return dict(sorted(server.calls.items()))


def _clear_log(server: Controlled, body: Any) -> Any:
    server.calls.clear()
    return {}


def _clock(server: Controlled, body: Any) -> Any:
    return {"offset_s": server.offset_s}


def _set_clock(server: Controlled, body: Any) -> Any:
    server.set_offset(float(body["offset_s"]) if "offset_s" in body else server.offset_s + float(body["advance_s"]))
    return {"offset_s": server.offset_s}


def _set_delays(server: Controlled, body: Any) -> Any:
    server.set_delays(replace(server.delays, **{key: float(value) for key, value in body.items()}))
    return {}


def _set_enforce(server: Controlled, body: Any) -> Any:
    server.set_enforce(bool(body["enforce"]))
    return {}


_ROUTES: dict[tuple[str, str], Callable[[Controlled, Any], Any]] = {
    ("GET", "health"): _health,
    ("POST", "faults"): _add_faults,
    ("DELETE", "faults"): _clear_faults,
    ("GET", "faults"): _count_faults,
    ("GET", "log"): _log,
    ("DELETE", "log"): _clear_log,
    ("GET", "clock"): _clock,
    ("POST", "clock"): _set_clock,
    ("POST", "delays"): _set_delays,
    ("POST", "enforce"): _set_enforce,
}


def _json(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(json.dumps(value).encode(), status, CONTENT_TYPE)
