"""No test may depend on how fast the machine is: what Hypothesis is told, and that no test goes its own way."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parents[1]
OWN_DEADLINE = re.compile(r"\bsettings\([^)]*\bdeadline *=")
ELAPSED = re.compile(r"assert time\.(?:time|monotonic|perf_counter)\(\) - \w+ <")


def test_no_example_has_a_deadline_and_slow_drawing_is_no_failure() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_in_ci_the_examples_are_the_same_in_every_run() -> None:
    assert settings().derandomize is bool(os.environ.get("CI"))


def test_no_test_sets_a_deadline_of_its_own() -> None:
    assert [path for path in TESTS.rglob("test_*.py") if OWN_DEADLINE.search(path.read_text())] == []


def test_no_test_asserts_that_something_was_quick() -> None:
    assert [path for path in TESTS.rglob("*.py") if ELAPSED.search(path.read_text())] == []
