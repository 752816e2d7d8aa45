"""Large bodies, one at a time."""

import threading

import pytest

from mld.aws.wire.turns import Turn, TurnWatch
from tests.support.patience import PATIENCE_S


def test_a_watch_says_which_share_of_the_time_somebody_had_the_turn() -> None:
    turn = Turn()
    watch = TurnWatch(turn)
    assert watch.share() == 0
    with turn:
        watch.begin()
        assert 0.5 < watch.share() <= 1.5, "nearly all, but for the clock between two looks"
    begun_s = turn.taken_s()
    assert begun_s > 0 and turn.taken_s() == begun_s
    assert watch.share() < 1


def test_a_turn_is_one_threads() -> None:
    turn, had = Turn(), threading.Event()

    def take() -> None:
        with turn:
            had.set()

    with turn:
        thread = threading.Thread(target=take)
        thread.start()
        assert not had.wait(0.01)
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_who_raises_gives_the_turn_back() -> None:
    turn = Turn()
    with pytest.raises(ValueError, match="mine"), turn:
        raise ValueError("mine")
    with turn:
        pass
