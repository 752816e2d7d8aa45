"""`ChildGuard`: a small shell process that ends the children of a daemon which has been killed.

Rule: protocol#children-of-a-dead-daemon. If the daemon is ended by `kill -9` or by the kernel's OOM killer, it cannot
end its children. Their stdin ends, but a child with a timer or an open socket may live on while its successor works. So
a shell reads from a pipe that only the daemon holds. When a child starts, and when it has ended, the daemon writes its
process group to this pipe. The pipe ends with the daemon, however the daemon ends. Then the children that are left get
a moment to exit by themselves, after that SIGTERM, and then SIGKILL.

PR_SET_PDEATHSIG is no alternative. The child itself must set it between fork and exec. Our code there is unsafe in a
process with threads, and a helper program would be one more process start for each child. The signal is sent when the
forking thread ends, not the process. It reaches neither the children of a child nor children forked by the fork server.
And only Linux has it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import weakref

log = logging.getLogger(__name__)

SHELL = "/bin/sh"
LEAVE_S = 1
"""Time for children to exit by themselves, and then to exit on SIGTERM. It is short, because another worker may soon
read their shard: a daemon that restarts under the same name has its leases back within seconds."""
_SCRIPT = f"""
trap '' HUP INT QUIT TERM
groups=' '
while read -r what group; do
    case $what in
    +) groups="$groups$group " ;;
    -) case $groups in *" $group "*) groups="${{groups%%" $group "*}} ${{groups#*" $group "}}" ;; esac ;;
    esac
done
for signal in TERM KILL; do
    left=' '
    for group in $groups; do kill -s 0 -- "-$group" && left="$left$group "; done
    groups=$left
    [ "$groups" = ' ' ] && exit
    sleep {LEAVE_S}
    for group in $groups; do kill -s $signal -- "-$group"; done
done
"""
"""Reads lines from the daemon, "+ GROUP" or "- GROUP", and keeps the groups that are left. When the pipe ends, waits
and sends TERM to the groups that still exist, and then KILL in the same way. Each test for a group is a signal 0."""


class ChildGuard:
    """The guard of one daemon. The shell is started with the first child, and again if it is gone when a child starts
    or ends.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()  # the process groups of the running children
        self.pid = 0
        """Process id of the shell; 0 before the first child."""
        self._pipe: int | None = None
        """Our end of the pipe to the shell; None if no shell runs."""
        self._is_reported = False
        """Whether it was logged that no shell can be started."""

    def watch(self, group: int) -> None:
        """Tell the shell to end this process group when the daemon is gone."""
        self._groups.add(group)
        self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        """Tell the shell that this process group has ended."""
        self._groups.discard(group)
        self._tell(f"- {group}\n")

    def _tell(self, line: str) -> None:
        """Write a line to the shell. If no shell runs, or the one that runs does not read, start a new one, which is
        told all groups.
        """
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # the shell is gone, or does not read: start another, with all groups
                os.write(self._pipe, line.encode())
                return
            self._replace()
        try:
            self._start()
        except OSError as error:
            if not self._is_reported:
                self._is_reported = True
                log.warning(
                    "children will outlive this daemon if it is killed: %s", error,
                    extra={"action": "children_unguarded"},
                )  # fmt: skip

    def _start(self) -> None:
        """Start the shell, which reads a new pipe as its stdin, and write all present groups to the pipe. Our end of
        the pipe is closed when this guard is no longer used, and at the latest when the daemon ends.
        """
        shells_end, our_end = os.pipe()
        try:
            os.set_blocking(our_end, False)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                self.pid = os.posix_spawn(
                    SHELL,
                    ["sh", "-c", _SCRIPT, "child-guard", str(os.getpid())],
                    {"PATH": os.defpath},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, shells_end, 0),
                        (os.POSIX_SPAWN_DUP2, nowhere, 1),
                        (os.POSIX_SPAWN_DUP2, nowhere, 2),
                    ],
                    setpgroup=0,
                )
            finally:
                os.close(nowhere)
            os.write(our_end, "".join(f"+ {group}\n" for group in self._groups).encode())
        except OSError:
            os.close(our_end)
            raise
        finally:
            os.close(shells_end)
        self._pipe = our_end
        self._finalizer = weakref.finalize(self, _end, our_end, self.pid)

    def _replace(self) -> None:
        """Kill the shell, so that it does not end its process groups, and close its pipe.

        The shell may only be suspended (SIGSTOP). If it were left alive, it would find the end of the pipe when it is
        resumed, would take that for the end of the daemon, and would end all children.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._pipe = None
        self._finalizer()


def _end(pipe: int, pid: int) -> None:
    """Close the pipe, so that the shell ends the groups that it knows, and reap the shell if it has exited."""
    os.close(pipe)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
