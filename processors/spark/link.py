"""Where the children of a daemon and its session host meet, and the frames that they exchange there.

They meet in a private directory whose name nobody can foresee (`mld.protocol.meeting`): lock, socket and status. The
host's data stand there too, unless it is no place for much data: then they get a second one.

A frame is a fixed header (kind, length) and one JSON object. The child says HELLO and is answered READY or FAILED. For
each line of the daemon's it asks for ROOM and is told to GO on, and puts its records into a page, a file whose path
begins as READY says. It says PAGE when a page is complete: when it is large, or when the host says CUT, because a
micro-batch begins. COMMITTED names the last line whose records all sinks hold, and the position of its last record.
Lines are numbered by the child from 1 on, and so are pages.

Quick to import: the child must start in no time.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from mld.protocol import meeting

HEADER = struct.Struct("!BI")
BODY_BYTES_MAX = 1024 * 1024
"""A frame holds a shard id, a position or a sentence; anything longer is no frame."""
TEXT_CHARS_MAX = 64 * 1024
"""Of a text in a frame, of which JSON makes twelve bytes a character at most."""
VERSION = 5

HELLO, ROOM, PAGE, FLUSH, BYE, ENDED = 1, 2, 3, 4, 5, 6
READY, GO, CUT, COMMITTED, FAILED, SAID = 16, 17, 18, 19, 20, 21
"""FLUSH asks for a commit before the trigger's time. ENDED says that the shard has ended and that all of it is
committed; once all sinks keep that, the child may GO on and checkpoint it. SAID carries lines of the host to the
child's standard error."""
KINDS = frozenset({HELLO, ROOM, PAGE, FLUSH, BYE, ENDED, READY, GO, CUT, COMMITTED, FAILED, SAID})


class LinkError(Exception):
    """The other side sent something that is no frame."""


def encode(kind: int, body: dict[str, Any] | None = None) -> bytes:
    """Encode a frame. Texts that are too long for one are cut: whoever reads it would take it for no frame."""
    text = json.dumps(body or {}, separators=(",", ":")).encode()
    if len(text) > BODY_BYTES_MAX:
        cut = {name: one[:TEXT_CHARS_MAX] if isinstance(one, str) else one for name, one in (body or {}).items()}
        text = json.dumps(cut, separators=(",", ":")).encode()
    return HEADER.pack(kind, len(text)) + text


def decode_header(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return the kind of a frame and the length of its body. Raises LinkError if this is no header."""
    kind, length = HEADER.unpack(data)
    if kind not in KINDS or length > BODY_BYTES_MAX:
        raise LinkError(f"no frame of this protocol: {bytes(data).hex()}")
    return kind, length


def decode_body(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a body. Raises LinkError if this is no body."""
    try:
        body = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise LinkError(f"a frame that is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise LinkError("a frame that is no object")
    return body


# --- where they meet ----------------------------------------------------------------------------------------------

PROGRAM = "mld-spark"
LOCK_FILE, SOCKET_FILE = "lock", "socket"
EXIT_FAILURE, EXIT_CONFIGURATION = 1, 2


class FatalError(Exception):
    """This process, a child or a host, cannot go on: one sentence, and its exit status."""

    def __init__(self, message: str, status: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.status = status


def started_at(pid: int) -> str:
    """Return when a process started, in ticks since the boot: with its number, this names a process for good. "0" where
    the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def run_directory(pid: int) -> Path:
    """Return the private directory of this daemon, made if need be. Raises FatalError if it is not ours alone."""
    return _met(pid, meeting.runtime_places(os.environb), len(SOCKET_FILE))


def scratch_directory(pid: int) -> Path:
    """Return the same for data, on the file system of temporary files; often the very same. Raises FatalError."""
    return _met(pid, meeting.temporary_places(os.environb))


def all_directories() -> list[tuple[meeting.Owner, Path]]:
    """Return those of all daemons of this user."""
    places = meeting.runtime_places(os.environb)
    return [(owner, Path(path)) for owner, path in meeting.meetings(PROGRAM, places)]


def _met(pid: int, places: list[str], room_bytes: int = 0) -> Path:
    try:
        return Path(meeting.meet(PROGRAM, (pid, int(started_at(pid))), places, room_bytes))
    except meeting.MeetingError as error:
        raise FatalError(str(error)) from error
