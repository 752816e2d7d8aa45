"""`BotoService` with plain stand-ins for the botocore client."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from mld.aws import client as client_module
from mld.aws.aws_failures import plain_code
from mld.aws.client import BotoService
from mld.core.errors import AwsError, AwsUnreachableError, StartupError
from tests.support.patience import PATIENCE_S


class FakeClient:
    """A client whose `get_item` does what the test says."""

    meta = SimpleNamespace(config=SimpleNamespace(read_timeout=60.0, connect_timeout=5.0))

    def __init__(self, get_item: Callable[..., dict[str, Any]]) -> None:
        self.get_item = get_item
        self.closed = False

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def service_of(get_item: Callable[..., dict[str, Any]], threads_max: int = 2) -> AsyncIterator[BotoService]:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    fake: Any = FakeClient(get_item)
    service = BotoService(lambda: fake, threads_max=threads_max, name="test")
    try:
        yield service
    finally:
        await service.close()
        gc.collect()
        assert unheard == [], "an exception nobody fetched"
        assert fake.closed or service._client is None


def failing(error: Exception) -> Callable[..., dict[str, Any]]:
    def get_item(**params: Any) -> dict[str, Any]:
        raise error

    return get_item


class Gate:
    """A call that blocks until the test opens it."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, **params: Any) -> dict[str, Any]:
        with self._lock:
            self.calls += 1
        self.entered.release()
        self.opened.wait(PATIENCE_S)
        return params

    async def wait_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE_S)


async def test_a_call_goes_to_the_client_in_a_thread_of_its_own() -> None:
    async with service_of(lambda **params: {**params, "thread": threading.current_thread().name}) as service:
        answer = await service.call("GetItem", {"Key": 1})
    assert answer == {"Key": 1, "thread": "aws-test-1"}


async def test_the_client_is_created_once_and_only_when_needed() -> None:
    made: list[FakeClient] = []

    def factory() -> Any:
        time.sleep(0.02)
        made.append(FakeClient(lambda **params: params))
        return made[-1]

    service = BotoService(factory, threads_max=4, name="test")
    assert made == []
    await asyncio.gather(*(service.call("GetItem", {}) for _ in range(8)))
    await service.close()
    assert len(made) == 1


async def test_services_open_in_parallel() -> None:
    together = threading.Barrier(3, timeout=PATIENCE_S)

    def factory() -> Any:
        together.wait()
        return FakeClient(lambda **params: params)

    services = [BotoService(factory, threads_max=1, name=f"s{n}") for n in range(3)]
    await asyncio.gather(*(service.open() for service in services))
    await asyncio.gather(*(service.close() for service in services))


async def test_a_client_that_cannot_be_created_fails_the_start_and_is_tried_again_later() -> None:
    outcomes: list[Any] = [ValueError("no such region"), ValueError("no such region"), FakeClient(lambda **p: p)]

    def factory() -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    service = BotoService(factory, threads_max=1, name="kinesis")
    with pytest.raises(StartupError, match="the kinesis client cannot be created: ValueError: no such region"):
        await service.open()
    with pytest.raises(AwsUnreachableError, match="no kinesis client"):
        await service.call("GetItem", {})
    assert await service.call("GetItem", {"n": 1}) == {"n": 1}
    await service.close()


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_a_refusal_keeps_code_message_status_and_item() -> None:
    response: Any = {
        "Error": {"Code": "com.amazonaws.dynamodb#ConditionalCheckFailedException", "Message": "no"},
        "ResponseMetadata": {"HTTPStatusCode": 418},
        "Item": {"leaseOwner": {"S": "other"}},
    }
    async with service_of(failing(ClientError(response, "GetItem"))) as service:
        with pytest.raises(AwsError) as caught:
            await service.call("GetItem", {})
    error = caught.value
    assert (error.operation, error.code, error.status) == ("GetItem", "ConditionalCheckFailedException", 418)
    assert error.item == {"leaseOwner": {"S": "other"}}
    assert str(error) == "GetItem: ConditionalCheckFailedException: no"


