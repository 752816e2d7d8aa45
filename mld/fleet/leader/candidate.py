"""What one worker does about the leader lock, as a machine: state and event in, state and actions out. Pure.

Rules: coordination#leadership-checks, coordination#lost-lock-replies, coordination#stepping-down. The shell is
`lock_election`; what a look at the row allows is decided in `lock`.

Theory. A question that cannot be answered from memory starts a conversation with the table: each step asks for at most
one request, whose answer is the next event, until a step asks for none. Conversations go one after the other, so that a
release always knows the last version that was sent.

    event                          while                      what follows
    ASK: who leads?                the lock is held           nothing
                                   we stepped down            "no" for the rest of the time, at most a heartbeat
                                   else                       look at the row
    the row is read                                           hold, wait, or claim it (`lock.judge`)
                   of a worker that has ended                 claim it
    a claim is applied                                        held, from its sending on
               refused             may be claimed once more   "no" for a moment: one claim a check is enough
                                   else                       hold or wait, by the row that refused it
               without an answer                              "no" for a moment; a look at the row recognizes the claim
    HEARTBEAT_DUE                       the lock is held           renew it
                                   its time is over           lost
    a renewal is refused           by an earlier one of ours  held, as that one says
                                   else                       lost
               without an answer                              tried again soon, while the lock is valid
    GiveUp                         the lock is held           lost, and its row deleted
                                   a claim is unknown         the row is looked for, and deleted if it is ours

A write without an answer may have been applied, now or later. Until the row tells, this worker does not lead; the
version that was sent stays known. A release is tried a few times without pauses; else the row expires by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from mld.core.periods import LEADER_HEARTBEAT_S
from mld.fleet.leader import lock
from mld.fleet.leader.lock import LEASE_S, Claim, DamagedLock, HeldLock, LockRow, Observation, SeenLock, Versions

UNKNOWN_RECHECK_S = 2.0  # a claim without an answer: until we know, the fleet may be waiting for us
HEARTBEAT_RETRY_S = 5.0  # a failed heartbeat gets more than a dozen further attempts before the lock expires
RELEASE_ATTEMPTS_MAX = 3  # each takes at most a request's time-out
LONG_AGO = float("-inf")

# --- events -----------------------------------------------------------------------------------------------------------


class News(Enum):
    """Events without a value."""

    ASK = "somebody wants to know who leads, and no answer is remembered"
    HEARTBEAT_DUE = "`heartbeat_at` has come"
    APPLIED = "the write was carried out"
    CHECK_PASSED = "the hook of the check agrees with the result"
    CHECK_FAILED = "the hook does not agree; the lock was given up"
    MOVED = "from now on the lock lives in another table; it was given up in this one"
    CLOSE = "never lead again"


@dataclass(frozen=True, slots=True)
class Sending:
    """A claim or a renewal with this version is about to be sent."""

    version: str


@dataclass(frozen=True, slots=True)
class Read:
    """The row as it is."""

    lock: SeenLock


@dataclass(frozen=True, slots=True)
class Refused:
    """The condition of the write did not hold: this lock stood in the way."""

    lock: SeenLock


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or an error."""

    may_be_applied: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop leading, and delete the row if it is ours."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the lock, whatever the row says."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """Let others win for so long."""

    hold_off_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """That worker's process is dead, and none of its name runs before `until`."""

    worker: str
    until: float


Answer: TypeAlias = News | Read | Refused | Failed
Event: TypeAlias = Answer | Sending | GiveUp | Drop | StepDown | Ended

# --- actions ----------------------------------------------------------------------------------------------------------


class Reading(Enum):
    """Requests that read the row."""

    LOOK = "to see what it allows"
    FIND = "to find the version that is to be released"


class Notice(Enum):
    """Actions without a value that ask for no request."""

    WON = "leadership is won: announce it"
    UNRELEASED = "the row stays until it expires"


