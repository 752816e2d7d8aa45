"""Rules: retrieval#valid-answers and retrieval#polling-errors."""

from __future__ import annotations

import pytest

from mld.core import errors
from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange
from mld.retrieval.answer_verdicts import ENDS_WITHOUT_CHILDREN_MAX, AnswerVerdict, PollingReaction, judge, reaction_to
from mld.retrieval.rawpage import RawPage
from tests.support.pages import page_with

CHILD = ChildShard("child", frozenset({"parent"}), HashRange(0, HASH_KEY_MAX))
ORPHAN = ChildShard("orphan", frozenset(), HashRange(0, HASH_KEY_MAX))


def answer(next_iterator: str | None, *children: ChildShard) -> RawPage:
    return page_with((), next_iterator, 0, children)


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        (answer("next"), AnswerVerdict.GOES_ON),
        (answer(None, CHILD), AnswerVerdict.ENDED),
        (answer(None, CHILD, CHILD), AnswerVerdict.ENDED),
        (answer(None), AnswerVerdict.INVALID),
        (answer("next", CHILD), AnswerVerdict.INVALID),
        (answer(None, CHILD, ORPHAN), AnswerVerdict.INVALID),
    ],
)
def test_an_answer_is_judged_by_itself(page: RawPage, verdict: AnswerVerdict) -> None:
    assert judge(page, 0) is verdict


@pytest.mark.parametrize("page", [answer(None), answer(None, ORPHAN)])
def test_a_repeated_end_without_usable_children_is_believed_in_the_end(page: RawPage) -> None:
    verdicts = [judge(page, before) for before in range(ENDS_WITHOUT_CHILDREN_MAX)]
    assert verdicts == [AnswerVerdict.INVALID] * (ENDS_WITHOUT_CHILDREN_MAX - 1) + [
        AnswerVerdict.ENDED_CHILDREN_UNKNOWN
    ]


def test_a_shard_that_goes_on_with_children_is_never_believed() -> None:
    assert judge(answer("next", CHILD), 1000) is AnswerVerdict.INVALID


def test_children_named_late_are_taken() -> None:
    assert judge(answer(None, CHILD), ENDS_WITHOUT_CHILDREN_MAX - 1) is AnswerVerdict.ENDED


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (errors.IteratorExpiredError, PollingReaction.NEW_ITERATOR),
        (errors.InvalidStreamArgumentError, PollingReaction.NEW_ITERATOR),
        (errors.StreamThrottledError, PollingReaction.SAME_ITERATOR_SLOWER),
        (errors.StreamNotFoundError, PollingReaction.ASK_CONSUMER),
        (errors.InvalidStreamResponseError, PollingReaction.SAME_ITERATOR),
        (errors.StreamUnavailableError, PollingReaction.SAME_ITERATOR),
        (errors.StreamInUseError, PollingReaction.SAME_ITERATOR),
        (errors.StreamError, PollingReaction.SAME_ITERATOR),
    ],
)
def test_every_error_has_a_reaction(error: type[errors.StreamError], reaction: PollingReaction) -> None:
    assert reaction_to(error("scripted")) is reaction
