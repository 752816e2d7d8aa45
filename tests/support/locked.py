"""What others wrote and tests run: nothing of it is used but the files whose hashes stand in this repository."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parents[2] / "locks"
INSTALL_TIMEOUT_S = 600
_INSTALL = ("pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:")


def lock_file(name: str) -> Path:
    return LOCKS / f"{name}.txt"


def install(environment: Path, lock: str) -> None:
    """Make the virtual environment if it is not there, and install what the lock names, from wheels. Raises
    CalledProcessError, after pip has said why."""
    python = environment / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=INSTALL_TIMEOUT_S)
    subprocess.run([python, "-m", *_INSTALL, "-r", lock_file(lock)], check=True, timeout=INSTALL_TIMEOUT_S)


def pinned_jars(listing: Path) -> dict[str, str]:
    """SHA-256 by the name of the jar, of a file that sha256sum wrote."""
    lines = (line.split() for line in listing.read_text().splitlines())
    return {name: digest for digest, name in lines}


def wrong_jars(folder: Path, listing: Path) -> list[str]:
    """The names of those in the folder that are not the listed ones, and of the listed ones that are missing."""
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
    return sorted({name for name, _ in found.items() ^ pinned_jars(listing).items()})
