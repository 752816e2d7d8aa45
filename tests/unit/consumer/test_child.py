"""Real processes behind the ProcessorHost port (protocol#child-command, protocol#ending-a-child)."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import stat
import sys
import textwrap
import tracemalloc
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from mld.consumer.child import LOGGED_CHARACTERS_PER_STEP, LOGGED_PER_STEP, ChildCommand, PipeHost
from mld.consumer.child_pipes import PIPE_BYTES, ChildInput
from mld.consumer.ports import ChildStartError, ShardAddress
from mld.consumer.processor import NOTED_PER_STEP, Processor
from mld.core.clock import LoopClock
from mld.core.installed import find_executable, runnable
from mld.protocol.conversation import ProcessorGoneError
from mld.protocol.line_splitter import LINE_BYTES_MAX
from mld.protocol.messages import Initialize, StreamLabel
from tests.support.fleet import settings_of
from tests.support.patience import PATIENCE_S

STOP_TIMEOUT_S = 0.3  # where the time has to run out
NEVER_S = 1e6  # a stop timeout that no test sits out
SHARD = ShardAddress("shardId-000000000007", "shardId-000000000007")
ORDERS = StreamLabel("orders", "arn:aws:kinesis:eu-west-1:111111111111:stream/orders", "111111111111:orders:17")
OF_ORDERS = ShardAddress(f"{ORDERS.id}:shardId-000000000007", "shardId-000000000007", ORDERS)


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", textwrap.dedent(code)]


def host(command, stop_timeout_s=NEVER_S, **environment):
    return PipeHost(command, LoopClock(), stop_timeout_s=stop_timeout_s, environment=environment)


async def start(command, **keys):
    return await host(command, **keys).start(SHARD)


def conversing(child, on_checkpoint=None):
    return Processor(child, "s", LoopClock(), settings_of().child, on_checkpoint)


async def lines_until_eof(child):
    lines = []
    while (line := await child.read_line()) is not None:
        lines.append(line)
    return lines


async def test_a_child_gets_what_is_written_and_is_reaped_at_the_end():
    child = await start(python("import sys\nfor line in sys.stdin: print('got', line.strip())"))
    await child.write([b"on", b"e\n", b"two\n"])
    assert [await child.read_line(), await child.read_line()] == ["got one", "got two"]
    assert "exited with status 0" in await child.end()
    assert await child.read_line() is None


async def test_a_line_for_which_the_pipe_has_room_is_written_at_once_and_a_larger_one_in_a_task():
    child = await start(python("import sys\nfor line in sys.stdin: print('got', len(line))"))
    assert child.begin_write([b"on", b"e\n"]) is None
    writing = child.begin_write([b"y" * 4 * PIPE_BYTES, b"\n"])
    assert writing is not None
    await writing
    assert [await child.read_line(), await child.read_line()] == ["got 4", f"got {4 * PIPE_BYTES + 1}"]
    await child.end()


async def test_a_line_that_the_pipe_takes_in_part_is_finished_in_a_task():
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as reader, os.fdopen(write_fd, "wb", buffering=0) as writer:
        pipe = ChildInput(writer)
        filled = b"x" * (16 * PIPE_BYTES)
        rest = pipe.write_now(filled)
        assert 0 < len(rest) < len(filled)
        assert bytes(rest) == filled[-len(rest) :]
        pipe.close()
        assert bytes(pipe.write_now(b"late")) == b"late"
        assert len(reader.read()) == len(filled) - len(rest)


async def test_a_line_for_a_child_that_closed_its_stdin_fails_when_it_is_waited_for():
    child = await start(python("import os, time; os.close(0); print('closed'); time.sleep(1e6)"))
    assert await child.read_line() == "closed"
    writing = child.begin_write([b"line\n"])
    assert writing is not None
    with pytest.raises(BrokenPipeError):
        await writing
    await child.kill()


async def test_the_environment_is_the_daemons_plus_the_shard():
    child = await start(
        python("import os; print(os.environ['MLD_SHARD_ID'], os.environ['MLD_STREAM_NAME'], os.environ['PATH'])"),
        MLD_STREAM_NAME="clicks",
    )
    assert await child.read_line() == f"shardId-000000000007 clicks {os.environ['PATH']}"
    await child.end()


SHOWN = (
    "for name in 'STREAM_NAME STREAM_ARN STREAM_ID SHARD_ID LEASE_KEY'.split(): print(os.environ.get('MLD_' + name))"
)


async def test_one_of_several_streams_is_in_the_environment():
    child = await host(python(f"import os\n{SHOWN}"), MLD_STREAM_NAME="").start(OF_ORDERS)
    said = ["orders", ORDERS.arn, ORDERS.id, "shardId-000000000007", OF_ORDERS.key]
    assert await lines_until_eof(child) == said
    await child.end()


async def test_what_belongs_to_another_shard_is_not_inherited(monkeypatch):
    monkeypatch.setenv("MLD_STREAM_ID", ORDERS.id)
    monkeypatch.setenv("MLD_LEASE_KEY", OF_ORDERS.key)
    child = await start(python(f"import os\n{SHOWN}"), MLD_STREAM_NAME="clicks")
    assert await lines_until_eof(child) == ["clicks", "None", "None", SHARD.key, SHARD.key]
    await child.end()


async def test_the_children_of_a_stream_may_have_a_command_of_their_own():
    def of_stream(stream):
        return ChildCommand(python("print('mine')" if stream == ORDERS else "print('ours')"))

    one = PipeHost(["unused"], LoopClock(), stop_timeout_s=NEVER_S, environment={}, of_stream=of_stream)
    for shard, said in [(OF_ORDERS, "mine"), (SHARD, "ours")]:
        child = await one.start(shard)
        assert await child.read_line() == said
        await child.end()


async def test_what_a_child_logs_names_its_stream(caplog):
    code = """
        import sys
        print('plain', file=sys.stderr)
        print('{"message": "m", "stream": "own"}', file=sys.stderr)
    """
    with caplog.at_level(logging.INFO):
        child = await host(python(code)).start(OF_ORDERS)
        await child.end()
        alone = await start(python(code))
        await alone.end()
    said = [vars(record) for record in caplog.records if vars(record).get("action") == "child_stderr"]
    assert [(one["shard"], one.get("stream"), one.get("child_stream")) for one in said] == [
        (OF_ORDERS.key, "orders", None),
        (OF_ORDERS.key, "orders", "own"),
        (SHARD.key, None, None),
        (SHARD.key, "own", None),
    ]


async def test_a_child_has_its_own_process_group():
    child = await start(python("import os; print(os.getpgrp() == os.getpid())"))
    assert await child.read_line() == "True"
    await child.end()


async def test_a_child_that_prints_megabytes_before_it_reads_does_not_block_us():
    child = await start(python("for _ in range(3): print('x' * 1_000_000)\nprint(len(input()))"))
    writing = asyncio.create_task(child.write([b"y" * 1_000_000] * 3 + [b"\n"]))
    assert [len(await child.read_line()) for _ in range(3)] == [1_000_000] * 3
    assert await child.read_line() == "3000000"
    await writing
    await child.end()


async def test_of_a_fifty_megabyte_line_the_first_is_kept_and_the_next_line_is_read():
    child = await start(python("print('{' + 'x' * 50_000_000); print('next')"))
    tracemalloc.start()
    try:
        line = await child.read_line()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(line) == LINE_BYTES_MAX == 1024 * 1024 and line.startswith("{x")
    assert await child.read_line() == "next"
    assert peak < 8 * LINE_BYTES_MAX
    await child.end()


class Turns(logging.Handler):
    """Counts what is logged in each turn of the loop."""

    def __init__(self):
        super().__init__()
        self.logged = Counter()
        self.turn = 0
        self.task = asyncio.ensure_future(self._turn())

    async def _turn(self):
        while True:
            await asyncio.sleep(0)
            self.turn += 1

    def emit(self, record):
        self.logged[self.turn] += 1


@pytest.fixture
def read_to_the_end(monkeypatch):
    """What a child has written is read after its exit, however long the machine takes for it."""
    monkeypatch.setattr("mld.consumer.child.EOF_AFTER_EXIT_S", NEVER_S)


@contextlib.contextmanager
def counted_turns(caplog):
    turns = Turns()
    with caplog.at_level(logging.INFO):
        logging.getLogger().addHandler(turns)
        try:
            yield turns
        finally:
            logging.getLogger().removeHandler(turns)
            turns.task.cancel()


@pytest.mark.usefixtures("read_to_the_end")
async def test_of_long_lines_on_stderr_fewer_are_logged_in_one_turn(caplog):
    lines = 200
    line = '{"message": "' + "x" * 12_000 + '"}'
    with counted_turns(caplog) as turns:
        child = await start(
            python(f"import sys; line = {line!r}; sys.stderr.write((line + chr(10)) * {lines}); print('done')")
        )
        assert await child.read_line() == "done"
        await child.end()
    assert sum(turns.logged.values()) == lines
    assert max(turns.logged.values()) <= 2 * (1 + LOGGED_CHARACTERS_PER_STEP // len(line))


@pytest.mark.usefixtures("read_to_the_end")
async def test_a_flood_on_stderr_leaves_the_loop_to_others(caplog):
    lines = 30_000
    with counted_turns(caplog) as turns:
        child = await start(python(f"import sys; sys.stderr.write('x\\n' * {lines}); print('done')"))
        assert await child.read_line() == "done"
        await child.end()
    assert sum(turns.logged.values()) == lines
    assert max(turns.logged.values()) <= 2 * LOGGED_PER_STEP


async def test_what_is_left_of_stderr_after_the_exit_is_logged_in_steps_too(caplog, monkeypatch):
    monkeypatch.setattr("mld.consumer.child.EOF_AFTER_EXIT_S", 0.0)
    with counted_turns(caplog) as turns:
        child = await start(python("import os; os.write(2, b'x\\n' * 30_000); os.write(1, b'done\\n')"))
        assert await child.read_line() == "done"
        await child.end()
    assert max(turns.logged.values()) <= 2 * LOGGED_PER_STEP


@pytest.mark.usefixtures("read_to_the_end")
@pytest.mark.parametrize("stale", [False, True])
async def test_a_flood_of_noise_on_stdout_leaves_the_loop_to_others(caplog, stale):
    code = """
        import sys
        noise = "noise\\n" * 5_000
        status = '{"action": "status", "responseFor": "%s"}\\n'
        sys.stdin.readline()
        sys.stdout.write(noise + status % "initialize" + noise)
        sys.stdout.flush()
        sys.stderr.write("said\\n")
        sys.stdin.readline()
        sys.stdout.write(status % "leaseLost")
    """
    with counted_turns(caplog) as turns:
        child = await start(python(code))
        processor = conversing(child)
        await processor.initialize(Initialize("s", "1", 0))
        while stale and not child.last_words:
            await asyncio.sleep(0)
        await processor.lease_lost()
        await processor.end()
    assert sum(turns.logged.values()) >= 10_000
    assert max(turns.logged.values()) <= 2 * NOTED_PER_STEP


async def test_a_child_that_asks_from_a_thread_between_two_actions_is_answered_at_once():
    code = """
        import sys, threading, time
        def ask():
            print('{"action": "checkpoint", "sequenceNumber": "7", "subSequenceNumber": null}')
        sys.stdin.readline()
        print('{"action": "status", "responseFor": "initialize"}')
        threading.Timer(0.05, ask).start()
        reply = sys.stdin.readline()
        sys.stdin.readline()
        print(reply, end="", file=sys.stderr)
        print('{"action": "status", "responseFor": "leaseLost"}')
    """
    asked = asyncio.Queue()
    child = await start(python(code))
    processor = conversing(child, asked.put)
    await processor.initialize(Initialize("s", "1", 0))
    assert (await asked.get()).sequence_number == "7"
    await processor.lease_lost()
    await processor.end()
    assert list(child.last_words) == [
        '{"action":"checkpoint","sequenceNumber":"7","subSequenceNumber":null,"error":null}'
    ]


async def test_a_child_that_ends_while_nothing_is_asked_of_it_is_gone():
    child = await start(
        python("""
        import sys
        sys.stdin.readline()
        print('{"action": "status", "responseFor": "initialize"}')
    """)
    )
    processor = conversing(child)
    await processor.initialize(Initialize("s", "1", 0))
    with pytest.raises(ProcessorGoneError, match="ended while there was nothing to do"):
        await processor.gone
    with pytest.raises(ProcessorGoneError, match="ended while there was nothing to do"):
        await processor.lease_lost()
    assert await processor.end() == f"{child.description} exited with status 0"


async def test_a_child_that_ignores_the_end_of_its_input_is_terminated():
    child = await start(python("import time; print('up'); time.sleep(600)"), stop_timeout_s=STOP_TIMEOUT_S)
    assert await child.read_line() == "up"
    assert "ended by mld's SIGTERM" in await child.end()


async def test_a_child_that_ignores_sigterm_too_is_killed():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
    child = await start(python(code), stop_timeout_s=STOP_TIMEOUT_S)
    assert await child.read_line() == "up"
    assert "SIGKILL" in await child.end()


async def test_a_grandchild_that_holds_the_pipes_cannot_hold_us():
    code = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
        print(child.pid)
    """
    child = await start(python(code), stop_timeout_s=STOP_TIMEOUT_S)
    grandchild = int(await child.read_line())
    assert await asyncio.wait_for(lines_until_eof(child), PATIENCE_S) == []
    await asyncio.wait_for(child.end(), PATIENCE_S)
    await gone(grandchild)


