"""What is installed from a wheel, and from a source archive: mld under one name, beside folders of a user's own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from mld import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("mld", "protocol", "properties", "processors", "bin")
FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
PATIENCE_S = 240.0
_OWN_PROCESSORS = """
import processors, protocol, properties
from mld.sdk import RecordProcessor, run
import mld.properties.loader, mld.protocol.codec, mld.processors.archive, mld.cli
print(processors.OWN, protocol.OWN, properties.OWN, mld.__file__, mld.protocol.codec.__file__)
"""


def ran(command: Sequence[str | Path], directory: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wheel_of(source: Path, place: Path) -> Path:
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    ran([sys.executable, "-m", "pip", "wheel", *options, "-w", place, "."], source)
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, place / name)
    return place


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


def installed(wheel: Path, place: Path) -> dict[str, str]:
    """The environment of a Python that finds what the wheel brings, and not this checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(place)}


def test_folders_of_a_user_hide_nothing_of_mld(wheel: Path, tmp_path: Path) -> None:
    environment = installed(wheel, tmp_path / "site")
    own = tmp_path / "own"
    for name in ("processors", "protocol", "properties"):
        (own / name).mkdir(parents=True)
        (own / name / "__init__.py").write_text(f"OWN = 'my-{name}'\n")
    (own / "program.py").write_text(_OWN_PROCESSORS)
    *mine, package, codec = ran([sys.executable, own / "program.py"], tmp_path, environment).split()
    assert mine == ["my-processors", "my-protocol", "my-properties"]
    assert Path(package) == tmp_path / "site/mld/__init__.py"
    assert Path(codec) == tmp_path / "site/mld/protocol/codec.py"


def test_data_files_are_found_where_they_are_installed(wheel: Path, tmp_path: Path) -> None:
    environment = installed(wheel, tmp_path)
    code = (
        "from importlib.resources import files; "
        "print(len(list((files('mld.protocol') / 'schemas').iterdir())), "
        "(files('mld.properties') / 'samples' / 'spark.properties').is_file(), "
        "(files('mld.serving') / 'page.html').is_file(), "
        "*((files('mld.processors.spark') / name).is_file() for name in "
        "('session/MldJson.java', 'session/MldFailingRows.java', 'session/log4j2.properties', "
        "'host/training.properties')))"
    )
    schemas, *found = ran([sys.executable, "-P", "-c", code], tmp_path, environment).split()
    assert int(schemas) > 1
    assert found == ["True"] * 6


def test_the_manual_page_is_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (page,) = (name for name in archive.namelist() if name.endswith(".data/data/share/man/man1/mld.1"))
        assert archive.read(page) == (ROOT / "bin/mld.1").read_bytes()


def test_the_wheel_installs_one_package_and_three_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entries,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/entry_points.txt"))
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {"mld"}
    assert re.findall(r"^(\S+) = ", entries, re.MULTILINE) == ["mld", "mld-spark"]
    assert [name.partition(".data/")[2] for name in names if "/scripts/" in name] == ["scripts/mld-zygote"]


@pytest.mark.full
def test_the_source_archive_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    ran([sys.executable, "-c", code], source)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    again = wheel_of(unpacked, tmp_path / "wheel")
    names = [sorted(zipfile.ZipFile(path).namelist()) for path in (wheel, again)]
    assert names[0] == names[1]


def test_no_page_and_no_message_installs_the_package_of_somebody_else() -> None:
    """`mld` on the package index is another project; what is installed is called `mld.DISTRIBUTION`."""
    bare = re.compile(r"pip install [^\n]*(?<![\w-])'?mld(?=[\['\s]|$)", re.MULTILINE)
    places = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for top in ("mld", "protocol", "properties", "processors", "deploy"):
        places += [path for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".md", "") and path.is_file()]
    assert [path for path in places if bare.search(path.read_text())] == []
    assert bare.search("pip install 'mld[local]'")
    assert bare.search("pip install mld")
    assert f"name = {DISTRIBUTION}\n" in (ROOT / "setup.cfg").read_text()
