"""Large bodies, one at a time."""

import threading

import pytest

from mld.aws.wire.turns import Turn, TurnWatch
from tests.support.patience import PATIENCE_S


def test_a_watch_says_which_share_of_the_time_somebody_had_the_turn() -> None:
    now_s = 100.0
    turn = Turn(lambda: now_s)
    now_s += 1
    watch = TurnWatch(turn)
    now_s += 3
    with turn:
        now_s += 1
        assert watch.share() == pytest.approx(0.25)
        now_s += 1
        assert watch.share() == pytest.approx(1), "it begins anew with each look"
        now_s += 1
    now_s += 1
    assert watch.share() == pytest.approx(0.5)
    assert turn.taken_s(now_s) == 3


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
