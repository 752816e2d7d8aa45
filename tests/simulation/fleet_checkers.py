"""What must hold in a fleet of 3.x: the lock, handoffs, and why a lease changed its owner. Checkers 9 to 11 of
docs/develop/simulation.md.

Told of every accepted write; asks the workers for one thing only, whether they would act as leader now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mld.daemon.group_rules import FENCE_S
from tests.simulation.checkers import SHARD_END, Ledger, Violation
from tests.simulation.world.fleet3x import COORDINATOR, LOCK, STRANGER, is_lease
from tests.simulation.world.plan import DRIFT_MAX
from tests.support.fleet import TABLE
from tests.twins.dynamo import Applied
from tests.twins.dynamo_expressions import Item

LOCK_S = 120.0
LEADER_TAIL_S = 12.0
"""Between a leader's last look at its lock and the last of the writes it had decided: slow replies before them."""
LEADERS_OVERLAP_S = 0.2
"""Clocks that drift apart for a lock's time, and a look once a second."""
HANDOFF_S = 30.0
"""gracefulLeaseHandoffTimeoutMillis."""
HANDOFF_SLACK_S = 5.0
SCAN_TO_WRITE_S = 25.0
"""A Java leader's scan, its retries, and its writes: a lease may be renewed meanwhile. Ours ask for the counter."""
FENCED_WRITE_S = 2.0
"""A row that was read while nobody ran under its owner's name, and the write that asks for its counter."""
GIVEN_S = 0.5
"""Whoever gives a lease away has stopped before."""
STUCK_S = 260.0
"""A handoff that is pending in calm: the owner's deadline, an expiry, two assignment runs, a new leader."""


@dataclass(slots=True)
class _Row:
    """What is known of one lease."""

    moved_at: float
    still_until: float = float("-inf")
    """When the last stand-still of a lease duration ended."""
    begun_at: float | None = None
    """Of the pending handoff."""
    shown_from: dict[str, float] = field(default_factory=dict)
    """By process: when its first write under the handoff was sent, whose answer shows the handoff."""
    learned_at: dict[str, float] = field(default_factory=dict)
    """By process: when such an answer came. A successor with the same worker id learns anew."""


