"""No test may depend on how fast the machine is: what Hypothesis is told, and that no test goes its own way. And none
may leave files in the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
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


def test_filters_of_warnings_need_no_package(pytestconfig: pytest.Config) -> None:
    """pytest imports the class of a filter when it starts, also in an environment that lacks the package."""
    filters = [line.split(":") for line in pytestconfig.getini("filterwarnings")]
    assert [fields for fields in filters if len(fields) > 2 and "." in fields[2]] == []


@pytest.mark.parametrize(("places", "exit_code"), [(["left.jsonl"], 1), (["ignored/left.jsonl", "/dev/null"], 0)])
def test_a_run_that_leaves_a_file_in_the_checkout_fails_and_names_it(
    tmp_path: Path, places: list[str], exit_code: int
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "ignored").mkdir()
    (tmp_path / ".gitignore").write_text("ignored/\n__pycache__/\n")
    text = f"def test_it():\n    for place in {places}:\n        open(place, 'w').close()\n"
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.leftovers", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-c", "/dev/null", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert ("files appeared in the checkout: left.jsonl" in done.stdout) is bool(exit_code)
