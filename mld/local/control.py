"""How tests control the running server: everything under ``/_mld/``.

=================================  ===================================================================================
``GET /_mld/health``               ``{"ready": true, "now": <epoch seconds>}``
``POST /_mld/faults``              a JSON list of faults (or one) is added; see below
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
``POST /_mld/dynamodb/roll``       the same: every open shard is succeeded by one child, as after four hours
``POST /_mld/dynamodb/expire``     items of any table whose time to live is over go; ``{"expired": <number>}``
=================================  ===================================================================================

Bodies are JSON and say so (``Content-Type: application/json``), and so are the answers. A body that cannot be
understood is answered with 400 and ``{"error": <a sentence>}``.

A fault says which calls fail, how, and how often; randomness comes from the fault's own seed. It is a JSON object:

* which calls: ``service`` (``kinesis``, ``dynamodb``, ``dynamodbstreams``, ``monitoring``, ...) and ``operation``
  (``GetRecords``), both default to ``*``; ``contains``, a text that the request's body must hold (a stream, a lease
  key).
* how often: ``count`` calls and no more; ``rate`` of the calls (0 to 1), drawn with ``seed``; ``skip`` calls first.
  Without any: every call until the fault is removed.
* what happens: ``delay_s`` seconds pass; then ``code`` (with ``message`` and HTTP ``status``, default 400) is
  answered, or ``drop`` true closes the connection without an answer, or, for GetRecords, ``empty`` true answers no
  records at the same place. With none of the three, and with ``empty`` for any other call, the call is only late.
* ``after`` true: the call *is* carried out first, then its answer is replaced or lost.
* ``after_events`` n, for SubscribeToShard: the subscription opens, and after n events it is cut (``drop``) or ends with
  ``code`` as an exception event.

The first fault in the list that matches and fires is used; others do not see the call.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from mld.local.dynamo_streams import DynamoStreamsError, TableStreams
from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis import StateDelays
from mld.local.kinesis_errors import KinesisError

if TYPE_CHECKING:
    from mld.local.server import EmbeddedServer

_KINDS: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "int | None": int,
    "float": (int, float),
    "bool": bool,
}
"""What a field takes in JSON, by the type that the class declares."""

PREFIX = "/_mld/"
CONTENT_TYPE = "application/json"
SECONDS_MAX = 1e9
"""Some thirty years: with more, times leave the range of dates."""


# --- faults ----------------------------------------------------------------------------------------------------------


class ControlError(ValueError):
    """A body that cannot be understood; the text says why."""


@dataclass(slots=True)
class Fault:
    """See the module's page for the meaning of the fields; `count` and `skip` go down as the fault is used."""

    service: str = "*"
    operation: str = "*"
    contains: str = ""
    count: int | None = None
    rate: float = 1.0
    seed: int = 0
    skip: int = 0
    delay_s: float = 0.0
    code: str = ""
    message: str = "injected fault"
    status: int = 400
    drop: bool = False
    empty: bool = False
    after: bool = False
    after_events: int | None = None
    random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def is_late_only(self) -> bool:
        return not (self.code or self.drop)

    @property
    def refusal(self) -> KinesisError:
        return KinesisError(self.code, self.message, self.status)

    def matches(self, service: str, operation: str, body: bytes) -> bool:
        return (
            self.count != 0
            and self.service in ("*", service)
            and self.operation in ("*", operation)
            and (not self.contains or self.contains.encode() in body)
        )

    def fires(self) -> bool:
        """Count this call; returns whether it fails."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.rate < 1.0 and self.random.random() >= self.rate:
            return False
        if self.count is not None:
            self.count -= 1
        return True


def parse_fault(fields: Mapping[str, Any]) -> Fault:
    """Parse a fault. Raises ControlError."""
    if not isinstance(fields, Mapping):
        raise ControlError("a fault is an object")
    kinds = {field.name: _KINDS[str(field.type)] for field in dataclasses.fields(Fault) if field.init}
    for key, value in fields.items():
        kind = kinds.get(key)
        if kind is None:
            raise ControlError(f"a fault has no field {key!r}; known: {', '.join(sorted(kinds))}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ControlError(f"the fault's field {key!r} cannot be {value!r}")
    return Fault(**fields)


class FaultPlan:
    """The faults in force, in order."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, faults: list[Fault]) -> None:
        self._faults.extend(faults)

    def clear(self) -> None:
        self._faults.clear()

    def __len__(self) -> int:
        return len(self._faults)

    def take(self, service: str, operation: str, body: bytes) -> Fault | None:
        """Return the fault this call meets, if any."""
        for fault in self._faults:
            if fault.matches(service, operation, body) and fault.fires():
                self._faults = [f for f in self._faults if f.count != 0]
                return fault
        return None


# --- controls --------------------------------------------------------------------------------------------------------


def is_expiry(request: HttpRequest) -> bool:
    """Return whether it is the one control that takes a while, because the items are moto's."""
    return (request.method, request.target.rstrip("/")) == ("POST", f"{PREFIX}dynamodb/expire")


def handle(server: EmbeddedServer, request: HttpRequest) -> HttpResponse:
    if request.body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        return json_answer({"error": f"the body has to be JSON: send it with Content-Type: {CONTENT_TYPE}"}, 415)
    try:
        name = request.target.removeprefix(PREFIX).rstrip("/")
        said = _act(server, request.method, name, _parsed(request.body))
    except (ControlError, DynamoStreamsError) as error:
        return json_answer({"error": str(error)}, 400)
    if said is None:
        return json_answer({"error": f"no such control: {request.method} {request.target}"}, 404)
    return json_answer(said)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise ControlError(f"the body is not JSON: {error}") from None


def _numbers(body: Any, keys: Collection[str]) -> dict[str, float]:
    """Return the finite numbers of an object that has some of the keys, and no others. Raises ControlError."""
    if not isinstance(body, dict) or not body or not body.keys() <= set(keys):
        raise ControlError(f"the body has to be an object with {', '.join(keys)}")
    numbers = {}
    for key, value in body.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= SECONDS_MAX:
            raise ControlError(f"{key} has to be a number of seconds, at most {SECONDS_MAX:g}")
        numbers[key] = float(value)
    return numbers


def _act(server: EmbeddedServer, method: str, name: str, body: Any) -> Any:
    """Return what is answered; None if there is no such control. Raises ControlError."""
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
    """Change a stream. Raises ControlError, and ResourceNotFound."""
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise ControlError("the body has to be an object with table or stream, and perhaps shard, all texts")
    if len(body.keys() & {"table", "stream"}) != 1 or not body.keys() <= {"table", "stream", "shard"}:
        raise ControlError("the body has to be an object with table or stream, and perhaps shard")
    stream = streams.newest_of(body["table"], now) if "table" in body else streams.stream(body["stream"], now)
    return {"children": stream.roll(now) if act == "roll" else stream.split(body.get("shard"), now)}


def json_answer(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(json.dumps(value).encode(), status, CONTENT_TYPE)
