"""What a change of a plan is as a request of DynamoDB."""

from __future__ import annotations

from typing import Any

from mld.leases import rows
from mld.leases.writes import request_of
from mld.operating.plan import Change


def operation_of(change: Change) -> str:
    return request_of(change.write)[0]


def request_for(change: Change) -> dict[str, Any]:
    return request_of(change.write, rows.KEY if change.place is None else change.place.key)[1]
