"""What a worker does about the leader lock (`fleet.leader.candidate`): each rule is a row of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from mld.core.periods import LEADER_HEARTBEAT_S
from mld.fleet.leader.candidate import (
    HEARTBEAT_RETRY_S,
    LONG_AGO,
    RELEASE_ATTEMPTS_MAX,
    UNKNOWN_RECHECK_S,
    Action,
    Drop,
    Ended,
    Event,
    Failed,
    GiveUp,
    LeaderCandidate,
    Lost,
    News,
    Notice,
    Read,
    Reading,
    Refused,
    Release,
    Renew,
    ReportDamage,
    Sending,
    StepDown,
    step,
)
from mld.fleet.leader.lock import GIVEN_UP, LEASE_S, Claim, DamagedLock, HeldLock, LockRow, Observation, Versions

NOW = 1000.0
SENT = 990.0
RETRY = NOW + HEARTBEAT_RETRY_S
SOON = NOW + UNKNOWN_RECHECK_S
NEXT_LOOK = NOW + LEADER_HEARTBEAT_S


def ours(**sent_at: float) -> Versions:
    return Versions("me", sent_at)


def row(version: str, owner: str = "me", duration_s: float = LEASE_S, **more: Any) -> LockRow:
    return LockRow(owner, duration_s, version, **more)


FREE = LeaderCandidate(Versions("me"))
LOOKING = replace(FREE, under_way=Reading.LOOK)
CLAIMING = replace(FREE, ours=ours(v1=SENT), under_way=Claim(None), version="v1", is_claim_unknown=True)
UNKNOWN = replace(FREE, ours=ours(v1=SENT), version="v1", is_claim_unknown=True)
HELD = replace(FREE, ours=ours(v1=SENT), holding=HeldLock("v1", SENT, LEASE_S), version="v1")
LEADS = replace(HELD, leads=True)
EXPIRED = replace(LEADS, holding=HeldLock("v1", NOW - LEASE_S, LEASE_S))
RENEWING = replace(LEADS, ours=ours(v1=SENT, v2=NOW - 1), under_way=Renew("v1"), version="v2")
CLAIMING_AGAIN = replace(CLAIMING, ours=ours(v0=950.0, v1=SENT))
RENEWING_AGAIN = replace(RENEWING, ours=ours(v1=SENT, v1b=995.0, v2=NOW - 1))
RELEASING = replace(FREE, ours=ours(v1=GIVEN_UP), under_way=Release("v1"), attempts_left=RELEASE_ATTEMPTS_MAX)
FINDING = replace(UNKNOWN, under_way=Reading.FIND, attempts_left=RELEASE_ATTEMPTS_MAX)

JAVA = row("theirs", "java", 40.0)
DAMAGED = DamagedLock({}, "ownerName is missing")
SEEN_NOW = Observation(JAVA, NOW, 40.0)
SEEN_LATELY = Observation(JAVA, NOW - 30.0, 40.0)
SEEN_LONG_AGO = Observation(JAVA, NOW - 41.0, 40.0)


@dataclass(frozen=True)
class Case:
    what: str
    state: LeaderCandidate
    event: Event
    actions: tuple[Action, ...]
    changes: dict[str, Any]


def case(what: str, state: LeaderCandidate, event: Event, *actions: Action, **changes: Any) -> Case:
    """`event` in `state` leads to these actions and changes; `under_way` becomes the request among the actions."""
    requests = [action for action in actions if isinstance(action, Reading | Claim | Renew | Release)]
    return Case(what, state, event, actions, {"under_way": requests[-1] if requests else None, **changes})


GONE = row("x", "java", is_released=True)
TWIN = row("of a twin")
REPORTED = Observation(DAMAGED, NOW - 1, LEASE_S)
NO_ANSWER, NOT_APPLIED = Failed(may_be_applied=True), Failed(may_be_applied=False)
LOST = Lost("it expired without a heartbeat")
ASKING = [
    case("the row is looked at", FREE, News.ASK, Reading.LOOK),
    case("who holds the lock asks nobody", HELD, News.ASK),
    case("who is closed asks nobody", replace(FREE, is_closed=True), News.ASK),
    case("an expired lock is lost first", EXPIRED, News.ASK, LOST, Reading.LOOK, holding=None, leads=False),
    case("who stepped down does not look", replace(FREE, resting_until=NOW + 5), News.ASK, no_until=NOW + 5),
    case("and is asked again after a heartbeat", replace(FREE, resting_until=NOW + 99), News.ASK, no_until=NEXT_LOOK),
    case("afterwards it looks again", replace(FREE, resting_until=NOW), News.ASK, Reading.LOOK),
]
LOOKS = [
    case("an absent row is claimed", LOOKING, Read(None), Claim(None)),
    case("a released one too", LOOKING, Read(GONE), Claim(GONE)),
    case("that of another is observed", LOOKING, Read(JAVA), observation=SEEN_NOW, no_until=NEXT_LOOK),
    case("until its own duration is over", replace(LOOKING, observation=SEEN_LATELY), Read(JAVA), no_until=NOW + 10),
    case("afterwards it is claimed", replace(LOOKING, observation=SEEN_LONG_AGO), Read(JAVA), Claim(JAVA)),
    case(
        "the same id is no claim", LOOKING, Read(TWIN), observation=Observation(TWIN, NOW, LEASE_S), no_until=NEXT_LOOK
    ),
    case(
        "a claim without an answer is recognized",
        replace(UNKNOWN, under_way=Reading.LOOK),
        Read(row("v1")),
        holding=HeldLock("v1", SENT, LEASE_S),
    ),
    case(
        "damage is reported",
        LOOKING,
        Read(DAMAGED),
        ReportDamage(DAMAGED, LEASE_S),
        observation=Observation(DAMAGED, NOW, LEASE_S),
        no_until=NEXT_LOOK,
    ),
    case("but once", replace(LOOKING, observation=REPORTED), Read(DAMAGED), no_until=NEXT_LOOK),
    case("no answer is no", LOOKING, NO_ANSWER, no_until=NEXT_LOOK),
]
CLAIMS = [
    case(
        "before it is sent it counts as unknown",
        replace(FREE, under_way=Claim(None)),
        Sending("v1"),
        ours=ours(v1=NOW),
        version="v1",
        is_claim_unknown=True,
        under_way=Claim(None),
    ),
    case(
        "a claim counts from its sending",
        CLAIMING,
        News.APPLIED,
        holding=HeldLock("v1", SENT, LEASE_S),
        is_claim_unknown=False,
    ),
    case(
        "who lost the race observes the winner",
        CLAIMING,
        Refused(JAVA),
        ours=ours(),
        is_claim_unknown=False,
        observation=SEEN_NOW,
        no_until=NEXT_LOOK,
    ),
    case("one claim a check is enough", CLAIMING, Refused(None), ours=ours(), is_claim_unknown=False, no_until=SOON),
    case(
        "an earlier claim may be what refuses",
        CLAIMING_AGAIN,
        Refused(row("v0")),
        ours=ours(v0=950.0),
        is_claim_unknown=False,
        holding=HeldLock("v0", 950.0, LEASE_S),
    ),
    case("without an answer it is looked for soon", CLAIMING, NO_ANSWER, no_until=SOON),
    case("what was surely not applied is forgotten", CLAIMING, NOT_APPLIED, ours=ours(), no_until=SOON),
]
HEARTBEATS = [
    case("a lock is renewed", LEADS, News.HEARTBEAT_DUE, Renew("v1")),
    case("unless its time is over", EXPIRED, News.HEARTBEAT_DUE, LOST, holding=None, leads=False),
    case(
        "before it is sent its version is known",
        replace(LEADS, under_way=Renew("v1")),
        Sending("v2"),
        ours=ours(v1=SENT, v2=NOW),
        version="v2",
        under_way=Renew("v1"),
    ),
    case("a renewal counts from its sending", RENEWING, News.APPLIED, holding=HeldLock("v2", NOW - 1, LEASE_S)),
    case("without an answer it is tried again soon", RENEWING, NO_ANSWER, retry_at=RETRY),
    case("or surely not applied", RENEWING, NOT_APPLIED, ours=ours(v1=SENT), retry_at=RETRY),
    case(
        "an earlier one may be what refuses",
        RENEWING_AGAIN,
        Refused(row("v1b")),
        ours=ours(v1=SENT, v1b=995.0),
        holding=HeldLock("v1b", 995.0, LEASE_S),
    ),
    case(
        "a lock taken by force is lost",
        RENEWING,
        Refused(JAVA),
        Lost("java is in the row"),
        ours=ours(v1=SENT),
        holding=None,
        leads=False,
    ),
    case(
        "so is a deleted row",
        RENEWING,
        Refused(None),
        Lost("nobody is in the row"),
        ours=ours(v1=SENT),
        holding=None,
        leads=False,
    ),
    case(
        "and a damaged one",
        RENEWING,
        Refused(DAMAGED),
        Lost("something unreadable is in the row"),
        ours=ours(v1=SENT),
        holding=None,
        leads=False,
    ),
]
CHANGES = [
    case("leadership is announced after the hook", HELD, News.CHECK_PASSED, Notice.WON, leads=True),
    case("leadership is announced once", LEADS, News.CHECK_PASSED),
    case("not by who has closed meanwhile", replace(HELD, is_closed=True), News.CHECK_PASSED),
    case("not by whose lock has expired", replace(EXPIRED, leads=False), News.CHECK_PASSED),
    case("a failed check is remembered", FREE, News.CHECK_FAILED, no_until=NEXT_LOOK),
    case(
        "a move forgets what was seen",
        replace(UNKNOWN, observation=SEEN_LATELY, no_until=NEXT_LOOK),
        News.MOVED,
        ours=ours(),
        is_claim_unknown=False,
        observation=None,
        no_until=LONG_AGO,
    ),
    case("others may win meanwhile", FREE, StepDown(45.0), resting_until=NOW + 45),
    case("the longest hold-off counts", replace(FREE, resting_until=NOW + 60), StepDown(45.0)),
    case("it closes for good", LEADS, News.CLOSE, is_closed=True),
    case("it may be dropped without a request", LEADS, Drop("abandoned"), Lost("abandoned"), holding=None, leads=False),
]
RELEASES = [
    case(
        "the lock is lost before its row is deleted",
        LEADS,
        GiveUp("closing"),
        Lost("closing"),
        Release("v1"),
        ours=ours(v1=GIVEN_UP),
        holding=None,
        leads=False,
        attempts_left=RELEASE_ATTEMPTS_MAX,
    ),
    case(
        "a lock not announced is not lost",
        HELD,
        GiveUp("closing"),
        Release("v1"),
        ours=ours(v1=GIVEN_UP),
        holding=None,
        attempts_left=RELEASE_ATTEMPTS_MAX,
    ),
    case("the lock of another is left alone", FREE, GiveUp("closing")),
    case("an unknown claim is sought", UNKNOWN, GiveUp("closing"), Reading.FIND, attempts_left=RELEASE_ATTEMPTS_MAX),
    case("and taken back if it is there", FINDING, Read(row("v1")), Release("v1"), ours=ours(v1=GIVEN_UP)),
    case("else not", FINDING, Read(JAVA)),
    case("a look that fails is repeated", FINDING, NO_ANSWER, Reading.FIND, attempts_left=2),
    case(
        "a deleted row is all there is to it",
        replace(RELEASING, is_claim_unknown=True),
        News.APPLIED,
        is_claim_unknown=False,
    ),
    case("a delete that fails is repeated", RELEASING, NO_ANSWER, Release("v1"), attempts_left=2),
    case("but not for ever", replace(RELEASING, attempts_left=1), NO_ANSWER, Notice.UNRELEASED, attempts_left=0),
    case(
        "a later version of ours goes instead",
        replace(RELEASING, ours=ours(v1=GIVEN_UP, v2=SENT)),
        Refused(row("v2")),
        Release("v2"),
        ours=ours(v1=GIVEN_UP, v2=GIVEN_UP),
        attempts_left=2,
    ),
    case("that of another stays", RELEASING, Refused(JAVA)),
]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.what) for case in [*ASKING, *LOOKS, *CLAIMS, *HEARTBEATS, *CHANGES, *RELEASES]]
)
def test_each_event_has_its_consequences(case: Case) -> None:
    assert step(case.state, case.event, NOW) == (replace(case.state, **case.changes), case.actions)


def test_the_locks_of_all_siblings_that_have_ended_are_claimed_at_once_while_that_is_sure() -> None:
    state = FREE
    for worker in ("a", "b"):
        state, _ = step(state, Ended(worker, NOW + 3), NOW)
    looking = replace(state, under_way=Reading.LOOK)

    def actions(owner: str, at: float) -> tuple[Action, ...]:
        return step(looking, Read(row("theirs", owner)), at)[1]

    assert actions("a", NOW + 3) == (Claim(row("theirs", "a")),)
    assert actions("b", NOW + 3) == (Claim(row("theirs", "b")),)
    assert actions("a", NOW + 3.1) == (), "a new process may run under that name"
    assert actions("c", NOW) == ()
    state, _ = step(state, Ended("c", NOW + 9), NOW + 5)
    assert state.ended == (Ended("c", NOW + 9),), "what is past is forgotten"


def test_a_write_is_believed_for_its_duration() -> None:
    assert HELD.holds(SENT + LEASE_S - 0.01)
    assert not HELD.holds(SENT + LEASE_S)
    assert not FREE.holds(NOW)


@pytest.mark.parametrize(
    ("retry_at", "heartbeat_at"),
    [(LONG_AGO, SENT + LEADER_HEARTBEAT_S), (SENT + 35.0, SENT + 35.0), (SENT + LEASE_S + 3, SENT + LEASE_S)],
    ids=["regularly", "after one that failed", "at the end at the latest"],
)
def test_heartbeats_are_due(retry_at: float, heartbeat_at: float) -> None:
    assert replace(HELD, retry_at=retry_at).heartbeat_at == heartbeat_at
