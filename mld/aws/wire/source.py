"""`WireFrameSource`: the frames of one event stream, from a connection that it has to itself.

Reading stops while whole frames wait to be taken (`FrameStream.is_full`), so that the sender is held up by the
connection's own flow control.
"""

from __future__ import annotations

from mld.aws.wire.connection import Connection
from mld.aws.wire.frames import BrokenStreamError, Frame, FrameStream


class WireFrameSource:
    """Owns `connection`, on which the head of a good answer has come; `frames` takes the body."""

    def __init__(self, connection: Connection, frames: FrameStream) -> None:
        self._connection = connection
        self._frames = frames

    async def next(self) -> Frame | None:
        """The next frame; None at the end of the answer. Raises OSError, BrokenAnswerError or BrokenStreamError.

        One caller at a time. May be cancelled without loss.
        """
        while (frame := self._frames.take()) is None:
            if not await self._connection.more():
                if not self._frames.is_between_frames:
                    raise BrokenStreamError("the last event is cut off")
                return None
        self._connection.read_on()
        return frame

    def close(self) -> None:
        """May be called again; a caller of `next` gets an error."""
        self._connection.close(BrokenStreamError("the subscription was closed"))
