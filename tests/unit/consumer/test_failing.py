"""Record processors that fail on and on, in whole workers in virtual time: the shard waits, and nobody else does."""

import asyncio
import base64
import itertools
from random import Random

import pytest

from mld.consumer import record_budgets
from mld.core.positions import Position
from mld.core.token_budget import BudgetLimit
from mld.local.kinesis import PutEntry
from mld.metrics.activity import ShardActivity
from mld.metrics.events import EventKind
from tests.support.fleet import STREAM, TABLE, fleet, in_fleet
from tests.support.kpl import User, aggregate
from tests.twins.children import ChildExit, Recorder
from tests.twins.dynamo import lost_reply, server_error, throttled
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"
POISON = b"poison"
SETTING_ASIDE = {"mld__poisonAttempts": "3", "mld__deadLetter": "letters"}
LONGEST_S = 300 * 1.2
RENEWAL_S = 10 / 3


class Poisoned(Recorder):
    """Dies of batches with a record that says so, before it has done anything with them."""

    cured = False
    checkpoints_only_when_asked = False
    last_word = "ValueError: poison"

    async def process(self, child, records):
        data = [base64.b64decode(record["data"]) for record in records]
        if not self.cured and any(POISON in one for one in data):
            child.last_words.append(self.last_word)
            raise ChildExit
        self.checkpoint_every_batch = not self.checkpoints_only_when_asked
        await super().process(child, records)


def poison(world, hash_key: int = 0, text: bytes = POISON) -> Position:
    answer = world.kinesis.put_record(STREAM, PutEntry.of(text, "k", hash_key), now=world.clock.wall())
    return Position(answer.sequence)


def note(world, key: str = SHARD_0):
    return world.lease(key).failing


def lives(worker, shard: str = SHARD_0) -> int:
    return sum(child.shard_id == shard for child in worker.host.children)


# --- parked


@in_fleet(1)
async def test_a_quiet_shard_whose_child_was_killed_once_works_again_when_the_next_one_has_initialized(world):
    """There is no record whose checkpoint could show it, and its lag must not grow with the clock."""
    world.put(3)
    worker = world.start()
    await world.until(world.all_delivered)
    await world.advance(RENEWAL_S)
    await worker.host.children[0].kill()
    await world.until(lambda: lives(worker) == 2)
    await world.advance(2 * RENEWAL_S)
    assert note(world) is None
    part = worker.metrics.shards[SHARD_0]
    assert part.activity is ShardActivity.IDLE
    assert part.lag_ms(world.clock.wall()) == 0


@in_fleet(1)
async def test_a_shard_whose_child_was_killed_with_records_in_hand_works_again_when_they_are_answered(world):
    """The processor does not checkpoint, so that this alone tells."""
    world.recorder = Recorder(world.clock, checkpoint_every_batch=False)
    world.put(3)
    worker = world.start()
    await world.until(world.all_delivered)
    await worker.host.children[0].kill()
    world.recorder.work_s = 60.0
    await world.until(lambda: lives(worker) == 2, 10)
    await world.advance(30)
    assert note(world) is not None
    assert worker.metrics.shards[SHARD_0].activity is ShardActivity.FAILING
    await world.until(lambda: len(world.recorder.deliveries) == 6)
    await world.advance(RENEWAL_S)
    assert note(world) is None
    assert worker.metrics.shards[SHARD_0].activity is ShardActivity.IDLE


@in_fleet(1)
async def test_a_program_that_never_answers_initialize_may_be_none_and_the_log_says_how_to_find_out(world, caplog):
    class NoProcessor(Recorder):
        async def __call__(self, child):
            await child.receive()

    world.recorder = NoProcessor(world.clock)
    worker = world.start()
    await world.until(lambda: lives(worker) == 2)
    failed = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "child_failed"]
    assert "before it answered initialize" in failed[0]
    assert failed[0].endswith("; `mld conformance -- COMMAND` tries the program without a stream")


