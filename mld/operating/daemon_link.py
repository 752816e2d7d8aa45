"""`DaemonLink`: finds a daemon on this machine, and asks it questions over its control socket."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mld.core import control_place
from mld.core.control_place import ControlPlace, ControlPlaceError
from mld.core.errors import MldError
from mld.properties.values import SOCKET_OFF

CHUNK_BYTES = 256 * 1024
ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Largest answer that is read. The status of 10,000 shards takes about 5 MB."""


class NotReachedError(MldError):
    """No daemon answers, or several daemons fit the options. The text says what to do."""


class DaemonRefusedError(MldError):
    """The daemon answered that it cannot do what was asked."""


@dataclass(frozen=True, slots=True)
class WantedDaemon:
    """Which daemon a command means. A field is None if the command does not restrict it."""

    application: str | None
    setting: str | None
    """Value of mld.controlSocket."""
    pid: int | None
    worker: str | None
    timeout_s: float
    """Seconds within which the daemon must answer."""


class DaemonLink:
    """A daemon whose control socket exists."""

    def __init__(self, place: ControlPlace, timeout_s: float) -> None:
        self.place = place
        self._timeout_s = timeout_s

    def ask(self, question: str, **fields: object) -> dict[str, Any]:
        """Ask one question, and return the answer. Raises NotReachedError or DaemonRefusedError."""
        with closing(self.follow(question, **fields)) as lines:
            return next(lines)

    def follow(self, question: str, **fields: object) -> Generator[dict[str, Any], None, None]:
        """Yield the answer, then each further line that the daemon sends. Raises NotReachedError or DaemonRefusedError.

        The answer must come within the timeout; the lines after it may take any time.
        """
        with self._connected() as connection:
            try:
                connection.sendall(json.dumps({"ask": question, **fields}).encode() + b"\n")
                lines = _lines(connection, time.monotonic() + self._timeout_s)
                first = json.loads(next(lines, b"null"))
            except TimeoutError:
                raise NotReachedError(
                    f"the daemon {self._pid_or_place(connection)} does not answer within {self._timeout_s:g} s: its "
                    "event loop hangs, or the machine is overloaded"
                ) from None
            except OSError as error:
                raise NotReachedError(f"the daemon at {self.place.path} broke off: {error.strerror}") from None
            except (ValueError, RecursionError):
                first = None
            match first:
                case {"answer": dict(answer)}:
                    yield answer
                case {"error": str(words)}:
                    raise DaemonRefusedError(words)
                case _:
                    raise NotReachedError(
                        f"what listens at {self.place.path} gave no answer: is it a daemon that is stopping?"
                    )
            connection.settimeout(None)
            try:
                for line in lines:
                    yield json.loads(line)
            except OSError:
                return

    def _pid_or_place(self, connection: socket.socket) -> str:
        """Return words for an error that name the daemon: its pid, or its socket if the pid is unknown."""
        peer = control_place.peer_of(connection)
        return f"at {self.place.path}" if peer is None else f"with pid {peer.pid}"

    def pid(self) -> int | None:
        """Return the pid of the process that listens; None if the system does not provide it."""
        with self._connected() as connection:
            peer = control_place.peer_of(connection)
        return None if peer is None else peer.pid

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """Connect to the daemon's socket. Raises NotReachedError, also if a process of another user listens there."""
        place, uid = self.place, os.geteuid()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            # Python's own timeout would make the socket non-blocking. Then connect() would fail at once, instead of
            # waiting, while many other callers wait for the daemon to accept them.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._timeout_s))
            try:
                with _address_of(place) as address:
                    connection.connect(address)
            except BlockingIOError:
                raise NotReachedError(
                    f"the daemon at {place.path} has accepted no connection for {self._timeout_s:g} s: it hangs, or "
                    "many programs connect to it"
                ) from None
            except ControlPlaceError as error:
                raise NotReachedError(str(error)) from None
            except (ConnectionRefusedError, FileNotFoundError):
                raise NotReachedError(f"no daemon listens at {place.path}") from None
            except OSError as error:
                why = error.strerror or error
                raise NotReachedError(f"the daemon at {place.path} cannot be reached: {why}") from None
            peer = control_place.peer_of(connection)
            if peer is not None and peer.uid != uid:
                raise NotReachedError(f"what listens at {place.path} is of user {peer.uid}, not of this one ({uid})")
            connection.settimeout(self._timeout_s)
            yield connection


def _timeval(seconds: float) -> bytes:
    """Return the time as a C `struct timeval` (seconds, microseconds); at least 1 µs, because zero means no limit."""
    return struct.pack("ll", *divmod(max(1, round(seconds * 1e6)), 1_000_000))


