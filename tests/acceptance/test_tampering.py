"""`make` refuses a package whose content is not what the lock says: the real Makefile and pip, a wheel on this disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.servers import ROOT

pytestmark = pytest.mark.full


def wheel(folder: Path, name: str) -> str:
    """Make one of version 1; the line of a lock."""
    file = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.dist-info/RECORD", "")
    return f"{name}==1 --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """Two locks that hold, and the wheels that they name."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "wheels").mkdir()
    for lock in ("build", "base"):
        (tmp_path / "locks" / f"{lock}.txt").write_text(wheel(tmp_path / "wheels", f"of_{lock}"))
    return tmp_path / "locks"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once, as make would make it."""
    made = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", made], check=True, timeout=PATIENCE_S)
    return made


def make_setup(venv: Path, locks: Path) -> tuple[set[str], str]:
    """`make setup` without a network; the modules that got installed, and what was said. It always fails: at the latest
    where mld itself is to be built, for which there is no setuptools."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # flags, and its level
    environment = outer | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(locks.parent / "wheels")}
    packages = next(venv.glob("lib/python*/site-packages"))
    for left in packages.glob("of_*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    command = ["make", "setup", f"VENV={venv}", f"LOCKS={locks}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode != 0
    return {module.stem for module in packages.glob("of_*.py")}, done.stderr


def test_what_the_locks_name_is_installed(venv: Path, locks: Path) -> None:
    assert make_setup(venv, locks)[0] == {"of_build", "of_base"}


@pytest.mark.parametrize(("tampered", "installed"), [("build", set()), ("base", {"of_build"})])
def test_a_changed_file_is_refused(venv: Path, locks: Path, tampered: str, installed: set[str]) -> None:
    with zipfile.ZipFile(next((locks.parent / "wheels").glob(f"of_{tampered}*")), "a") as archive:
        archive.writestr("of_an_attacker.py", "")
    modules, said = make_setup(venv, locks)
    assert modules == installed
    assert "DO NOT MATCH THE HASHES" in said


@pytest.mark.parametrize(("open_lock", "installed"), [("build", set()), ("base", {"of_build"})])
def test_a_line_without_a_hash_is_refused(venv: Path, locks: Path, open_lock: str, installed: set[str]) -> None:
    (locks / f"{open_lock}.txt").write_text(f"of_{open_lock}==1\n")
    modules, said = make_setup(venv, locks)
    assert modules == installed
    assert "require-hashes" in said
