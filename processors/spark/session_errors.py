"""What can be wrong with the session: there is none, it cannot be reached, it is gone, or a task of it hangs.

The errors only; who raises them knows the remedy.
"""

from __future__ import annotations


class SessionError(Exception):
    """There can be no session, or none that can be used; one sentence with the remedy. Trying again does not help."""


class SessionUnreachable(SessionError):
    """Nobody answers where the session should be; trying again later may help."""


class SessionGone(Exception):
    """The JVM or the cluster is not there any more; a new host has to be started."""


class TaskHangs(SessionGone):
    """A task did not end, and its job was cancelled. The session has outlived that, so the engine goes on with parts of
    what was running."""
