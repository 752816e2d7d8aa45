"""`warn_without_init`: a warning for a container that runs the daemon as its process 1."""

from __future__ import annotations

import logging
import os

log = logging.getLogger(__name__)


def warn_without_init() -> None:
    """Warn if this is process 1: processes that children leave behind when they end would never be reaped."""
    if os.getpid() == 1:
        log.warning(
            "put an init before this process (tini, docker run --init, shareProcessNamespace): it is process 1, and "
            "does not reap processes that children leave behind when they end",
            extra={"action": "no_init"},
        )
