"""Puts the Python packages of amazon_kclpy, unmodified, where the conformance tests look for them.

    python tests/support/fetch_kclpy.py

Amazon publishes a source archive only, and installing it downloads some 60 Java archives that a child never uses. So
pip downloads the archive (pinned version and hash; pip's metadata step downloads no Java archives), and only the
package `amazon_kclpy` is unpacked into `.cache/kclpy/<version>`. Doing it again costs nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.2.0"
SHA256 = "62e81cc84714c920fe6aa5d61837b298fe7e01f6326dcb564b12ab8e6c4aca4e"
PACKAGE = "amazon_kclpy"
TARGET = Path(__file__).resolve().parents[2] / ".cache" / "kclpy" / VERSION
DOWNLOAD_TIMEOUT_S = 300


def installed() -> Path | None:
    """The directory to put on PYTHONPATH; None if the package was not fetched."""
    return TARGET if (TARGET / PACKAGE / "__init__.py").is_file() else None


def fetch() -> Path:
    """Fetch the package unless it is there. Raises CalledProcessError if pip cannot get it."""
    if found := installed():
        return found
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as temporary:
        work = Path(temporary)
        unpacked = work / "unpacked"
        _unpack(_download(work), unpacked)
        # One rename, so that an interrupted run leaves nothing half done.
        try:
            unpacked.replace(TARGET)
        except OSError:
            if not installed():
                raise
    return TARGET


def _download(work: Path) -> Path:
    requirements = work / "requirements.txt"
    requirements.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = ["--no-binary", PACKAGE, "--require-hashes", "-r", str(requirements), "-d", str(work)]
    subprocess.run([*command, *options], check=True, timeout=DOWNLOAD_TIMEOUT_S)
    return work / f"{PACKAGE}-{VERSION}.tar.gz"


def _unpack(archive: Path, target: Path) -> None:
    prefix = f"{PACKAGE}-{VERSION}/"
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            name = member.name.removeprefix(prefix)
            if member.isfile() and name.startswith(f"{PACKAGE}/") and name.endswith(".py") and ".." not in name:
                source = tar.extractfile(member)
                assert source is not None
                destination = target / name
                destination.parent.mkdir(parents=True, exist_ok=True)
                destination.write_bytes(source.read())


if __name__ == "__main__":
    print(fetch())
