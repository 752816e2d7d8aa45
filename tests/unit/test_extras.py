"""Commands whose packages are not installed say so at once, with exit code 2 and what to install."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from mld.check.refusals import faults_of
from mld.cli import commands
from mld.core import installed
from mld.properties.remarks import Level


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Modules that cannot be found."""
    names: set[str] = set()

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in names else importlib.util.find_spec(name, package)

    monkeypatch.setattr(installed, "find_spec", find)
    return names


@pytest.mark.parametrize("command", [["local", "--port", "0"], ["quickstart", "--plain"], ["quickstart"]])
@pytest.mark.parametrize("missing", ["moto", "flask", "flask_cors", "cbor2", "h2"])
def test_embedded_aws_without_its_extra(
    command: list[str], missing: str, without: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without.add(missing)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(commands, command)
    assert not list(tmp_path.iterdir())
    assert result.exit_code == 2
    assert result.stderr == (
        f"mld: the embedded AWS needs packages that are not installed ({missing}): pip install 'mld-kinesis[local]'\n"
    )


def test_parent_that_is_missing() -> None:
    assert not installed.is_installed("no_such_package.part")


def test_mld_spark_beside_this_interpreter_without_pyspark(without: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program = str(Path(sys.executable).with_name("mld-spark"))
    with monkeypatch.context() as present:
        present.setattr(installed, "find_spec", lambda name, package=None: ModuleSpec(name, None))
        assert list(faults_of([program])) == []
    without.add("pyspark")
    for words in (["mld-spark"], [program, "app.properties"]):
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
        assert list(faults_of(words)) == [
            (
                Level.ERROR,
                "mld-spark needs a package that is not installed (pyspark)",
                "pip install 'mld-kinesis[spark]'",
            )
        ]


def test_mld_spark_of_another_environment_is_not_judged_by_this_one(without: set[str], tmp_path: Path) -> None:
    without.add("pyspark")
    other = tmp_path / "mld-spark"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert list(faults_of([str(other)])) == []
