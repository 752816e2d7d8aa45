"""The control socket: a running daemon answers commands of its own user on this machine.

A caller sends one line of JSON, ``{"ask": "status"}``, and gets lines of JSON: one with ``answer`` or with ``error``,
and for a transcript any number after it, until either side ends the connection. It lives on the daemon's loop, as the
HTTP server does: if the loop hangs, nobody answers. Connections, sizes and times are bounded, and a slow caller waits
alone. Who may connect is decided by the file's place (`mld.core.control_place`) and once more by the caller's user id.
No request changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

from mld.consumer.protocol_trace import LISTENERS_MAX, ProtocolTrace, ProtocolTraces, TooManyListenersError
from mld.core import control_place
from mld.core.clock import Clock
from mld.core.control_place import SUFFIX, ControlPlace, ControlPlaceError
from mld.core.errors import MldError
from mld.core.stream_ids import keys_meant
from mld.core.turns import in_turns
from mld.serving.daemon_status import DaemonStatus
from mld.serving.status import in_pieces, own_shards, processes_value

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
BACKLOG = 32
REQUEST_BYTES_MAX = 4 * 1024
REQUEST_TIMEOUT_S = 10.0  # to send the request
ANSWER_TIMEOUT_S = 30.0  # to make an answer, the longest of which reads the tables; and to take each line of it
STALE_LOOKED_AT_MAX = 1_000
LOCK_TRIES, LOCK_PAUSE_S = 40, 0.05  # another daemon that starts holds the lock for some milliseconds
OWN_SOCKET = 0o600
LOOK_PERIOD_S = 10.0  # half a minute of failed probes has a daemon restarted
SHARDS_NAMED_MAX = 20

Request = Mapping[str, Any]
Answer = Mapping[str, Any] | bytes
"""An object, or its JSON: what is large is encoded in steps by whoever makes it."""
ControlRoute = Callable[[Request], AsyncGenerator[Answer, None]]
"""What answers one kind of request: the first value is the answer, those after it are a stream."""


class RequestRefused(MldError):
    """The request cannot be answered; the text says why, with the remedy."""


class ControlServer:
    """Serves `routes`, by what is asked, on a socket of this user alone, until it is closed."""

    def __init__(self, routes: Mapping[str, ControlRoute]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._handle: int | None = None
        self._place: ControlPlace | None = None
        self._inode: tuple[int, int] | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, place: ControlPlace, *, is_named: bool) -> str:
        """Listen at `place`; returns its path. A dead socket is replaced, a live one is not.

        `is_named`: an operator chose the place; then other files of its directory are left alone. Raises
        ControlPlaceError.
        """
        handle = control_place.open_directory(place.directory, os.geteuid(), make=True)
        try:
            listening = await _claimed(handle, place, is_named=is_named)
        except BaseException:
            os.close(handle)
            raise
        self._handle, self._place = handle, place
        self._inode = _inode(place.name, handle)
        self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=REQUEST_BYTES_MAX)
        return place.path

    @property
    def is_there(self) -> bool:
        """Whether the socket's file is still the one we made: somebody may have cleaned up behind us."""
        return self._place is not None and _inode(self._place.path) == self._inode

    async def close(self) -> None:
        """Stop listening and end every connection."""
        self.stop_listening()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)
        await asyncio.sleep(0)  # a closed transport lets go of its socket in the next turn

    def stop_listening(self) -> None:
        """Remove the socket if it still is ours; connections go on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._handle is not None and self._place is not None:
            if self._inode is not None and _inode(self._place.name, self._handle) == self._inode:
                with contextlib.suppress(OSError):
                    os.unlink(self._place.name, dir_fd=self._handle)
            os.close(self._handle)
            self._handle = None

    # --- one connection -----------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MAX or not _is_own(writer):
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # the caller is gone or too slow, or we stop: there is nobody to tell
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            asked = request.get("ask")
            route = self._routes.get(asked) if isinstance(asked, str) else None
            if route is None:
                raise RequestRefused(f"there are {', '.join(sorted(self._routes))}")
            answers = route(request)
        except RequestRefused as error:
            await _send(writer, {"error": str(error)})
            return
        async with contextlib.aclosing(answers):
            if await _send_first(answers, writer):
                await _send_rest(answers, reader, writer)


async def _request(reader: asyncio.StreamReader) -> Request:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            line = await reader.readline()
    except ValueError:
        raise RequestRefused(f"a request has at most {REQUEST_BYTES_MAX} bytes") from None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestRefused('a request is one line of JSON, such as {"ask": "status"}')
    return value


async def _send_first(answers: AsyncGenerator[Answer, None], writer: asyncio.StreamWriter) -> bool:
    """Send the answer, or why there is none, within a bound of time; whether more may follow."""
    is_answered = False
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            value = b'{"answer":' + _encoded(await anext(answers)) + b"}"
            is_answered = True
    except RequestRefused as error:
        value = _error(str(error))
    except TimeoutError:
        value = _error(f"no answer within {ANSWER_TIMEOUT_S:g} s")
    except Exception:
        log.exception("cannot answer a command", extra={"action": "control_failed"})
        value = _error("this answer failed; the daemon's log says why")
    await _send(writer, value)
    return is_answered


async def _send_rest(
    answers: AsyncGenerator[Answer, None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send what follows the answer, until there is no more or the caller closes its side."""

    async def send_all() -> None:
        async for value in answers:
            await _send(writer, value)

    async def leave() -> None:
        while await reader.read(REQUEST_BYTES_MAX):
            pass

    tasks = {asyncio.ensure_future(send_all()), asyncio.ensure_future(leave())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError | TimeoutError):
                log.error("a stream ended unexpectedly", exc_info=outcome, extra={"action": "control_failed"})


