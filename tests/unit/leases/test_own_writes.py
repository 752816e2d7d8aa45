"""Our own writes of a row that overlap, against a model of the row that applies, reorders and drops them as it likes.

The row is judged as DynamoDB does it, by the requests that `writes` makes. Besides ours there may be a twin, which
writes under our worker id, and so does not move the owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mld.core.positions import TRIM_HORIZON, Position
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.own_writes import OPEN_MAX, OwnWrites, Sent
from mld.leases.rows import parse_row
from mld.leases.table import Overtaken, Refusal
from mld.leases.validity import CHAIN_SHARE, LATE_SHARE, chain_end, counts_from
from mld.leases.writes import HolderWrite
from tests.twins.lease_rows import NotWrittenError, carry_out

KEY, ME = "shardId-1", "w"
FIRST = Lease(KEY, TRIM_HORIZON, owner=ME, counter=7)
STEPS_MAX = 40
EPSILON_S = 1e-9


@dataclass(eq=False)
class UnderWay:
    """A write of ours: `answer` when it was applied or refused, `fails` if that is never told."""

    number: int
    write: HolderWrite = field(repr=False)
    sent: Sent
    position: Position | None
    answer: Lease | Overtaken | Refusal | None = field(default=None, repr=False)
    has_failed: bool = False


@dataclass
class Model:
    """The row in the table, and our view of it."""

    own: OwnWrites = field(default_factory=OwnWrites)
    row: Lease = FIRST
    seen: Lease = FIRST
    under_way: list[UnderWay] = field(default_factory=list)
    sent: int = 0
    looks: list[Lease] = field(default_factory=lambda: [FIRST])
    """Rows as they were shown to us, of which somebody may hold an old one."""
    storing: Position | None = None
    """Repeated until it is seen in the row, or until its consumer gives it up: one is under way at a time."""
    twin_wrote: int = 0
    accused: bool = False

    # --- what may happen ----------------------------------------------------------------------------------------------

    def send(self, offset: int | None = None) -> None:
        """Send a renewal, or a checkpoint: at `offset`, or the one that is late."""
        if self.own.waiting(KEY) >= OPEN_MAX:
            return
        self.sent += 1
        if offset is not None and self.storing is None and Position(str(offset)) >= self.seen.checkpoint:
            self.storing = Position(str(offset))
        position = None if offset is None else self.storing
        sent = self.own.send(self.seen, float(self.sent), position)
        assert sent.span.over == self.seen.counter
        assert sent.span.up_to - sent.span.over < OPEN_MAX
        made = (
            writes.renew(self.seen, span=sent.span)
            if position is None
            else writes.checkpoint(self.seen, position, span=sent.span)
        )
        self.under_way.append(UnderWay(self.sent, made, sent, position))

    def send_over(self, look: Lease) -> None:
        """Send a renewal over an older look: by somebody who has not heard of the answers since."""
        if self.own.waiting(KEY) >= OPEN_MAX:
            return
        self.sent += 1
        sent = self.own.send(look, float(self.sent))
        self.under_way.append(UnderWay(self.sent, writes.renew(look, span=sent.span), sent, None))

    def arrive(self, one: UnderWay) -> None:
        """The table applies or refuses it, whether or not we still wait."""
        before = self.row
        try:
            row = parse_row(carry_out(one.write, before))
            assert row is not None
            self.row = row
        except NotWrittenError:
            one.answer = one.write.refused(before)  # type: ignore[assignment]
        else:
            one.answer = row
            assert row.checkpoint >= before.checkpoint, "a checkpoint went back"
            assert row.counter == before.counter + 1
        if one.has_failed:
            self.under_way.remove(one)

    def tell(self, one: UnderWay) -> None:
        """The answer of a write reaches us."""
        self.under_way.remove(one)
        assert one.answer is not None and not isinstance(one.answer, Refusal), one.answer
        row = one.answer.row if isinstance(one.answer, Overtaken) else one.answer
        explained = self.own.answered(KEY, one.sent, row.counter, accepted=isinstance(one.answer, Lease))
        if not explained:
            self.accused = True
        if row.counter >= self.seen.counter:
            self.seen = row
            self.looks.append(row)
        if self.storing is not None and row.checkpoint >= self.storing:
            self.storing = None

    def lose(self, one: UnderWay) -> None:
        """The connection breaks: no answer comes, and the write may arrive all the same, or has."""
        self.own.failed(KEY, one.sent, may_be_applied=True)
        if one.answer is not None:
            self.under_way.remove(one)
        one.has_failed = True

    def drop(self, one: UnderWay) -> None:
        """It never arrives, and no answer comes."""
        self.under_way.remove(one)
        if not one.has_failed:
            self.own.failed(KEY, one.sent, may_be_applied=True)

    def throttle(self, one: UnderWay) -> None:
        """A plain answer: it is not applied."""
        self.under_way.remove(one)
        self.own.failed(KEY, one.sent, may_be_applied=False)

    def give_up(self) -> None:
        """The consumer gets the error; its next checkpoint may be an earlier one."""
        self.storing = None

    def twin(self) -> None:
        """Another process with our worker id renews the row that it sees."""
        self.twin_wrote += 1
        self.row = replace(self.row, counter=self.row.counter + 1)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def step(self, data: st.DataObject, *, with_twin: bool, loses: bool) -> None:
        acts = [self.send, partial(self.send, data.draw(st.integers(1, 9)))]
        acts += [partial(self.send_over, self.looks[data.draw(st.integers(0, len(self.looks) - 1))])]
        acts += [self.give_up] if any(one.has_failed for one in self.under_way) else []
        for one in self.under_way:
            if one.answer is None:
                acts += [partial(self.arrive, one)] * 2
                acts += [partial(self.drop, one)] if loses or one.has_failed else []
                acts += [] if one.has_failed else [partial(self.throttle, one)]
            elif not one.has_failed:
                acts += [partial(self.tell, one)] * 2
            if loses and not one.has_failed:
                acts.append(partial(self.lose, one))
        if with_twin:
            acts.append(self.twin)
        acts[data.draw(st.integers(0, len(acts) - 1))]()

    def settle(self) -> None:
        """All that is under way arrives, and each answer that comes reaches us."""
        for one in list(self.under_way):
            if one.answer is None:
                self.arrive(one)
        for one in list(self.under_way):
            self.tell(one)


@settings(max_examples=100)
@given(st.data())
def test_own_writes_are_never_taken_for_a_twins_and_no_checkpoint_goes_back(data: st.DataObject) -> None:
    """Whatever is late, reordered, lost or dropped."""
    model = Model()
    for _ in range(data.draw(st.integers(1, STEPS_MAX))):
        model.step(data, with_twin=False, loses=True)
        assert not model.accused, "a twin, and nobody else has written"
    model.settle()
    assert not model.accused
    model.send()
    model.settle()
    assert not model.accused
    assert model.seen == model.row, "a write that admits what ours may have done is accepted, or shows the row"


@settings(max_examples=100)
@given(st.data())
def test_the_write_of_a_twin_is_found_once_all_answers_are_there(data: st.DataObject) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, STEPS_MAX))):
        model.step(data, with_twin=True, loses=False)
    if not model.twin_wrote:
        model.twin()
    model.settle()
    model.send()
    model.settle()
    assert model.accused
    assert not model.own._rows, "nothing is kept of a row whose writes are all known"


@settings(max_examples=100)
@given(st.data())
def test_a_twin_is_found_after_answers_were_lost_once_the_row_has_passed_what_they_may_have_done(
    data: st.DataObject,
) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, STEPS_MAX))):
        model.step(data, with_twin=False, loses=True)
    model.settle()
    for _ in range(OPEN_MAX):
        model.send()
        model.settle()
    model.twin()
    model.send()
    model.settle()
    assert model.accused


@given(
    st.floats(0, 30),
    st.floats(0, 30),
    st.lists(st.floats(0, 60), max_size=12),
    st.sampled_from((5.0, 10.0, 30.0)),
)
def test_belief_counts_from_a_sending_of_ours_and_never_from_an_answer(
    sent_at: float, took_s: float, others: list[float], duration_s: float
) -> None:
    answered_at = sent_at + took_s
    sendings = sorted(one for one in others if one <= answered_at)
    gap_s = CHAIN_SHARE * duration_s
    counted = counts_from(sent_at, answered_at, chain_end(sent_at, sendings, gap_s), duration_s)
    assert sent_at <= counted <= answered_at
    assert counted in (sent_at, *sendings)
    if answered_at - sent_at <= LATE_SHARE * duration_s:
        assert counted == sent_at
    chain = [one for one in (sent_at, *sendings) if sent_at <= one <= counted]
    assert all(later - earlier <= gap_s + EPSILON_S for earlier, later in pairwise(sorted(chain)))


def test_a_write_over_an_older_look_makes_no_twin_of_our_own_writes() -> None:
    own = OwnWrites()
    first, second = own.send(FIRST, 1.0), own.send(FIRST, 2.0)
    assert own.answered(KEY, first, 8, accepted=True)
    stale = own.send(FIRST, 3.0)  # by somebody who has not heard of the first one
    assert stale.span.is_exact
    assert own.answered(KEY, second, 9, accepted=True)
    assert own.answered(KEY, stale, 9, accepted=False)


def test_an_older_look_after_all_answers_accuses_nobody_unless_there_was_a_twin() -> None:
    own = OwnWrites()
    assert own.answered(KEY, own.send(FIRST, 1.0), 8, accepted=True)
    assert own.answered(KEY, own.send(FIRST, 2.0), 8, accepted=False)
    assert not own.answered(KEY, own.send(FIRST, 3.0), 9, accepted=False), "who has raised it to 9?"


def test_a_row_that_was_made_again_begins_anew() -> None:
    own = OwnWrites()
    assert own.answered(KEY, own.send(FIRST, 1.0), 8, accepted=True)
    again = replace(FIRST, counter=2)
    assert own.answered(KEY, own.send(again, 2.0), 3, accepted=True)
    first = own.send(replace(FIRST, counter=3), 3.0)
    second = own.send(replace(FIRST, counter=3), 4.0)
    assert (second.span.over, second.span.up_to) == (3, 4)
    assert own.answered(KEY, second, 4, accepted=True)
    assert own.answered(KEY, first, 5, accepted=True)
    assert not own.answered(KEY, own.send(replace(FIRST, counter=5), 5.0), 7, accepted=False)


def test_a_row_that_was_another_workers_meanwhile_accuses_nobody() -> None:
    own = OwnWrites()
    first, second = own.send(FIRST, 1.0), own.send(FIRST, 2.0)
    assert own.answered(KEY, second, 9, accepted=True)
    own.failed(KEY, first, may_be_applied=False)  # so somebody has written 8, or 9
    back = own.send(replace(FIRST, counter=20), 3.0)  # taken by another worker, and taken back
    assert own.answered(KEY, back, 21, accepted=True)


def test_a_holding_begins_without_suspicion_of_what_a_former_process_had_on_its_way() -> None:
    own = OwnWrites()
    first, second = own.send(FIRST, 1.0), own.send(FIRST, 2.0)
    assert own.answered(KEY, first, 8, accepted=False)  # written by our predecessor, whose requests arrive late
    own.begin(KEY)
    third = own.send(replace(FIRST, counter=8), 3.0)
    assert own.answered(KEY, second, 9, accepted=True)
    assert own.answered(KEY, third, 9, accepted=False)
    assert not own.answered(KEY, own.send(replace(FIRST, counter=9), 4.0), 10, accepted=False), "a twin, from now on"
