"""Parses each row of the tables once in a run: that is most of what the scans of a fleet cost.

The simulated DynamoDB answers with the row itself, never with a copy, and nobody changes it: a write makes a new row.
So a row that is the same object says the same. What is parsed is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from mld.fleet.report import reports
from mld.leases import rows

KEPT_MAX = 4_000
"""More than most fleets have rows; some 20 MB when full."""


@contextmanager
def parsed_once() -> Iterator[None]:
    """Keep what lease rows and reports were parsed to, for the length of a run."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(rows, "_parse", _kept(rows._parse)))
        stack.enter_context(patch.object(reports, "parse_row", _kept(reports.parse_row)))
        yield


def _kept(parse: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    known: dict[tuple[int, Any], tuple[Any, Any]] = {}
    """By identity, with the row, whose identity is its own as long as it is kept."""

    def parsed(row: Any, key: Any) -> Any:
        found = known.get((id(row), key))
        if found is not None:
            return found[1]
        result = parse(row, key)
        if len(known) >= KEPT_MAX:
            known.clear()
        known[id(row), key] = row, result
        return result

    return parsed
