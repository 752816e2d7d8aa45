"""The error with which a child or a session host ends: one sentence and an exit status.

Quick to import: the child must start in no time.
"""

from __future__ import annotations

EXIT_FAILURE, EXIT_CONFIGURATION = 1, 2


class FatalError(Exception):
    """This process, a child or a host, cannot continue: one sentence, and its exit status."""

    def __init__(self, message: str, status: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.status = status
