"""Click events of a web shop, as a producer would put them; equal seeds and starts give equal events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

USERS = 2_000
_PAGES = ("/", "/search", "/product/{item}", "/cart", "/checkout", "/help")
_PAGE_WEIGHTS = (20, 25, 35, 10, 6, 4)
_AGENTS = ("Firefox", "Chrome", "Safari", "Edge", "App/iOS", "App/Android", "Crawler")
_REFERRERS = (None, "https://www.example.com/", "https://search.example.net/?q=sh\u00f6es", "newsletter")


@dataclass(frozen=True, slots=True)
class ClickEvent:
    """One record to put."""

    partition_key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """A record that was accepted: where Kinesis placed it, and what it holds."""

    shard: str
    sequence: int
    text: str


def click_events(count: int, *, seed: int, start_s: float) -> Iterator[ClickEvent]:
    """Return `count` events in time order, partitioned by user."""
    rng = Random(seed)
    at_s = start_s
    for number in range(count):
        at_s += rng.expovariate(50.0)
        user = f"user-{rng.randrange(USERS):04d}"
        page = rng.choices(_PAGES, _PAGE_WEIGHTS)[0].format(item=rng.randrange(5_000))
        event = {
            "event_id": number,
            "user": user,
            "session": f"{user}-{rng.randrange(5)}",
            "page": page,
            "referrer": rng.choice(_REFERRERS),
            "agent": rng.choice(_AGENTS),
            "load_ms": round(rng.lognormvariate(5.0, 0.6)),
            "at": round(at_s, 3),
        }
        yield ClickEvent(user, json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
