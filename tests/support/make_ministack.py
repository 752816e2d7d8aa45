"""Install ministack in an environment of its own, `.venv-ministack`: ``python -m tests.support.make_ministack``.

It pins a botocore older than ours, hence the separate environment; `locks/ministack.txt` names everything in it, with
hashes. Does nothing if the environment is newer than the lock.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.locked import install, lock_file

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-ministack"
STAMP = VENV / ".installed"


def main() -> int:
    if STAMP.is_file() and STAMP.stat().st_mtime >= lock_file("ministack").stat().st_mtime:
        return 0
    try:
        install(VENV, "ministack")
    except (OSError, subprocess.SubprocessError) as error:
        print(f"ministack cannot be installed: {error}", file=sys.stderr)
        return 1
    STAMP.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
