"""`FaultPlan`: the faults that tests inject into the embedded AWS. A fault says which calls fail, how often, and how.
Pure.

A fault is a JSON object that `mld.local.control` receives. Its random numbers come from its own seed.

* Which calls: ``service`` (``kinesis``, ``dynamodb``, ``dynamodbstreams``, ``monitoring``, ...) and ``operation``
  (``GetRecords``), both by default ``*``; ``contains``, a text that must occur in the body of the request (a stream, a
  lease key).
* How often: at most ``count`` calls fail; a share ``rate`` (0 to 1) of the calls, drawn at random with ``seed``; the
  first ``skip`` calls succeed. Without any of these, every call fails until the fault is removed.
* What happens: ``delay_s`` seconds pass. Then the answer is the error ``code`` (with ``message`` and HTTP ``status``,
  by default 400); or, with ``drop`` true, the connection is closed without an answer; or, for GetRecords with ``empty``
  true, the answer has no records, and an iterator at the same place. With none of the three, and with ``empty`` for
  other operations, the call is only late.
* ``after`` true: the operation *is* done before its answer is replaced or lost.
* ``after_events`` n, for SubscribeToShard: the subscription opens. After n events it is cut (``drop``) or ends with
  ``code`` as an exception event.

A call gets only the first fault in the list that matches it and fires. Later faults in the list do not count this call.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mld.local.kinesis_errors import KinesisError

_KINDS: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "int | None": int,
    "float": (int, float),
    "bool": bool,
}
"""The types that the value of a field may have after parsing JSON, by the declared type of the field."""


class ControlError(ValueError):
    """The body of a request to `mld.local.control` cannot be understood; the text says why."""


@dataclass(slots=True)
class Fault:
    """A fault. The docstring of the module describes the fields. `count` and `skip` are counted down."""

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
        """Whether the call is performed and answered as usual, perhaps after a delay: it gets no error, and its
        connection is not closed.
        """
        return not (self.code or self.drop)

    @property
    def refusal(self) -> KinesisError:
        """The error that the call gets."""
        return KinesisError(self.code, self.message, self.status)

    def matches(self, service: str, operation: str, body: bytes) -> bool:
        """Return whether the fault applies to this call."""
        return (
            self.count != 0
            and self.service in ("*", service)
            and self.operation in ("*", operation)
            and (not self.contains or self.contains.encode() in body)
        )

    def fires(self) -> bool:
        """Count a call that matches, and return whether it gets the fault: not the first `skip` calls, and of the
        others only the share `rate`.
        """
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.rate < 1.0 and self.random.random() >= self.rate:
            return False
        if self.count is not None:
            self.count -= 1
        return True


def parse_fault(fields: Mapping[str, Any]) -> Fault:
    """Parse a fault from JSON. Raises ControlError."""
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
    """The active faults, in order."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, faults: list[Fault]) -> None:
        self._faults.extend(faults)

    def clear(self) -> None:
        self._faults.clear()

    def __len__(self) -> int:
        return len(self._faults)

    def take(self, service: str, operation: str, body: bytes) -> Fault | None:
        """Return the fault that this call gets, and count it there; None if no fault applies."""
        for fault in self._faults:
            if fault.matches(service, operation, body) and fault.fires():
                self._faults = [f for f in self._faults if f.count != 0]
                return fault
        return None
