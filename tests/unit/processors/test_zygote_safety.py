"""When a process may not be forked."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from mld.processors.zygote.fork_safety import Facts, gather, open_descriptors, why_not_fork

QUIET = Facts(python_threads=1, kernel_threads=1, shared_descriptors=0, has_children=False)


def test_a_process_by_itself_may_be_forked():
    assert why_not_fork(QUIET) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"python_threads": 2}, "threads (1"),
        ({"kernel_threads": 3}, "threads (2"),
        ({"shared_descriptors": 1}, "sockets"),
        ({"has_children": True}, "processes"),
    ],
)
def test_what_speaks_against_it_is_named(change, named):
    assert named in (why_not_fork(replace(QUIET, **change)) or "")


def test_threads_sockets_and_processes_are_found(tmp_path):
    known = open_descriptors()
    before = gather(known)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    with socket.socket(), (tmp_path / "file").open("w"):
        facts = gather(known)
    assert before.shared_descriptors == 0
    assert facts.python_threads == before.python_threads + 1
    assert facts.kernel_threads == before.kernel_threads + 1
    assert facts.shared_descriptors == 2  # the socket and the pipe to the child, not the file
    assert facts.has_children
    stop.set()
    thread.join()
    child.communicate()
