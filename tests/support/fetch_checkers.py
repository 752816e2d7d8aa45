"""Puts the tools that judge what mld generates where the tests look for them.

    python -m tests.support.fetch_checkers

Promtool comes with Debian's package of Prometheus (pinned version and hash; only the tool is unpacked, nothing is
installed), unless there is one on the PATH. cfn-lint, python-hcl2 and Grafana's SDK get an environment of their own,
`.venv-checkers`, from `locks/checkers.txt`. Doing it again costs nothing. Ends with status 1 and a sentence if
something is not available.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.locked import environment_of, have, is_installed

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, VERSION = "prometheus", "2.42.0+ds-5+deb12u1"
SHA256 = {
    "amd64": "81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55",
}
PROMTOOL = ROOT / ".cache" / "promtool" / VERSION / "promtool"
TIMEOUT_S = 600


class FetchError(Exception):
    """A sentence that says what is missing and what to do."""


def promtool() -> Path | None:
    """The tool; None if it was not fetched and is not on the PATH."""
    if PROMTOOL.is_file():
        return PROMTOOL
    found = shutil.which("promtool")
    return None if found is None else Path(found)


def python() -> Path | None:
    """The interpreter that has the other tools; None if they were not installed."""
    return environment_of("checkers") / "bin" / "python" if is_installed("checkers") else None


def fetch_promtool() -> None:
    """Raises FetchError."""
    PROMTOOL.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PROMTOOL.parent) as temporary:
        work = Path(temporary)
        try:
            _download(work)
        except FetchError:  # a machine whose lists of packages were never fetched
            _run(["apt-get", "update", "--quiet"], work)
            _download(work)
        (archive,) = work.glob("*.deb")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest not in SHA256.values():
            raise FetchError(f"{archive.name} has the hash {digest}, which is not pinned here: look at it, then pin it")
        _run(["dpkg-deb", "--extract", str(archive), str(work / "unpacked")], work)
        # One rename, so that an interrupted run leaves nothing half done.
        (work / "unpacked" / "usr" / "bin" / "promtool").replace(PROMTOOL)


def _download(work: Path) -> None:
    _run(["apt-get", "download", "--quiet", f"{PACKAGE}={VERSION}"], work)


def _run(command: list[str], cwd: Path) -> None:
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise FetchError(f"{' '.join(command[:2])}: {' '.join(said)}") from error


def main() -> int:
    try:
        if promtool() is None:
            fetch_promtool()
        have("checkers")
    except FetchError as error:
        print(f"promtool is not available: {error}. Install Prometheus: one on the PATH will do", file=sys.stderr)
        return 1
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the checkers cannot be installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
