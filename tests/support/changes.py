"""An operator beside a fleet in memory, and what a change of a plan is as a request of DynamoDB."""

from __future__ import annotations

from typing import Any

from mld.leases import rows
from mld.leases.write_request import request_of
from mld.operating.application import Application, application_with
from mld.operating.plan import Change
from tests.support.fleet import settings_of
from tests.twins.kinesis_model import ModelFanOut


def operation_of(change: Change) -> str:
    return request_of(change.write)[0]


def request_for(change: Change) -> dict[str, Any]:
    return request_of(change.write, rows.KEY if change.place is None else change.place.key)[1]


def operator_on(world: Any, sender: str = "operator", **keys: str) -> Application:
    """Return the application of a fleet as a command sees it."""
    settings = settings_of(**keys)
    streams = ModelFanOut(world.kinesis, settings.stream_name, world.clock)
    return application_with(settings, world.dynamo.client(sender), streams, world.clock)
