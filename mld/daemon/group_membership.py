"""`Membership`: what a worker gets from its supervisor if several worker processes of this host form a group: its name,
a socket for its pages, and a lifeline.

The lifeline is a socket whose other end the supervisor holds. On it the supervisor sends one line of JSON for each
other worker that has ended. When the supervisor ends for whatever reason, the lifeline closes, and the worker stops as
if it had been asked to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mld.core.error_boundary import survived

log = logging.getLogger(__name__)

# Environment variables by which the supervisor passes on what `Membership` holds, and the overrides:
LIFELINE = "MLD_UNIT_LIFELINE"
WORKER = "MLD_UNIT_WORKER"
PAGES = "MLD_UNIT_PAGES"
DEFINED = "MLD_UNIT_DEFINED"
"""The `--define` options of the command line, as JSON. They are passed in this variable because they may be secret, and
every user can read a command line.
"""


@dataclass(frozen=True, slots=True)
class Membership:
    """What this process knows of the group that it belongs to."""

    worker_id: str
    pages: Path
    """Socket where the supervisor asks for this worker's pages."""
    lifeline: int
    """File descriptor."""


def claim_definitions(environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Return the overrides that a supervisor passed on, and remove them from the environment, so that no child gets
    them.
    """
    return tuple(json.loads(environ.pop(DEFINED, "[]")))


def claim_membership(environ: MutableMapping[str, str]) -> Membership | None:
    """Return this process's membership in a group; None if it is in no group. Remove it from the environment, because a
    child that inherited it could pretend to be this worker.
    """
    lifeline, worker, pages = (environ.pop(name, None) for name in (LIFELINE, WORKER, PAGES))
    if lifeline is None or worker is None or pages is None:
        return None
    os.set_inheritable(int(lifeline), False)
    return Membership(worker, Path(pages), int(lifeline))


async def hold_on(membership: Membership, on_ended: Callable[[str, float], None], on_alone: Callable[[], None]) -> None:
    """Read the lifeline until the supervisor has ended, then call `on_alone`.

    Whenever another worker has ended, call `on_ended` with its name and the time, in monotonic seconds of this machine,
    until which no process runs under that name.
    """
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=membership.lifeline))
    try:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                try:
                    _pass_on(json.loads(line), on_ended)
                except Exception as error:  # after any bad line, read on: the end of the lifeline must be noticed
                    log.debug("a line of the lifeline is lost: %s", survived(error, "reading the lifeline"))
        log.error("the supervisor of this worker is gone: stopping", extra={"action": "supervisor_gone"})
        on_alone()
    finally:
        writer.close()


def _pass_on(news: dict[str, Any], on_ended: Callable[[str, float], None]) -> None:
    """Call `on_ended` if this line of the supervisor reports that a worker has ended; ignore other lines."""
    if "ended" in news:
        on_ended(news["ended"], news["until"])


def news_of_end(worker: str, until: float) -> bytes:
    """Return the line by which the supervisor tells the other workers that `worker` has ended.

    Until `until` (monotonic seconds of this machine) no process will run under its name.
    """
    return json.dumps({"ended": worker, "until": until}).encode() + b"\n"
