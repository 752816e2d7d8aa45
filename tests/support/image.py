"""The image of deploy/Dockerfile without a container engine: its build stage, run as it is written into a directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.daemon import ROOT
from tests.unit.test_deploy import copied, dockerfile, is_sent

PREFIX = "/opt/mld"
BUILD_TIMEOUT_S = 300
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or "python3"
"""One that every user can run."""


def build(root: Path) -> None:
    """Make `root`/opt as the image has it; it works where it is bound to /opt. Raises CalledProcessError."""
    root.chmod(0o755)
    context = root / "build"
    for path in copied():
        target = context / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_file():
            shutil.copy(ROOT / path, target)
        else:
            shutil.copytree(ROOT / path, target, ignore=_not_sent)
    for step in _build_steps():
        here = step.replace(PREFIX, f"{root}{PREFIX}").replace("python -m venv", f"{PYTHON} -m venv")
        subprocess.run(["/bin/sh", "-euc", here], cwd=context, check=True, timeout=BUILD_TIMEOUT_S)
    for script in (root / "opt/mld/bin").iterdir():
        if script.is_file() and not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(f"{root}{PREFIX}".encode(), PREFIX.encode()))


def _build_steps() -> list[str]:
    """What the first stage runs."""
    found = dockerfile()
    stages = [number for number, (word, _) in enumerate(found) if word == "FROM"]
    return [rest for word, rest in found[stages[0] : stages[1]] if word == "RUN"]


def _not_sent(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not is_sent((Path(folder) / name).relative_to(ROOT))]


def may_unshare() -> bool:
    """Whether this process may have namespaces of its own, with what it takes to enter them."""
    if not all(map(shutil.which, ("unshare", "nsenter", "setpriv"))):
        return False
    tried = ["unshare", "-m", "-p", "-f", "mount", "-t", "proc", "proc", "/proc"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def children_of(pid: int) -> list[int]:
    """Processes that a process has started, in any of its threads."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]
