"""Makes the id of a worker from the host's name, and returns the host and process that its reports and events name."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping

HOST_CHARACTERS_MAX = 40
"""Longest host name in a worker id; enough for people to recognise it."""
TOKEN_BYTES = 5
"""Bytes of the random end of a worker id. If a thousand workers share a host name, the chance that two of them get the
same id is one in two million."""
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")


def host_name() -> str:
    """Return the name of this machine or container, without its domain."""
    return socket.gethostname().partition(".")[0]


def worker_id_of(host: str, token: str) -> str:
    """Return a worker id that names its host: letters, digits, dots, underscores and dashes, at most 56 characters."""
    name = _UNUSUAL.sub("-", host)[:HOST_CHARACTERS_MAX].strip("-.") or "worker"
    # The id is also a key in the lease table, so it must not look like the key of a shard.
    return f"{'host-' if name.lower().startswith('shardid') else ''}{name}-{token}"


def new_worker_id() -> str:
    """Return an id for a worker without a configured one; it is different at each start."""
    return worker_id_of(host_name(), secrets.token_hex(TOKEN_BYTES))


def place_of_process(started_s: float) -> Mapping[str, str]:
    """Return host, process id and start in epoch seconds, as in reports (`fleet.report.reports`)."""
    return {"host": host_name(), "pid": str(os.getpid()), "started": str(int(started_s))}
