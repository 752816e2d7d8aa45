"""The error with which a child or a session host ends: one sentence and an exit status.

The session host is the process that starts Spark's JVM and runs the batches of all children of a daemon.

This module is quick to import, because a child has to start quickly.
"""

from __future__ import annotations

EXIT_FAILURE, EXIT_CONFIGURATION = 1, 2


class FatalError(Exception):
    """This process, a child or a session host, cannot continue. The message is one sentence; `status` is the exit
    status.
    """

    def __init__(self, message: str, status: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.status = status
