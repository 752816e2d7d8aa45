"""Pytest hooks: a run that leaves files in the checkout fails, and names them. A copy without git is not looked at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

FILES_BEFORE = pytest.StashKey[frozenset[str]]()
SHOWN_MAX = 10


def untracked(root: Path) -> frozenset[str]:
    """Return the files that are neither in git nor ignored by it."""
    command = ["git", "-C", str(root), "ls-files", "--others", "--exclude-standard"]
    try:
        return frozenset(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())
    except (OSError, subprocess.CalledProcessError):
        return frozenset()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[FILES_BEFORE] = untracked(session.config.rootpath)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # one process of several: the one that started them looks
    left = sorted(untracked(session.config.rootpath) - session.config.stash[FILES_BEFORE])
    if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if left:
        more = f" and {len(left) - SHOWN_MAX} more" if len(left) > SHOWN_MAX else ""
        print(f"\nFAILED: files appeared in the checkout: {', '.join(left[:SHOWN_MAX])}{more}")