@dataclass(frozen=True, slots=True)
class Renew:
    """Give the row with this version its next one."""

    version: str


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the row with this version."""

    version: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Leadership was announced, and is lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportDamage:
    """The row cannot be read; it is replaced after some time."""

    lock: DamagedLock
    after_s: float


Request: TypeAlias = Reading | Claim | Renew | Release
Action: TypeAlias = Request | Notice | Lost | ReportDamage

# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderCandidate:
    """What a worker knows of the lock. Times are monotonic seconds."""

    ours: Versions
    holding: HeldLock | None = None
    observation: Observation | None = None
    is_claim_unknown: bool = False
    no_until: float = LONG_AGO
    """Until then "no" is the answer to who asks whether we lead."""
    resting_until: float = LONG_AGO
    retry_at: float = LONG_AGO
    """No heartbeat before that."""
    leads: bool = False
    """What was announced."""
    is_closed: bool = False
    under_way: Request | None = None
    version: str = ""
    """What the claim or the renewal under way writes."""
    ended: tuple[Ended, ...] = ()
    """Whose lock is nobody's."""
    attempts_left: int = 0
    """How often a release is tried yet."""

    def holds(self, now: float) -> bool:
        """Return whether the lock is held, as far as this process can know."""
        return self.holding is not None and self.holding.is_valid(now)

    @property
    def heartbeat_at(self) -> float:
        """When the next heartbeat is due, or the lock is lost."""
        assert self.holding is not None
        due_at = max(self.holding.sent_at + LEADER_HEARTBEAT_S, self.retry_at)
        return min(due_at, self.holding.valid_until)


Stepped: TypeAlias = tuple[LeaderCandidate, tuple[Action, ...]]


def step(state: LeaderCandidate, event: Event, now: float) -> Stepped:
    """Return the state after `event`, and what is to be done in this order: at most one request, as the last."""
    match event:
        case News.ASK:
            return _ask(state, now)
        case News.HEARTBEAT_DUE:
            if state.holding is not None and state.holds(now):
                return _request(state, Renew(state.holding.version))
            return _drop(state, "it expired without a heartbeat")
        case GiveUp(reason):
            return _give_up(state, reason)
        case Sending(version):
            is_claim_unknown = state.is_claim_unknown or isinstance(state.under_way, Claim)
            ours = state.ours.sending(version, now)
            return replace(state, ours=ours, version=version, is_claim_unknown=is_claim_unknown), ()
        case News.CHECK_PASSED:
            if state.leads or state.is_closed or not state.holds(now):
                return state, ()
            return replace(state, leads=True), (Notice.WON,)
        case News.CHECK_FAILED:
            return _say_no(state, now, LEADER_HEARTBEAT_S), ()
        case News.MOVED:
            fresh = Versions(state.ours.owner)
            return replace(state, ours=fresh, is_claim_unknown=False, observation=None, no_until=LONG_AGO), ()
        case StepDown(hold_off_s):
            return replace(state, resting_until=max(state.resting_until, now + hold_off_s)), ()
        case Ended():
            still = tuple(one for one in state.ended if one.until >= now and one.worker != event.worker)
            return replace(state, ended=(*still, event), no_until=LONG_AGO), ()
        case News.CLOSE:
            return replace(state, is_closed=True), ()
        case Drop(reason):
            return _drop(state, reason)
        case _:
            return _answered(replace(state, under_way=None), state.under_way, event, now)


def _answered(state: LeaderCandidate, request: Request | None, answer: Answer, now: float) -> Stepped:
    match request, answer:
        case Reading.LOOK, Read(seen):
            return _heed(state, seen, now)
        case Reading.LOOK, _:
            return _say_no(state, now, LEADER_HEARTBEAT_S), ()
        case Claim(), _:
            return _claimed(state, answer, now)
        case Renew(), _:
            return _renewed(state, answer, now)
        case ((Reading.FIND | Release()), _):
            return _released(state, request, answer)
    raise AssertionError(f"{answer} answers nothing")


def _ask(state: LeaderCandidate, now: float) -> Stepped:
    if state.is_closed or state.holds(now):
        return state, ()
    state, lost = _drop(state, "it expired without a heartbeat")
    resting_s = state.resting_until - now
    if resting_s > 0:
        return _say_no(state, now, min(resting_s, LEADER_HEARTBEAT_S)), lost
    state, look = _request(state, Reading.LOOK)
    return state, (*lost, *look)


