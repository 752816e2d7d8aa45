"""`Membership`: what a worker of a group has from its supervisor: its name, a place for its pages, and a lifeline.

The lifeline is a stream whose other end the supervisor holds. It brings news of members that have ended, one line of
JSON each. It ends with the supervisor, however that ends: then the worker stops, as if asked.
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

LIFELINE = "MLD_UNIT_LIFELINE"
WORKER = "MLD_UNIT_WORKER"
PAGES = "MLD_UNIT_PAGES"
DEFINED = "MLD_UNIT_DEFINED"
"""The `--define` of the command line, as JSON: they may be secret, and everybody can read a command line."""


@dataclass(frozen=True, slots=True)
class Membership:
    """`pages` is the socket where the supervisor asks for this worker's pages; `lifeline` is a descriptor."""

    worker_id: str
    pages: Path
    lifeline: int


def claim_definitions(environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Return the overrides that a supervisor hands on; taken from the environment, so that no child sees them."""
    return tuple(json.loads(environ.pop(DEFINED, "[]")))


def claim_membership(environ: MutableMapping[str, str]) -> Membership | None:
    """Take this process's membership in a group from the environment, so that no child speaks for us; None: in none."""
    lifeline, worker, pages = (environ.pop(name, None) for name in (LIFELINE, WORKER, PAGES))
    if lifeline is None or worker is None or pages is None:
        return None
    os.set_inheritable(int(lifeline), False)
    return Membership(worker, Path(pages), int(lifeline))


async def hold_on(membership: Membership, on_ended: Callable[[str, float], None], on_alone: Callable[[], None]) -> None:
    """Follow the lifeline to its end, which is that of the supervisor: `on_alone`.

    `on_ended` hears of each other member that has ended, and until when, in monotonic seconds of this machine, nobody
    runs under its name.
    """
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=membership.lifeline))
    try:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                try:
                    _pass_on(json.loads(line), on_ended)
                except Exception as error:  # the end of the lifeline is to be noticed whatever a line said
                    log.debug("news of the group are lost: %s", survived(error, "hearing of the group"))
        log.error("the supervisor of this worker is gone: stopping", extra={"action": "supervisor_gone"})
        on_alone()
    finally:
        writer.close()


def _pass_on(news: dict[str, Any], on_ended: Callable[[str, float], None]) -> None:
    if "ended" in news:
        on_ended(news["ended"], news["until"])


def news_of_end(worker: str, until: float) -> bytes:
    """Return the line by which the others learn that `worker` has ended."""
    return json.dumps({"ended": worker, "until": until}).encode() + b"\n"
