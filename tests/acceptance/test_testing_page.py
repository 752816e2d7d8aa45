"""docs/use/testing.md as a reader follows it: each file is taken from the page, and pytest runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.acceptance.commands import ROOT
from tests.support.patience import PATIENCE_S

PAGE = (ROOT / "docs" / "use" / "testing.md").read_text("utf-8")
FILES = re.findall(r"`(\w+\.py)`(?:(?!```|\n\n\n).)*?:\n\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_block_of_the_page_is_a_file() -> None:
    assert [name for name, _ in FILES] == [
        "clicks.py",
        "test_clicks.py",
        "test_protocol.py",
        "conftest.py",
        "test_daemon.py",
    ]
    assert len(FILES) == PAGE.count("```python")


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
