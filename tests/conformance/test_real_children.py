"""Children we did not write, and children in other languages, under `mld.protocol.conformance`."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from mld.check.conformance import run
from tests.support.fetch_kclpy import installed
from tests.support.patience import PATIENCE_S
from tests.support.tiers import sliced
from tests.support.unchanged import OTHERS, PYTHONS, command_of

CHILDREN = Path(__file__).parent / "children"
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = PATIENCE_S


@pytest.fixture
def kclpy(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = installed()
    if directory is None:
        pytest.skip("amazon_kclpy is not fetched: run python tests/support/fetch_kclpy.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), str(ROOT)]))


def conforms(command: list[str]) -> tuple[bool, str]:
    out = io.StringIO()
    holds, report = run(command, timeout_s=TIMEOUT_S, out=out), out.getvalue()
    for rule in ("stream-keys", "schema-keys"):
        (line,) = (line for line in report.splitlines() if f" {rule} " in line)
        assert line.split()[0] == "pass", f"it does not take the keys of {rule}:\n{report}"
    return holds, report


@pytest.mark.parametrize("kind", sliced([*PYTHONS, *OTHERS], PYTHONS[-1]))
def test_processors_on_amazons_libraries_conform(kind: str) -> None:
    command = command_of(kind)
    if command is None:
        pytest.skip("Ruby, multi_json or aws-kclrb is missing: see tests/support/fetch_kclrb.py")
    holds, report = conforms(command)
    assert holds, report


def test_the_archive_processor_conforms_and_keeps_every_recommendation(tmp_path: Path) -> None:
    holds, report = conforms([sys.executable, str(ROOT / "processors" / "archive.py"), str(tmp_path)])
    assert holds, report
    assert "FAIL" not in report
    assert "not observed" not in report


def test_a_node_processor_conforms() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    holds, report = conforms([node, str(CHILDREN / "processor.js")])
    assert holds, report


@pytest.mark.full
def test_a_perl_processor_conforms() -> None:
    perl = shutil.which("perl")
    if perl is None:
        pytest.skip("perl is not installed")
    holds, report = conforms([perl, str(CHILDREN / "processor.pl")])
    assert holds, report


def test_a_shell_script_without_an_interpreter_line_is_started_by_the_shell_and_conforms(tmp_path: Path) -> None:
    script = tmp_path / "processor"
    script.write_bytes((CHILDREN / "processor.sh").read_bytes())
    script.chmod(0o755)
    holds, report = conforms([str(script)])
    assert holds, report
