"""How late the answers of DynamoDB come in a run, until it is calm: a line through points, and what it applies to."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slowness:
    """`points` are (time, round trip), in order, with straight lines between; two at one time are a jump.

    A share `before` of the round trip passes before the request is applied. Empty names and None stand for all.
    """

    points: tuple[tuple[float, float], ...]
    before: float
    operation: str = ""
    table: str = ""
    worker: int | None = None
    is_steady: bool = False
    """Constant from its only jump on, for everybody, and nothing else is wrong: see `steadiness`."""

    def applies_to(self, worker: int | None) -> bool:
        return worker is not None and self.worker in (None, worker)

    def seconds(self, now_s: float, worker: int | None, operation: str, table: str) -> float:
        """The round trip of a request, beside the latency of the network."""
        is_meant = self.operation in ("", operation) and self.table in ("", table)
        return self.at(now_s) if is_meant and self.applies_to(worker) else 0.0

    def at(self, now_s: float) -> float:
        following = bisect_right(self.points, now_s, key=lambda point: point[0])
        if following == 0:
            return 0.0
        since, seconds = self.points[following - 1]
        if following == len(self.points):
            return seconds
        until, next_seconds = self.points[following]
        return seconds + (next_seconds - seconds) * (now_s - since) / (until - since)

    @property
    def most_s(self) -> float:
        return max(seconds for _, seconds in self.points)
