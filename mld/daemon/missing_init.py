"""`warn_without_init`: logs a warning if the daemon is process 1 of a container."""

from __future__ import annotations

import logging
import os

log = logging.getLogger(__name__)


def warn_without_init() -> None:
    """Warn if this is process 1: when children end and leave processes behind, these become ours,
    and are never reaped.
    """
    if os.getpid() == 1:
        log.warning(
            "put an init before this process (tini, docker run --init, shareProcessNamespace): it is process 1, and "
            "does not reap processes that children leave behind when they end",
            extra={"action": "no_init"},
        )
