"""Puts the AWS SDKs for JavaScript and Java, the package aws-kcl of Node.js and a child on the crate kcl of Rust, where
the tests look for them.

    python -m tests.support.fetch_sdks

npm installs what `newcomers/package-lock.json` pins by version and hash, and runs no install script; Maven copies the
jars that `newcomers/pom.xml` names, and each is compared with `newcomers/jars.sha256`; Cargo builds the child with what
its `Cargo.lock` pins. Doing it again costs nothing. Needs Maven and a JDK 17, and Cargo; Node.js as
`fetch_kinesis_local` finds it. Ends with status 1 and a sentence if something cannot be had.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.fetch_kinesis_local import FETCH_TIMEOUT_S, environment_with_npm
from tests.support.locked import wrong_jars

NEWCOMERS = Path(__file__).with_name("newcomers")
RUST = Path(__file__).resolve().parents[1] / "conformance" / "children" / "rust"
JARS = NEWCOMERS / "jars.sha256"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "sdks"
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def node_packages() -> Path:
    """The directory with `node_modules`; of another name as soon as the pins change."""
    return CACHE / f"javascript-{_digest(NEWCOMERS / 'package-lock.json')}"


def jars() -> Path:
    return CACHE / f"java-{_digest(NEWCOMERS / 'pom.xml', JARS)}"


def rust_child() -> Path:
    """The program; of another directory as soon as its source or the pins change."""
    return CACHE / f"rust-{_digest(RUST / 'Cargo.lock', RUST / 'src' / 'main.rs')}" / "release" / "unchanged"


def main() -> int:
    rust = rust_child().parents[1], _build_child
    for target, install in ((node_packages(), _install_packages), (jars(), _copy_jars), rust):
        try:
            _once(target, install)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            print(f"{target.name} of the AWS SDKs cannot be installed: {error}", file=sys.stderr)
            return 1
    return 0


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _once(target: Path, install: Callable[[Path], None]) -> None:
    if target.is_dir():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        draft = Path(temporary) / "draft"
        draft.mkdir()
        install(draft)
        draft.replace(target)  # so that an interrupted run leaves nothing half done


def _install_packages(draft: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NEWCOMERS / name, draft)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    _run(command, draft, environment_with_npm())


def _copy_jars(draft: Path) -> None:
    if shutil.which("mvn") is None:
        raise ValueError("there is no mvn (Maven) on the PATH")
    pom, output = NEWCOMERS / "pom.xml", f"-DoutputDirectory={draft}"
    _run(["mvn", "--quiet", "--batch-mode", "--file", str(pom), COPY_JARS, output], draft, os.environ)
    if wrong := wrong_jars(draft, JARS):
        raise ValueError(f"the jars that Maven has resolved are not those of {JARS}: {', '.join(wrong)}")


def _build_child(draft: Path) -> None:
    if shutil.which("cargo") is None:
        raise ValueError("there is no cargo (Rust) on the PATH")
    manifest = ["--manifest-path", str(RUST / "Cargo.toml"), "--target-dir", str(draft)]
    _run(["cargo", "build", "--quiet", "--locked", "--release", *manifest], draft, os.environ)


def _run(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
    subprocess.run(
        command, cwd=directory, env=environment, check=True, timeout=FETCH_TIMEOUT_S, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    sys.exit(main())