@pytest.mark.parametrize("held", [(1,), (2,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("detached", [True, False])
async def test_the_end_of_a_child_does_not_wait_for_a_grandchild_that_holds_its_pipes(held, detached):
    code = f"""
        import os, subprocess
        pipes = [fd if fd in {held} else subprocess.DEVNULL for fd in range(3)]
        stdin, stdout, stderr = pipes
        sleep, pipes = ['sleep', '600'], dict(stdin=stdin, stdout=stdout, stderr=stderr)
        child = subprocess.Popen(sleep, **pipes, start_new_session={detached})
        print(child.pid)
        os.read(0, 1)
    """
    child = await start(python(code))
    grandchild = int(await child.read_line())
    try:
        assert "exited with status 0" in await asyncio.wait_for(child.end(), PATIENCE_S)
        if not detached:
            await gone(grandchild)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(grandchild, signal.SIGKILL)


async def test_a_killed_child_is_not_waited_for_beyond_its_own_end(monkeypatch):
    monkeypatch.setattr("mld.consumer.child.KILL_WAIT_S", NEVER_S)
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid); input()"
    child = await start(python(code))
    grandchild = int(await child.read_line())
    try:
        assert "SIGKILL" in await asyncio.wait_for(child.kill(), PATIENCE_S)
    finally:
        os.kill(grandchild, signal.SIGKILL)


async def test_a_grandchild_of_the_group_that_ignores_sigterm_is_killed():
    code = """
        import subprocess, sys
        deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, '-c', deaf])
        print(child.pid, flush=True)
        sys.stdin.read()
    """
    child = await start(python(code))
    lines = {await child.read_line(), await child.read_line()}
    [grandchild] = lines - {"deaf"}
    await asyncio.wait_for(child.end(), PATIENCE_S)
    await gone(int(grandchild))


async def test_a_write_does_not_wait_for_a_grandchild_that_holds_stdin():
    code = """
        import subprocess
        child = subprocess.Popen(['sleep', '600'], stdin=0, stdout=-3, stderr=-3, start_new_session=True)
        print(child.pid)
        input()
    """
    child = await start(python(code))
    grandchild = int(await child.read_line())
    try:
        with pytest.raises(BrokenPipeError):
            await asyncio.wait_for(child.write([b"\n" + bytes(10 * PIPE_BYTES)]), PATIENCE_S)
    finally:
        os.kill(grandchild, signal.SIGKILL)
        await child.end()


async def test_a_child_may_say_much_at_the_end_of_its_input():
    child = await start(python("import os; os.read(0, 1)\nfor n in range(100_000): print(n)"))
    assert "exited with status 0" in await asyncio.wait_for(child.end(), PATIENCE_S)


async def gone(pid: int) -> None:
    """Until the process is dead: a bounded number of looks, for a process that is not our child to wait for."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"process {pid} still lives")


async def test_unread_lines_can_be_taken_back():
    child = await start(python("print('one'); print('two'); input()"))
    assert await child.read_line() == "one"
    while not (unread := child.take_unread()):
        await asyncio.sleep(0)
    assert unread == ["two"]
    await child.end()


async def test_a_flood_of_lines_is_not_collected_without_bound():
    child = await start(python("for n in range(300_000): print(n)\nprint('end')"))
    assert await child.read_line() == "0"
    lines = await lines_until_eof(child)
    assert lines[-1] == "end" and len(lines) == 300_000
    await child.end()


async def test_stderr_goes_to_the_log_with_the_shard(caplog):
    caplog.set_level("INFO")
    child = await start(python("import sys; sys.stderr.write('100%s trouble %d\\n')"))
    await child.end()
    [record] = [r for r in caplog.records if getattr(r, "action", "") == "child_stderr"]
    assert (record.getMessage(), record.shard, record.levelname) == ("100%s trouble %d", "shardId-000000000007", "INFO")


@pytest.mark.usefixtures("read_to_the_end")
async def test_a_line_on_stderr_that_does_not_end_is_two_events(caplog):
    caplog.set_level("INFO")
    child = await start(python("import sys; sys.stderr.write('x' * 3_000_000); sys.stderr.flush(); print('done')"))
    assert await child.read_line() == "done"
    await child.end()
    begun, counted = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "child_stderr"]
    assert begun.endswith("the rest of it is left out)")
    assert counted == f"… {3_000_000 - begun.count('x')} bytes more of this line"


async def test_a_missing_command_is_named_with_the_key():
    with pytest.raises(ChildStartError, match=r"/no/such/program.*executableName.*No such file"):
        await start(["/no/such/program"])


async def test_a_program_for_which_no_more_files_may_be_opened_is_a_sentence_that_says_how_many_it_takes():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 2, hard))
    try:
        with pytest.raises(
            ChildStartError, match=r"executableName.*Too many open files; a child takes six.*LimitNOFILE"
        ):
            await start(python("pass"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_script_without_an_interpreter_line_runs_under_sh(tmp_path):
    script = tmp_path / "processor"
    script.write_text('echo "hello $1"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    child = await start([str(script), "world"])
    assert await child.read_line() == "hello world"
    await child.end()


async def test_a_bare_name_is_looked_up_on_the_path(tmp_path, monkeypatch):
    script = tmp_path / "my-processor"
    script.write_text("#!/bin/sh\necho found\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    child = await start(["my-processor"])
    assert await child.read_line() == "found"
    await child.end()


def test_what_is_installed_beside_the_interpreter_is_found_after_the_path(tmp_path, monkeypatch):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for place, name in ((ours, "mld-spark"), (ours, "both"), (theirs, "both")):
        place.mkdir(exist_ok=True)
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(theirs))
    monkeypatch.setattr(sys, "executable", str(ours / "python"))
    assert runnable(["mld-spark", "app.properties"]) == [str(ours / "mld-spark"), "app.properties"]
    assert runnable(["both", "x"]) == ["both", "x"]
    assert runnable(["neither"]) == ["neither"]
    assert find_executable(["neither"]) is None
    assert find_executable([str(ours / "mld-spark")]) == str(ours / "mld-spark")
    assert find_executable(["./mld-spark"]) is None, "a name with a slash is what it says"


async def test_kill_ends_a_stopped_child():
    child = await start(python("import os, time; print(os.getpid()); time.sleep(600)"))
    os.kill(int(await child.read_line()), signal.SIGSTOP)
    assert "ended by mld's SIGKILL" in await child.kill()


async def test_a_signal_of_somebody_else_is_not_called_ours():
    child = await start(python("import os, time; print(os.getpid(), flush=True); time.sleep(600)"))
    pid = int(await child.read_line())
    os.kill(pid, signal.SIGKILL)
    assert await child.read_line() is None
    with suppress(ChildProcessError):  # its pipes are closed a moment before it is gone
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    words = await child.kill()
    assert "ended by SIGKILL" in words, words


@pytest.mark.parametrize("waiting_bytes", [0, 1_000_000])
async def test_an_input_that_is_closed_and_aborted_in_one_turn_of_the_loop_ends_once(waiting_bytes):
    problems = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context))
    read_end, write_end = os.pipe()
    child_input = ChildInput(os.fdopen(write_end, "wb", buffering=0))
    writing = asyncio.create_task(child_input.write(b"x" * waiting_bytes))
    await asyncio.sleep(0)
    child_input.close()
    child_input.close()
    for _ in range(3):
        await asyncio.sleep(0)
    os.close(read_end)
    assert problems == []
    assert writing.done()
    assert isinstance(writing.exception(), BrokenPipeError) == (waiting_bytes > PIPE_BYTES)
    with pytest.raises(BrokenPipeError):
        await child_input.write(b"more")


async def test_a_cancelled_write_leaves_the_pipe_usable():
    read_end, write_end = os.pipe()
    child_input = ChildInput(os.fdopen(write_end, "wb", buffering=0))
    writing = asyncio.create_task(child_input.write(bytes(10 * PIPE_BYTES)))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    held = 0
    os.set_blocking(read_end, False)
    while held < PIPE_BYTES:
        held += len(os.read(read_end, PIPE_BYTES))
    await child_input.write(b"more")
    assert os.read(read_end, 100) == b"more"
    child_input.close()
    os.close(read_end)


async def test_a_writer_is_woken_when_its_reader_goes_away():
    read_end, write_end = os.pipe()
    child_input = ChildInput(os.fdopen(write_end, "wb", buffering=0))
    writing = asyncio.create_task(child_input.write(bytes(10 * PIPE_BYTES)))
    await asyncio.sleep(0)
    os.close(read_end)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(writing, PATIENCE_S)
    child_input.close()


async def test_a_large_line_leaves_the_loop_to_others_between_its_pieces():
    child = await start(python("import sys; print(len(sys.stdin.readline()))"))
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count_turns())
    await child.write([*[bytes(128 * 1024)] * 80, b"\n"])
    other.cancel()
    assert await child.read_line() == str(80 * 128 * 1024 + 1)
    assert turns >= 80
    await child.end()