@in_fleet(1)
async def test_the_last_error_and_the_log_say_what_the_child_said_last(world, caplog):
    world.recorder = Poisoned(world.clock)
    poison(world)
    worker = world.start()
    await world.until(lambda: lives(worker) == 2)
    part = worker.metrics.shards[SHARD_0]
    assert part.last_error == "ValueError: poison (exited)"
    said, *_ = [one for one in caplog.records if vars(one).get("action") == "child_last_words"]
    assert (said.levelname, said.getMessage()) == ("WARNING", "its last words on stderr:\nValueError: poison")


@pytest.mark.parametrize(("version", "errors"), [("1", 0), ("2", 1)])
@virtual
async def test_a_child_of_the_first_generation_that_ends_at_a_stop_is_no_error(version, errors, caplog):
    """`shutdownRequested` came late to KCL 1.x."""

    class Old(Recorder):
        async def act(self, child, message):
            if message["action"] == "shutdownRequested":
                raise ChildExit
            await super().act(child, message)

    async with fleet(1, mld__protocolVersion=version) as world:
        world.recorder = Old(world.clock)
        world.put(1)
        worker = world.start()
        await world.until(world.all_delivered)
        assert await asyncio.wait_for(worker.stop(), 10)
        assert [one.levelname for one in caplog.records].count("ERROR") == errors


@in_fleet(1)
async def test_a_failing_shard_costs_no_write_beside_its_renewals(world):
    world.recorder = Poisoned(world.clock)
    poison(world)
    world.start()
    await world.advance(1)
    await world.until(lambda: note(world) is not None)
    before = world.lease(SHARD_0).counter
    await world.advance(30 * RENEWAL_S)
    assert world.lease(SHARD_0).counter - before <= 31


@pytest.mark.parametrize("stop", ["stop", "crash"])
@in_fleet(1)
async def test_the_next_owner_goes_on_counting_and_tries_at_once(world, stop):
    world.recorder = Poisoned(world.clock)
    place = poison(world)
    first = world.start("w1")
    await world.advance(200)
    count, since_s = note(world).failures, note(world).since_s
    assert count >= 6
    assert (note(world).first, note(world).attempts, lives(first)) == (place, count, count)
    await (first.stop() if stop == "stop" else first.crash())
    second = world.start("w2", seed=2)
    await world.until(lambda: lives(second) == 1, 60)
    await world.until(lambda: note(world).failures == count + 1, RENEWAL_S + 1)
    assert note(world).since_s == since_s
    await world.advance(30)
    assert lives(second) == 1, "the pause goes on where it had been"


@in_fleet(1)
async def test_the_next_owner_says_that_the_shard_works_again(world):
    """Its own failures do not count: the shard was failing before."""
    world.recorder = Poisoned(world.clock)
    poison(world)
    first = world.start("w1")
    await world.advance(200)
    count = note(world).failures
    await first.stop()
    world.recorder.cured = True
    second = world.start("w2", seed=2)
    await world.until(world.all_delivered, 60)
    await world.until(lambda: note(world) is None, 2 * RENEWAL_S)
    recovered = [one.text for one in second.metrics.events.take() if one.kind is EventKind.RECOVERED]
    assert recovered == [f"after {count} failures"]


@in_fleet(1)
async def test_a_command_that_is_not_found_parks_too_and_names_no_record(world):
    world.put(3)
    worker = world.start()
    worker.host.refuse = True
    await world.advance(1_000)
    assert not worker.task.done()
    assert note(world).failures > 5
    assert note(world).first is None
    worker.host.refuse = False
    await world.until(world.all_delivered, LONGEST_S)


@virtual
async def test_any_checkpoint_is_progress_and_counting_begins_anew():
    class StepByStep(Recorder):
        async def process(self, child, records):
            await self.note_error(child, await child.checkpoint(records[0]["sequenceNumber"]))
            raise ChildExit

    async with fleet(1) as world:
        world.recorder = StepByStep(world.clock)
        world.put(40)
        worker = world.start()
        took_s = await world.until(lambda: lives(worker) == 40, 100)
        assert took_s < 40 * 2, "no pause grows"
        assert note(world) is None or note(world).failures == 1


# --- set aside


