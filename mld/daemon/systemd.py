"""`ServiceManager`: sends notifications to systemd, or to another manager that understands sd_notify(3).

Nothing here raises an exception. Without `NOTIFY_SOCKET` in the environment nothing is sent; if the manager cannot be
reached, the daemon goes on without it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, MutableMapping

from mld.properties.printable import printable

log = logging.getLogger(__name__)

SOCKET = "NOTIFY_SOCKET"
WATCHDOG_MICROS = "WATCHDOG_USEC"
WATCHDOG_PID = "WATCHDOG_PID"
STATUS_CHARACTERS_MAX = 500
KEEPALIVES_PER_WATCHDOG = 2
"""How many signs of life are sent within the watchdog's time. Without any, the manager would end the process.
sd_watchdog_enabled(3) advises this number.
"""


class ServiceManager:
    """Notifies the service manager, if there is one."""

    def __init__(self, address: str | None, keepalive_s: float | None = None) -> None:
        """Make a manager that listens at the socket `address`; None if there is no manager.

        `keepalive_s` is the time between signs of life; None if the manager expects none.
        """
        self._address = None if address is None else _address(address)
        self.keepalive_s = keepalive_s
        self._is_reached = True

    @property
    def is_there(self) -> bool:
        return self._address is not None

    def ready(self) -> None:
        """Announce that initialization is over."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Send one line for `systemctl status`. A line feed in it would begin another message."""
        self._send(f"STATUS={printable(text)[:STATUS_CHARACTERS_MAX]}")

    def alive(self) -> None:
        """Announce that the worker makes progress."""
        self._send("WATCHDOG=1")

    def reloading(self, monotonic_s: float) -> None:
        """Announce that a reload of the configuration began at `monotonic_s`; `ready` announces its end."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={round(monotonic_s * 1e6)}")

    def starting(self, within_s: float) -> None:
        """Announce that initialization may take `within_s` more seconds, whatever the unit's time limit is."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def stopping(self, within_s: float) -> None:
        """Announce a stop that may take `within_s` more seconds, whatever the unit's time limit is."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def _send(self, state: str) -> None:
        """Send a notification in the form of sd_notify(3). Log a failure, unless the one before failed, too."""
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto(state.encode(), self._address)
            self._is_reached = True
        except OSError as error:
            if not self._is_reached:
                return  # the warning was logged at the first failure
            self._is_reached = False
            log.warning("cannot tell the service manager: %s", error, extra={"action": "notify_failed"})


def claim_manager(environ: MutableMapping[str, str], pid: int) -> ServiceManager:
    """Return the service manager of process `pid`, and remove its variables from the environment, so that children
    cannot notify it.
    """
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
    """Return the address of a Unix socket from its path or its abstract name (`@name`); None for
    other kinds of socket.
    """
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None
