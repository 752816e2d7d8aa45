"""What a machine can throw at code that talks to a network."""

from __future__ import annotations

import errno
import ssl

THROWN: tuple[Exception, ...] = (
    OSError(errno.EBADF, "Bad file descriptor"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    OSError(4711, "an error of tomorrow"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    BrokenPipeError(errno.EPIPE, "Broken pipe"),
    TimeoutError("timed out"),
    ssl.SSLError(1, "[SSL] record layer failure"),
    ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    ssl.SSLCertVerificationError(1, "certificate verify failed"),
    RuntimeError("can't start new thread"),
    MemoryError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    UnicodeEncodeError("latin-1", "\u20ac", 0, 1, "ordinal not in range(256)"),
    ValueError("Exceeds the limit (4300 digits) for integer string conversion"),
    KeyError("missing"),
    AttributeError("'NoneType' object has no attribute 'get'"),
    RecursionError("maximum recursion depth exceeded"),
    SystemError("error return without exception set"),
)


def name_of(value: object) -> str:
    return f"{type(value).__name__}-{value}"[:40] if isinstance(value, Exception) else repr(value)[:40]


def anew(error: Exception) -> Exception:
    """The same without its past: an exception keeps the frames of every raise, and what they hold."""
    return type(error)(*error.args)
