"""`Identity`: which worker of which application published values and messages belong to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The names that a worker puts on its metrics, pages and messages."""

    application: str
    stream: str
    worker: str
    version: str
