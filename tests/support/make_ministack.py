"""Install ministack in an environment of its own, `.venv-ministack`: ``python tests/support/make_ministack.py``.

It pins a botocore older than ours, hence the separate environment; `ministack-constraints.txt` pins everything in it.
Does nothing if the environment is newer than the constraints.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-ministack"
CONSTRAINTS = Path(__file__).with_name("ministack-constraints.txt")
STAMP = VENV / ".installed"
INSTALL_TIMEOUT_S = 600


def main() -> int:
    if STAMP.is_file() and STAMP.stat().st_mtime >= CONSTRAINTS.stat().st_mtime:
        return 0
    python = VENV / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", CONSTRAINTS]
    try:
        if not python.is_file():
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True, timeout=INSTALL_TIMEOUT_S)
        # cbor2 is needed by ministack but not declared by it.
        subprocess.run([*install, "ministack", "cbor2"], check=True, timeout=INSTALL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"ministack cannot be installed: {error}", file=sys.stderr)
        return 1
    STAMP.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
