"""Named stages of a commit, at which the proof harness ends or holds this process.

`MLD_SPARK_FAULT = kill@STAGE#N` ends the process (SIGKILL) when it comes to STAGE for the Nth time;
`hold@STAGE#N:FILE` creates FILE.held there and waits until FILE exists. Unset: nothing ever happens.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

VARIABLE = "MLD_SPARK_FAULT"
HOLD_POLL_S = 0.001
"""Short, so that processes that are held by one file go on at the same moment."""

_reached: dict[str, int] = {}


def stage(name: str) -> None:
    """Say that a commit has come to this stage."""
    order = os.environ.get(VARIABLE)
    if not order:
        return
    what, _, rest = order.partition("@")
    wanted, _, rest = rest.partition("#")
    count, _, file = rest.partition(":")
    if wanted != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] != int(count):
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    Path(f"{file}.held").touch()
    while not Path(file).exists():
        time.sleep(HOLD_POLL_S)
