"""From the body of an answer to the frames of an event stream. Pure: pieces in, frames out.

A frame begins with its length, so nothing is searched, and nothing is copied but the few bytes that a read cuts off.
The inside of a frame, its checksums included, is the business of `mld.aws.messages`.
"""

from __future__ import annotations

from collections import deque

from mld.aws.wire.answers import SMALL_BYTES

FRAME_BYTES_MAX = 24 * 1024 * 1024 + 128 * 1024 + 16
"""The largest payload and the largest headers that botocore takes."""
FRAME_BYTES_MIN = 16
"""A frame of nothing but lengths and checksums."""
AHEAD_BYTES = 64 * 1024
"""How much may wait in whole frames before reading stops; the frame under way comes on top of it."""
_LENGTH_BYTES = 4

Frame = tuple[memoryview, ...]
"""One frame in the pieces in which it came."""


class BrokenStreamError(Exception):
    """What came is no whole event stream."""


class FrameStream:
    """Takes the pieces of a body as they come, gives whole frames."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        """Bytes in whole frames that nobody has taken."""
        self._frames: deque[Frame] = deque()
        self._parts: list[memoryview | bytearray] = []
        self._have = 0
        self._wanted = 0  # length of the frame under way; 0 before it is known

    @property
    def is_between_frames(self) -> bool:
        return self._have == 0

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes >= AHEAD_BYTES

    def take(self) -> Frame | None:
        """The oldest whole frame."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self.waiting_bytes -= sum(map(len, frame))
        return frame

    def append(self, piece: memoryview) -> None:
        """Cut the next piece of the body into frames. Raises BrokenStreamError for what is no event stream."""
        while piece:
            if len(piece) >= SMALL_BYTES:
                self._parts.append(piece)
            elif self._parts and isinstance(last := self._parts[-1], bytearray):
                last += piece
            else:
                self._parts.append(bytearray(piece))
            self._have += len(piece)
            if not self._wanted:
                if self._have < _LENGTH_BYTES:
                    return
                self._wanted = self._length()
            excess = self._have - self._wanted
            if excess < 0:
                return
            if excess:
                whole = self._parts[-1]
                self._parts[-1] = whole[: len(whole) - excess]
            self._frames.append(tuple(map(memoryview, self._parts)))
            self.waiting_bytes += self._wanted
            piece = piece[len(piece) - excess :]
            self._parts, self._have, self._wanted = [], 0, 0

    def _length(self) -> int:
        length = int.from_bytes(b"".join(part[:_LENGTH_BYTES] for part in self._parts)[:_LENGTH_BYTES], "big")
        if not FRAME_BYTES_MIN <= length <= FRAME_BYTES_MAX:
            raise BrokenStreamError(f"a frame of {length} bytes")
        return length