@contextmanager
def _address_of(place: ControlPlace) -> Iterator[str]:
    """Yield an address by which the socket can be reached inside this context. It leads through an open descriptor of
    the directory, because the address of a socket must be short. Raises ControlPlaceError if the directory is not
    private.
    """
    handle = control_place.open_directory(place.directory, os.geteuid(), make=False)
    try:
        yield control_place.address_of(handle, place.directory, place.name)
    finally:
        os.close(handle)


def _lines(connection: socket.socket, until: float) -> Iterator[bytes]:
    """Yield the lines that arrive, until the connection ends, or a line is longer than ANSWER_BYTES_MAX.

    Raises TimeoutError if the first line is not complete at `until`, in monotonic seconds. For the lines after it the
    caller sets the timeout of the socket.
    """
    waiting = bytearray()
    is_first = True
    while len(waiting) <= ANSWER_BYTES_MAX:
        if is_first:
            connection.settimeout(max(0.001, until - time.monotonic()))
        data = connection.recv(CHUNK_BYTES)
        if not data:
            return
        searched = len(waiting)
        waiting += data
        while (end := waiting.find(b"\n", searched)) >= 0:
            yield bytes(waiting[:end])
            is_first = False
            del waiting[: end + 1]
            searched = 0


def find_daemon(wanted: WantedDaemon, environ: Mapping[str, str]) -> DaemonLink:
    """Return the daemon that `wanted` means. Raises NotReachedError if there is none, or more than one."""
    found = find_daemons(wanted, environ)
    if len(found) > 1:
        raise NotReachedError(f"choose one of {len(found)} daemons by --pid or --worker: {_listed(found)}")
    return found[0]


def find_daemons(wanted: WantedDaemon, environ: Mapping[str, str]) -> list[DaemonLink]:
    """Return all daemons that `wanted` means, such as the workers of a group. Raises NotReachedError if there is
    none.
    """
    if wanted.setting == SOCKET_OFF:
        raise NotReachedError("mld.controlSocket is off, so the daemon cannot be asked")
    if wanted.setting is not None:
        path = Path(wanted.setting)
        return [DaemonLink(ControlPlace(path.parent, path.name), wanted.timeout_s)]
    uid = os.geteuid()
    alive = [place for place in control_place.sockets_of(wanted.application, environ, uid) if _is_alive(place)]
    links = [DaemonLink(place, wanted.timeout_s) for place in alive]
    if not links:
        raise NotReachedError(_nobody(wanted.application, environ, uid))
    if wanted.pid is None and wanted.worker is None:
        return links
    if found := [link for link in links if _is_wanted(link, wanted)]:
        return found
    named = " and ".join(
        f"{name} {value}" for name, value in (("pid", wanted.pid), ("worker", wanted.worker)) if value is not None
    )
    raise NotReachedError(f"no daemon with {named} answers here; there are: {_listed(links)}")


def _is_alive(place: ControlPlace) -> bool:
    """Return whether a daemon answers at this place."""
    try:
        with _address_of(place) as address:
            return control_place.is_answered(address)
    except ControlPlaceError:
        return False


def _is_wanted(link: DaemonLink, wanted: WantedDaemon) -> bool:
    """Return whether the daemon has the wanted pid and worker id, as far as these are given."""
    try:
        # The system knows the pid, so that a daemon that hangs can be chosen, too.
        if wanted.worker is None and link.pid() == wanted.pid:
            return True
        who = link.ask("who")
    except MldError:
        return False
    return wanted.pid in (None, who.get("pid")) and wanted.worker in (None, who.get("worker"))


def _listed(links: Sequence[DaemonLink]) -> str:
    return ", ".join(map(_named, links))


def _named(link: DaemonLink) -> str:
    """Return a daemon's pid, worker id and application in words; if it does not answer, the error."""
    try:
        who = link.ask("who")
        return f"pid {who.get('pid')} (worker {who.get('worker')}, application {who.get('application')})"
    except MldError as error:
        return str(error)


def _nobody(application: str | None, environ: Mapping[str, str], uid: int) -> str:
    """Return a sentence that no daemon was found, with the directories of other users in which its socket may be."""
    whose = "" if application is None else f" of application {application}"
    words = f"no daemon{whose} answers on this machine for this user"
    foreign = [
        f"{place} is of user {place.stat().st_uid}"
        for place in control_place.places_to_look(environ, uid)
        if place.is_dir() and place.stat().st_uid != uid
    ]
    if foreign:
        return f"{words}; {', '.join(foreign)}: run the command as the daemon's user"
    return f"{words}: is it running, as this user, and not with mld.controlSocket=off?"
