"""`FrameStream`: cuts the body of the answer to SubscribeToShard into the frames of its events. Pure.

A frame begins with its length, so its end need not be searched for. Only pieces of less than `SMALL_BYTES` are copied.
`mld.aws.event_messages` parses the content of a frame and verifies its checksums.
"""

from __future__ import annotations

from collections import deque

from mld.aws.wire.chunks import BrokenAnswerError, Chunks

FRAME_BYTES_MAX = 24 * 1024 * 1024 + 128 * 1024 + 16
"""Largest frame: it has the largest payload and the largest headers that botocore accepts."""
FRAME_BYTES_MIN = 16
"""Smallest frame: without headers and payload it has two lengths and two checksums."""
SMALL_BYTES = 512
"""Smaller pieces are joined: each would take some 200 bytes more, and keep the buffer of its read in memory."""
_LENGTH_BYTES = 4
Frame = tuple[memoryview, ...]
"""One frame, in the pieces in which it was received."""


class FrameStream:
    """Takes the bytes of a body as they are received, and returns whole frames. `chunked` says whether the body has the
    chunked encoding.
    """

    def __init__(self, *, chunked: bool) -> None:
        self.frames: deque[Frame] = deque()
        self.waiting_bytes = 0
        """Total size of the frames in `frames`."""
        self._chunks = Chunks() if chunked else None
        self._parts: list[memoryview | bytearray] = []
        """The bytes so far of the frame that is being received: large pieces as they came, small ones joined."""
        self._have = 0
        """Total size of `_parts`."""
        self._wanted = 0
        """Length of the frame that is being received; 0 before it is known."""

    @property
    def is_complete(self) -> bool:
        """Whether the body is chunked and its last chunk has come."""
        return self._chunks is not None and self._chunks.is_complete

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame is incomplete."""
        return self._have == 0

    def take(self) -> Frame | None:
        """Remove and return the oldest whole frame; None if there is no whole frame."""
        if not self.frames:
            return None
        frame = self.frames.popleft()
        self.waiting_bytes -= sum(map(len, frame))
        return frame

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body. Raises BrokenAnswerError if they are not an event stream."""
        if self._chunks is None:
            self._append(memoryview(data))
            return
        for piece in self._chunks.feed(data):
            self._append(piece)
        if self._chunks.excess:
            raise BrokenAnswerError("bytes after the end of the answer")

    def _append(self, piece: memoryview) -> None:
        """Cut a piece of the body into frames; each pass of the loop completes at most one frame.

        The bytes of a frame that is not whole yet stay in `_parts`, until the next piece comes.
        """
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
            excess = self._have - self._wanted  # bytes of this piece that belong to the next frame
            if excess < 0:
                return
            if excess:
                last_part = self._parts[-1]
                self._parts[-1] = last_part[: len(last_part) - excess]
            self.frames.append(tuple(map(memoryview, self._parts)))
            self.waiting_bytes += self._wanted
            piece = piece[len(piece) - excess :]
            self._parts, self._have, self._wanted = [], 0, 0

    def _length(self) -> int:
        """Return the length of the frame that is being received, from its first four bytes."""
        length = int.from_bytes(b"".join(part[:_LENGTH_BYTES] for part in self._parts)[:_LENGTH_BYTES], "big")
        if not FRAME_BYTES_MIN <= length <= FRAME_BYTES_MAX:
            raise BrokenAnswerError(f"a frame of {length} bytes")
        return length
