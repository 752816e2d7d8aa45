"""When a child holds its answer, so that a quiet shard's checkpoint stands at its last record.

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

from typing import NamedTuple

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
