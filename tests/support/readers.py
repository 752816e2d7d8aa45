"""What the tests of both kinds of readers share: a life in virtual time of which nothing is left, and what came out."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from mld.core.streams import IteratorType, StartingPoint
from mld.retrieval.reader import Delivery, Records
from tests.support.pages import sequences_in
from tests.virtual_time import asked_of_pytest, run_virtual


class Reader(Protocol):
    async def next(self) -> Delivery: ...

    async def stop(self) -> None: ...


def live(reader_of: Callable[[], Reader], body: Callable[[Any], Awaitable[None]]) -> None:
    """Run `body` with a new reader in virtual time, stop the reader, and see to it that nothing is left running."""

    async def main() -> None:
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        reader = reader_of()
        try:
            await body(reader)
        finally:
            await reader.stop()
        del reader
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        assert unheard == []

    run_virtual(main())


def bodies_of(reading: Callable[..., object], *given: str) -> Callable[..., Callable[..., Callable[..., None]]]:
    """A decorator with options: the test is the body of `reading`, which calls it with the `given` arguments."""

    def with_reader(**options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
        def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
            def run(**asked: Any) -> None:
                reading(lambda *those: test(*those, **asked), **options)

            return asked_of_pytest(test, run, *given)

        return decorate

    return with_reader


def sequences(delivery: Delivery) -> list[str]:
    assert isinstance(delivery, Records)
    return sequences_in(delivery.page)


async def read(reader: Reader, count: int) -> list[str]:
    """The next `count` records; empty pages are passed over, and so is the last record where it is read again."""
    got: list[str] = []
    while len(got) < count:
        page = sequences(await reader.next())
        got += page[1:] if got and page[:1] == got[-1:] else page
    return got


def at(sequence: str) -> StartingPoint:
    return StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=sequence)


def after(sequence: str) -> StartingPoint:
    return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=sequence)
