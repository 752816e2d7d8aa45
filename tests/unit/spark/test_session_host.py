"""The session host and the thin child on real sockets and pipes, over an engine in memory: who hears what, when."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from mld.core import sparkhosts
from mld.processors.spark import link
from mld.processors.spark.batch import attempts
from mld.processors.spark.child import properties_file, refuse_several
from mld.processors.spark.fatal import FatalError
from mld.processors.spark.high_water_marks import ENDED
from mld.processors.spark.host import micro_batch_loop, offers
from mld.processors.spark.host.host_status import STATUS_FILE
from mld.processors.spark.host.leftovers import clear, hold, sweep
from mld.processors.spark.host.process_watch import watch_process
from mld.processors.spark.host.session_host import UNASKED_SHARE, SessionHost
from mld.processors.spark.host_connection import HostConnection
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.relay import ChildRelay, DaemonLines
from mld.processors.spark.run_directory import run_directory, scratch_directory, started_at
from mld.processors.spark.sink_port import JobFailed, SinkError, SinkRefused
from mld.processors.spark.writer_identity import ANCESTORS_VARIABLE
from tests.support.patience import PATIENCE_S
from tests.unit.spark.twins import DAEMON, STREAM, Bed, MemorySink, line_of, settings_of

QUICK = "mld.spark.triggerIntervalMillis = 10"
NEVER = "mld.spark.triggerIntervalMillis = 3600000"
BOUND_S = PATIENCE_S
LOST = "ShutdownException"
A, C = StreamShard(STREAM, "a"), StreamShard(STREAM, "c")
NOTHING_COMES_S = 0.2  # a short look: what is accepted by mistake would come at once


class Daemon:
    """The daemon's side of a child that runs on a thread: says actions, and answers checkpoints whenever they come."""

    made: ClassVar[list[Daemon]] = []

    def __init__(self, connection) -> None:
        self.made.append(self)
        to_child, from_daemon = os.pipe()
        to_daemon, from_child = os.pipe()
        self._out = os.fdopen(from_daemon, "wb", 0)
        self._in = os.fdopen(to_daemon, "rb")
        self.checkpoints: list[tuple[str | None, int | None]] = []
        self.errors: list[str | None] = []
        self.error: BaseException | None = None
        self._writing = threading.Lock()
        self._statuses: queue.Queue[str | None] = queue.Queue()
        self._heard = threading.Condition()
        self._is_over = False
        self.replies = threading.Event()
        """Set unless replies to checkpoints are held."""
        self.replies.set()
        self._of_child = os.fdopen(to_child, "rb"), os.fdopen(from_child, "wb")
        self.child = ChildRelay(*self._of_child, connection)
        self._thread = threading.Thread(target=self._serve, args=[self.child], daemon=True)
        self._thread.start()
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _serve(self, child) -> None:
        try:
            child.serve()
        except BaseException as error:
            self.error = error
        finally:  # as if its process had ended
            if child._host is not None:
                child._host.close()
            for stream in self._of_child:
                with suppress(OSError):
                    stream.close()

    def _hear(self) -> None:
        while text := self._in.readline():
            message = json.loads(text)
            if message["action"] == "status":
                self._statuses.put(message["responseFor"])
                continue
            assert self.replies.wait(BOUND_S)
            error = self.errors.pop(0) if self.errors else None
            self._write(json.dumps({**message, "error": error}).encode() + b"\n")
            with self._heard:
                self.checkpoints.append((message["sequenceNumber"], message["subSequenceNumber"]))
                self._heard.notify_all()
        with self._heard:
            self._is_over = True
            self._heard.notify_all()
        self._statuses.put(None)

    def _write(self, line: bytes) -> None:
        with suppress(BrokenPipeError, ValueError), self._writing:  # its end, or ours
            self._out.write(line)

    def say(self, line: bytes) -> str | None:
        """The name of the status, None if the child ended, maybe before it could be asked."""
        self._write(line)
        return self._statuses.get(timeout=BOUND_S)

    def commit(self, line: bytes) -> str | None:
        """Say records, and wait for their checkpoint; None if the child ended."""
        before = len(self.checkpoints)
        said = self.say(line)
        with self._heard:
            assert self._heard.wait_for(lambda: self._is_over or len(self.checkpoints) > before, BOUND_S)
            return said if len(self.checkpoints) > before else None

    def act(self, action: str, **more) -> str | None:
        return self.say(json.dumps({"action": action, **more}).encode() + b"\n")

    def initialize(self, shard: str = "a", at: str = "TRIM_HORIZON") -> str | None:
        return self.act("initialize", shardId=shard, sequenceNumber=at, subSequenceNumber=0)

    def end(self) -> BaseException | None:
        with suppress(OSError):
            self._out.close()
        for thread in (self._thread, self._hearing):
            thread.join(BOUND_S)
            assert not thread.is_alive()
        self._in.close()
        return self.error


@asynccontextmanager
async def serving(tmp_path, *keys, start=None, env=DAEMON, **bed_more):
    """A host over twins; yields it with its bed and a way to make children."""
    bed = Bed(tmp_path, settings_of(*keys, env=env), **bed_more)
    bed.spool.close()
    made = SimpleNamespace(
        engine=None, jvm_pid=None, close=lambda: None, triggered=lambda: None, about={"ui": "http://127.0.0.1:4040"}
    )

    def begin(settings, directory, spool):
        bed.use(spool)
        made.engine = bed.engine
        return made

    listening = asyncio.Event()
    host = SessionHost(bed.settings, tmp_path, os.getpid(), start or begin)
    running = asyncio.ensure_future(host.run(listening.set))
    await asyncio.wait([running, asyncio.ensure_future(listening.wait())], return_when=asyncio.FIRST_COMPLETED)

    def connection():
        one = socket.socket(socket.AF_UNIX)
        one.connect(str(tmp_path / "socket"))
        return one

    async def call(function, *arguments):
        return await asyncio.wait_for(asyncio.to_thread(function, *arguments), BOUND_S)

    async def child(shard="a", at="TRIM_HORIZON"):
        daemon = Daemon(connection)
        assert await call(daemon.initialize, shard, at) == "initialize"
        return daemon

    try:
        yield SimpleNamespace(host=host, bed=bed, running=running, connection=connection, call=call, child=child)
    finally:
        for daemon in Daemon.made:
            daemon.end()
        Daemon.made.clear()
        running.cancel()
        await asyncio.wait([running])