@in_fleet(2, **SETTING_ASIDE)
async def test_the_culprit_is_set_aside_and_everything_else_is_processed_in_order(world):
    world.recorder = Poisoned(world.clock)
    world.put(30)
    place = poison(world)
    world.put(30)
    worker = world.start()
    await world.until(world.all_delivered, 600)
    (letter,) = world.letters.contents()
    assert letter["data"] == base64.b64encode(POISON).decode()
    assert (letter["shardId"], letter["sequenceNumber"]) == (SHARD_0, place.sequence)
    assert (letter["application"], letter["stream"], letter["worker"]) == ("app", STREAM, "w1")
    assert letter["subSequenceNumber"] == 0
    assert letter["partitionKey"] == "k"
    assert letter["approximateArrivalTimestamp"] > 0
    assert letter["attempts"] >= 3
    assert letter["stderr"] == ["ValueError: poison"]
    assert "processRecords" in letter["error"]
    await world.until(lambda: world.lease(SHARD_0).checkpoint > place)
    assert note(world) is None
    world.check_order()
    assert await worker.stop()


@in_fleet(1, **SETTING_ASIDE)
async def test_what_the_child_printed_steers_no_terminal_of_whoever_reads_the_letter(world):
    world.recorder = Poisoned(world.clock)
    world.recorder.last_word = "ValueError: \x1b[2J\u202e"
    poison(world)
    worker = world.start()
    await world.until(lambda: world.letters.contents(), 600)
    (letter,) = world.letters.contents()
    assert letter["stderr"] == ["ValueError: \\x1b[2J\\u202e"]
    assert letter["error"].isprintable()
    assert await worker.stop()


@in_fleet(1, **SETTING_ASIDE)
async def test_adjacent_and_last_poison_is_set_aside_up_to_the_end_of_the_shard(world):
    world.recorder = Poisoned(world.clock)
    world.put(3)
    places = [poison(world) for _ in range(4)]
    world.split(SHARD_0)
    world.start()
    await world.advance(1)
    await world.until(lambda: world.lease(SHARD_0) is None or world.lease(SHARD_0).is_complete, 4_000)
    assert [letter["sequenceNumber"] for letter in world.letters.contents()] == [p.sequence for p in places]
    assert world.all_delivered()


@in_fleet(2, **SETTING_ASIDE, mld__childRestartBackoffMillis="0")
async def test_dead_letters_beyond_the_budget_of_a_shard_come_later_and_none_is_left_out(world, monkeypatch):
    monkeypatch.setattr(record_budgets, "LETTERS", BudgetLimit("dead_letters", 2, 60.0))
    world.recorder = Poisoned(world.clock)
    places = [poison(world) for _ in range(5)]
    worker = world.start()
    await world.until(lambda: len(world.letters.letters) == 2)
    began = world.clock.monotonic()
    world.put(20)
    await world.advance(20)
    assert len(world.letters.letters) == 2
    assert worker.metrics.shards[SHARD_0].budget_refusals["dead_letters"]
    assert SHARD_0 in worker.metrics.spent_budgets(world.clock.wall())
    await world.until(world.all_delivered, 600)
    assert world.clock.monotonic() - began >= 3 * 30 - 1
    assert [letter["sequenceNumber"] for letter in world.letters.contents()] == [p.sequence for p in places]


@in_fleet(1, **SETTING_ASIDE)
async def test_a_processor_that_checkpoints_seldom_is_asked_to_before_anything_is_set_aside(world):
    """Our checkpoint would skip what it has accepted and holds in memory."""
    world.recorder = Poisoned(world.clock)
    world.recorder.checkpoints_only_when_asked = True
    world.put(20)
    place = poison(world)
    world.put(5)
    worker = world.start()
    await world.until(lambda: world.letters.letters, 600)
    before = [d.data for d in world.recorder.deliveries]
    assert set(before) >= set(world.put_data[:20])
    assert "shutdownRequested" in world.recorder.actions_of(SHARD_0)
    await world.until(world.all_delivered, 600)
    assert await worker.stop()
    assert world.lease(SHARD_0).checkpoint > place


