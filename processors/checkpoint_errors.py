"""The errors that a processor written in Python sees: a failed checkpoint, or a daemon that broke the protocol.

Rules: protocol#checkpoint-errors. A processor imports them from `mld.sdk`.
"""

from __future__ import annotations


class DaemonError(Exception):
    """The daemon broke the protocol, or went away during an exchange. Do not catch it: it ends the process."""


class CheckpointError(Exception):
    """A checkpoint failed, and the last one is still valid. This class stands for names of errors that have no class of
    their own."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the checkpoint failed: {name}")
        self.name = name
        """The daemon's name of the error, such as `ThrottlingException`."""


class ShutdownError(CheckpointError):
    """The lease is lost. Stop working on this shard, and do not retry; `lease_lost` follows.

    This is the one error that a processor may let pass. `serve` gives the processor no more work then, so no unfinished
    work can be checkpointed."""


class ThrottlingError(CheckpointError):
    """The lease table is still throttled after all retries. Try again with the next batch, or let it pass."""


class DependencyError(CheckpointError):
    """The lease table still fails after all retries. Try again with the next batch, or let it pass."""


class InvalidStateError(CheckpointError):
    """The lease table is missing, or no checkpoint is possible now. A retry does not help: let it pass."""


class InvalidPositionError(CheckpointError):
    """The position is malformed, before the last checkpoint, or was not delivered: a bug in the processor."""
