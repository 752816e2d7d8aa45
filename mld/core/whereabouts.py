"""Where this process runs: the name that a worker gives itself, and what its reports and events tell of its place."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping

HOST_CHARACTERS_MAX = 40
"""Of the host's name in a worker id: what people read, and no more."""
TOKEN_BYTES = 5
"""Of the random end: two of a thousand workers of one host name have the same once in two million fleets."""
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")


def host_name() -> str:
    """Return the name of this machine or container, without its domain."""
    return socket.gethostname().partition(".")[0]


def worker_id_of(host: str, token: str) -> str:
    """Return a worker id that names its host: letters, digits, dots, underscores and dashes, 56 characters at most."""
    name = _UNUSUAL.sub("-", host)[:HOST_CHARACTERS_MAX].strip("-.") or "worker"
    # As a key of the lease table it must not look like a shard's.
    return f"{'host-' if name.lower().startswith('shardid') else ''}{name}-{token}"


def new_worker_id() -> str:
    """Return the id of a worker that nobody has named, a new one at each start."""
    return worker_id_of(host_name(), secrets.token_hex(TOKEN_BYTES))


def place_of_process(started_s: float) -> Mapping[str, str]:
    """Return host, process id and start, in epoch seconds, as reports tell them (`fleet.report.reports`)."""
    return {"host": host_name(), "pid": str(os.getpid()), "started": str(int(started_s))}