class FleetLedger:
    """Raises `Violation`. `takes`: leases may be taken, as in 2.x, for the fleet is on its way from or to it. `slow_s`:
    how late an answer of DynamoDB can be.
    """

    def __init__(
        self,
        ledger: Ledger,
        now: Callable[[], float],
        failover_s: float,
        *,
        takes: bool,
        handoff_s: float = HANDOFF_S,
        slow_s: float = 0.0,
    ) -> None:
        self._ledger = ledger
        self._now = now
        self._failover_s = failover_s
        self._takes = takes
        self._handoff_s = handoff_s
        self._slow_s = slow_s
        self._rows: dict[str, _Row] = {}
        self._by_hand: set[str] = set()
        self._locked: dict[str, float] = {}
        """By process: when its last accepted write of a lock was sent."""
        self._ended_at: dict[str, float] = {}
        self._released: dict[str, float] = {}
        self._lock_at: dict[str, float] = {}
        """By table: when the lock row was written last."""
        self._lock_sent_at: dict[str, float] = {}
        """By table: when that write was sent. A process may end while a heartbeat is on its way."""
        self._given: dict[tuple[str, str], float] = {}
        """By process and key: when it gave a lease away."""
        self._two_since: float | None = None
        self.reasons: dict[str, int] = {}
        """Why leases changed their owners."""

    def known_to_end(self, worker: str) -> None:
        """The process of this worker has ended, and others of its host were told."""
        self._ended_at[worker] = self._now()

    def edited_by_hand(self, key: str) -> None:
        self._by_hand.add(key)

    # --- every accepted write -----------------------------------------------------------------------------------------

    def applied(self, write: Applied, sent_at: float) -> None:
        item = write.after or write.before
        name = item.get("leaseKey", item.get("key", {})).get("S")
        if name == LOCK and write.table in (TABLE, COORDINATOR):
            self._check_lock(write, sent_at)
        elif write.table == TABLE and is_lease(item) and name is not None:
            self._check_lease(str(name), write, sent_at)

    # --- checker 9: one leader ----------------------------------------------------------------------------------------

    def _check_lock(self, write: Applied, sent_at: float) -> None:
        before, after = _text(write.before, "ownerName"), _text(write.after, "ownerName")
        me = _worker(write.sender)
        idle_s = self._now() - self._lock_at.get(write.table, float("-inf"))
        has_ended = self._lock_sent_at.get(write.table, 0.0) <= self._ended_at.get(before, float("-inf"))
        if before and before != me and not has_ended and idle_s < LOCK_S * (1 - 2 * DRIFT_MAX):
            raise self._violation(9, f"{write.sender} writes the lock of {before}, {idle_s:.1f} s after its heartbeat")
        if after and after != me:
            raise self._violation(9, f"{write.sender} writes {after} into the lock")
        if after:
            self._locked[write.sender] = sent_at
            self._released.pop(write.sender, None)
            self._lock_at[write.table], self._lock_sent_at[write.table] = self._now(), sent_at
        else:
            self._released[write.sender] = self._now()
        if before != after:
            self._ledger.trace(f"{write.sender} {'leads' if after else 'gives the lock up'}")

    def check_leaders(self, leaders: Iterable[str]) -> None:
        """Told once a second of the processes that would act as leader now."""
        names = sorted(leaders)
        if len(names) < 2:
            self._two_since = None
            return
        if self._two_since is None:
            self._two_since = self._now()
        if self._now() - self._two_since > LEADERS_OVERLAP_S:
            raise self._violation(9, f"{' and '.join(names)} lead at the same time")

    def _may_lead(self, process: str, sent_at: float) -> bool:
        locked_at = self._locked.get(process)
        if locked_at is None or sent_at - locked_at > LOCK_S + LEADER_TAIL_S:
            return False
        return sent_at - self._released.get(process, sent_at) <= LEADER_TAIL_S

    # --- checkers 10 and 11: handoffs and owners ----------------------------------------------------------------------

    def _check_lease(self, key: str, write: Applied, sent_at: float) -> None:
        if not write.after:
            self._rows.pop(key, None)
            return
        row = self._rows.setdefault(key, _Row(self._now()))
        before, after = _pair(write.before), _pair(write.after)
        if any(owner.startswith(STRANGER) for owner in after if owner is not None):
            raise self._violation(11, f"{key} goes to {after}, which reads another stream")
        if write.before and key not in self._by_hand and not self._ledger.shard(key).edited:
            if before == after:
                self._check_handed_over(key, row, write, sent_at)
            else:
                self._check_change(key, row, write, sent_at)
        if write.before and before != after:
            row.begun_at = self._now() if after[1] is not None else None
            row.shown_from, row.learned_at = {}, {}
        if _text(write.before, "leaseCounter") != _text(write.after, "leaseCounter"):
            if self._now() - row.moved_at > self._failover_s:
                row.still_until = self._now()
            row.moved_at = self._now()

    def answered(self, process: str, key: str, sent_at: float) -> None:
        """A process hears that its write of a lease was accepted, and how the row looks since."""
        row = self._rows.get(key)
        if row is not None and sent_at >= row.shown_from.get(process, float("inf")):
            row.learned_at.setdefault(process, self._now())

    def _check_handed_over(self, key: str, row: _Row, write: Applied, sent_at: float) -> None:
        """An owner of ours that knows of a handoff gives the lease away in time."""
        if row.begun_at is None or write.sender not in self._ledger.ours:
            return
        if _text(write.before, "leaseCounter") == _text(write.after, "leaseCounter"):
            return
        row.shown_from.setdefault(write.sender, sent_at)
        if (learned_at := row.learned_at.get(write.sender)) is None:
            return
        # The last checkpoint may be on its way, and the hand-over comes after its answer.
        most = self._handoff_s + self._failover_s + HANDOFF_SLACK_S + 2 * self._slow_s
        if self._now() - max(learned_at, self._ledger.paused_s.get(_worker(write.sender), 0.0)) > most:
            raise self._violation(10, f"{write.sender} still writes {key} {most:.0f} s after it was asked for it")

    def _check_change(self, key: str, row: _Row, write: Applied, sent_at: float) -> None:
        (owner, pending), (new, new_pending) = _pair(write.before), _pair(write.after)
        me, actual = _worker(write.sender), pending or owner
        is_ours = write.sender in self._ledger.ours
        leads = self._may_lead(write.sender, sent_at) or not is_ours
        counted = _text(write.before, "leaseCounter") != _text(write.after, "leaseCounter")
        if new_pending is not None:
            self._check_beginning(key, write, counted=counted, leads=leads or me == actual)
            reason = "handoff begun"
        elif not counted:
            raise self._violation(11, f"{write.sender} changes the owner of {key} without counting")
        elif pending is not None and me == pending and new in (owner, None):
            reason = "handoff completed"
        elif me == actual:
            reason = "given away" if new is not None else "released"
        elif actual is None:
            reason = "assigned" if leads else "adopted" if new == me else ""
        elif self._takes and new == me:
            reason = "taken"
        else:
            reason = self._reason_to_take_away(row, write, actual, leads=leads, is_pending=pending is not None)
        if not reason:
            who = "as leader" if leads else "without leading"
            age_s = self._now() - row.moved_at
            text = f"{write.sender} gives {key} of {actual} to {new} {who}, {age_s:.1f} s after its last heartbeat"
            raise self._violation(11, text)
        if reason in ("handoff completed", "given away", "released"):
            self._given[write.sender, key] = self._now()
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self._ledger.trace(f"{key}: {reason} by {write.sender}: {owner}/{pending} -> {new}/{new_pending}")

    def _reason_to_take_away(self, row: _Row, write: Applied, actual: str, *, leads: bool, is_pending: bool) -> str:
        """From an owner that may live: ours never do before a lease duration has passed without a renewal."""
        still_s = self._now() - row.moved_at
        ended_at = self._ended_at.get(actual, float("-inf"))
        if row.moved_at <= ended_at or self._now() - ended_at < FENCE_S + FENCED_WRITE_S:
            return "its process has ended"
        if still_s > self._failover_s * (1 - 2 * DRIFT_MAX):
            return "expired"
        if not leads:
            return ""
        if self._now() - row.still_until < SCAN_TO_WRITE_S and write.sender not in self._ledger.ours:
            return "expired before"
        if _text(write.before, "checkpoint") == SHARD_END:
            return "completed shard"
        if is_pending and row.begun_at is not None and self._now() - row.begun_at > self._handoff_s:
            return "stuck handoff"
        return ""

    def _check_beginning(self, key: str, write: Applied, *, counted: bool, leads: bool) -> None:
        (owner, pending), (new, new_pending) = _pair(write.before), _pair(write.after)
        if counted:
            raise self._violation(10, f"{write.sender} begins a handoff of {key} and counts its lease up")
        if pending is not None or new_pending != owner or new in (None, owner):
            raise self._violation(10, f"{write.sender} hands {key} of {owner}/{pending} to {new}/{new_pending}")
        if not leads:
            raise self._violation(9, f"{write.sender} begins a handoff of {key} without leading")

    def batch_begins(self, process: str, worker: str, key: str, row: Item | None) -> None:
        """A child gets records: its worker does not wait for somebody else to finish."""
        given_at = self._given.get((process, key), float("-inf"))
        if given_at > self._ledger.wrote_at(process, key) and self._now() - given_at > GIVEN_S:
            raise self._violation(
                10, f"{process} goes on with {key} {self._now() - given_at:.1f} s after giving it away"
            )
        if row is None or self._ledger.shard(key).edited or key in self._by_hand:
            return
        owner, pending = _pair(row)
        if pending is None or pending == worker or owner != worker:
            return
        age_s = self._now() - self._ledger.believed_from(process, key)
        if age_s > self._failover_s + 1.0 and self._now() - self._ledger.paused_s.get(worker, 0.0) > 1.0:
            raise self._violation(10, f"{process} begins {key} before {pending} has finished")

    def check_pending(self, known_since: Callable[[str], float]) -> None:
        """Once a second: in calm no handoff stays pending, but of a shard that has ended or of a former stream.

        From `known_since(key)` on all workers are to take care of this lease.
        """
        since = self._ledger.calm_at
        for key, row in self._rows.items():
            if row.begun_at is None or self._now() - max(since, row.begun_at, known_since(key)) <= STUCK_S:
                continue
            if self._ledger.shard(key).checkpoint != SHARD_END:
                raise self._violation(10, f"the handoff of {key} is pending since {row.begun_at:.0f} s")

    def _violation(self, number: int, text: str) -> Violation:
        violation = f"checker {number} at {self._now():.2f} s: {text}"
        self._ledger.on_violation(violation)
        return Violation(violation)


def _pair(item: Item) -> tuple[str | None, str | None]:
    return _text(item, "leaseOwner") or None, _text(item, "checkpointOwner") or None


def _text(item: Item, name: str) -> str:
    value = item.get(name)
    return "" if value is None else str(next(iter(value.values())))


def _worker(process: str) -> str:
    return process.split("#")[0]
