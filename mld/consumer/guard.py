"""`ChildGuard`: a tiny process that ends the children of a daemon which has been killed.

Rule: protocol#children-of-a-dead-daemon. After `kill -9`, or the kernel's OOM killer, nobody ends the children: they
find the end of their input, and one with a timer or an open socket lives on beside its successor. So a shell waits at a
pipe that only the daemon holds, and is told the process group of each child when it starts and when it has ended. The
pipe ends with the daemon, however that ends; then what is left gets a moment to leave by itself, SIGTERM, and SIGKILL.

Not PR_SET_PDEATHSIG: it has to be set by the child itself between fork and exec, which is not safe in a process with
threads or costs another program for each child; it is bound to the thread that forked; it does not reach the children
of a child, or one that the fork server forked; and only Linux has it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref

log = logging.getLogger(__name__)

SHELL = "/bin/sh"
LEAVE_S = 1
"""For children that end by themselves when their input does, and then for those that end on SIGTERM. Their shard may be
read by somebody else soon: a daemon that starts again under its name has it back within seconds."""
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


class ChildGuard:
    """One for each daemon. It starts with the first child, and again if it is gone when a child starts or ends."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self.pid = 0
        """Of the process; 0 before the first child."""
        self._pipe: int | None = None
        self._is_reported = False

    def watch(self, group: int) -> None:
        """End this process group once we are gone."""
        self._groups.add(group)
        self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        """Leave this group alone from now on: it has ended."""
        self._groups.discard(group)
        self._tell(f"- {group}\n")

    def _tell(self, line: str) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # it is gone, or does not read: then another one hears of all
                os.write(self._pipe, line.encode())
                return
            self._close()
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
        near, far = os.pipe()
        try:
            os.set_blocking(far, False)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                self.pid = os.posix_spawn(
                    SHELL,
                    ["sh", "-c", _SCRIPT, "child-guard", str(os.getpid())],
                    {"PATH": os.defpath},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, near, 0),
                        (os.POSIX_SPAWN_DUP2, nowhere, 1),
                        (os.POSIX_SPAWN_DUP2, nowhere, 2),
                    ],
                    setpgroup=0,
                )
            finally:
                os.close(nowhere)
            os.write(far, "".join(f"+ {group}\n" for group in self._groups).encode())
        except OSError:
            os.close(far)
            raise
        finally:
            os.close(near)
        self._pipe = far
        self._finalizer = weakref.finalize(self, _end, far, self.pid)

    def _close(self) -> None:
        self._pipe = None
        self._finalizer()


def _end(pipe: int, pid: int) -> None:
    os.close(pipe)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
