"""What others wrote and tests run: nothing of it is used but the files whose hashes stand in this repository.

`python -m tests.support.locked ministack` installs what `locks/ministack.txt` names into `.venv-ministack`, unless that
is newer than the lock: it pins a botocore older than ours. `deploy` has what judges `deploy/`: hadolint for the
Dockerfile, and the schemas of Kubernetes for the manifests.
"""

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


def environment_of(lock: str) -> Path:
    return LOCKS.parent / f".venv-{lock}"


def is_installed(lock: str) -> bool:
    return (environment_of(lock) / ".installed").is_file()


def have(lock: str) -> None:
    """Install what a lock names into an environment of its own, unless that is newer. Raises as `install` does."""
    stamp = environment_of(lock) / ".installed"
    if not is_installed(lock) or stamp.stat().st_mtime < lock_file(lock).stat().st_mtime:
        install(environment_of(lock), lock)
        stamp.touch()


def pinned_jars(listing: Path) -> dict[str, str]:
    """SHA-256 by the name of the jar, of a file that sha256sum wrote."""
    lines = (line.split() for line in listing.read_text().splitlines())
    return {name: digest for digest, name in lines}


def wrong_jars(folder: Path, listing: Path) -> list[str]:
    """The names of those in the folder that are not the listed ones, and of the listed ones that are missing."""
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
    return sorted({name for name, _ in found.items() ^ pinned_jars(listing).items()})


def main() -> int:
    for lock in sys.argv[1:]:
        try:
            have(lock)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"what {lock_file(lock)} names cannot be installed: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
