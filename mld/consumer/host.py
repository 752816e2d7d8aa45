"""The `ProcessorHost` port: start a child, write to it, read its lines, end it.

`child` is the real adapter (processes and pipes); tests use in-memory children that speak the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from mld.errors import MldError


class ChildStartError(MldError):
    """The command cannot be started; the text names the command, the system's reason and the key to change."""


class ChildProcess(Protocol):
    """One running record processor. Lines are decoded and without their ends."""

    gone: asyncio.Future[None]
    """Done at the end of its stdout: no more answers will come."""

    @property
    def description(self) -> str:
        """How the log names it, for example ``pid 4711``."""
        ...

    async def write(self, pieces: Iterable[bytes]) -> None:
        """Write all pieces in order without blocking the loop; raises BrokenPipeError if the child stopped reading."""
        ...

    async def read_line(self) -> str | None:
        """The next line of its stdout; None when there will be no more (closed, or the process is gone)."""
        ...

    def take_unread(self) -> list[str]:
        """Lines already read from stdout that nobody asked for yet; they are removed."""
        ...

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines of its stderr, shortened."""
        ...

    async def end(self) -> str:
        """Close stdin, drain, wait; send TERM and then KILL to its process group if it takes too long. Says how it
        ended.

        If cancelled, it kills at once.
        """
        ...

    async def kill(self) -> str:
        """KILL the process group now and reap; says how it ended."""
        ...


class ProcessorHost(Protocol):
    async def start(self, shard_id: str) -> ChildProcess:
        """Start one child for a shard; raises ChildStartError."""
        ...