@pytest.mark.parametrize(
    "code", ["Denied", "com.amazon.coral#Denied", "Denied:http://internal.amazon.com/coral/", "a.b#Denied:http://x#y"]
)
def test_an_error_code_is_stripped_to_its_name(code: str) -> None:
    assert plain_code(code) == "Denied"


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
        ReadTimeoutError(endpoint_url="http://127.0.0.1:1"),
        NoCredentialsError(),
        ConnectionResetError("by peer"),
        KeyError("a provider of credentials"),
    ],
)
async def test_no_answer_is_unreachable_whatever_the_reason(error: Exception) -> None:
    async with service_of(failing(error)) as service:
        with pytest.raises(AwsUnreachableError, match=type(error).__name__) as caught:
            await service.call("GetItem", {})
    assert caught.value.__cause__ is error


async def test_a_request_that_botocore_refuses_is_a_refusal() -> None:
    async with service_of(failing(ParamValidationError(report="TableName is empty"))) as service:
        with pytest.raises(AwsError, match="TableName is empty") as caught:
            await service.call("GetItem", {})
    assert caught.value.code == "ParamValidationError"


# --- giving up --------------------------------------------------------------------------------------------------------


async def test_a_call_is_given_up_after_its_time_out_and_its_late_outcome_is_dropped() -> None:
    gate = Gate()

    def fail_late(**params: Any) -> dict[str, Any]:
        gate(**params)
        raise ConnectionResetError

    async with service_of(fail_late) as service:
        with pytest.raises(AwsUnreachableError, match=r"no answer within 0\.05 s"):
            await service.call("GetItem", {}, timeout_s=0.05)
        gate.opened.set()


async def test_a_call_given_up_in_the_queue_is_never_sent() -> None:
    gate = Gate()
    async with service_of(gate, threads_max=1) as service:
        first = asyncio.create_task(service.call("GetItem", {"n": 1}))
        await gate.wait_entered()
        with pytest.raises(AwsUnreachableError):
            await service.call("GetItem", {"n": 2}, timeout_s=0.02)
        gate.opened.set()
        assert await first == {"n": 1}
        assert await service.call("GetItem", {"n": 3}) == {"n": 3}
    assert gate.calls == 2


async def test_a_cancelled_caller_leaves_the_service_usable() -> None:
    gate = Gate()
    async with service_of(gate) as service:
        caller = asyncio.create_task(service.call("GetItem", {"n": 1}))
        await gate.wait_entered()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.opened.set()
        assert await service.call("GetItem", {"n": 2}) == {"n": 2}


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_close_waits_for_calls_under_way_and_refuses_the_queued() -> None:
    gate = Gate()
    async with service_of(gate, threads_max=1) as service:
        first, second = (asyncio.create_task(service.call("GetItem", {"n": n})) for n in range(2))
        await gate.wait_entered()
        closing = asyncio.create_task(service.close())
        with pytest.raises(AwsUnreachableError, match="closed"):
            await second
        gate.opened.set()
        await closing
        assert await first == {"n": 0}
    assert gate.calls == 1


async def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(client_module, "CLOSE_TIMEOUT_S", 0.05)
    gate = Gate()
    async with service_of(gate) as service:
        caller = asyncio.create_task(service.call("GetItem", {}))
        await gate.wait_entered()
        await service.close()
        gate.opened.set()
        assert await caller == {}
    assert "left 1 test calls" in caplog.text


async def test_a_closed_service_answers_with_an_error() -> None:
    async with service_of(lambda **params: params) as service:
        await service.close()
        with pytest.raises(AwsUnreachableError, match="closed"):
            await service.call("GetItem", {})


STUCK = """
import asyncio, threading
from mld.aws.client import BotoService

class Stuck:
    def get_item(self):
        threading.Event().wait()
    def close(self):
        pass

async def main():
    service = BotoService(Stuck, threads_max=1, name="stuck")
    try:
        await service.call("GetItem", {}, timeout_s=0.1)
    except Exception as error:
        print(error)

asyncio.run(main())
"""


def test_a_stuck_thread_does_not_keep_the_process_alive() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "GetItem: no answer: no answer within 0.1 s\n"
    assert done.stderr == ""


def test_importing_the_room_does_not_import_botocore() -> None:
    script = "import sys, mld.aws.client, mld.aws.kinesis, mld.aws.client_factory"
    script += "; print([m for m in sys.modules if m.startswith('boto')])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == "[]\n"
