"""The errors that a processor written in Python sees: a failed checkpoint, or a daemon that broke the protocol.

Rules: protocol#checkpoint-errors. A processor imports them from `mld.sdk`.
"""

from __future__ import annotations


class DaemonError(Exception):
    """The daemon broke the protocol or went away in the middle of an exchange: let it pass, it ends the process."""


class CheckpointError(Exception):
    """A checkpoint failed and the last one stands. A name of the daemon without a class of its own raises this one."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the checkpoint failed: {name}")
        self.name = name
        """The daemon's name of the error, such as `ThrottlingException`."""


class ShutdownError(CheckpointError):
    """The lease is lost: stop working on this shard, do not retry; `lease_lost` follows.

    The one error a processor may let pass: `serve` then gives it nothing more to do, so nothing can be checkpointed
    that was not done.
    """


class ThrottlingError(CheckpointError):
    """The lease table is still throttled after all retries. Try again with the next batch, or let it pass."""


class DependencyError(CheckpointError):
    """The lease table still fails after all retries. Try again with the next batch, or let it pass."""


class InvalidStateError(CheckpointError):
    """The lease table is missing, or no checkpoint is possible now: a retry does not help, let it pass."""


class InvalidPositionError(CheckpointError):
    """The position is malformed, before the last checkpoint, or was not delivered: a bug in the processor."""