@virtual
async def test_nothing_is_set_aside_while_records_before_it_are_not_checkpointed():
    class Never(Poisoned):
        checkpoints_only_when_asked = True

        async def act(self, child, message):
            if message["action"] == "processRecords":
                await self.process(child, message["records"])

    async with fleet(1, **SETTING_ASIDE) as world:
        world.recorder = Never(world.clock)
        world.put(5)
        poison(world)
        worker = world.start()
        await world.advance(2_500)
        assert world.letters.letters == []
        assert str(world.lease(SHARD_0).checkpoint) == "TRIM_HORIZON"
        assert not worker.task.done()


@in_fleet(1, **SETTING_ASIDE)
async def test_a_user_record_of_an_aggregate_is_set_aside_alone(world):
    world.recorder = Poisoned(world.clock)
    names = [b"a", b"b", POISON, b"d", b"e"]
    body = aggregate([User("key", name, "0") for name in names])
    sequence = world.kinesis.put_record(STREAM, PutEntry.of(body, "a", 0), now=world.clock.wall()).sequence
    world.start()
    await world.until(lambda: {b"a", b"b", b"d", b"e"} <= set(world.recorder.data()), 600)
    (letter,) = world.letters.contents()
    assert (letter["sequenceNumber"], letter["subSequenceNumber"]) == (sequence, 2)
    assert letter["data"] == base64.b64encode(POISON).decode()
    assert letter["partitionKey"] == "key"
    await world.until(lambda: world.lease(SHARD_0).checkpoint == Position(sequence, 4), 60)


@pytest.mark.parametrize("doubt", ["fails", "loses"])
@in_fleet(1, **SETTING_ASIDE)
async def test_in_doubt_about_the_letter_the_record_stays(world, doubt):
    world.recorder = Poisoned(world.clock)
    setattr(world.letters, doubt, 2)
    place = poison(world)
    world.put(3)
    world.start()
    await world.until(lambda: getattr(world.letters, doubt) == 0, 600)
    assert str(world.lease(SHARD_0).checkpoint) == "TRIM_HORIZON"
    await world.until(world.all_delivered, 2_000)
    assert world.lease(SHARD_0).checkpoint > place
    assert len({letter.name for letter in world.letters.letters}) == 1
    assert len(world.letters.letters) == (1 if doubt == "fails" else 3)


@pytest.mark.parametrize("fault", [server_error(), lost_reply(), throttled()])
@in_fleet(1, **SETTING_ASIDE)
async def test_in_doubt_about_the_checkpoint_the_letter_may_come_twice_and_nothing_is_lost(world, fault, caplog):
    world.recorder = Poisoned(world.clock)
    place = poison(world)
    world.put(3)
    left = itertools.count()

    def faults(_, operation, params):
        is_checkpoint = operation == "UpdateItem" and ":checkpoint" in params["ExpressionAttributeValues"]
        return fault if is_checkpoint and next(left) < 4 else None

    world.dynamo.faults = faults
    world.start()
    await world.until(world.all_delivered, 3_000)
    assert {letter["sequenceNumber"] for letter in world.letters.contents()} == {place.sequence}
    assert 1 <= len(world.letters.letters) <= 2
    assert sum("is set aside" in record.message for record in caplog.records) <= 1, "only once it is so"


@in_fleet(1, **SETTING_ASIDE)
async def test_a_crash_between_letter_and_checkpoint_delivers_again_and_writes_again(world):
    world.recorder = Poisoned(world.clock)
    place = poison(world)
    world.put(3)
    world.letters.hangs = True
    first = world.start("w1")
    await world.until(lambda: world.letters.letters, 600)
    await first.crash()
    assert str(world.lease(SHARD_0).checkpoint) == "TRIM_HORIZON"
    world.letters.hangs = False
    world.start("w2", seed=2)
    await world.until(world.all_delivered, 600)
    assert [letter["sequenceNumber"] for letter in world.letters.contents()] == [place.sequence] * 2


@in_fleet(1, **SETTING_ASIDE)
async def test_a_stop_while_the_letter_is_written_does_not_wait_and_does_not_move(world):
    world.recorder = Poisoned(world.clock)
    poison(world)
    world.letters.hangs = True
    worker = world.start()
    await world.until(lambda: world.letters.letters, 600)
    started_s = world.clock.monotonic()
    assert await worker.stop()
    assert world.clock.monotonic() - started_s < 2
    assert str(world.lease(SHARD_0).checkpoint) == "TRIM_HORIZON"


