"""`ServiceManager`: sends notifications to systemd, or to another manager that understands sd_notify(3).

Nothing here raises: without `NOTIFY_SOCKET` in the environment nothing is sent, and if the manager cannot be reached,
the daemon goes on without it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, MutableMapping

log = logging.getLogger(__name__)

SOCKET = "NOTIFY_SOCKET"
WATCHDOG_MICROS = "WATCHDOG_USEC"
WATCHDOG_PID = "WATCHDOG_PID"
STATUS_CHARACTERS_MAX = 500
KEEPALIVES_PER_WATCHDOG = 2
"""Signs of life in the time after which the manager ends the process, as sd_watchdog_enabled(3) advises."""


class ServiceManager:
    """Notifies the service manager, if there is one."""

    def __init__(self, address: str | None, keepalive_s: float | None = None) -> None:
        """Make a link to the socket at `address`. `keepalive_s`: seconds between signs of life, None for no signs."""
        self._address = None if address is None else _address(address)
        self.keepalive_s = keepalive_s
        self._is_heard = True

    @property
    def is_there(self) -> bool:
        return self._address is not None

    def ready(self) -> None:
        """Announce that initialization is over."""
        self._tell("READY=1")

    def status(self, text: str) -> None:
        """Send one line for `systemctl status`."""
        self._tell(f"STATUS={text.replace(chr(10), ' ')[:STATUS_CHARACTERS_MAX]}")

    def alive(self) -> None:
        """Announce that the worker makes progress."""
        self._tell("WATCHDOG=1")

    def reloading(self, monotonic_s: float) -> None:
        """Announce that the configuration is read again, since `monotonic_s`; `ready` announces the end."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={round(monotonic_s * 1e6)}")

    def starting(self, within_s: float) -> None:
        """Announce that initialization may take `within_s` more seconds, whatever the unit's time limit is."""
        self._tell(f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def stopping(self, within_s: float) -> None:
        """Announce a stop that may take `within_s` more seconds, whatever the unit's time limit is."""
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
                return  # the warning was logged at the first failure
            self._is_heard = False
            log.warning("cannot tell the service manager: %s", error, extra={"action": "notify_failed"})


def claim_manager(environ: MutableMapping[str, str], pid: int) -> ServiceManager:
    """Return the manager of process `pid`, and remove it from the environment, so that children cannot notify it."""
    manager = ServiceManager(environ.get(SOCKET) or None, keepalive_s(environ, pid))
    for name in (SOCKET, WATCHDOG_MICROS, WATCHDOG_PID):
        environ.pop(name, None)
    return manager


def keepalive_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Return the seconds between signs of life that the manager of process `pid` expects; None if it expects none."""
    if environ.get(WATCHDOG_PID, str(pid)) != str(pid):
        return None
    try:
        micros = int(environ.get(WATCHDOG_MICROS, ""))
    except ValueError:
        return None
    return micros / 1e6 / KEEPALIVES_PER_WATCHDOG if micros > 0 else None


def _address(text: str) -> str | None:
    """Return the address of a socket by its path or its abstract name (`@name`); None for other kinds of socket."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None
