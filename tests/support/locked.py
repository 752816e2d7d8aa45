"""Environments for programs written by others: nothing gets into them but the files whose hashes stand in `locks/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parents[2] / "locks"
INSTALL_TIMEOUT_S = 600
_INSTALL = (
    "-m",
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--require-hashes",
    "--only-binary",
    ":all:",
)


def lock_file(name: str) -> Path:
    return LOCKS / f"{name}.txt"


def install(environment: Path, lock: str) -> None:
    """Make the virtual environment if it is not there, and install what the lock names, from wheels. Raises
    CalledProcessError, after pip has said why."""
    python = environment / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=INSTALL_TIMEOUT_S)
    subprocess.run([python, *_INSTALL, "-r", lock_file(lock)], check=True, timeout=INSTALL_TIMEOUT_S)
