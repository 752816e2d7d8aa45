"""`Identity`: names the application and the worker that metrics and messages come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The names that a worker puts on its metrics, pages and messages."""

    application: str
    stream: str
    worker: str
    version: str
