"""CloudWatch's embedded metric format: a line of JSON for each set of dimensions, from which CloudWatch Logs makes
metrics.

The lines go to standard output, apart from the log, which is on standard error. Rules: metrics#embedded-metric-format.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import Future

from mld.aws.pool import DaemonPool
from mld.errors import MetricsError, StartupError
from mld.views.datums import Datum
from mld.views.emf_lines import emf_lines
from mld.views.periods import Period

WRITE_TIMEOUT_S = 5.0


def standard_output() -> int:
    """Its descriptor. Raises StartupError if it is closed: its number may be that of anything else."""
    if sys.stdout is None:
        raise StartupError("mld.metrics: emf writes to standard output, which is closed; open it, or remove emf")
    return sys.stdout.fileno()


class EmfOutput:
    """Writes the lines to `descriptor` from a thread, so that a reader who is slow holds up nobody."""

    name = "emf"

    def __init__(self, descriptor: int, *, namespace: str) -> None:
        self._namespace = namespace
        self._descriptor = descriptor
        self._pool = DaemonPool(threads_max=1, name="emf")
        self._writing: Future[None] | None = None

    async def publish(self, datums: list[Datum], period: Period) -> None:
        if self._writing is not None and not self._writing.done():
            raise MetricsError("blocked", "nobody reads standard output. They are lost")
        self._writing = self._pool.submit(lambda: self._write(datums, period.stamp_s))
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

    def _write(self, datums: list[Datum], stamp_s: float) -> None:
        text = "".join(f"{line}\n" for line in emf_lines(self._namespace, datums, stamp_s))
        view = memoryview(text.encode())
        while view:
            view = view[os.write(self._descriptor, view) :]
