"""The notify protocol of systemd: one datagram for each thing the service manager should know (sd_notify(3)).

Nothing here fails: a manager that cannot be told is a reason to go on without telling it. Without `NOTIFY_SOCKET` in
the environment nobody wants to know, and nothing is sent.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

log = logging.getLogger(__name__)

SOCKET = "NOTIFY_SOCKET"
WATCHDOG_MICROS = "WATCHDOG_USEC"
WATCHDOG_PID = "WATCHDOG_PID"
STATUS_CHARACTERS_MAX = 500
KEEPALIVES_PER_WATCHDOG = 2
"""A sign of life is sent this often in the time that the manager waits for one, as sd_watchdog_enabled(3) advises."""


class ServiceManager:
    """Tells the service manager, if there is one."""

    def __init__(self, address: str | None) -> None:
        self._address = None if address is None else _address(address)
        self._is_heard = True

    @property
    def is_there(self) -> bool:
        return self._address is not None

    def ready(self) -> None:
        """Initialization is over."""
        self._tell("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._tell(f"STATUS={text.replace(chr(10), ' ')[:STATUS_CHARACTERS_MAX]}")

    def alive(self) -> None:
        """The worker makes progress."""
        self._tell("WATCHDOG=1")

    def reloading(self, monotonic_s: float) -> None:
        """The configuration is read again; `ready` says when that is over. `monotonic_s` is CLOCK_MONOTONIC."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={round(monotonic_s * 1e6)}")

    def starting(self, within_s: float) -> None:
        """Initialization goes on, and may take `within_s` seconds from now, whatever the unit says."""
        self._tell(f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def stopping(self, within_s: float) -> None:
        """A stop has begun and may take `within_s` seconds from now, whatever the unit says."""
        self._tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def _tell(self, state: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto(state.encode(), self._address)
            self._is_heard = True
        except OSError as error:
            if not self._is_heard:
                return  # said before: there is something to tell every few seconds
            self._is_heard = False
            log.warning("cannot tell the service manager: %s", error, extra={"action": "notify_failed"})


@dataclass(frozen=True, slots=True)
class Supervision:
    """Who supervises this process; `keepalive_s` is how often it wants a sign of life, None: it does not."""

    manager: ServiceManager
    keepalive_s: float | None = None


def claim_supervision(environ: MutableMapping[str, str], pid: int) -> Supervision:
    """The supervision of process `pid`; taken from the environment, so that no child speaks in our place."""
    supervision = Supervision(manager_of(environ), keepalive_s(environ, pid))
    for name in (SOCKET, WATCHDOG_MICROS, WATCHDOG_PID):
        environ.pop(name, None)
    return supervision


def manager_of(environ: Mapping[str, str]) -> ServiceManager:
    """The service manager that started this process."""
    return ServiceManager(environ.get(SOCKET) or None)


def keepalive_s(environ: Mapping[str, str], pid: int) -> float | None:
    """How often the manager of process `pid` wants a sign of life, in seconds; None if it does not."""
    if environ.get(WATCHDOG_PID, str(pid)) != str(pid):
        return None
    try:
        micros = int(environ.get(WATCHDOG_MICROS, ""))
    except ValueError:
        return None
    return micros / 1e6 / KEEPALIVES_PER_WATCHDOG if micros > 0 else None


def _address(text: str) -> str | None:
    """A path, or a name in the abstract namespace written with @; other kinds of socket are not for us."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None
