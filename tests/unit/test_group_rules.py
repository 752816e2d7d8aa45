"""What a group of workers does when and what its members hear (`daemon.group`)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from mld.daemon.group_membership import (
    DEFINED,
    LIFELINE,
    PAGES,
    WORKER,
    Membership,
    claim_definitions,
    claim_membership,
    hold_on,
    news_of_end,
)
from mld.daemon.group_rules import (
    FENCE_S,
    RESTART_PAUSE_MAX_S,
    cpus_usable,
    end_in_words,
    exit_code,
    group_end,
    restart_pause_s,
    worker_names,
)


def test_workers_are_named_after_the_unit_and_counted_from_one() -> None:
    assert worker_names("app", 3) == ("app-1", "app-2", "app-3")


@pytest.mark.parametrize(
    ("allowed", "quota", "usable"), [(8, None, 8), (8, 2.0, 2), (8, 1.5, 2), (2, 6.0, 2), (4, 0.25, 1)]
)
def test_as_many_cpus_as_both_the_affinity_and_the_quota_allow(allowed: int, quota: float | None, usable: int) -> None:
    assert cpus_usable(allowed, quota) == usable


def test_pauses_grow_have_a_bound_and_outlast_the_fence() -> None:
    pauses = [restart_pause_s(failures) for failures in range(1, 40)]
    assert all(pause > FENCE_S for pause in pauses), "nobody runs under a name that is told to be dead"
    assert pauses == sorted(pauses)
    assert pauses[1] > pauses[0]
    assert RESTART_PAUSE_MAX_S <= pauses[-1] < RESTART_PAUSE_MAX_S + 1


@pytest.mark.parametrize(
    ("code", "was_ready", "end"),
    [
        pytest.param(2, False, 2, id="a wrong file"),
        pytest.param(2, True, None, id="a file that has become wrong"),
        pytest.param(1, False, 1, id="a start in vain"),
        pytest.param(-9, False, 137, id="killed while it started"),
        pytest.param(0, False, 1, id="an early end that looks good"),
        pytest.param(1, True, None, id="a failure later"),
        pytest.param(-9, True, None, id="killed later"),
    ],
)
def test_a_group_ends_with_a_worker_only_if_it_never_came_up(code: int, was_ready: bool, end: int | None) -> None:
    assert group_end(code, was_ready=was_ready) == end


def test_ends_are_told_as_a_shell_and_as_people_have_them() -> None:
    assert (exit_code(-15), exit_code(3)) == (143, 3)
    assert "properties file has an error" in end_in_words(2)
    assert end_in_words(3) == "ended with exit code 3"
    assert end_in_words(-9) == "was ended by SIGKILL"
    assert end_in_words(-63) == "was ended by signal 63"


# --- what a worker knows


def test_membership_is_taken_from_the_environment_so_that_no_child_has_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.set_inheritable(theirs.fileno(), True)
        environ = {LIFELINE: str(theirs.fileno()), WORKER: "a-1", PAGES: "/p/0.pages", DEFINED: '["a=b"]', "HOME": "/"}
        assert claim_definitions(environ) == ("a=b",)
        assert claim_membership(environ) == Membership("a-1", Path("/p/0.pages"), theirs.fileno())
        assert environ == {"HOME": "/"}
        assert not os.get_inheritable(theirs.fileno())


def test_without_a_supervisor_there_is_no_membership() -> None:
    assert claim_membership({"HOME": "/"}) is None
    assert claim_definitions({}) == ()


def heard_of(sent: bytes) -> list[object]:
    """What a worker hears on a lifeline that ends after this."""
    ours, theirs = socket.socketpair()
    news: list[object] = []
    with ours:
        ours.sendall(sent)
    membership = Membership("a-1", Path("/p"), theirs.detach())
    asyncio.run(hold_on(membership, lambda *ended: news.append(ended), lambda: news.append("alone")))
    return news


@pytest.mark.parametrize("bad", [b"{", b"[]", b'{"ended": "a-2"}', b"\xff", b"null"])
def test_a_bad_line_costs_a_worker_nothing_but_the_line(bad: bytes) -> None:
    assert heard_of(bad + b"\n" + news_of_end("a-3", 1.0)) == [("a-3", 1.0), "alone"]


def test_a_worker_hears_of_other_members_and_of_the_end_of_its_supervisor() -> None:
    assert heard_of(news_of_end("a-2", 12.5) + json.dumps({"later": 1}).encode() + b"\n") == [("a-2", 12.5), "alone"]