async def _send(writer: asyncio.StreamWriter, value: Answer) -> None:
    writer.write(_encoded(value) + b"\n")
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        await writer.drain()


def _encoded(value: Answer) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()


def _error(words: str) -> bytes:
    return _encoded({"error": words})


def _is_own(writer: asyncio.StreamWriter) -> bool:
    peer = control_place.peer_of(writer.get_extra_info("socket"))
    if peer is None or peer.uid == os.geteuid():
        return True
    log.warning(
        "a caller of another user is refused", extra={"action": "control_refused", "uid": peer.uid, "pid": peer.pid}
    )
    return False


# --- the socket's file ------------------------------------------------------------------------------------------------


async def _claimed(handle: int, place: ControlPlace, *, is_named: bool) -> socket.socket:
    """Return a listening socket at the place, put there whole, under the directory's lock."""
    await _lock(handle, place.directory)
    try:
        if not is_named:
            _remove_stale(handle, place.directory)
        _check_free(handle, place)
        return _listening(handle, place)
    except OSError as error:
        raise ControlPlaceError(f"{place.path} cannot be made: {error.strerror or error}") from error
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


async def _lock(handle: int, directory: Path) -> None:
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        await asyncio.sleep(LOCK_PAUSE_S)
    raise ControlPlaceError(f"another process holds the lock on {directory}")


def _check_free(handle: int, place: ControlPlace) -> None:
    try:
        status = os.stat(place.name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ControlPlaceError(f"{place.path} is there and is no socket: remove it, or name another path")
    if control_place.is_answered(control_place.address_of(handle, place.directory, place.name)):
        raise ControlPlaceError(f"another process answers at {place.path}: give each daemon a path of its own")


def _listening(handle: int, place: ControlPlace) -> socket.socket:
    """Bound under a passing name, so that whoever sees the socket under its own can connect."""
    passing = f".{os.getpid()}-{os.urandom(4).hex()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        with contextlib.suppress(OSError):  # not everywhere; the directory is closed anyway
            os.fchmod(listening.fileno(), OWN_SOCKET)  # the file gets this mode, whatever the umask
        listening.bind(control_place.address_of(handle, place.directory, passing))
        try:
            os.chmod(passing, OWN_SOCKET, dir_fd=handle)
            listening.listen(BACKLOG)
            os.rename(passing, place.name, src_dir_fd=handle, dst_dir_fd=handle)
        except BaseException:
            os.unlink(passing, dir_fd=handle)
            raise
    except BaseException:
        listening.close()
        raise
    return listening


def _remove_stale(handle: int, directory: Path) -> None:
    """Remove what daemons left that were killed; their names are never used again."""
    with os.scandir(handle) as entries:
        names = [entry.name for entry, _ in zip(entries, range(STALE_LOOKED_AT_MAX), strict=False)]
    for name in names:
        if name.endswith(SUFFIX) and not control_place.is_answered(control_place.address_of(handle, directory, name)):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=handle)


