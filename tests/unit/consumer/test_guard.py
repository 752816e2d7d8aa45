"""Real processes: protocol#children-of-a-dead-daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mld.consumer import guard
from mld.consumer.guard import ChildGuard
from tests.support.patience import PATIENCE_S

STUBBORN = "trap '' TERM HUP INT; echo started; while :; do sleep 1000; done"
DAEMON = f"""
import subprocess, sys
from mld.consumer.guard import ChildGuard
guard = ChildGuard()
def child(command):
    process = subprocess.Popen(["sh", "-c", command], process_group=0, stdout=subprocess.PIPE)
    said = process.stdout.readline().strip()
    guard.watch(process.pid)
    return process, said
stubborn, _ = child({STUBBORN!r})
family, its_child = child("sleep 1000 & echo $!; wait")
ended, _ = child("echo started")
ended.wait()
guard.forget(ended.pid)
forgotten, _ = child({STUBBORN!r})
guard.forget(forgotten.pid)
print(stubborn.pid, family.pid, forgotten.pid, int(its_child), guard.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def daemon() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    process = subprocess.Popen([sys.executable, "-c", DAEMON], stdin=-1, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    pids = [int(word) for word in process.stdout.readline().split()]
    try:
        yield process, pids
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        for pid in pids[:3]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def wait_for_end(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], PATIENCE_S)[0], f"process {pid} lives on"
    finally:
        os.close(handle)


def reap(pid: int) -> None:
    """Wait for a guard's end. It may have ended, and have been reaped, as soon as its pipe was closed."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def test_children_of_a_killed_daemon_end_with_all_of_their_group_and_others_are_left_alone() -> None:
    with daemon() as (process, (stubborn, family, forgotten, its_child, watcher)):
        process.kill()
        for pid in (watcher, stubborn, family, its_child):
            wait_for_end(pid)
        os.kill(forgotten, 0)  # lives


def test_the_guard_outlives_signals_that_are_meant_for_the_daemon() -> None:
    with daemon() as (process, (stubborn, _, _, _, watcher)):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(watcher, number)
        process.kill()
        wait_for_end(stubborn)


def test_the_guard_ends_with_a_daemon_whose_children_have_ended() -> None:
    one = ChildGuard()
    child = subprocess.Popen(["sleep", "0"], process_group=0)
    one.watch(child.pid)
    pid = one.pid
    child.wait()
    one.forget(child.pid)
    del one
    reap(pid)


def test_a_guard_that_is_gone_is_replaced_and_hears_of_all_children() -> None:
    one = ChildGuard()
    children = [subprocess.Popen(["sleep", "1000"], process_group=0) for _ in range(2)]
    one.watch(children[0].pid)
    first = one.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    one.watch(children[1].pid)
    second = one.pid
    assert second != first
    del one
    for child in children:
        assert child.wait(PATIENCE_S) == -signal.SIGTERM
    reap(second)


def test_a_guard_that_does_not_read_is_replaced_and_ends_no_child_when_it_goes_on() -> None:
    """A stopped process, whose pipe is full in the end."""
    child = subprocess.Popen(["sleep", "1000"], process_group=0)
    guarding = ChildGuard()
    try:
        guarding.watch(child.pid)
        stopped = guarding.pid
        os.kill(stopped, signal.SIGSTOP)
        while guarding.pid == stopped:
            guarding.watch(child.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
        reap(stopped)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        guarding.forget(child.pid)


def test_without_a_shell_it_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(guard, "SHELL", "/nonexistent/sh")
    one = ChildGuard()
    for group in (111, 222):
        one.watch(group)
    assert [record.__dict__["action"] for record in caplog.records] == ["children_unguarded"]
