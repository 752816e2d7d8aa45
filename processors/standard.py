"""Claims standard input and output of a child for the protocol, before other code can read or write there.

Rules: protocol#processor-base-class. It imports as little as it can, because a child runs it first.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

INPUT_BUFFER_BYTES = 1024 * 1024
"""A batch is one line of up to some 14 MB; a large buffer saves system calls."""


def claim_standard_streams(input_buffer_bytes: int = INPUT_BUFFER_BYTES) -> tuple[BinaryIO, BinaryIO]:
    """Return private copies of standard input and output for the protocol.

    File descriptor 1 becomes standard error, and 0 the null device. So no `print`, C library or program that the
    processor starts can write into the protocol, or read from it."""
    sys.stdout.flush()
    stdin = os.fdopen(os.dup(0), "rb", input_buffer_bytes)
    stdout = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return stdin, stdout
