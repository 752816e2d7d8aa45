"""`HttpAnswer`: the answer to an HTTP request. `SharedAnswers` makes one answer for many callers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request. `headers` have lower-case names."""

    status: int
    content_type: str
    body: bytes | Sequence[bytes]
    """The whole body, or its pieces if it is long."""
    headers: Mapping[str, str] = field(default_factory=dict)


def text_answer(status: int, text: str, **headers: str) -> HttpAnswer:
    """Return an answer with one line of plain text."""
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)


@dataclass(frozen=True, slots=True)
class Question:
    """A request that has passed all checks. `target` is its path; `headers` have lower-case names."""

    target: str
    headers: Mapping[str, str]


Route = Callable[[Question], Awaitable[HttpAnswer]]


class SharedAnswers:
    """Keeps answers for `valid_s` seconds and gives them to all callers; longer if making one takes long.

    A variant is one form of an answer, such as its compressed form.
    """

    VARIANTS_MAX = 4
    VALID_S_MAX = 5.0
    COST_SHARE = 0.05
    """Largest share of the event loop's time that making answers may take, however many callers there are."""

    def __init__(self, valid_s: float = 1.0) -> None:
        self._valid_s = valid_s
        self._kept: dict[str, tuple[float, HttpAnswer]] = {}
        self._making = asyncio.Lock()

    async def answer(self, variant: str, make: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
        """Return the last answer of this variant if it is new enough, else a new one that `make` makes.

        An answer that took long to make is kept longer than `valid_s`, so that making answers takes at most COST_SHARE
        of the time; but not longer than VALID_S_MAX.
        """
        async with self._making:
            time = asyncio.get_running_loop().time
            began, (until, kept) = time(), self._kept.get(variant, (-math.inf, None))
            if kept is None or began >= until:
                kept = await make()
                if len(self._kept) >= self.VARIANTS_MAX:
                    self._kept.clear()
                now = time()
                valid_s = max(self._valid_s, min(self.VALID_S_MAX, (now - began) / self.COST_SHARE))
                self._kept[variant] = now + valid_s, kept
            return kept
