"""What the soaks share: a thread that does one thing again and again, and what a process holds."""

from __future__ import annotations

import resource
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path


class SoakError(Exception):
    """What must not happen."""


class Repeated(threading.Thread, ABC):
    """Calls `once` every so many seconds until it is stopped. `stop` raises SoakError if a call raised."""

    def __init__(self, name: str, every_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.every_s = every_s
        self.error: Exception | None = None
        self._is_stopped = threading.Event()

    @abstractmethod
    def once(self) -> None: ...

    def run(self) -> None:
        try:
            began_s = time.monotonic()
            while not self._is_stopped.wait(max(0.0, began_s + self.every_s - time.monotonic())):
                began_s = time.monotonic()
                self.once()
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._is_stopped.set()
        self.join()
        if self.error is not None:
            raise SoakError(f"{self.name}: {self.error}") from self.error


def descriptors(process: int | str = "self") -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def resident_bytes(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
