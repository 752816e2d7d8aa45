"""Everything that the commands of this checkout install is known by its hash: the locks, and all who install."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.locked import LOCKS, pinned_jars, wrong_jars
from tests.support.make_locks import CONSTRAINTS, TABLE, requirements

ROOT = LOCKS.parent
ALL = sorted(LOCKS.glob("*.txt"))
HASHED = re.compile(r"(?P<requirement>[^#]+?)(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)")
OWN_INSTALL = ("--no-index", "--no-deps", "--no-build-isolation")
SHA256_LINE = re.compile(r"[0-9a-f]{64}  [A-Za-z0-9._-]+\.jar")


def lines(lock: Path) -> list[str]:
    """Each requirement as one line, without comments."""
    text = lock.read_text().replace(" \\\n    ", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins(lock: Path) -> dict[str, Requirement]:
    found = {}
    for line in lines(lock):
        hashed = HASHED.fullmatch(line)
        assert hashed, line
        requirement = Requirement(hashed["requirement"])
        assert canonicalize_name(requirement.name) not in found
        found[canonicalize_name(requirement.name)] = requirement
    return found


def version(requirement: Requirement) -> str:
    return str(requirement.specifier).removeprefix("==")


def test_there_is_a_lock_for_every_environment() -> None:
    assert [lock.stem for lock in ALL] == sorted(TABLE)


@pytest.mark.parametrize("lock", ALL, ids=lambda lock: lock.stem)
def test_every_line_is_one_version_with_hashes_and_nothing_else(lock: Path) -> None:
    found = pins(lock)
    assert found
    for requirement in found.values():
        assert requirement.url is None and not requirement.extras
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_lock_satisfies_setup_cfg(name: str) -> None:
    found = pins(LOCKS / f"{name}.txt")
    for line in requirements(TABLE[name]):
        wanted = Requirement(line)
        assert wanted.specifier.contains(Version(version(found[canonicalize_name(wanted.name)]))), line


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_lock_has_the_versions_of_the_constraints(name: str) -> None:
    chosen = {canonicalize_name(r.name): version(r) for r in map(Requirement, CONSTRAINTS.read_text().split())}
    ours = {canonicalize_name(r.name) for r in map(Requirement, TABLE[name].requirements) if r.specifier}
    found = pins(LOCKS / f"{name}.txt")
    if name == "ministack" or TABLE[name].oldest:  # environments with a botocore, and so a world, of their own
        return
    assert {n: version(r) for n, r in found.items() if n in chosen and n not in ours} == {
        n: v for n, v in chosen.items() if n in found and n not in ours
    }


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_what_the_locked_packages_need_is_locked_too(python: str, system: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": system, "extra": ""}
    found = pins(LOCKS / "dev.txt")
    for name, pin in found.items():
        if pin.marker is not None and not pin.marker.evaluate(environment):
            continue
        try:
            needed = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:
            continue  # this Python has no use for it
        for need in needed:
            if need.marker is None or need.marker.evaluate(environment):
                other = found.get(canonicalize_name(need.name))
                assert other is not None, f"{name} needs {need}"
                assert other.marker is None or other.marker.evaluate(environment), f"{name} needs {need}"
                assert need.specifier.contains(version(other), prereleases=True), f"{name} needs {need}"


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name]


def commands(file: Path) -> list[str]:
    """What pip, npm or the like would be told to fetch, with the rest of its command; one line for each."""
    text = file.read_text(errors="replace")
    if file.name == "Makefile":
        pip = re.search(r"^PIP := (.*)$", text, re.MULTILINE)
        assert pip
        return [
            line for line in text.replace("$(PIP)", pip[1]).splitlines() if line.startswith("\t") and " pip " in line
        ]
    if file.suffix == ".py":
        # A command as a list or tuple of words, with the statements around it that add options.
        blocks = re.split(r"\n(?=\S)", text)
        return [block for block in blocks if re.search(r'"pip",\s*"(install|download|wheel)"', block)]
    return [line for line in text.splitlines() if re.search(r"\bpip3? (install|download)\b", line)]


def test_nothing_is_installed_without_hashes() -> None:
    found = [
        (file.relative_to(ROOT), command)
        for file in tracked_files()
        if file.name in ("Makefile", "Dockerfile") or file.suffix in (".py", ".sh") or file.parent.name == ".ci"
        if file != Path(__file__) and file.is_file()
        for command in commands(file)
    ]
    fetchers = {str(file) for file, command in found if "--require-hashes" in command}
    assert fetchers == {
        "Makefile",
        "deploy/Dockerfile",
        "tests/support/fetch_java_kcl.py",
        "tests/support/fetch_kclpy.py",
        "tests/support/locked.py",
    }
    for file, command in found:
        is_ours = all(option in command for option in OWN_INSTALL)
        assert "--require-hashes" in command or is_ours, (file, command)


def test_every_npm_package_has_a_hash() -> None:
    lock = json.loads((ROOT / "tests/support/newcomers/package-lock.json").read_text())
    packages = {name: fields for name, fields in lock["packages"].items() if name}
    assert packages
    assert [name for name, fields in packages.items() if not fields["integrity"].startswith("sha512-")] == []


@pytest.mark.parametrize("listing", ["tests/support/newcomers/jars.sha256", "tests/interop/kcl/jars.sha256"])
def test_every_jar_has_a_hash(listing: str) -> None:
    text = (ROOT / listing).read_text()
    assert [line for line in text.splitlines() if not SHA256_LINE.fullmatch(line)] == []
    assert len(pinned_jars(ROOT / listing)) == len(text.splitlines()) > 10


def test_a_jar_that_is_changed_missing_or_new_is_named(tmp_path: Path) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for name in ("as-listed.jar", "changed.jar", "new.jar"):
        (tmp_path / name).touch()
    listing = tmp_path / "jars.sha256"
    listing.write_text(f"{empty}  as-listed.jar\n{empty[::-1]}  changed.jar\n{empty}  missing.jar\n")
    assert wrong_jars(tmp_path, listing) == ["changed.jar", "missing.jar", "new.jar"]
