"""Install what judges `deploy/` in an environment of its own: ``python -m tests.support.make_deploy_tools``.

hadolint for the Dockerfile, and the schemas of Kubernetes for the manifests; `locks/deploy.txt` names everything in it,
with hashes. Does nothing if the environment is newer than the lock.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.locked import install, lock_file

VENV = Path(__file__).resolve().parents[2] / ".venv-deploy"
STAMP = VENV / ".installed"


def main() -> int:
    if STAMP.is_file() and STAMP.stat().st_mtime >= lock_file("deploy").stat().st_mtime:
        return 0
    try:
        install(VENV, "deploy")
    except (OSError, subprocess.SubprocessError) as error:
        print(f"what judges deploy/ cannot be installed: {error}", file=sys.stderr)
        return 1
    STAMP.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
