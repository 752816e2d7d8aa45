"""Named stages of a commit, at which tests kill or hold this process.

`MLD_SPARK_FAULT = kill@STAGE#N` kills the process (SIGKILL) when it reaches STAGE for the Nth time. `hold@STAGE#N:FILE`
creates FILE.held there and waits until FILE exists. Without the variable nothing happens.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

VARIABLE = "MLD_SPARK_FAULT"
HOLD_POLL_S = 0.001
"""Short, so that several processes that wait for one file continue at the same moment."""
_ORDER = re.compile(r"(?P<what>kill|hold)@(?P<stage>.+)#(?P<count>\d+)(?::(?P<file>.+))?")
_reached: Counter[str] = Counter()


def stage(name: str) -> None:
    """Note that a commit has reached this stage; kill or hold this process here if a test has asked for that."""
    order = _ORDER.fullmatch(os.environ.get(VARIABLE, ""))
    if order is None or order["stage"] != name:
        return
    _reached[name] += 1
    if _reached[name] != int(order["count"]):
        return
    if order["what"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    Path(f"{order['file']}.held").touch()
    while not Path(order["file"]).exists():
        time.sleep(HOLD_POLL_S)
