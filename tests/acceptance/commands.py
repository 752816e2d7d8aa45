"""Runs `bin/mld` as a user would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
MLD = ROOT / "bin" / "mld"
COMMAND_TIMEOUT_S = PATIENCE_S
CRON_PATH = "/usr/bin:/bin"


def mld(
    *arguments: object, program: Path = MLD, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished command. `environment` replaces ours."""
    return subprocess.run(
        [str(program), *map(str, arguments)],
        cwd=cwd,
        env=dict(os.environ if environment is None else environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )
