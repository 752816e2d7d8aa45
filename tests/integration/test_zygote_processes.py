"""`mld-zygote` as a process, started as a daemon that knows nothing of it does: what its children are and how all end.

This process is the daemon in the part of the owner; where the owner has to die, it is a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mld.consumer.child import PipeHost
from mld.consumer.forked_child import ForkedProcess
from mld.consumer.ports import ShardAddress
from mld.core.clock import LoopClock
from mld.protocol import fork_requests
from mld.protocol.messages import StreamLabel
from tests.support.daemon import until
from tests.support.patience import PATIENCE_S

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the fork server needs Linux"),
]

ROOT = Path(__file__).resolve().parents[2]
ZYGOTE = str(ROOT / "bin" / "mld-zygote")
ANSWER_S = PATIENCE_S
ECHO = """
    import os, random, signal, sys, json
    def say(*what): print(*what, flush=True)
    say("ready", os.getpid())
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        match command:
            case "eval": say(json.dumps(eval(argument), default=str))
            case "do": exec(argument); say("done")
    say("eof")
"""


class Kid:
    """One started command; `pid` is the process that answers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = int(self.line().split()[1])

    def line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        assert ready, f"no line within {ANSWER_S} s"
        return self.process.stdout.readline().decode().rstrip("\n")

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, expression: str) -> str:
        self.send(f"eval {expression}")
        return self.line()

    def do(self, statement: str) -> str:
        self.send(f"do {statement}")
        return self.line()

    def end(self) -> tuple[int, str]:
        """Exit code and the rest of standard error."""
        _, errors = self.process.communicate(timeout=ANSWER_S)
        return self.process.returncode, errors.decode()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runtime = Path(tempfile.mkdtemp(prefix="z"))  # short: the path of a socket has 107 bytes
        self.started: list[subprocess.Popen[bytes]] = []

    def script(self, source: str = ECHO, name: str = "kid.py") -> str:
        (self.directory / name).write_text(textwrap.dedent(source))
        return name

    def popen(self, *arguments: str, command: str = ZYGOTE, shard: str = "0") -> subprocess.Popen[bytes]:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "MLD_SHARD_ID": shard}
        process = subprocess.Popen(
            [command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            cwd=self.directory,
            process_group=0,
        )
        self.started.append(process)
        return process

    def kid(self, *arguments: str, shard: str = "0") -> Kid:
        return Kid(self.popen(*(arguments or ("kid.py",)), shard=shard))

    def processes(self, *parts: str) -> list[int]:
        """Living processes with our directory in their environment and all parts in their command."""
        mark = f"XDG_RUNTIME_DIR={self.runtime}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                    if mark in (entry / "environ").read_bytes().split(b"\0") and all(part in command for part in parts):
                        found.append(int(entry.name))
        return found

    def server(self, *kids: Kid) -> int:
        """The process that forks: the only one with that command which is no kid."""
        (pid,) = set(self.processes("--serve")) - {kid.pid for kid in kids}
        return pid

    def sockets(self) -> list[Path]:
        return sorted(self.runtime.glob("*/*.sock"))

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                assert stream is not None
                stream.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.runtime, ignore_errors=True)


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(Path(tmp_path_factory.mktemp("z")))  # short: the path of a socket has 107 bytes
    made.script()
    yield made
    made.close()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for the signal: the child may be quicker than the command that waits for it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


# --- what a child is -------------------------------------------------------------------------------------------------


def test_children_are_forks_of_one_process(bench: Bench) -> None:
    first, second = bench.kid(shard="0"), bench.kid(shard="1")
    parents = {first.ask("os.getppid()"), second.ask("os.getppid()")}
    assert parents == {str(bench.server(first, second))}
    assert (first.ask("os.environ['MLD_SHARD_ID']"), second.ask("os.environ['MLD_SHARD_ID']")) == ('"0"', '"1"')


async def test_children_of_several_streams_are_forks_of_one_process_and_know_their_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.directory)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bench.runtime))
    host = PipeHost([ZYGOTE, "kid.py"], LoopClock(), stop_timeout_s=1e6, environment={"MLD_STREAM_NAME": ""})
    said = []
    for name in ("orders", "clicks", "orders"):
        label = StreamLabel(name, f"arn:aws:kinesis:eu-west-1:1:stream/{name}", f"1:{name}:2")
        child = await host.start(ShardAddress(f"{label.id}:shardId-0", "shardId-0", label))
        assert await asyncio.wait_for(child.read_line(), ANSWER_S) is not None
        variables = "[os.environ[f'MLD_{name}'] for name in ('STREAM_NAME', 'STREAM_ARN', 'STREAM_ID', 'LEASE_KEY')]"
        await child.write([f"eval [os.getppid(), *{variables}]\n".encode()])
        parent, *told = json.loads(str(await asyncio.wait_for(child.read_line(), ANSWER_S)))
        said.append((parent, *told))
        await child.end()
    assert [told for _, *told in said[:2]] == [
        [name, f"arn:aws:kinesis:eu-west-1:1:stream/{name}", f"1:{name}:2", f"1:{name}:2:shardId-0"]
        for name in ("orders", "clicks")
    ]
    assert len({parent for parent, *_ in said}) == 1


@pytest.mark.parametrize(
    "expression",
    [
        "__name__",
        "__file__",
        "__package__",
        "str(__spec__)",
        "sys.argv",
        "sys.orig_argv[1:]",
        "sys.path",
        "sys.flags",
        "os.getcwd()",
        "sorted(set(os.environ) - {'PWD', 'OLDPWD', 'SHLVL', '_'})",
        "sys.modules['__main__'].__dict__ is globals()",
        "'processors' in sys.modules or 'protocol' in sys.modules",
        "[signal.getsignal(n) for n in range(1, 32)]",
        "[signal.getsignal(signal.SIGINT) is signal.default_int_handler]",
        "[sys.stdin.name, sys.stdout.name, sys.stderr.name]",
        "[(s.line_buffering, s.write_through, s.encoding, s.errors) for s in (sys.stdin, sys.stdout, sys.stderr)]",
        "[s.seekable() for s in (sys.stdin, sys.stdout, sys.stderr)]",
        "[os.readlink(f'/proc/self/fd/{n}')[:4] for n in (0, 1, 2)]",
        "__import__('gc').isenabled()",
        "__import__('threading').main_thread() is __import__('threading').current_thread()",
    ],
)
def test_a_child_sees_what_a_plain_one_sees(bench: Bench, expression: str) -> None:
    forked = bench.kid("kid.py", "a", "--b=c d")
    plain = Kid(bench.popen("kid.py", "a", "--b=c d", command=sys.executable))
    assert forked.ask(expression) == plain.ask(expression)


def test_a_child_has_its_three_descriptors_and_one_that_holds_the_line(bench: Bench) -> None:
    bench.kid()
    found = set(eval(bench.kid().ask("sorted(map(int, os.listdir('/proc/self/fd')))")))
    plain = set(
        eval(Kid(bench.popen("kid.py", command=sys.executable)).ask("sorted(map(int, os.listdir('/proc/self/fd')))"))
    )
    assert found - plain == {100}
    assert not [number for number in plain - found if number > 3]


def test_children_draw_different_random_numbers(bench: Bench) -> None:
    assert bench.kid().ask("random.random()") != bench.kid().ask("random.random()")


def test_a_child_is_in_the_group_of_the_command(bench: Bench) -> None:
    kid = bench.kid()
    assert kid.ask("os.getpgrp()") == str(kid.process.pid)


def test_a_module_can_be_run(bench: Bench) -> None:
    kid = bench.kid("-m", "kid", "x")
    assert kid.ask("[__name__, __spec__.name, sys.argv[1:]]") == '["__main__", "kid", ["x"]]'
    assert int(kid.ask("os.getppid()")) == bench.server(kid)


def test_the_fork_is_told_to_those_who_asked_for_it(bench: Bench) -> None:
    bench.script("import os\nfrom noted import NOTES\nprint('ready', os.getpid(), *NOTES, flush=True)\ninput()")
    bench.script(
        "import os\nNOTES = []\nos.register_at_fork(after_in_child=lambda: NOTES.append('forked'))", "noted.py"
    )
    process = bench.popen("kid.py")
    assert process.stdout is not None
    assert process.stdout.readline().split()[2:] == [b"forked"]


def test_what_imports_print_goes_to_standard_error(bench: Bench) -> None:
    bench.script("import chatty, os\nprint('ready', os.getpid(), flush=True)\ninput()")
    bench.script("print('hello from an import')", "chatty.py")
    kid = bench.kid()  # its first line is not the import's
    kid.send("")
    assert kid.end() == (0, "hello from an import\n")


def test_the_users_own_package_called_processors_is_found(bench: Bench) -> None:
    (bench.directory / "processors").mkdir()
    bench.script("MINE = True", "processors/__init__.py")
    bench.script("import os\nimport processors\nprint('ready', os.getpid(), processors.MINE, flush=True)\ninput()")
    assert bench.kid().process.pid


def test_nothing_secret_is_on_a_command_line_or_open_to_others(bench: Bench) -> None:
    kid = bench.kid()
    assert "XDG_RUNTIME_DIR" not in "".join(Path(f"/proc/{p}/cmdline").read_text() for p in bench.processes())
    (path,) = bench.sockets()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert kid.ask("1") == "1"


# --- how a child ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit()",
        "sys.exit(3)",
        "sys.exit('why')",
        "os._exit(7)",
        "1/0",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.abort()",
        "__import__('atexit').register(lambda: print('bye', file=sys.stderr)); sys.exit(5)",
        "__import__('threading').Timer(0.2, os._exit, [9]).start(); sys.exit()",
    ],
)
def test_a_child_ends_as_a_plain_one_does(bench: Bench, ending: str) -> None:
    def end_of(kid: Kid) -> tuple[int, str]:
        kid.send(f"do {ending}")
        return kid.end()

    assert end_of(bench.kid()) == end_of(Kid(bench.popen("kid.py", command=sys.executable)))


@pytest.mark.parametrize("number", ["INT", "HUP", "QUIT"])
def test_a_signal_that_was_ignored_at_the_start_can_be_its_end(bench: Bench, number: str) -> None:
    """As with `nohup`, or in the background of a shell without job control."""

    def end_below_a_shell(command: str) -> tuple[int, str]:
        script = f"trap '' {number}; exec {command} kid.py"
        kid = Kid(bench.popen("-c", script, command="/bin/sh"))
        kid.send(f"do signal.signal(signal.SIG{number}, signal.SIG_DFL); os.kill(os.getpid(), signal.SIG{number})")
        return kid.end()

    assert end_below_a_shell(ZYGOTE) == end_below_a_shell(sys.executable)


def test_a_child_leaves_nothing_to_warn_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "always")
    kid = bench.kid()
    kid.send("do sys.exit()")
    assert kid.end() == (0, "")


def test_end_of_input_ends_it(bench: Bench) -> None:
    kid = bench.kid()
    assert kid.process.stdin is not None
    kid.process.stdin.close()
    assert kid.line() == "eof"
    assert kid.process.wait(ANSWER_S) == 0
    assert is_gone(kid.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_command_reaches_the_child(bench: Bench, number: signal.Signals) -> None:
    kid = bench.kid()
    kid.do(f"signal.signal({int(number)}, lambda *_: say('caught'))")
    until(lambda: catches(kid.process.pid, number), what="the command's readiness for signals")
    kid.process.send_signal(number)
    assert kid.line() == "caught"
    assert kid.do("signal.signal(15, signal.SIG_DFL)") == "done"
    kid.process.send_signal(signal.SIGTERM)
    assert kid.process.wait(ANSWER_S) == -signal.SIGTERM


def test_a_signal_to_the_group_reaches_the_child(bench: Bench) -> None:
    kid = bench.kid()
    os.killpg(kid.process.pid, signal.SIGKILL)
    assert kid.process.wait(ANSWER_S) == -signal.SIGKILL
    until(lambda: is_gone(kid.pid), what="the child's end")


def test_kill_of_the_child_is_seen_by_the_daemon(bench: Bench) -> None:
    kid = bench.kid()
    os.kill(kid.pid, signal.SIGKILL)
    assert kid.end() == (-signal.SIGKILL, "")


def test_kill_of_the_command_kills_the_child(bench: Bench) -> None:
    kid, other = bench.kid(), bench.kid()
    kid.process.kill()
    until(lambda: is_gone(kid.pid), what="the child's end")
    assert other.ask("1") == "1"


def test_children_outlive_their_server_and_the_next_one_gets_a_new_server(bench: Bench) -> None:
    first, second, third = bench.kid(), bench.kid(), bench.kid()
    server = bench.server(first, second, third)
    os.kill(server, signal.SIGKILL)
    until(lambda: is_gone(server), what="the server's end")
    assert first.ask("6 * 7") == "42"
    fresh = bench.kid()
    assert bench.server(first, second, third, fresh) != server
    first.send("do sys.exit(4)")
    assert first.end() == (4, "")
    os.kill(second.pid, signal.SIGKILL)
    assert second.process.wait(ANSWER_S) == -signal.SIGKILL
    third.process.kill()
    third.process.communicate()
    until(lambda: is_gone(third.pid), what="the end of a child whose input is closed")


# --- when not to fork ------------------------------------------------------------------------------------------------


def kid_that_imports(bench: Bench, source: str) -> None:
    bench.script("import hazard\n" + textwrap.dedent(ECHO))
    bench.script(source, "hazard.py")


@pytest.mark.parametrize(
    ("hazard", "named"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "threads"),
        ("import socket\nKEPT = socket.socket()", "sockets"),
        ("import subprocess\nKEPT = subprocess.Popen(['sleep', '60'], stdin=-3, stdout=-3, stderr=-3)", "processes"),
    ],
)
def test_what_must_not_be_forked_gets_plain_children_and_one_warning(bench: Bench, hazard: str, named: str) -> None:
    kid_that_imports(bench, hazard)
    warnings = []
    for kid in (bench.kid(), bench.kid()):
        assert kid.pid == kid.process.pid
        kid.send("do os._exit(0)")
        warnings.append(kid.end()[1])
    assert named in warnings[0] and "plain" in warnings[0] and warnings[0].count("\n") == 1
    assert warnings[1] == ""
    until(lambda: not bench.processes("--serve"), what="the server's end")
    assert bench.sockets() == []


def test_a_repaired_script_is_forked_again(bench: Bench) -> None:
    kid_that_imports(bench, "import socket\nKEPT = socket.socket()")
    assert (kid := bench.kid()).pid == kid.process.pid
    bench.script("import json\n" + textwrap.dedent(ECHO))
    assert (kid := bench.kid()).pid != kid.process.pid


@pytest.mark.parametrize("changed", ["kid.py", "helper.py"])
def test_a_changed_script_or_module_of_the_users_gets_a_new_server(bench: Bench, changed: str) -> None:
    bench.script("VALUE = 1", "helper.py")
    bench.script("import helper\nHERE = 1\n" + textwrap.dedent(ECHO))
    old = bench.kid()
    assert old.ask("[HERE, helper.VALUE]") == "[1, 1]"
    path = bench.directory / changed
    path.write_text(path.read_text().replace("VALUE = 1", "VALUE = 200").replace("HERE = 1", "HERE = 200"))
    new = bench.kid()
    assert sorted(eval(new.ask("[HERE, helper.VALUE]"))) == [1, 200]
    assert old.ask("[HERE, helper.VALUE]") == "[1, 1]"
    assert new.ask("os.getppid()") != old.ask("os.getppid()")


@pytest.mark.parametrize(
    "source", ["import nowhere_to_be_found", "syntax error", "import os\nraise SystemExit(6)", "import quits"]
)
def test_errors_of_a_script_are_those_of_a_plain_child(bench: Bench, source: str) -> None:
    bench.script("import sys\nsys.exit('import refused')", "quits.py")
    name = bench.script(source, "broken.py")
    ends = []
    for command in (ZYGOTE, sys.executable):
        process = bench.popen(name, command=command)
        _, errors = process.communicate(timeout=ANSWER_S)
        ends.append((process.returncode, errors))
    assert ends[0] == ends[1]


def test_a_missing_script_is_reported_as_by_python(bench: Bench) -> None:
    process = bench.popen("missing.py")
    _, errors = process.communicate(timeout=ANSWER_S)
    assert (process.returncode, b"No such file" in errors) == (2, True)


def test_a_directory_that_others_could_have_made_is_passed_over(bench: Bench) -> None:
    identity = fork_requests.process_identity(os.getpid())
    assert identity is not None
    foreseen = bench.runtime / f"mld-zygote-{identity[0]}-{identity[1]}-0"
    foreseen.mkdir()
    foreseen.chmod(0o755)
    kid = bench.kid()
    assert kid.pid != kid.process.pid
    (made,) = {path.parent for path in bench.sockets()}
    assert made != foreseen and made.stat().st_mode & 0o777 == 0o700


