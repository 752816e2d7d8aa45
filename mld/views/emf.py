"""CloudWatch's embedded metric format: a line of JSON for each set of dimensions, from which CloudWatch Logs makes
metrics.

The lines go to standard output, apart from the log, which is on standard error. A value is a number, or the statistics
of several, as Amazon's own library writes them: Max, Min, Count and Sum. Rules: metrics#embedded-metric-format.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from mld.aws.pool import DaemonPool
from mld.errors import MetricsError
from mld.metrics.instruments import StatisticSet
from mld.views.datums import Datum
from mld.views.periods import Period

METRICS_PER_LINE_MAX = 100
"""The limit of the format."""
WRITE_TIMEOUT_S = 5.0


def emf_lines(namespace: str, datums: Iterable[Datum], stamp_s: float) -> Iterator[str]:
    """One document for each set of dimensions, or more if it has more metrics than a document may."""
    by_dimensions: dict[tuple[tuple[str, str], ...], list[Datum]] = {}
    for datum in datums:
        by_dimensions.setdefault(datum.dimensions, []).append(datum)
    for dimensions, alike in by_dimensions.items():
        for first in range(0, len(alike), METRICS_PER_LINE_MAX):
            part = alike[first : first + METRICS_PER_LINE_MAX]
            yield json.dumps(_document(namespace, dimensions, part, stamp_s), separators=(",", ":"))


def _document(
    namespace: str, dimensions: tuple[tuple[str, str], ...], datums: list[Datum], stamp_s: float
) -> dict[str, Any]:
    directive = {
        "Namespace": namespace,
        "Dimensions": [[name for name, _ in dimensions]],
        "Metrics": [{"Name": datum.name, "Unit": datum.unit} for datum in datums],
    }
    return {
        "_aws": {"Timestamp": int(stamp_s * 1000), "CloudWatchMetrics": [directive]},
        **dict(dimensions),
        **{datum.name: _value(datum.values) for datum in datums},
    }


def _value(values: StatisticSet) -> float | dict[str, float]:
    if values.count == 1:
        return values.total
    return {"Max": values.greatest, "Min": values.least, "Count": values.count, "Sum": values.total}


class EmfOutput:
    """Writes the lines to `descriptor` from a thread, so that a reader who is slow holds up nobody."""

    name = "emf"

    def __init__(self, *, namespace: str, descriptor: int | None = None) -> None:
        self._namespace = namespace
        self._descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self._pool = DaemonPool(threads_max=1, name="emf")
        self._writing: Future[None] | None = None

    async def publish(self, datums: list[Datum], period: Period) -> None:
        if self._writing is not None and not self._writing.done():
            raise MetricsError("blocked", "nobody reads standard output. They are lost")
        text = "".join(f"{line}\n" for line in emf_lines(self._namespace, datums, period.stamp_s))
        self._writing = self._pool.submit(lambda: self._write(text.encode()))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await asyncio.wrap_future(self._writing)
        except TimeoutError:
            raise MetricsError("blocked", "nobody reads standard output") from None
        except OSError as error:
            raise MetricsError(
                "unwritable", f"standard output cannot be written: {error.strerror}. They are lost"
            ) from error

    async def close(self) -> None:
        self._pool.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
