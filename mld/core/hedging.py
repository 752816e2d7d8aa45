"""Hedged requests: if an answer is late, the same request is sent again, and the first answer counts.

A late answer may still come, and the caller cannot tell whether the connection is dead. So the first request is not
cancelled, and further ones are sent while it waits. Use this only for requests that may safely be repeated, above all
reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mld.core.errors import AwsUnreachableError

T = TypeVar("T")


async def first_answer(ask: Callable[[float], Awaitable[T]], *, limit_s: float, again_s: float, asks_max: int) -> T:
    """Call `ask`, repeatedly if it is slow, and return the first answer. Each call gets the seconds left of `limit_s`.

    Whenever `again_s` pass without an answer, `ask` is called again, at most `asks_max` times in all. An error of AWS
    is an answer, too: it is raised at once. If all requests fail with AwsUnreachableError, the first of these errors is
    raised.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + limit_s
    requests: list[asyncio.Future[T]] = []
    try:
        while True:
            requests.append(asyncio.ensure_future(ask(until - loop.time() if requests else limit_s)))
            # Wait until an answer comes, or until it is time to ask again (`again_at`; None: never).
            again_at = loop.time() + again_s if len(requests) < asks_max else None
            while (wait_s := None if again_at is None else again_at - loop.time()) is None or wait_s > 0:
                waiting = [request for request in requests if not request.done()]
                if not waiting:  # all have failed with AwsUnreachableError
                    return requests[0].result()
                done, _ = await asyncio.wait(waiting, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for request in waiting:
                    if request in done and not isinstance(request.exception(), AwsUnreachableError):
                        return request.result()
    finally:
        for request in () if loop.is_closed() else requests:  # on a closed loop nothing runs that could be cancelled
            request.cancel()
