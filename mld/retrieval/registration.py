"""`RegisteredConsumer`: the consumer of enhanced fan-out with which all readers of a worker subscribe.

Rules: retrieval#consumer-registration. When the first reader asks for the consumer, it is found or registered for all
readers. If that fails, readers that ask within the following `backoff_s` get the same error without another attempt. A
consumer that is gone is registered again; no shard ends because its consumer is gone. If an ARN is configured, nothing
is registered, and the consumer is described only when a subscription fails as "not found".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from mld.core.clock import Clock
from mld.core.errors import (
    StreamError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.streams import FanOut, StreamConsumer
from mld.properties.settings import FanOutSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

ACTIVE = "ACTIVE"
JITTER_S = 0.1
"""Most seconds added at random to each pause, as in Java."""


class RegisteredConsumer:
    """The consumer that the settings name. If `arn` is given, the consumer with this ARN is used instead, unchecked."""

    def __init__(
        self, fan_out: FanOut, clock: Clock, rng: Random, settings: FanOutSettings, *, arn: str | None
    ) -> None:
        self._fan_out = fan_out
        self._clock = clock
        self._rng = rng
        self._name = settings.consumer_name
        self._configured = arn
        self._rules = settings
        self._arn = arn
        self._finding = asyncio.Lock()  # held while the consumer is looked for, so that only one reader does it
        self._failure: StreamError | None = None
        """The error of the last attempt, if that failed at `_failed_s`. It is a copy without a traceback, whose frames
        would keep the reader that asked, and its buffer, in memory.
        """
        self._failed_s = 0.0

    async def arn(self) -> str:
        """Return the ARN of the consumer. If the stream has no such consumer, register it.

        Raises StreamError; StreamNotFoundError only if the stream itself is missing.
        """
        if self._arn is not None:
            return self._arn
        async with self._finding:
            if self._arn is None:
                self._arn = await self._found_arn()
            return self._arn

    async def is_there(self, arn: str) -> bool:
        """Return whether `arn` is still an ACTIVE consumer. If not, the next call of `arn()` finds or registers one.

        Raises StreamError if AWS does not answer, if the stream is missing, or if a configured consumer is not ACTIVE.
        """
        async with self._finding:
            if arn != self._arn:
                return False
            try:
                consumer = await self._fan_out.consumer(arn)
            except StreamNotFoundError:
                await self._fan_out.describe()  # raises StreamNotFoundError if the stream itself is missing
                status = "gone"
            else:
                status = consumer.status
            if status == ACTIVE:
                return True
            if self._configured is not None:
                raise StreamInUseError(
                    f"the consumer {arn} of fanoutConfig.consumerArn is {status}: register it, or remove the key"
                )
            logger.warning(
                "the consumer %s is %s; it is looked for again", arn, status,
                extra={"action": "consumer_missing", "consumer": arn, "status": status},
            )  # fmt: skip
            self._arn = None
            return False

    async def _found_arn(self) -> str:
        """Find or register the consumer, and return its ARN. If the last attempt failed less than `backoff_s` ago, make
        no attempt but raise the error of the last one.
        """
        age_s = self._clock.monotonic() - self._failed_s
        if self._failure is not None and age_s < self._rules.backoff_s:
            raise type(self._failure)(str(self._failure))
        self._failure = None
        try:
            return await self._find_or_register()
        except StreamError as error:
            self._failure, self._failed_s = type(error)(str(error)), self._clock.monotonic()
            raise

    async def _find_or_register(self) -> str:
        """Find or register the consumer, wait until it is ACTIVE, and return its ARN."""
        stream_arn = (await self._patiently(self._fan_out.describe, self._rules.summary_attempts_max)).arn
        registered = False
        try:
            consumer = await self._named(stream_arn)
        except StreamNotFoundError:
            registered = True
            consumer = await self._but_never_missing(self._register(stream_arn))
        if consumer.status != ACTIVE:
            await self._but_never_missing(self._until_active(consumer.arn))
        logger.info(
            "consumer %s %s", consumer.arn, "registered" if registered else "found",
            extra={"action": "consumer_registered" if registered else "consumer_found", "consumer": consumer.arn},
        )  # fmt: skip
        return consumer.arn

    async def _register(self, stream_arn: str) -> StreamConsumer:
        """Register the consumer, or return it if another worker has registered it meanwhile."""
        try:
            return await self._patiently(
                lambda: self._fan_out.register_consumer(stream_arn, self._name), self._rules.register_attempts_max
            )
        except StreamInUseError:  # another worker was faster
            return await self._named(stream_arn)

    async def _named(self, stream_arn: str) -> StreamConsumer:
        """Return the consumer of the stream that has the configured name. Raises StreamNotFoundError."""
        return await self._patiently(
            lambda: self._fan_out.consumer_named(stream_arn, self._name), self._rules.describe_attempts_max
        )

    async def _until_active(self, arn: str) -> None:
        """Wait until the consumer is ACTIVE. Raises StreamInUseError if that takes too long."""
        status = ""
        for _ in range(self._rules.describe_attempts_max):
            consumer = await self._patiently(lambda: self._fan_out.consumer(arn), self._rules.describe_attempts_max)
            status = consumer.status
            if status == ACTIVE:
                return
            await self._clock.sleep(self._rules.backoff_s)
        raise StreamInUseError(f"the consumer {arn} is still {status}")

    async def _patiently(self, call: Callable[[], Awaitable[T]], tries: int) -> T:
        """Return the answer to `call`, which is made up to `tries` times while it is throttled. Raises other errors."""
        for _ in range(tries - 1):
            try:
                return await call()
            except StreamThrottledError:
                await self._clock.sleep(self._rules.backoff_s + self._rng.random() * JITTER_S)
        return await call()

    async def _but_never_missing(self, awaitable: Awaitable[T]) -> T:
        """Return what `awaitable` returns, but raise StreamUnavailableError in place of StreamNotFoundError.

        The stream existed a moment ago, so it is only the consumer that does not exist yet, or any more.
        """
        try:
            return await awaitable
        except StreamNotFoundError as error:
            raise StreamUnavailableError(str(error)) from error
