"""`reaction_to`, `judge`: decide what a polling reader does about an error, and whether an answer of Kinesis is valid.
Pure.

Rules: retrieval#valid-answers (an answer without a next iterator ends the shard; if its children are missing, only the
fifth such answer in a row is believed) and retrieval#polling-errors (ResourceNotFound does not end a shard). No
reaction skips a record.
"""

from __future__ import annotations

from enum import Enum

from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
)
from mld.core.streams import Page, validate_end_of_shard

ENDS_WITHOUT_CHILDREN_MAX = 5
"""An answer that ends the shard must name its children. If this many answers in a row end it without usable children,
the end is believed all the same, because some stand-ins of Kinesis name no children.
"""


class PollingReaction(Enum):
    """What a polling reader does about an error."""

    SAME_ITERATOR = "same iterator"
    SAME_ITERATOR_SLOWER = "same iterator, slower"
    NEW_ITERATOR = "new iterator"
    ASK_CONSUMER = "ask the consumer"


def reaction_to(error: StreamError) -> PollingReaction:
    """Return what a polling reader does about this error."""
    match error:
        case IteratorExpiredError() | InvalidStreamArgumentError():
            return PollingReaction.NEW_ITERATOR
        case StreamThrottledError():
            return PollingReaction.SAME_ITERATOR_SLOWER
        case StreamNotFoundError():
            return PollingReaction.ASK_CONSUMER
        case _:
            return PollingReaction.SAME_ITERATOR


class AnswerVerdict(Enum):
    """What an answer says about the end of the shard."""

    GOES_ON = "the shard goes on"
    ENDED = "the shard has ended, its children are named"
    ENDED_CHILDREN_UNKNOWN = "the shard has ended, its children have to be looked up"
    INVALID = "discard the answer, ask again"


def judge(page: Page, ends_without_children_before: int) -> AnswerVerdict:
    """Return the verdict on an answer.

    `ends_without_children_before` is the number of answers directly before this one that were invalid because they
    ended the shard without usable children.
    """
    ends = page.next_iterator is None
    if validate_end_of_shard(page.next_iterator, page.child_shards) is None:
        return AnswerVerdict.ENDED if ends else AnswerVerdict.GOES_ON
    if ends and ends_without_children_before + 1 >= ENDS_WITHOUT_CHILDREN_MAX:
        return AnswerVerdict.ENDED_CHILDREN_UNKNOWN
    return AnswerVerdict.INVALID
