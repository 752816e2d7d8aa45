"""Errors of the session: it cannot start, cannot be reached, has ended, or one of its tasks hangs.

This module has only the classes. The code that raises one puts the remedy into its text.
"""

from __future__ import annotations


class SessionError(Exception):
    """No session can be started or used, and another attempt does not help. The message names the remedy."""


class SessionUnreachable(SessionError):
    """The cluster does not answer. Another attempt may help."""


class SessionGone(Exception):
    """The JVM or the cluster has gone away. A new host has to be started."""


class TaskHangs(SessionGone):
    """A task did not end, so its job was cancelled. The session still works, so the engine continues with parts of the
    batch that was running."""