def numbers(bed, shard="a"):
    return [number for key, number, _ in bed.sinks["out"].rows if key == shard]


def spooled(world):
    """Files of records, but for those that a job reads."""
    return [path.name for path in sorted(world.bed.spool.directory.iterdir()) if path.is_file()]


def hold_publications(bed):
    """Hold every publication until the event that is returned is set."""
    held, publish = threading.Event(), bed.sinks["out"].publish
    bed.sinks["out"].publish = lambda *a: held.wait(BOUND_S) and publish(*a)
    return held


def hold_everything(sink, first_fault=None):
    """Hold every job of the sink until the event that is returned is set; the first one fails then."""
    held, publish = threading.Event(), sink.publish
    sink.publish = lambda *a: held.wait(BOUND_S) and publish(*a)
    sink.faults = [first_fault]
    return held


async def until(condition):
    async with asyncio.timeout(BOUND_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_batch_at_the_tip_is_checkpointed_after_its_commit(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        daemon = await world.child()
        assert await world.call(daemon.commit, line_of(range(1, 4), lag=0)) == "processRecords"
        assert daemon.checkpoints == [("3", 0)]
        assert numbers(world.bed) == [1, 2, 3]
        assert await world.call(daemon.end) is None


async def test_by_default_the_first_batch_has_its_checkpoint_at_once_and_the_next_gather(tmp_path):
    async with serving(tmp_path) as world:
        daemon = await world.child()
        assert await world.call(daemon.commit, line_of([1], lag=0)) == "processRecords"
        assert daemon.checkpoints == [("1", 0)], "nothing was there before it, so it is committed at once"
        for number in (2, 3):
            assert await world.call(daemon.say, line_of([number], lag=0)) == "processRecords"
        assert (daemon.checkpoints, numbers(world.bed)) == ([("1", 0)], [1])
        assert await world.call(daemon.act, "shutdownRequested") == "shutdownRequested"
        assert (daemon.checkpoints[-1], numbers(world.bed)) == (("3", 0), [1, 2, 3])
        assert world.bed.sinks["out"].publications == 2


async def test_a_sink_behind_the_checkpoint_refuses_the_shard_and_takes_it_once_it_is_read_again(tmp_path):
    out = MemorySink("out", {StreamShard(STREAM, "a"): RecordPosition(3)})
    async with serving(tmp_path, QUICK, sinks={"out": out}) as world:
        daemon = await world.child(at="5")
        assert await world.call(daemon.commit, line_of([6], lag=0)) is None
        reason = await world.call(daemon.end)
        assert "holds a up to 3, and the application has come to 5" in str(reason)
        daemon = await world.child(at="2")
        assert await world.call(daemon.commit, line_of(range(3, 7), lag=0)) == "processRecords"
        assert (daemon.checkpoints, numbers(world.bed)) == ([("6", 0)], [4, 5, 6])


async def test_a_sink_that_goes_back_between_two_batches_refuses_the_second_one(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        daemon, out = await world.child(), world.bed.sinks["out"]
        assert await world.call(daemon.commit, line_of(range(1, 4), lag=0)) == "processRecords"
        out.rows, out.marks = out.rows[:1], {StreamShard(STREAM, "a"): RecordPosition(1)}
        assert await world.call(daemon.commit, line_of([4], lag=0)) is None
        assert "holds a up to 1, and the application has come to 3" in str(await world.call(daemon.end))
        assert numbers(world.bed) == [1]


async def test_a_trigger_without_progress_is_said_loudly_and_what_waits_is_told(tmp_path, monkeypatch, caplog):
    """While the JVM hangs its host does not: no lag shows that, because the children have answered."""
    monkeypatch.setattr(micro_batch_loop, "WRITE_EVERY_S", 0.01)
    monkeypatch.setattr(micro_batch_loop, "STALLED_S", 0.02)

    def told(name):
        return json.loads((tmp_path / STATUS_FILE).read_text())[name]

    def says():
        return [record for record in caplog.records if "a trigger has not ended for" in record.getMessage()]

    async with serving(tmp_path, QUICK) as world:
        held = hold_publications(world.bed)
        daemon = await world.child()
        assert await world.call(daemon.say, line_of([1], lag=9)) == "processRecords"
        await until(lambda: len(says()) == 2)
        assert {record.levelname for record in says()} == {"ERROR"}
        assert told("uncommittedSince") <= told("updatedAt") >= told("triggerSince")
        held.set()
        await until(lambda: (told("uncommittedSince"), told("triggerSince")) == (None, None))
        assert numbers(world.bed) == [1]


async def test_a_batch_behind_the_tip_is_answered_before_its_commit(tmp_path):
    async with serving(tmp_path, NEVER) as world:
        daemon, other = await world.child(), await world.child("b")
        await world.call(other.say, line_of([1], lag=9))
        await until(lambda: numbers(world.bed, "b") == [1])  # the first trigger comes at once
        assert await world.call(daemon.say, line_of(range(1, 4), lag=9)) == "processRecords"
        assert (daemon.checkpoints, numbers(world.bed)) == ([], [])
        assert await world.call(daemon.act, "shutdownRequested") == "shutdownRequested"
        assert (daemon.checkpoints, numbers(world.bed)) == ([("3", 0)], [1, 2, 3])


async def test_a_checkpoint_and_the_next_action_may_meet(tmp_path):
    """The reply and a line come at once, and nothing is left behind in a buffer."""
    async with serving(tmp_path, QUICK) as world:
        daemon = await world.child()
        for number in range(1, 201):
            assert await world.call(daemon.say, line_of([number], lag=0)) == "processRecords"
        await until(lambda: daemon.checkpoints[-1:] == [("200", 0)])
        assert numbers(world.bed) == [*range(1, 201)]
        assert await world.call(daemon.end) is None


def test_lines_that_come_at_once_are_read_one_by_one():
    given, taken = os.pipe()
    with os.fdopen(given, "rb") as stdin, os.fdopen(taken, "wb", 0) as daemon:
        lines = DaemonLines(stdin)
        daemon.write(b"one\ntwo\nthr")
        assert [(lines.read(), lines.is_there()) for _ in range(2)] == [(b"one\n", True), (b"two\n", False)]
        daemon.write(b"ee\n")
        assert lines.read() == b"three\n"
        large = b"x" * 300_000 + b"\n"  # more than the pipe holds, and than one read gets
        writing = threading.Thread(target=daemon.write, args=[large + b"fo"])
        writing.start()
        assert lines.read() == large
        writing.join(BOUND_S)
        daemon.close()
        with pytest.raises(FatalError, match="in the middle of a message"):
            lines.read()
        assert DaemonLines(stdin).read() == b""


async def test_the_end_of_a_shard_waits_for_its_commits(tmp_path):
    async with serving(tmp_path, NEVER) as world:
        daemon = await world.child()
        await world.call(daemon.say, line_of([1], lag=9))
        await world.call(daemon.say, line_of([2], lag=9))
        assert await world.call(daemon.act, "shardEnded") == "shardEnded"
        assert (daemon.checkpoints[-1], numbers(world.bed)) == ((None, None), [1, 2])
        assert await world.call(daemon.end) is None


async def test_all_sinks_and_the_dead_letter_keep_the_end_of_a_shard_before_its_last_checkpoint(tmp_path):
    dead = MemorySink("deadLetter", {A: RecordPosition(1)})
    async with serving(tmp_path, QUICK, dead=dead) as world:
        daemon = await world.child()
        await world.call(daemon.commit, line_of([1, 2]))
        held = threading.Event()
        publish, dead.publish = dead.publish, lambda *arguments: held.wait(BOUND_S) and publish(*arguments)
        ending = asyncio.ensure_future(world.call(daemon.act, "shardEnded"))
        await until(lambda: world.bed.sinks["out"].marks == {A: ENDED})
        assert daemon.checkpoints == [("2", 0)]
        held.set()
        assert await ending == "shardEnded"
        assert (dead.marks, daemon.checkpoints[-1]) == ({A: ENDED}, (None, None))


async def test_a_sink_that_went_back_before_the_end_of_a_shard_keeps_it_from_ending(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        daemon, out = await world.child(), world.bed.sinks["out"]
        assert await world.call(daemon.commit, line_of(range(1, 4), lag=0)) == "processRecords"
        out.rows, out.marks = out.rows[:1], {A: RecordPosition(1)}
        assert await world.call(daemon.act, "shardEnded") is None
        assert "has gone back in time" in str(await world.call(daemon.end))
        assert (daemon.checkpoints, out.marks) == ([("3", 0)], {A: RecordPosition(1)})


async def test_a_sink_that_cannot_keep_the_end_of_a_shard_now_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "BACKOFF_S", 0.0)
    async with serving(tmp_path, QUICK) as world:
        daemon, out = await world.child(), world.bed.sinks["out"]
        await world.call(daemon.commit, line_of([1]))
        out.faults = [SinkError("it is away"), SinkError("it is away")]
        assert await world.call(daemon.act, "shardEnded") == "shardEnded"
        assert out.marks == {A: ENDED}


@pytest.mark.parametrize(("at", "family"), [("TRIM_HORIZON", "a"), ("7", "a"), ("7", "b a")])
async def test_a_shard_whose_parent_a_sink_has_lost_the_end_of_does_not_begin(tmp_path, monkeypatch, at, family):
    """The sink was put back from a backup, and the shard that lacks its tail is not delivered any more."""
    monkeypatch.setenv(ANCESTORS_VARIABLE, family)
    out = MemorySink("out", {A: RecordPosition(3)})
    async with serving(tmp_path, QUICK, sinks={"out": out}) as world:
        daemon = await world.child("c", at)
        assert await world.call(daemon.commit, line_of([8], lag=0)) is None
        reason = str(await world.call(daemon.end))
        assert "sink out holds a up to 3, and the application has come to its end" in reason
        assert "mld reset FILE --shard a --to 3" in reason
        assert (out.rows, daemon.checkpoints) == ([], [])
        monkeypatch.delenv(ANCESTORS_VARIABLE)
        other = await world.child("d")
        assert await world.call(other.commit, line_of([9], lag=0)) == "processRecords"


@pytest.mark.parametrize(
    ("marks", "at"),
    [
        ({A: ENDED}, "TRIM_HORIZON"),
        ({}, "TRIM_HORIZON"),
        ({A: RecordPosition(3)}, "LATEST"),
        ({A: RecordPosition(3), C: RecordPosition(7)}, "7"),
    ],
    ids=["all of it is there", "a new sink", "what came before was left out on purpose", "it was begun before"],
)
async def test_a_shard_begins_whose_parents_a_sink_need_not_hold_to_their_ends(tmp_path, monkeypatch, marks, at):
    monkeypatch.setenv(ANCESTORS_VARIABLE, "a b")
    async with serving(tmp_path, QUICK, sinks={"out": MemorySink("out", marks)}) as world:
        daemon = await world.child("c", at)
        assert await world.call(daemon.commit, line_of([8], lag=0)) == "processRecords"
        assert (daemon.checkpoints, numbers(world.bed, "c")) == ([("8", 0)], [8])


async def test_a_gap_at_the_end_of_a_parent_is_passed_once_it_is_accepted(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(ANCESTORS_VARIABLE, "a")
    out = MemorySink("out", {A: RecordPosition(3)})
    async with serving(tmp_path, QUICK, "mld.spark.onGap = accept", sinks={"out": out}) as world:
        daemon = await world.child("c")
        assert await world.call(daemon.commit, line_of([8], lag=0)) == "processRecords"
        assert "a gap is accepted: sink out holds a up to 3" in caplog.text


async def test_a_dead_letter_that_lacks_the_end_of_a_parent_is_said_once_and_stops_nobody(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv(ANCESTORS_VARIABLE, "a")
    dead = MemorySink("deadLetter", {A: RecordPosition(3)})
    async with serving(tmp_path, QUICK, dead=dead) as world:
        daemon = await world.child("c")
        for number in (8, 9):
            assert await world.call(daemon.commit, line_of([number], lag=0)) == "processRecords"
        (said,) = (one for one in caplog.messages if "sink deadLetter holds a up to 3, and the application has" in one)
        assert "mld reset FILE --shard a --to 3" in said


async def test_without_its_commits_a_shard_does_not_end(tmp_path):
    async with serving(tmp_path, QUICK, "mld.spark.drainTimeoutMillis = 50") as world:
        held = hold_publications(world.bed)
        daemon = await world.child()
        await world.call(daemon.say, line_of([1], lag=9))
        assert await world.call(daemon.act, "shardEnded") is None
        held.set()
        error = await world.call(daemon.end)
        assert isinstance(error, FatalError) and "mld.spark.drainTimeoutMillis" in str(error)
        assert daemon.checkpoints == []


async def test_shards_share_a_job(tmp_path):
    async with serving(tmp_path, "mld.spark.triggerIntervalMillis = 1000") as world:
        daemons = [Daemon(world.connection) for _ in range(8)]
        await asyncio.gather(*(world.call(one.initialize, f"s{i}") for i, one in enumerate(daemons)))
        await asyncio.gather(*(world.call(one.commit, line_of([1, 2], lag=0)) for one in daemons))
        assert [one.checkpoints for one in daemons] == [[("2", 0)]] * 8
        assert world.bed.sinks["out"].publications <= 2


async def test_no_more_is_accepted_than_may_be_in_flight(tmp_path):
    line = line_of(range(1, 4), lag=9)
    async with serving(tmp_path, QUICK, f"mld.spark.maxBatchBytes = {len(line)}") as world:
        held = hold_publications(world.bed)
        daemons = [Daemon(world.connection) for _ in range(4)]
        for i, one in enumerate(daemons):
            await world.call(one.initialize, f"s{i}")
        saying = [asyncio.ensure_future(world.call(one.say, line)) for one in daemons]
        accepted = asyncio.as_completed(saying, timeout=BOUND_S)
        for _ in range(2):
            await next(accepted)
        _, waiting = await asyncio.wait(saying, timeout=NOTHING_COMES_S)
        assert len(waiting) == 2
        held.set()
        assert await asyncio.gather(*saying) == ["processRecords"] * 4


LINE = line_of(range(1, 4), lag=9)
SMALL = (QUICK, f"mld.spark.maxBatchBytes = {len(LINE) // 2}")
"""Each line is a micro-batch of its own."""


@pytest.fixture
def room(monkeypatch):
    """No line waits for room."""
    monkeypatch.setattr(offers, "BATCHES_IN_FLIGHT", 20)


@pytest.mark.usefixtures("room")
async def test_a_micro_batch_is_no_larger_than_asked_for_however_much_waits(tmp_path):
    async with serving(tmp_path, *SMALL) as world:
        held = hold_publications(world.bed)
        daemons = [Daemon(world.connection) for _ in range(4)]
        for i, one in enumerate(daemons):
            await world.call(one.initialize, f"s{i}")
            await world.call(one.say, LINE)
        held.set()
        for one in daemons:
            await world.call(one.act, "shutdownRequested")
        assert [one.checkpoints for one in daemons] == [[("3", 0)]] * 4
        assert world.bed.sinks["out"].publications == 4
        assert spooled(world) == []


@pytest.mark.usefixtures("room")
async def test_a_batch_that_nobody_waits_for_any_more_leaves_no_file(tmp_path):
    async with serving(tmp_path, *SMALL) as world:
        held = hold_publications(world.bed)
        running, waiting = Daemon(world.connection), Daemon(world.connection)
        for one, shard in ((running, "a"), (waiting, "b")):
            await world.call(one.initialize, shard)
            await world.call(one.say, LINE)
        await world.call(waiting.end)
        async with asyncio.timeout(BOUND_S):
            while len(spooled(world)) > 1:
                await asyncio.sleep(0)
        held.set()
        await world.call(running.act, "shutdownRequested")
        assert running.checkpoints == [("3", 0)]


async def test_a_shard_that_stops_is_told_why_and_the_others_go_on(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        world.bed.poison(lambda data: data == b"2")
        bad, good = await world.child(), await world.child("b")
        said = await asyncio.gather(
            world.call(bad.commit, line_of([1, 2], lag=0)), world.call(good.commit, line_of([7], lag=0))
        )
        assert said == [None, "processRecords"]
        assert "the record 2 of a fails: division by zero" in str(await world.call(bad.end))
        assert good.checkpoints == [("7", 0)]


async def test_a_shard_that_stops_with_a_page_that_grows_while_its_end_is_asked_for_hangs_nobody(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        take, turns = world.host.offers.take, []

        async def bounded():
            turns.append(1)
            assert len(turns) < 1_000, "the host's loop spins"
            return await take()

        world.host.offers.take = bounded
        held = hold_everything(world.bed.sinks["out"], SinkRefused("column x is int"))
        daemon = await world.child()
        assert await world.call(daemon.say, line_of([1], lag=9)) == "processRecords"
        await until(lambda: world.host.offers._taken)
        assert await world.call(daemon.say, line_of([2], lag=9)) == "processRecords"
        asking = asyncio.ensure_future(world.call(daemon.act, "shutdownRequested"))
        await until(lambda: world.host.offers._asked)
        held.set()
        assert await asking is None
        assert "column x is int" in str(await world.call(daemon.end))
        assert world.host.offers.in_flight_bytes == 0 and len(turns) <= 2


@pytest.mark.usefixtures("room")
async def test_what_follows_a_batch_that_failed_is_not_committed_without_it(tmp_path):
    """It waits already when its shard is told to stop."""
    async with serving(tmp_path, *SMALL) as world:
        out = world.bed.sinks["out"]
        held = hold_everything(out, SinkRefused("column x is int"))
        daemon = await world.child()
        assert await world.call(daemon.say, line_of([1, 2, 3], lag=9)) == "processRecords"
        assert await world.call(daemon.say, line_of([4, 5, 6], lag=9)) == "processRecords"
        held.set()
        assert await world.call(daemon.act, "shutdownRequested") is None
        assert "column x is int" in str(await world.call(daemon.end))
        other = await world.child("b")
        assert await world.call(other.commit, line_of([1], lag=0)) == "processRecords"
        assert (numbers(world.bed), out.marks.get(StreamShard(STREAM, "a"))) == ([], None)
        assert other.checkpoints == [("1", 0)]


async def three_batches(world):
    """Whole micro-batches of one shard, that wait one after the other."""
    daemon = await world.child()
    for first in (1, 4, 7):
        assert await world.call(daemon.say, line_of(range(first, first + 3), lag=9)) == "processRecords"
    return daemon


@pytest.mark.usefixtures("room")
async def test_a_child_that_is_gone_while_a_batch_is_written_gets_them_again_and_they_are_dropped(tmp_path):
    async with serving(tmp_path, *SMALL) as world:
        out = world.bed.sinks["out"]
        held = hold_everything(out)
        gone = await three_batches(world)
        assert await world.call(gone.end) is None
        held.set()
        daemon = await three_batches(world)
        assert await world.call(daemon.act, "shutdownRequested") == "shutdownRequested"
        assert (daemon.checkpoints[-1], numbers(world.bed)) == (("9", 0), [*range(1, 10)])


@pytest.mark.usefixtures("room")
async def test_a_session_that_goes_while_a_batch_is_written_commits_none(tmp_path):
    async with serving(tmp_path, *SMALL) as world:
        out = world.bed.sinks["out"]
        held = hold_everything(out, JobFailed("the JVM is gone"))
        daemon = await three_batches(world)
        world.bed.health.gone = True
        held.set()
        assert await asyncio.wait_for(world.running, BOUND_S) == 1
        assert "the Spark session is gone" in str(await world.call(daemon.end))
        assert (out.rows, out.marks) == ([], {})


@pytest.mark.usefixtures("room")
async def test_a_host_that_ends_while_a_batch_is_written_commits_none(tmp_path):
    async with serving(tmp_path, *SMALL) as world:
        out = world.bed.sinks["out"]
        held = hold_everything(out)
        await three_batches(world)
        world.running.cancel()
        await asyncio.wait([world.running])
        held.set()
        assert (out.rows, out.marks) == ([], {})


async def test_a_host_that_cannot_start_says_why(tmp_path):
    connected = threading.Event()

    def start(settings, directory, spool):
        connected.wait(BOUND_S)
        raise FatalError("Spark needs Java, and there is none on PATH", 2)

    async with serving(tmp_path, QUICK, start=start) as world:
        daemon = Daemon(lambda: (world.connection(), connected.set())[0])
        assert await world.call(daemon.initialize) is None
        error = await world.call(daemon.end)
        assert isinstance(error, FatalError)
        assert "there is none on PATH" in str(error) and error.status == 2
        assert await world.running == 2


async def test_a_host_that_dies_takes_its_children_along(tmp_path):
    async with serving(tmp_path, NEVER) as world:
        daemon = await world.child()
        world.running.cancel()
        await asyncio.wait([world.running])
        assert "went away" in str(await world.call(daemon.end))


async def test_a_new_child_of_a_shard_takes_over(tmp_path):
    async with serving(tmp_path, NEVER) as world:
        old, new = Daemon(world.connection), Daemon(world.connection)
        await world.call(old.initialize, "b")
        await world.call(old.say, line_of([1], lag=9))
        await until(lambda: numbers(world.bed, "b") == [1])
        await world.call(old.say, line_of([2, 3], lag=9))
        await world.call(new.initialize, "b")
        assert "taken over" in str(await world.call(old.end))
        await world.call(new.say, line_of([2, 3], lag=9))
        await world.call(new.act, "shutdownRequested")
        assert numbers(world.bed, "b") == [1, 2, 3]


async def test_a_checkpoint_that_fails_is_made_with_the_next_batch(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        daemon = await world.child()
        daemon.errors = ["ThrottlingException"]
        await world.call(daemon.commit, line_of([1], lag=0))
        await world.call(daemon.say, b'{"action":"processRecords","records":[],"millisBehindLatest":0}\n')
        assert daemon.checkpoints == [("1", 0), ("1", 0)]
        daemon.errors = ["ShutdownException"]
        await world.call(daemon.commit, line_of([2], lag=0))
        assert await world.call(daemon.say, line_of([3], lag=0)) == "processRecords"
        assert numbers(world.bed) == [1, 2], "the lease is lost: what comes still is not worked on"
        assert await world.call(daemon.act, "leaseLost") == "leaseLost"
        assert await world.call(daemon.end) is None


async def test_what_is_committed_while_a_reply_is_on_its_way_is_checkpointed_after_it(tmp_path):
    """A shard that then is quiet has its checkpoint at its last record."""
    async with serving(tmp_path, QUICK) as world:
        daemon = await world.child()
        daemon.replies.clear()
        assert await world.call(daemon.say, line_of([1], lag=0)) == "processRecords"
        await until(lambda: daemon.child._asked == ("1", 0))
        daemon._write(line_of([2], lag=0))
        await until(lambda: daemon.child._host.position == ("2", 0))
        daemon.replies.set()
        await until(lambda: daemon.checkpoints == [("1", 0), ("2", 0)])


async def test_the_host_ends_after_its_daemon(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        world.host.daemon_ended()
        assert await asyncio.wait_for(world.running, BOUND_S) == 0


async def test_a_batch_that_is_refused_is_not_checkpointed(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        world.bed.sinks["out"].faults = [SinkRefused("column x is int")]
        daemon = await world.child()
        assert await world.call(daemon.commit, line_of([1], lag=0)) is None
        assert "column x is int" in str(await world.call(daemon.end))
        assert daemon.checkpoints == []


async def test_a_replay_is_counted_and_logged_with_its_remedy(tmp_path, caplog):
    caplog.set_level("INFO", "mld.spark")
    sink = MemorySink("out", marks={StreamShard("s", "a"): RecordPosition(8)})
    async with serving(tmp_path, QUICK, sinks={"out": sink}) as world:
        daemon = await world.child()
        await world.call(daemon.commit, line_of(range(1, 6), lag=0))
        await world.call(daemon.commit, line_of(range(6, 11), lag=0))
        assert (numbers(world.bed), daemon.checkpoints) == ([9, 10], [("5", 0), ("10", 0)])
        counters = json.loads((tmp_path / STATUS_FILE).read_text())["counters"]
        assert (counters["dropped"], counters["rows"]) == (5, 2)
    said = [record.getMessage() for record in caplog.records]
    counted = [text.split(" dropped=")[1].split()[0] for text in said if text.startswith("trigger:")]
    assert counted == ["5", "0"], "the last page is new in part"
    warnings = [text for text in said if "were delivered again" in text]
    assert [text.split()[0] for text in warnings] == ["5"]
    assert "mld.spark.pipelineId" in warnings[0]


@pytest.mark.parametrize(("created", "later"), [("2026-02-01", True), ("2025-02-01", False)], ids=["later", "earlier"])
async def test_a_child_that_knows_another_stream_of_the_name(tmp_path, monkeypatch, created, later):
    """If its stream is the later one, the host ends and the next one opens the sinks for it; else the child ends."""
    async with serving(tmp_path, QUICK) as world:
        first, other = Daemon(world.connection), Daemon(world.connection)
        for name, value in DAEMON.items():
            monkeypatch.setenv(name, value)
        await world.call(first.initialize)
        monkeypatch.setenv("MLD_STREAM_CREATED", f"{created}T00:00:00.000Z")
        assert await world.call(other.initialize, "b") is None
        assert "it was deleted and made again" in str(await world.call(other.end))
        if later:
            assert await asyncio.wait_for(world.running, BOUND_S) == 1
            assert "it was deleted and made again" in str(await world.call(first.end))
        else:
            assert await world.call(first.commit, line_of([1], lag=0)) == "processRecords"
            assert numbers(world.bed) == [1]


async def test_shards_of_the_same_id_in_several_streams_are_apart(tmp_path, monkeypatch):
    """Their marks, their children, their lags; the column has the stream's name."""
    arn = "arn:aws:kinesis:eu-west-1:111111111111:stream/{}"
    async with serving(tmp_path, QUICK, env={"MLD_STREAM_ID": "111111111111:orders:1700000000"}) as world:
        children = {}
        for name in ("orders", "clicks"):
            monkeypatch.setenv("MLD_STREAM_NAME", name)
            monkeypatch.setenv("MLD_STREAM_ID", f"111111111111:{name}:1700000000")
            monkeypatch.setenv("MLD_STREAM_ARN", arn.format(name))
            monkeypatch.setenv("MLD_STREAM_CREATED", f"2026-0{len(children) + 1}-01T00:00:00.000Z")
            children[name] = Daemon(world.connection)
            assert await world.call(children[name].initialize, "a") == "initialize"
        assert await world.call(children["orders"].say, line_of([5], lag=7)) == "processRecords"
        assert await world.call(children["clicks"].commit, line_of([3], lag=0)) == "processRecords"
        await world.call(children["orders"].say, line_of([6], lag=0))
        await until(lambda: children["orders"].checkpoints[-1:] == [("6", 0)])
        assert children["clicks"].checkpoints == [("3", 0)], "3 is below 5, but of another stream"
        marks = world.bed.sinks["out"].open()
        assert {shard.stream: str(mark.sequence) for shard, mark in marks.items()} == {
            "eu-west-1:111111111111:clicks:1700000000": "3",
            "eu-west-1:111111111111:orders:1700000000": "6",
        }
        assert set(json.loads((tmp_path / STATUS_FILE).read_text())["lagMillis"]) <= {"orders/a", "clicks/a"}


async def test_a_process_that_ends_is_noticed():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    ended = asyncio.Event()
    watch_process(asyncio.get_running_loop(), process.pid, ended.set)
    process.stdin.close()
    await asyncio.wait_for(ended.wait(), BOUND_S)
    await process.wait()


def test_frames_refuse_garbage():
    with pytest.raises(link.LinkError):
        link.decode_header(b"\xff" * link.HEADER.size)
    with pytest.raises(link.LinkError):
        link.decode_body(b"[]")


def test_nobody_stops_us_by_making_our_directory_first(short_tmp):
    taken = [f"mld-spark-{os.getuid()}", f"mld-spark-{os.getpid()}-{started_at(os.getpid())}-0"]
    for name in taken:
        (short_tmp / name).mkdir()
        (short_tmp / name).chmod(0o755)
    directory = run_directory(os.getpid())
    assert directory.stat().st_mode & 0o777 == 0o700
    assert directory == run_directory(os.getpid()) == scratch_directory(os.getpid())
    assert directory.name not in taken


def test_sockets_are_where_systemd_says_and_data_is_where_there_is_room(short_tmp, monkeypatch):
    runtime = short_tmp / "run"
    runtime.mkdir(mode=0o755)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(runtime))
    assert run_directory(os.getpid()).parent == runtime
    assert scratch_directory(os.getpid()).parent == short_tmp


def test_what_a_killed_host_left_behind_goes(short_tmp):
    alive = short_tmp / f"mld-spark-{os.getpid()}-{started_at(os.getpid())}-a"
    dead, held = (short_tmp / f"mld-spark-{os.getpid()}-1-{end}" for end in "bc")
    for directory in (alive, dead, held):
        directory.mkdir(mode=0o700)
        (directory / "spool").mkdir()
    with hold(held):
        sweep()
    assert (alive.exists(), dead.exists(), held.exists()) == (True, False, True)
    clear(alive, daemon_lives=True)
    assert alive.exists() and not (alive / "spool").exists()
    clear(alive, daemon_lives=False)
    assert not alive.exists()


def test_which_properties_file(monkeypatch):
    monkeypatch.delenv("MLD_PROPERTIES_FILE", raising=False)
    with pytest.raises(FatalError, match="which properties file"):
        properties_file([])
    assert properties_file(["/x/app.properties"]) == "/x/app.properties"
    monkeypatch.setenv("MLD_PROPERTIES_FILE", "/y")
    assert properties_file([]) == "/y"


def test_one_of_several_children_of_a_shard_does_not_start(monkeypatch):
    monkeypatch.setenv("MLD_CHILDREN_PER_SHARD", "1")
    refuse_several()
    monkeypatch.delenv("MLD_CHILDREN_PER_SHARD")
    refuse_several()
    environment = {**os.environ, "MLD_CHILDREN_PER_SHARD": "8"}
    command = [sys.executable, "-c", "from mld.processors.spark.child import main; main()", "app.properties"]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mld-spark: mld-spark cannot share a shard with other children: remove mld.childrenPerShard\n"


async def test_who_looks_finds_the_host_and_its_counters(short_tmp):
    directory = run_directory(os.getpid())
    assert short_tmp in directory.parents
    async with serving(directory, QUICK, "mld.spark.format = text", dead=MemorySink("dead")) as world:
        daemon = await world.child()
        assert [host.counters["records"] for host in sparkhosts.running("app")] == [0]
        world.bed.sinks["out"].faults = [JobFailed("once")]
        await world.call(daemon.commit, line_of([1, 2, 3], {2: b"{bad"}, lag=0))
        await world.call(daemon.commit, line_of([4], lag=0))
        (found,) = sparkhosts.running("app")
        assert (found.pid, found.daemon_pid, found.ui) == (os.getpid(), os.getpid(), "http://127.0.0.1:4040")
        assert found.about["lagMillis"] == {"a": 0}
        wanted = {"triggers": 2, "records": 4, "failed_jobs": 1, "retries": 1, "malformed": 1, "poisoned": 0}
        assert {name: found.counters[name] for name in wanted} == wanted
        assert sparkhosts.running("another") == []
        file = directory / STATUS_FILE
        file.write_text(file.read_text().replace(f'"pidStarted": "{started_at(os.getpid())}"', '"pidStarted": "1"'))
        assert sparkhosts.running("app") == [], "the process that wrote it is gone"


# --- pages -----------------------------------------------------------------------------------------------------------


async def test_lines_of_all_shards_are_a_page_each_and_one_job(tmp_path):
    quoted = line_of([6, 7], lag=9).replace(b'"k"', rb'"\""')
    async with serving(tmp_path, NEVER) as world:
        one, other = await world.child("a"), await world.child("b")
        await world.call(one.commit, line_of([1]))
        await until(lambda: world.bed.sinks["out"].publications == 1 and not spooled(world))
        for daemon, line in ((one, line_of([2, 3], lag=9)), (other, quoted), (one, line_of([4, 5], lag=9))):
            assert await world.call(daemon.say, line) == "processRecords"
        assert spooled(world) == ["00000001-00000002.parquet", "00000002-00000001.parquet"]
        for daemon in (one, other):
            await world.call(daemon.act, "shutdownRequested")
        assert (numbers(world.bed, "a"), numbers(world.bed, "b")) == ([1, 2, 3, 4, 5], [6, 7])
        assert (one.checkpoints, other.checkpoints) == ([("1", 0), ("5", 0)], [("7", 0)])
        assert (world.bed.frames.handed, list(world.bed.spool.directory.iterdir())) == (2, [])


@pytest.mark.parametrize("count", [1, 5_000], ids=["at its end", "in its midst"])
async def test_a_page_that_finds_no_room_on_the_disk_is_not_checkpointed(tmp_path, count):
    async with serving(tmp_path, QUICK) as world:
        daemon = await world.child()
        (world.bed.spool.directory / "00000001-00000001.parquet").symlink_to("/dev/full")
        assert await world.call(daemon.commit, line_of(range(1, count + 1), lag=0)) is None
        said = str(await world.call(daemon.end))
        assert "No space left on device; nothing of them is checkpointed; make room, or name another" in said
        await until(lambda: (spooled(world), world.host.offers.in_flight_bytes) == ([], 0))
        assert (daemon.checkpoints, numbers(world.bed)) == ([], [])
        again = await world.child()
        await world.call(again.commit, line_of([1], lag=0))
        assert again.checkpoints == [("1", 0)]


async def test_a_child_that_dies_with_a_page_that_grows_leaves_neither_file_nor_claim(tmp_path):
    async with serving(tmp_path, NEVER) as world:
        child, ready = await asyncio.to_thread(raw_child, world)
        world.host._loop.last_start = time.monotonic()
        child.sendall(link.encode(link.ROOM, {"size": 1000, "unasked": 0, "behind": 9}))
        await asyncio.to_thread(frame_of, child, link.GO)
        assert (ready["stream"], ready["shard"]) == (STREAM, "a")
        Path(f"{ready['pages']}00000001.parquet").write_bytes(b"PAR1 and a part")
        assert (len(spooled(world)), world.host.offers.in_flight_bytes) == (1, 1000)
        child.close()
        await until(lambda: not spooled(world) and not world.host.offers.in_flight_bytes)


async def test_small_lines_are_added_without_asking_for_each(tmp_path, monkeypatch):
    """They wake the host every few kilobytes only, and are counted when the child asks again or completes its page."""
    asked, line = [], line_of([1], lag=9)
    send = HostConnection.send

    def noted(child, kind, body=None):
        asked.extend([body["size"], body["unasked"]] if kind == link.ROOM else [])
        send(child, kind, body)

    monkeypatch.setattr(HostConnection, "send", noted)
    monkeypatch.setattr("mld.processors.spark.host.session_host.PAGE_BYTES", 2 * len(line) * UNASKED_SHARE)
    async with serving(tmp_path, NEVER) as world:
        world.host._loop.last_start = time.monotonic()
        daemon = await world.child()
        for number in range(1, 6):
            assert await world.call(daemon.say, line_of([number], lag=9)) == "processRecords"
        size = len(line)
        assert asked == [size, 0, size, 2 * size]
        assert world.host.offers.in_flight_bytes == 4 * size
        assert await world.call(daemon.act, "shutdownRequested") == "shutdownRequested"
        assert (daemon.checkpoints[-1], numbers(world.bed)) == (("5", 0), [1, 2, 3, 4, 5])
        await until(lambda: world.host.offers.in_flight_bytes == 0)


async def test_a_line_waits_for_room(tmp_path):
    async with serving(tmp_path, NEVER, "mld.spark.maxBatchBytes = 500") as world:
        held = hold_publications(world.bed)
        first = await world.child("b")
        assert await world.call(first.say, line_of(range(1, 5), lag=9)) == "processRecords"
        child, _ = await asyncio.to_thread(raw_child, world)
        child.sendall(link.encode(link.ROOM, {"size": 900, "unasked": 0, "behind": 9}))
        child.settimeout(NOTHING_COMES_S)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(child.recv, 1)
        child.settimeout(BOUND_S)
        held.set()
        await asyncio.to_thread(frame_of, child, link.GO)
        child.close()


async def test_a_child_that_waits_for_room_gives_what_it_has(tmp_path):
    """Else its page would hold the room that it waits for."""
    async with serving(tmp_path, NEVER, f"mld.spark.maxBatchBytes = {len(LINE)}") as world:
        daemon = await world.child()
        for first in range(1, 31, 3):
            assert await world.call(daemon.say, line_of(range(first, first + 3), lag=9)) == "processRecords"
        assert await world.call(daemon.act, "shutdownRequested") == "shutdownRequested"
        assert (daemon.checkpoints[-1], numbers(world.bed)) == (("30", 0), [*range(1, 31)])


async def test_a_child_that_does_not_give_its_page_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr("mld.processors.spark.host.offers.CUT_WAIT_S", 0.05)
    async with serving(tmp_path, QUICK) as world:
        hangs, _ = await asyncio.to_thread(raw_child, world)
        hangs.sendall(link.encode(link.ROOM, {"size": 100, "unasked": 0, "behind": 9}))
        await asyncio.to_thread(frame_of, hangs, link.GO)
        await asyncio.to_thread(frame_of, hangs, link.CUT)
        daemon = await world.child("b")
        assert await world.call(daemon.commit, line_of([1], lag=0)) == "processRecords"
        assert daemon.checkpoints == [("1", 0)]
        hangs.close()


async def test_a_child_that_does_not_speak_as_we_do_is_told_so(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        for frame in (
            link.encode(link.ROOM, {"size": 10}),
            link.encode(link.PAGE, {"records": 1, "number": 1}),
            link.encode(link.READY),
            link.encode(link.PAGE)[:-2] + b"7}",
            link.HEADER.pack(link.BYE, 0) + b"x",
        ):
            child, _ = await asyncio.to_thread(raw_child, world)
            child.sendall(frame)
            assert "do not understand each other" in (await asyncio.to_thread(frame_of, child, link.FAILED))["reason"]
            child.close()


async def test_a_child_of_another_version_ends_the_host_for_one_of_its_own(tmp_path):
    async with serving(tmp_path, QUICK) as world:
        old = await world.child("b")
        new = world.connection()
        new.settimeout(BOUND_S)
        new.sendall(link.encode(link.HELLO, {"shard": "a", "stream": STREAM, "version": link.VERSION + 1}))
        assert await asyncio.wait_for(world.running, BOUND_S) == 1
        assert "another version" in (await asyncio.to_thread(frame_of, new, link.FAILED))["reason"]
        assert "another version" in str(await world.call(old.end))
        new.close()


def raw_child(world):
    """A link that has said HELLO, and the READY that it heard."""
    child = world.connection()
    child.settimeout(BOUND_S)
    child.sendall(
        link.encode(
            link.HELLO, {"shard": "a", "stream": STREAM, "sequence": "1", "sub": 0, "pid": 1, "version": link.VERSION}
        )
    )
    return child, frame_of(child, link.READY)


def frame_of(child, kind):
    with child.makefile("rb", 0) as file:
        found, length = link.decode_header(file.read(link.HEADER.size))
        assert found == kind
        return link.decode_body(file.read(length))