@in_fleet(1, **SETTING_ASIDE)
async def test_a_lease_lost_while_the_letter_is_written_is_not_checkpointed(world):
    world.recorder = Poisoned(world.clock)
    poison(world)
    world.letters.hangs = True
    world.start()
    await world.until(lambda: world.letters.letters, 600)
    row = dict(world.dynamo.row(TABLE, SHARD_0))
    taken = {"leaseOwner": {"S": "java"}, "leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 5)}}
    world.dynamo.put_row(TABLE, row | taken)
    await world.advance(RENEWAL_S + 1)
    assert world.lease(SHARD_0).owner == "java"
    assert str(world.lease(SHARD_0).checkpoint) == "TRIM_HORIZON"
    assert len(world.letters.letters) == 1


@in_fleet(1, **SETTING_ASIDE)
async def test_a_processor_that_cannot_work_at_all_costs_few_records(world):
    """Its database is away for an hour: what it would lose to the dead letter is bounded by the growing pauses."""

    class Cut(Recorder):
        away = True

        async def process(self, child, records):
            if self.away:
                raise ChildExit
            await super().process(child, records)

    world.recorder = Cut(world.clock)
    world.put(100)
    worker = world.start()
    await world.advance(3_600)
    assert 1 <= len(world.letters.letters) <= 10
    world.recorder.away = False
    await world.until(lambda: len(set(world.recorder.data())) + len(world.letters.letters) == 100, 400)
    assert await asyncio.wait_for(worker.stop(), 10)


@virtual
async def test_a_processor_that_dies_of_a_refused_checkpoint_condemns_no_record():
    """The table is away: it had done its work, and no record is to blame."""

    class Strict(Recorder):
        async def note_error(self, child, error):
            if error is not None:
                raise ChildExit

    async with fleet(1, **SETTING_ASIDE) as world:
        world.recorder = Strict(world.clock)
        world.put(1)
        away = True

        def faults(_, operation, params):
            is_checkpoint = operation == "UpdateItem" and ":checkpoint" in params["ExpressionAttributeValues"]
            return throttled() if away and is_checkpoint else None

        world.dynamo.faults = faults
        worker = world.start()
        await world.until(lambda: lives(worker) > 6, 600)
        away = False
        await world.until(lambda: not world.lease(SHARD_0).checkpoint.is_sentinel, 600)
        await world.advance(60)
        assert world.letters.letters == []
        assert note(world) is None


@virtual
async def test_any_poison_in_any_place_is_all_that_is_set_aside():
    """Whole workers, drawn streams: plain records, aggregates, poison anywhere, processors that checkpoint or not."""
    for seed in range(12):
        rng = Random(seed)
        async with fleet(1, maxRecords=str(rng.choice([3, 10, 10_000])), **SETTING_ASIDE) as world:
            world.recorder = Poisoned(world.clock)
            world.recorder.checkpoints_only_when_asked = rng.random() < 0.4
            good, bad = set(), set()
            for number in range(rng.randint(1, 25)):
                users = []
                for sub in range(rng.choice([1, 1, 4])):
                    is_bad = rng.random() < 0.15
                    text = b"%b-%d-%d" % (POISON if is_bad else b"good", number, sub)
                    (bad if is_bad else good).add(text)
                    users.append(User("key", text, "0"))
                body = users[0].data if len(users) == 1 else aggregate(users)
                world.kinesis.put_record(STREAM, PutEntry.of(body, "k", 0), now=world.clock.wall())
            world.start(seed=seed)
            await world.until(lambda: good <= set(world.recorder.data()), 20_000, f"seed {seed}")  # noqa: B023
            await world.until(lambda: len(world.letters.letters) >= len(bad), 20_000, f"seed {seed}")  # noqa: B023
            letters = [base64.b64decode(letter["data"]) for letter in world.letters.contents()]
            assert sorted(letters) == sorted(bad), f"seed {seed}"
            for _, life in itertools.groupby(world.recorder.deliveries, key=lambda delivery: delivery.child):
                order = [tuple(map(int, delivery.data.split(b"-")[1:])) for delivery in life]
                assert order == sorted(set(order)), f"seed {seed}"
