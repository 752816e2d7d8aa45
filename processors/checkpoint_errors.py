"""The errors that a processor written in Python gets: a failed checkpoint, or a daemon that broke the protocol.

Rules: protocol#checkpoint-errors. A processor imports them from `mld.sdk`.
"""

from __future__ import annotations


class DaemonError(Exception):
    """The daemon broke the protocol, or ended while we waited for it. Do not catch this: it has to end the process."""


class CheckpointError(Exception):
    """A checkpoint failed, and the one before is still valid.

    Raised itself if no subclass fits the daemon's error name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the checkpoint failed: {name}")
        self.name = name
        """The error's name in the daemon's reply, such as `ThrottlingException`."""


class ShutdownError(CheckpointError):
    """The lease is lost. Stop working on this shard, and do not retry; `lease_lost` follows.

    A processor need not catch this error. `serve` catches it and gives the processor no more work, so no unfinished
    work can be checkpointed."""


class ThrottlingError(CheckpointError):
    """The lease table is still throttled after all retries. Checkpoint again after the next batch, or let this pass."""


class DependencyError(CheckpointError):
    """The lease table still fails after all retries. Checkpoint again after the next batch, or let this pass."""


class InvalidStateError(CheckpointError):
    """The lease table is missing, or no checkpoint is possible now. A retry does not help, so let this pass."""


class InvalidPositionError(CheckpointError):
    """The position is malformed, before the last checkpoint, or was not delivered: a bug in the processor."""
