"""Opens the files that an operator, a key or a command line names: regular files of a bounded size, and `/dev/null`,
which people name for an empty file. A caller may allow pipes, too.

A name may lead to a pipe that nobody writes into, to `/dev/zero`, or to a file without end: opening or reading any of
these must neither wait for ever nor fill the memory. Every command and every key that reads a named file reads it here.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import BinaryIO

PIPE_WAIT_S = 10.0
"""How long the writer of a pipe may be silent, such as the command in a shell's `<(…)`."""
PIPE_WHOLE_S = 60.0
"""How long the writer of a pipe may take to write everything."""
PIECE_BYTES = 64 * 1024
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""With O_NONBLOCK, opening a pipe does not wait for its writer. It has no effect on a regular file."""


class NamedFileError(Exception):
    """The file cannot be used. The text gives the reason, without the name of the file."""


@contextmanager
def opened(path: str | os.PathLike[str], *, takes_pipe: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file for reading; with `takes_pipe` also a pipe, whose reads do not block.

    Raises NamedFileError, also for an OSError while the context is open.
    """
    with os.fdopen(_descriptor(path, takes_pipe), "rb", buffering=0 if takes_pipe else -1) as file:
        try:
            yield file
        except OSError as error:
            raise NamedFileError(f"cannot be read: {error.strerror}") from error


def _descriptor(path: str | os.PathLike[str], takes_pipe: bool) -> int:
    """Open a file, and return its descriptor. Raises NamedFileError, also if the file is of a kind that is refused."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        raise NamedFileError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise NamedFileError("is no file name") from error
    status = os.fstat(descriptor)
    mode = status.st_mode
    is_null = stat.S_ISCHR(mode) and status.st_rdev == Path(os.devnull).stat().st_rdev
    if stat.S_ISREG(mode) or is_null or (takes_pipe and stat.S_ISFIFO(mode)):
        return descriptor
    os.close(descriptor)
    raise NamedFileError("cannot be read: Is a directory" if stat.S_ISDIR(mode) else "is no regular file")


def bytes_of(path: str | os.PathLike[str], bytes_max: int, *, takes_pipe: bool = False) -> bytes:
    """Return the content of a file. Raises NamedFileError, also if it has more than `bytes_max`."""
    with opened(path, takes_pipe=takes_pipe) as file:
        return content_of(file, bytes_max)


def content_of(file: BinaryIO, bytes_max: int) -> bytes:
    """Return the content of a file that `opened` has opened. Raises NamedFileError.

    Each piece of a pipe is waited for, at most `PIPE_WAIT_S`, and the whole at most a little longer than
    `PIPE_WHOLE_S`; a regular file never has to be waited for.
    """
    data = bytearray()
    until = monotonic() + PIPE_WHOLE_S
    while len(data) <= bytes_max:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        if not poll.poll(PIPE_WAIT_S * 1000):
            raise NamedFileError(f"is a pipe into which nothing was written for {PIPE_WAIT_S:g} s")
        piece = file.read(min(PIECE_BYTES, bytes_max + 1 - len(data)))
        if piece == b"":
            return bytes(data)
        data += piece or b""  # None if another process has read this piece of the pipe
        if monotonic() > until:
            raise NamedFileError(f"was not read to its end within {PIPE_WHOLE_S:g} s")
    raise NamedFileError(f"is larger than {bytes_max} bytes")


def beginning_of(path: str | os.PathLike[str], size: int) -> bytes:
    """Return the first `size` bytes of a file; fewer if it is shorter. Raises NamedFileError."""
    with opened(path) as file:
        return file.read(size)


def lines_of(path: str | os.PathLike[str], line_bytes_max: int, bytes_max: int) -> Iterator[bytes]:
    """Yield the lines of a file, with their line feeds. Raises NamedFileError, also if a line or the file is longer."""
    read = 0
    with opened(path) as file:
        while line := file.readline(line_bytes_max + 1):
            read += len(line)
            if len(line) > line_bytes_max:
                raise NamedFileError(f"has a line of more than {line_bytes_max} bytes")
            if read > bytes_max:
                raise NamedFileError(f"is larger than {bytes_max} bytes")
            yield line
