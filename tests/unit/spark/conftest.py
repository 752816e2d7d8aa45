"""What the tests of the Spark processor share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.processors.spark.batch import attempts
from mld.protocol import meeting


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(attempts, "BACKOFF_S", 0.0)


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails once is searched for."""
    monkeypatch.setattr(attempts, "ATTEMPTS_MAX", 1)


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR of the test's own whose path leaves room for a socket's name; with a longer one hosts meet in /tmp."""
    with tempfile.TemporaryDirectory(prefix="z", dir="/tmp") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(meeting, "FALLBACK", directory)  # where hosts of this user's own daemons may be
        yield Path(directory)
