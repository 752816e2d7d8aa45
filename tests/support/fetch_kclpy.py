"""Puts the Python packages of amazon_kclpy, unmodified, where the conformance tests look for them.

    python tests/support/fetch_kclpy.py

Amazon publishes a source archive only, and installing it downloads the Java archives that a child never uses. So
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
LEGACY_VERSION = "1.5.1"
"""The last release for KCL 1.x: the child of the 1.x dialect."""
SHA256 = {
    VERSION: "62e81cc84714c920fe6aa5d61837b298fe7e01f6326dcb564b12ab8e6c4aca4e",
    LEGACY_VERSION: "505ebf34b1c6f3c24bb3bd93233f7e9c62983c70b7fc1fe30b610b0da230b969",
}
PACKAGE = "amazon_kclpy"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kclpy"
DOWNLOAD_TIMEOUT_S = 300


def installed(version: str = VERSION) -> Path | None:
    """The directory to put on PYTHONPATH; None if that release was not fetched."""
    target = CACHE / version
    return target if (target / PACKAGE / "__init__.py").is_file() else None


def fetch(version: str) -> Path:
    """Fetch a release unless it is there. Raises CalledProcessError if pip cannot get it."""
    if found := installed(version):
        return found
    target = CACHE / version
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        work = Path(temporary)
        unpacked = work / "unpacked"
        _unpack(_download(version, work), f"{PACKAGE}-{version}/", unpacked)
        # One rename, so that an interrupted run leaves nothing half done.
        try:
            unpacked.replace(target)
        except OSError:
            if not installed(version):
                raise
    return target


def _download(version: str, work: Path) -> Path:
    requirements = work / "requirements.txt"
    requirements.write_text(f"{PACKAGE}=={version} --hash=sha256:{SHA256[version]}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # Not isolated: for that pip would fetch a setuptools without a hash. Ours is in locks/build.txt.
    build = ["--no-binary", PACKAGE, "--no-build-isolation"]
    options = ["--require-hashes", "-r", str(requirements), "-d", str(work)]
    subprocess.run([*command, *build, *options], check=True, timeout=DOWNLOAD_TIMEOUT_S)
    return work / f"{PACKAGE}-{version}.tar.gz"


def _unpack(archive: Path, prefix: str, target: Path) -> None:
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
    for release in SHA256:
        print(fetch(release))