def _inode(path: str, handle: int | None = None) -> tuple[int, int] | None:
    """Return what the path, in the directory of `handle` if given, is now; None if there is nothing."""
    try:
        status = os.stat(path, dir_fd=handle, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# --- where ------------------------------------------------------------------------------------------------------------


async def serve_control(
    server: ControlServer, application: str, setting: str | None, environ: Mapping[str, str]
) -> str | None:
    """Start the server at the path of `setting`, or at a place of its own; returns the path.

    None if there is none: that is a warning in the log.
    """
    try:
        if setting is None:
            path = await _serve_somewhere(server, application, environ)
        else:
            path = await server.start(ControlPlace(Path(setting).parent, Path(setting).name), is_named=True)
    except (ControlPlaceError, OSError) as error:
        log.warning(
            "no control socket, so `mld status` and `mld tap` do not reach this daemon: %s",
            error,
            extra={"action": "control_off"},
        )
        return None
    log.debug("control socket at %s", path, extra={"action": "control_serving", "path": path})
    return path


async def _serve_somewhere(server: ControlServer, application: str, environ: Mapping[str, str]) -> str:
    uid = os.geteuid()
    name = control_place.new_name(application)
    reasons = []
    for directory in (*control_place.directories(environ, uid), control_place.spare_directory(uid)):
        try:
            return await server.start(ControlPlace(directory, name), is_named=False)
        except (ControlPlaceError, OSError) as error:
            reasons.append(str(error))
    raise ControlPlaceError("; ".join(reasons) + ". Name a place: mld.controlSocket")


async def keep_control(
    server: ControlServer, application: str, setting: str | None, environ: Mapping[str, str], clock: Clock
) -> None:
    """Make the socket again when it was removed, by a cleaner of /tmp or with a directory of systemd, until cancelled.

    A probe that does not find it would have a daemon restarted that is well.
    """
    while True:
        await clock.sleep(LOOK_PERIOD_S)
        if server.is_there:
            continue
        server.stop_listening()
        path = await serve_control(server, application, setting, environ)
        if path is None:
            return
        log.warning(
            "the control socket was removed, and is made again", extra={"action": "control_again", "path": path}
        )


# --- what is answered -------------------------------------------------------------------------------------------------


class ControlAnswers:
    """The answers of one daemon, made when it starts."""

    def __init__(self, status: DaemonStatus, traces: ProtocolTraces, clock: Clock) -> None:
        self._status = status
        self._traces = traces
        self._clock = clock
        self._started_at = clock.monotonic()

    def routes(self) -> Mapping[str, ControlRoute]:
        """Return the routes by the word of the request."""
        return {
            "who": self._who,
            "live": self._live,
            "ready": self._ready,
            "status": self._own,
            "tap": self._trace,
        }

    async def _who(self, _: Request) -> AsyncGenerator[Answer, None]:
        me = self._status.identity
        yield {"application": me.application, "worker": me.worker, "pid": os.getpid()}

    async def _live(self, _: Request) -> AsyncGenerator[Answer, None]:
        yield _verdict(self._status.why_not_alive())

    async def _ready(self, _: Request) -> AsyncGenerator[Answer, None]:
        yield _verdict(self._status.why_not_ready())

    async def _own(self, _: Request) -> AsyncGenerator[Answer, None]:
        head = self._status.own(self._clock.monotonic() - self._started_at)
        shards = own_shards(self._status.metrics, self._status.instant())
        yield b"".join(await in_turns(in_pieces(head, {"shards": iter(shards)}))).rstrip()

    # --- transcripts --------------------------------------------------------------------------------------------------

    async def _trace(self, request: Request) -> AsyncGenerator[Answer, None]:
        trace = self._trace_of(request.get("shard"))
        try:
            listener = self._traces.listen(trace)
        except TooManyListenersError:
            raise RequestRefused(f"{LISTENERS_MAX} others listen already; end one of them") from None
        log.info("somebody listens to the child", extra={"action": "tap_begun", "shard": trace.shard_id})
        try:
            yield self._about(trace)
            async for value in listener.values():
                yield value
        finally:
            self._traces.leave(trace, listener)
            log.info("somebody listens no more", extra={"action": "tap_ended", "shard": trace.shard_id})

    def _trace_of(self, shard: object) -> ProtocolTrace:
        if not isinstance(shard, str):
            raise RequestRefused("name a shard")
        held = self._traces.shards
        found = keys_meant(held, shard, self._status.metrics.stream_labels)
        trace = self._traces.find(found[0]) if len(found) == 1 else None
        if len(found) > 1:
            raise RequestRefused(
                f"this daemon has shard {shard[:200]} of {len(found)} streams: say which one, as STREAM:SHARD; it has "
                f"{', '.join(found[:SHARDS_NAMED_MAX])}"
            )
        if trace is None:
            more = f" and {len(held) - SHARDS_NAMED_MAX} more" if len(held) > SHARDS_NAMED_MAX else ""
            has = f"it has {', '.join(held[:SHARDS_NAMED_MAX])}{more}" if held else "it has none"
            raise RequestRefused(f"this daemon has no lease of shard {shard[:200]!r}; {has}")
        return trace

    def _about(self, trace: ProtocolTrace) -> dict[str, Any]:
        part, at = self._status.metrics.shards.get(trace.shard_id), self._status.instant()  # the key of its lease
        return {
            "shard": trace.shard_id,
            "child": trace.running,
            "state": None if part is None else part.activity_at(at.wall_s).value,
            "busySeconds": None if part is None else part.busy_s(at),
            **({} if part is None else processes_value(part, at)),
        }


def _verdict(why_not: str | None) -> Answer:
    return {"isMet": why_not is None, "words": why_not or "ok"}
