"""Ask again without hanging up: what is done about an answer that is late.

An answer that is late may still come, and a connection may lead nowhere without anybody knowing. So nothing is cut off
and begun anew: a further request goes out beside the first, and whichever is answered first counts. Only for requests
that may be repeated, reads above all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mld.core.errors import AwsUnreachableError

T = TypeVar("T")


async def first_answer(ask: Callable[[float], Awaitable[T]], *, limit_s: float, again_s: float, asks_max: int) -> T:
    """Return the first answer to `ask`, which gets the time that is left of `limit_s`.

    It is asked again, up to `asks_max` times, whenever there is no answer for another `again_s`. A refusal is an
    answer, too. Raises the first AwsUnreachableError when no other request is under way.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + limit_s
    asked: list[asyncio.Future[T]] = []
    try:
        while True:
            asked.append(asyncio.ensure_future(ask(until - loop.time() if asked else limit_s)))
            again_at = loop.time() + again_s if len(asked) < asks_max else None
            while (wait_s := None if again_at is None else again_at - loop.time()) is None or wait_s > 0:
                open_ones = [one for one in asked if not one.done()]
                if not open_ones:
                    return asked[0].result()
                done, _ = await asyncio.wait(open_ones, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for one in open_ones:
                    if one in done and not isinstance(one.exception(), AwsUnreachableError):
                        return one.result()
    finally:
        for one in () if loop.is_closed() else asked:  # a loop that is closed has nothing under way
            one.cancel()
