"""Puts Amazon's library for Ruby, unmodified, where the tests look for it.

    python -m tests.support.fetch_kclrb

git fetches one commit of the public repository by its name, which is the hash of all that is in it. Needs git. The
tests with Ruby also need `ruby` with the gem multi_json (Debian: `apt install ruby ruby-multi-json`); they are skipped
where one of these is missing. Ends with status 1 and a sentence if the library cannot be had.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = "https://github.com/awslabs/amazon-kinesis-client-ruby"
COMMIT = "abe69f4df6108d111b89ae66c53d7b8b3792ce3a"
"""Release 3.1.1, and jars in newer versions, which a child never uses."""
TARGET = Path(__file__).resolve().parents[2] / ".cache" / "kclrb" / COMMIT
FETCH_TIMEOUT_S = 300


def ruby_command() -> list[str] | None:
    """Ruby with the library on its path; None if one of the two, or what the library needs, is missing."""
    ruby = shutil.which("ruby")
    if ruby is None:
        return None
    command = [ruby, "-I", str(TARGET / "lib")]
    loads = subprocess.run([*command, "-e", "require 'aws/kclrb'"], capture_output=True, timeout=FETCH_TIMEOUT_S)
    return command if loads.returncode == 0 else None


def main() -> int:
    if TARGET.is_dir():
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=TARGET.parent) as temporary:
            draft = Path(temporary) / "draft"
            draft.mkdir()
            for arguments in (
                ["init", "--quiet"],
                ["fetch", "--quiet", "--depth", "1", REPOSITORY, COMMIT],
                ["checkout", "--quiet", "--detach", COMMIT],
            ):
                subprocess.run(["git", *arguments], cwd=draft, check=True, timeout=FETCH_TIMEOUT_S)
            draft.replace(TARGET)  # so that an interrupted run leaves nothing half done
    except (OSError, subprocess.SubprocessError) as error:
        print(f"aws-kclrb cannot be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
