"""The frames between a child and its session host, over a unix socket.

A frame is a fixed header (kind, length) and one JSON object. The child says HELLO and is answered READY or FAILED. For
each line of the daemon's it asks for ROOM and is told to GO on, and puts its records into a page, a file whose path
begins as READY says. It says PAGE when a page is complete: when it is large, or when the host says CUT, because a
micro-batch begins. COMMITTED names the last line whose records all sinks hold, and the position of its last record.
Lines are numbered by the child from 1 on, and so are pages.

Pure: values in, values out. Quick to import: the child must start in no time.

When a child holds its answer, so that a quiet shard's checkpoint stands at its last record.

A child may checkpoint only between a batch and its answer. A batch at the tip of its shard may be the last one for
hours, so its answer is held until its commit. While it is held, the daemon reads on, and what it reads queues
after the batch; nobody tells the child how much that is. If pages come as often as triggers and each were held, none
would ever catch up. So a child holds for a trigger altogether, and from then on it answers at once, until there is a
sign that nothing waits any more: the daemon needed a while to bring the next batch, or there was time enough to take it
all. Meanwhile each batch bears the checkpoint of what has been committed before it.

The price: if a shard goes quiet at such a moment, the commits of its last batches are checkpointed with its next batch
or at its end, as nothing else lets a child speak.

Pure: values in, values out. Quick to import: the child must start in no time.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

HEADER = struct.Struct("!BI")
BODY_BYTES_MAX = 1024 * 1024
"""A frame holds a shard id, a position or a sentence; anything longer is no frame."""
VERSION = 3

HELLO, ROOM, PAGE, FLUSH, BYE, ENDED = 1, 2, 3, 4, 5, 6
READY, GO, CUT, COMMITTED, FAILED, SAID = 16, 17, 18, 19, 20, 21
"""FLUSH asks for a commit before the trigger's time. ENDED says that the shard has ended, that all of it is committed,
and that the daemon has taken its last checkpoint. SAID carries lines of the host to the child's standard error."""
KINDS = frozenset({HELLO, ROOM, PAGE, FLUSH, BYE, ENDED, READY, GO, CUT, COMMITTED, FAILED, SAID})


class LinkError(Exception):
    """The other side sent something that is no frame."""


def encode(kind: int, body: dict[str, Any] | None = None) -> bytes:
    text = json.dumps(body or {}, separators=(",", ":")).encode()
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


HOLD_S = 15.0
"""Longest wait for one commit, or two triggers if that is more: as long as an answer is held, the child hears of no
shutdown."""
HOLD_OF_TIMEOUT = 0.5
"""Longest wait as a share of the daemon's `timeoutInSeconds`."""
PATIENCE_S = 1.0
"""Pages may always be made to wait for this long, even if triggers are shorter: nobody minds."""
QUEUED_OF_TRIGGER = 0.25
QUEUED_MIN_S, QUEUED_MAX_S = 0.05, 1.0
"""A busy daemon needs some milliseconds to bring what it has; no daemon needs more than a second."""


class HoldLimits(NamedTuple):
    """How long the children of one session may hold answers, in seconds."""

    hold_s: float
    """How long an answer waits for one commit."""
    patience_s: float
    """How long answers in a row may be held together; the last of them may exceed it."""
    queued_s: float
    """If a batch takes longer than this to come after an answer, nothing was queued in the daemon."""


def hold_limits(trigger_s: float, reply_timeout_s: float | None) -> HoldLimits:
    hold_s = max(HOLD_S, 2 * trigger_s)
    if reply_timeout_s is not None:
        hold_s = min(hold_s, HOLD_OF_TIMEOUT * reply_timeout_s)
    queued_s = min(QUEUED_MAX_S, max(QUEUED_MIN_S, QUEUED_OF_TRIGGER * trigger_s))
    return HoldLimits(hold_s, max(PATIENCE_S, trigger_s), queued_s)


class HeldAnswers(NamedTuple):
    """How long answers were held since pages are known to have waited, and when the last of them was given."""

    seconds: float = 0.0
    ended_at: float = 0.0

    def when(self, answered_at: float, came_at: float, hold_limits: HoldLimits) -> HeldAnswers:
        """Return what counts when a batch comes; `answered_at` is the time of the answer before it."""
        waited = came_at - answered_at >= hold_limits.queued_s
        return HeldAnswers() if waited or came_at - self.ended_at >= hold_limits.patience_s else self

    def allows(self, hold_limits: HoldLimits) -> bool:
        """Return whether the next answer may be held."""
        return self.seconds < hold_limits.patience_s

    def after(self, came_at: float, answered_at: float) -> HeldAnswers:
        """Return what counts when an answer has been held from `came_at` to `answered_at`."""
        return HeldAnswers(self.seconds + answered_at - came_at, answered_at)
