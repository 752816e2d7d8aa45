"""Rules: retrieval#consumer-registration, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from mld.core import errors
from mld.retrieval.registration import JITTER_S, RegisteredConsumer
from tests.support.fleet import settings_of
from tests.twins.fanout import MemoryFanOut
from tests.twins.streams import MemoryStreams
from tests.virtual_time import run_virtual

THROTTLED = errors.StreamThrottledError("LimitExceeded")
MISSING = errors.StreamNotFoundError("ResourceNotFound")
DENIED = errors.StreamUnavailableError("AccessDenied")
SUMMARY, DESCRIBE, REGISTER = "DescribeStreamSummary", "DescribeStreamConsumer", "RegisterStreamConsumer"
Body = Callable[[MemoryFanOut, RegisteredConsumer], Awaitable[None]]


def registering(body: Body, *, arn: str | None = None, creating_s: float = 0.0, **changed: float) -> list[str]:
    """Run `body`; the operations called."""
    fan_out = MemoryFanOut(MemoryStreams(), creating_s=creating_s)

    async def main() -> None:
        settings = replace(settings_of().fanout, **changed)
        consumer = RegisteredConsumer(fan_out, fan_out.clock, Random(1), settings, arn=arn)
        await body(fan_out, consumer)

    run_virtual(main())
    return [call.operation for call in fan_out.calls]


def test_an_active_consumer_is_found() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        fan_out.consumers["arn:stream/consumer/app:1"] = 0.0
        assert await consumer.arn() == "arn:stream/consumer/app:1"
        assert await consumer.arn() == "arn:stream/consumer/app:1"

    assert registering(body) == [SUMMARY, DESCRIBE]


def test_a_new_consumer_is_registered_and_waited_for() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        assert await consumer.arn() == "arn:stream/consumer/app:1"
        assert fan_out.clock.monotonic() == 3.0

    assert registering(body, creating_s=2.5) == [SUMMARY, DESCRIBE, REGISTER, *[DESCRIBE] * 4]


def test_a_consumer_that_never_becomes_active_is_an_error_after_so_many_looks() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        with pytest.raises(errors.StreamInUseError, match="is still CREATING"):
            await consumer.arn()
        assert fan_out.clock.monotonic() == 3 * 0.5
        await asyncio.sleep(1000)
        assert await consumer.arn() == "arn:stream/consumer/app:1"  # found, not registered again

    calls = registering(body, creating_s=100.0, describe_attempts_max=3, backoff_s=0.5)
    assert calls.count(REGISTER) == 1


def test_another_worker_may_register_first() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        fan_out.fail(DESCRIBE, MISSING)
        fan_out.consumers["arn:stream/consumer/app:7"] = 0.0
        assert await consumer.arn() == "arn:stream/consumer/app:7"

    assert registering(body) == [SUMMARY, DESCRIBE, REGISTER, DESCRIBE]


@pytest.mark.parametrize("operation", [SUMMARY, DESCRIBE, REGISTER])
def test_throttling_is_waited_out_so_many_times(operation: str) -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        fan_out.fail(operation, THROTTLED, THROTTLED)
        assert await consumer.arn()
        assert 4.0 <= fan_out.clock.monotonic() < 4.0 + 2 * JITTER_S
        fan_out.consumers.clear()
        await consumer.is_there("arn:stream/consumer/app:1")
        fan_out.fail(operation, *[THROTTLED] * 3)
        with pytest.raises(errors.StreamThrottledError):
            await consumer.arn()

    attempts = ("summary_attempts_max", "describe_attempts_max", "register_attempts_max")
    registering(body, **dict.fromkeys(attempts, 3), backoff_s=2.0)


def test_only_a_missing_stream_is_not_found() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        fan_out.fail(REGISTER, MISSING)
        with pytest.raises(errors.StreamUnavailableError):
            await consumer.arn()
        await asyncio.sleep(2)
        fan_out.fail(SUMMARY, MISSING)
        with pytest.raises(errors.StreamNotFoundError):
            await consumer.arn()

    registering(body)


def test_many_readers_make_one_attempt() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        fan_out.fail(SUMMARY, DENIED)
        outcomes = await asyncio.gather(*(consumer.arn() for _ in range(100)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {errors.StreamUnavailableError}
        await asyncio.sleep(1)
        assert len(set(await asyncio.gather(*(consumer.arn() for _ in range(100))))) == 1

    assert registering(body).count(SUMMARY) == 2


def test_an_attempt_that_failed_keeps_no_reader_in_memory() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        async def ask() -> weakref.ref[asyncio.Event]:
            of_reader = asyncio.Event()
            with suppress(errors.StreamUnavailableError):
                await consumer.arn()
            return weakref.ref(of_reader)

        fan_out.fail(SUMMARY, errors.StreamUnavailableError("AccessDenied"))
        kept = await ask()
        gc.collect()
        assert kept() is None

    registering(body)


def test_a_consumer_is_there_as_long_as_it_is_active() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        arn = await consumer.arn()
        assert await consumer.is_there(arn)
        assert not await consumer.is_there("another")  # another reader has found out before
        fan_out.consumers.clear()
        assert not await consumer.is_there(arn)
        assert await consumer.arn() != arn

    registering(body)


def test_a_consumer_is_not_missing_if_its_stream_is() -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        arn = await consumer.arn()
        fan_out.consumers.clear()
        fan_out.fail(SUMMARY, MISSING)
        with pytest.raises(errors.StreamNotFoundError):
            await consumer.is_there(arn)

    registering(body)


@pytest.mark.parametrize("status", ["gone", "CREATING"])
def test_a_configured_consumer_is_used_as_it_is_and_never_replaced(status: str) -> None:
    async def body(fan_out: MemoryFanOut, consumer: RegisteredConsumer) -> None:
        assert await consumer.arn() == "arn:mine"
        if status == "CREATING":
            fan_out.consumers["arn:mine"] = 1e9
        with pytest.raises(errors.StreamInUseError, match=rf"fanoutConfig\.consumerArn is {status}"):
            await consumer.is_there("arn:mine")
        assert await consumer.arn() == "arn:mine"

    assert REGISTER not in registering(body, arn="arn:mine")
