"""What the progress of a streaming query says, as Spark reports it in JSON after each of its batches.

Pure: values in, values out. A row is late if it comes to an operator with state after the watermark has passed it;
Spark leaves it out without a word. Rows are counted where they reach the operator: a window adds up the records of a
task before, so one row there may be several records of one window and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Progress = Mapping[str, Any]


def late_rows(progress: Progress) -> int:
    """Return rows that were left out because they came later than the watermark."""
    return sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in progress.get("stateOperators") or ())


def observed(progress: Progress, name: str) -> Mapping[str, Any]:
    """Return what was observed under this name; empty if nothing was."""
    return (progress.get("observedMetrics") or {}).get(name) or {}


def watermark(progress: Progress) -> str | None:
    """Return the watermark after the batch, in ISO 8601; None if the query has none."""
    found = (progress.get("eventTime") or {}).get("watermark")
    return None if found is None else str(found)
