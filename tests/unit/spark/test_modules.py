"""Which modules go to the executors, and what is said of those that cannot."""

from __future__ import annotations

import logging
import sys
import zipfile
from pathlib import Path

import pytest

from mld.processors.spark.session import modules
from mld.processors.spark.session.modules import TooMuch, is_elsewhere, twins
from mld.processors.spark.sink_port import SessionError
from tests.unit.spark.twins import settings_of


def lay(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"NAME = {name!r}\n")
    return root


def settings(root, *keys):
    return settings_of(f"mld.spark.pipeline = {root}/pipeline.py:transform", *keys)


def test_the_directory_of_a_pipeline_may_be_that_of_an_environment(tmp_path):
    lay(tmp_path, "pipeline.py", "pyvenv.cfg", "none/deeper/a.py")
    assert modules.modules_below(tmp_path) == ["pipeline.py"]


def test_a_bound_on_number_and_size(tmp_path, monkeypatch):
    lay(tmp_path, "a.py", "b.py")
    monkeypatch.setattr(modules, "FILES_MAX", 1)
    with pytest.raises(TooMuch, match="more than 1 Python files"):
        modules.modules_below(tmp_path)
    monkeypatch.setattr(modules, "FILES_MAX", 2)
    (tmp_path / "a.py").write_bytes(bytes(modules.BYTES_MAX))
    with pytest.raises(TooMuch, match="more than 16 MiB of Python files"):
        modules.modules_below(tmp_path)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("a.py", False), ("/a.py", False), ("file:/a.py", False), ("hdfs:///a.zip", True), ("s3a://b/a.zip", True)],
)
def test_names_of_other_file_systems(name, wanted):
    assert is_elsewhere(name) is wanted


def test_two_files_of_one_name():
    assert twins(["/a/x.zip", "/b/y.zip", "s3a://c/x.zip"]) == "x.zip"
    assert twins(["/a/x.zip", "/b/y.zip"]) is None


def test_modules_and_packages_but_neither_data_nor_environments_nor_hidden_ones(tmp_path):
    lay(tmp_path, "pipeline.py", "helper.py", "pack/__init__.py", "pack/deep/part.py", "spaced/part.py")
    lay(tmp_path, "data/day=1/a.py", "venv/x.py", "venv/pyvenv.cfg", ".venv/a.py", ".hidden.py", "pack/table.csv")
    lay(tmp_path, "__pycache__/helper.py", "node-modules/a.py", "pack/__pycache__/b.py")
    (tmp_path / "linked").symlink_to(tmp_path / "pack")
    found = modules.modules_below(tmp_path)
    assert found == ["helper.py", "pack/__init__.py", "pack/deep/part.py", "pipeline.py", "spaced/part.py"]


def test_a_directory_of_data_is_not_walked_through(tmp_path, monkeypatch):
    monkeypatch.setattr(modules, "ENTRIES_MAX", 50)
    lay(tmp_path, "pipeline.py", *(f"data/part-{n}" for n in range(100)))
    with pytest.raises(TooMuch, match="more than 50 files and directories"):
        modules.modules_below(tmp_path)


def test_equal_modules_make_equal_zips(tmp_path):
    lay(tmp_path, "app/pipeline.py", "app/helper.py")
    one, again = (modules.parcels(settings(tmp_path / "app"), tmp_path) for _ in range(2))
    assert one == again and Path(one[0]).stat().st_mode & 0o777 == 0o600
    (tmp_path / "app" / "helper.py").write_text("NAME = 2\n")
    changed = modules.parcels(settings(tmp_path / "app"), tmp_path)
    assert changed != one
    with zipfile.ZipFile(changed[0]) as zipped:
        assert zipped.read("helper.py") == b"NAME = 2\n"


def test_too_many_modules_beside_the_pipeline_are_said_and_not_sent(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(modules, "FILES_MAX", 1)
    lay(tmp_path, "pipeline.py", "helper.py")
    with caplog.at_level(logging.WARNING):
        assert modules.parcels(settings(tmp_path), tmp_path) == ()
    assert "name its modules in mld.spark.pyFiles" in caplog.text


def test_the_key_becomes_absolute_paths_and_directories_zips(tmp_path, monkeypatch):
    lay(tmp_path, "app/pipeline.sql", "lib/pack/__init__.py", "one.py")
    monkeypatch.chdir(tmp_path)
    key = "mld.spark.pyFiles = lib, one.py, hdfs:///x.zip"
    zipped, *others = modules.parcels(settings_of("mld.spark.pipeline = app/pipeline.sql", key), tmp_path / "app")
    assert zipfile.ZipFile(zipped).namelist() == ["pack/__init__.py"]
    assert others == [str(tmp_path / "one.py"), "hdfs:///x.zip"]


def test_modules_of_the_key_can_be_imported_here(tmp_path, monkeypatch):
    lay(tmp_path, "lib/mld_test_one.py", "mld_test_two.py")
    monkeypatch.setattr(sys, "path", [*sys.path])
    lib, two = tmp_path / "lib", tmp_path / "mld_test_two.py"
    modules.importable_here(settings(tmp_path, f"mld.spark.pyFiles = {lib}, {two}"))
    assert sys.path[-2:] == [str(lib), str(tmp_path)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.zip", "there is no .*gone.zip"),
        ("text.zip", "is no zip file"),
        ("wheel.whl", "write a .py, .zip or .egg file, or a directory"),
        ("empty", "has no Python file"),
        ("lib/a.py,other/a.py", "two files named a.py"),
        ("hdfs:///x.whl", "write a .py"),
    ],
)
def test_what_cannot_be_sent_is_said_at_the_start(tmp_path, monkeypatch, name, said):
    lay(tmp_path, "pipeline.py", "text.zip", "wheel.whl", "lib/a.py", "other/a.py")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    given = settings(tmp_path, f"mld.spark.pyFiles = {name}")
    with pytest.raises(SessionError, match=f"mld.spark.pyFiles .*{said}"):
        modules.check(given)
        modules.parcels(given, tmp_path)