def test_a_server_that_dies_of_its_imports_leaves_plain_children(bench: Bench) -> None:
    kid_that_imports(bench, "import os, sys\nif '--serve' in open('/proc/self/cmdline').read(): os._exit(9)")
    kid = bench.kid()
    assert kid.pid == kid.process.pid


# --- the end of everything -------------------------------------------------------------------------------------------

OWNER = """
    import subprocess, sys
    kids = [subprocess.Popen(sys.argv[1:], stdin=-1, stdout=-1, process_group=0) for _ in range(3)]
    print("ready", *[kid.stdout.readline().split()[1].decode() for kid in kids], flush=True)
    input()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_daemon_is_gone_everything_is(bench: Bench, number: signal.Signals) -> None:
    owner = bench.popen(bench.script(OWNER, "owner.py"), ZYGOTE, "kid.py", command=sys.executable)
    assert owner.stdout is not None
    assert len(owner.stdout.readline().split()) == 4
    assert len(bench.processes("--serve")) == 4
    owner.send_signal(number)
    owner.wait(ANSWER_S)
    until(lambda: not bench.processes(), within_s=ANSWER_S, what="the end of all")
    assert list(bench.runtime.iterdir()) == []


def test_a_child_that_does_not_end_keeps_nothing_but_its_server(bench: Bench) -> None:
    bench.script(ECHO.replace('say("eof")', "signal.pause()"))
    owner = bench.popen(bench.script(OWNER, "owner.py"), ZYGOTE, "kid.py", command=sys.executable)
    assert owner.stdout is not None
    kids = [int(pid) for pid in owner.stdout.readline().split()[1:]]
    owner.kill()
    until(lambda: bench.sockets() == [], what="the socket's end")
    for pid in kids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not bench.processes(), within_s=ANSWER_S, what="the end of all")


def test_leftovers_of_killed_servers_are_removed(bench: Bench) -> None:
    gone = bench.runtime / "mld-zygote-4194305-1-abc"
    gone.mkdir(mode=0o700)
    (gone / "abc.sock").touch()
    (gone / "abc.plain").touch()
    bench.kid()
    (left,) = bench.runtime.iterdir()
    assert left.name.startswith(f"mld-zygote-{os.getpid()}-")


def test_many_at_once_share_one_server(bench: Bench) -> None:
    processes = [bench.popen("kid.py", shard=str(number)) for number in range(16)]
    kids = [Kid(process) for process in processes]
    assert {kid.ask("os.getppid()") for kid in kids} == {str(bench.server(*kids))}
    for number, kid in enumerate(kids):
        kid.send(f"do sys.exit({number})")
    assert [kid.end()[0] for kid in kids] == list(range(16))


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_server_keeps_nothing_of_children_that_are_gone(bench: Bench) -> None:
    kept = bench.kid()
    server = bench.server(kept)
    before = _descriptors(server)
    for _ in range(5):
        kid = bench.kid()
        kid.send("do sys.exit()")
        kid.end()
    looked: Callable[[], bool] = lambda: _descriptors(server) == before  # noqa: E731
    until(looked, what="descriptors closed")
    assert kept.ask("1") == "1"


# --- a forked child of the daemon's own ------------------------------------------------------------------------------


async def test_the_end_of_a_forked_child_does_not_wait_for_its_detached_grandchild(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.directory)
    environment = {"XDG_RUNTIME_DIR": str(bench.runtime)}
    host = PipeHost([ZYGOTE, "kid.py"], LoopClock(), stop_timeout_s=1e6, environment=environment)
    first = await host.start(ShardAddress("0", "0"))  # asks the server through a process of its own
    assert await asyncio.wait_for(first.read_line(), ANSWER_S) is not None
    second = await host.start(ShardAddress("1", "1"))
    assert isinstance(second._process, ForkedProcess)
    assert await asyncio.wait_for(second.read_line(), ANSWER_S) is not None
    for child in (first, second):
        await child.write([b"do import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\n"])
        assert await asyncio.wait_for(child.read_line(), ANSWER_S) == "done"
        assert "exited with status 0" in await asyncio.wait_for(child.end(), ANSWER_S)