def _heed(state: LeaderCandidate, seen: SeenLock, now: float, *, may_claim: bool = True) -> Stepped:
    """Do as the row says."""
    judged = lock.judge(seen, state.observation, state.ours, now, lease_s=LEASE_S)
    if isinstance(judged, lock.Wait) and _is_of_dead(state, seen, now):
        judged = Claim(seen)
    match judged:
        case lock.Hold(holding):
            return _hold(state, holding), ()
        case lock.Wait(observation):
            damaged: tuple[Action, ...] = ()
            if isinstance(observation.lock, DamagedLock) and observation != state.observation:
                damaged = (ReportDamage(observation.lock, observation.duration_s),)
            wait_s = min(LEADER_HEARTBEAT_S, observation.stale_at - now)
            return _say_no(replace(state, observation=observation), now, wait_s), damaged
        case Claim() as claim:
            if may_claim:
                return _request(state, claim)
    return _say_no(state, now, UNKNOWN_RECHECK_S), ()  # whoever was first has gone again


def _is_of_dead(state: LeaderCandidate, seen: SeenLock, now: float) -> bool:
    return isinstance(seen, LockRow) and any(seen.owner == one.worker and now <= one.until for one in state.ended)


def _claimed(state: LeaderCandidate, answer: Answer, now: float) -> Stepped:
    match answer:
        case News.APPLIED:
            held = HeldLock(state.version, state.ours.sent_at[state.version], LEASE_S)
            return _hold(replace(state, is_claim_unknown=False), held), ()
        case Refused(seen):
            state = replace(state, is_claim_unknown=False, ours=state.ours.without(state.version))
            return _heed(state, seen, now, may_claim=False)
    return _say_no(_unless_applied(state, answer), now, UNKNOWN_RECHECK_S), ()


def _renewed(state: LeaderCandidate, answer: Answer, now: float) -> Stepped:
    match answer:
        case News.APPLIED:
            held = HeldLock(state.version, state.ours.sent_at[state.version], LEASE_S)
            return replace(state, holding=held, retry_at=LONG_AGO), ()
        case Refused(seen):
            state = replace(state, ours=state.ours.without(state.version), retry_at=LONG_AGO)
            still_held = lock.judge_refused_heartbeat(seen, state.ours)
            if still_held is None:
                return _drop(state, f"{_who(seen)} in the row")
            return replace(state, holding=still_held), ()
    return replace(_unless_applied(state, answer), retry_at=now + HEARTBEAT_RETRY_S), ()


def _give_up(state: LeaderCandidate, reason: str) -> Stepped:
    holding = state.holding
    state, lost = _drop(state, reason)
    if holding is None and not state.is_claim_unknown:
        return state, lost
    state, request = _release(replace(state, attempts_left=RELEASE_ATTEMPTS_MAX), holding)
    return state, (*lost, *request)


def _release(state: LeaderCandidate, holding: HeldLock | None) -> Stepped:
    if holding is None:
        return _request(state, Reading.FIND)
    return _request(replace(state, ours=state.ours.giving_up(holding.version)), Release(holding.version))


def _released(state: LeaderCandidate, request: Request, answer: Answer) -> Stepped:
    holding: HeldLock | None = None
    match answer:
        case News.APPLIED:
            return replace(state, is_claim_unknown=False), ()
        case Read(seen) | Refused(seen):
            holding = state.ours.find(seen)
            if holding is None:
                return state, ()
    if not isinstance(answer, Read):
        state = replace(state, attempts_left=state.attempts_left - 1)
    if state.attempts_left == 0:
        return state, (Notice.UNRELEASED,)
    if isinstance(answer, Failed) and isinstance(request, Release):
        return _request(state, request)
    return _release(state, holding)


def _request(state: LeaderCandidate, request: Request) -> Stepped:
    return replace(state, under_way=request), (request,)


def _hold(state: LeaderCandidate, holding: HeldLock) -> LeaderCandidate:
    assert state.holding is None, "a lock is held once"
    return replace(state, holding=holding, observation=None, no_until=LONG_AGO, retry_at=LONG_AGO)


def _drop(state: LeaderCandidate, reason: str) -> Stepped:
    lost = (Lost(reason),) if state.leads else ()
    return replace(state, holding=None, leads=False), lost


def _say_no(state: LeaderCandidate, now: float, seconds: float) -> LeaderCandidate:
    return replace(state, no_until=now + seconds)


def _unless_applied(state: LeaderCandidate, answer: Answer) -> LeaderCandidate:
    """Forget the version of a write that was certainly not applied."""
    is_certain = isinstance(answer, Failed) and not answer.may_be_applied
    return replace(state, ours=state.ours.without(state.version)) if is_certain else state


def _who(seen: SeenLock) -> str:
    match seen:
        case None:
            return "nobody is"
        case DamagedLock():
            return "something unreadable is"
        case _:
            return f"{seen.owner} is"
