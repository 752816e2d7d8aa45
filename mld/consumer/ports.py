"""The interfaces to child processes: `ProcessorHost` starts a child, `ChildProcess` is the running child.

The real adapter is `child` (processes and pipes); tests use in-memory children that exchange the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mld.core.errors import MldError
from mld.protocol.messages import StreamLabel

Written = Callable[[], None]
"""Called when the line of an action has been written to the child's pipe, before any answer of the child is handled."""

Wanted = Callable[[], bool]
"""Called just before an action is sent; returns whether to send it. An action may have to wait for a checkpoint that is
being stored, and may not be wanted any more after that."""

Holds = Callable[[], Mapping[str, object]]
"""Returns log fields that describe the records that a child is working on; called only for a warning."""


class ChildStartError(MldError):
    """The command cannot be started. The text names the command, the system's reason and the key to change."""


class ChildProcess(Protocol):
    """One running record processor. Lines are decoded, without line ends."""

    @property
    def description(self) -> str:
        """The name of the child in the log, for example ``pid 4711``."""
        ...

    def begin_write(self, pieces: Iterable[bytes]) -> asyncio.Future[None] | None:
        """Write all pieces in order, without blocking the loop. Return None if the pipe has taken them at once.

        Otherwise return a future that is done when the pipe has taken them; it raises BrokenPipeError if the child has
        stopped reading. The iterator is asked for the next piece, or its end, as soon as a piece is in the pipe.
        """
        ...

    async def read_line(self) -> str | None:
        """Return the next line of stdout; None if no more can come (stdout is closed, or the process is gone)."""
        ...

    def take_unread(self) -> list[str]:
        """Remove and return the lines of stdout that have arrived and that `read_line` has not returned yet."""
        ...

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines of stderr, shortened."""
        ...

    async def end(self) -> str:
        """Close stdin and wait for the exit. If it takes too long, send TERM and then KILL to the process group. Return
        how the child ended.

        If cancelled, kill at once.
        """
        ...

    async def kill(self) -> str:
        """Kill the process group now, and reap the child; return how it ended."""
        ...


@dataclass(frozen=True, slots=True)
class ShardAddress:
    """The shard that a child is for: its lease key, its id, its stream (if the application reads several), and its
    ancestors, parents first."""

    key: str
    shard_id: str
    stream: StreamLabel | None = None
    ancestors: tuple[str, ...] = ()
    child_number: int = 0
    """The number of this child among the shard's `children`, from 0."""
    children: int = 1

    def variables(self) -> dict[str, str]:
        """Return the environment variables that describe this address to the child (protocol#child-command)."""
        variables = {"MLD_SHARD_ID": self.shard_id, "MLD_LEASE_KEY": self.key}
        variables["MLD_ANCESTOR_SHARD_IDS"] = " ".join(self.ancestors)
        variables["MLD_CHILD_NUMBER"] = str(self.child_number)
        variables["MLD_CHILDREN_PER_SHARD"] = str(self.children)
        if self.stream is not None:
            label = self.stream
            variables |= {"MLD_STREAM_NAME": label.name, "MLD_STREAM_ARN": label.arn, "MLD_STREAM_ID": label.id}
        return variables


class ProcessorHost(Protocol):
    """Starts the children of a worker."""

    async def start(self, shard: ShardAddress) -> ChildProcess:
        """Start one child for a shard; raises ChildStartError."""
        ...
