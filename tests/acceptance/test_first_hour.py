"""docs/use/first-hour.md as a newcomer follows it: its files are taken from the page, word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mld.check.command import print_check
from mld.properties.lines import parse
from tests.acceptance.commands import MLD, ROOT
from tests.support.daemon import Daemon, until
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws

PAGE = (ROOT / "docs" / "use" / "first-hour.md").read_text("utf-8")
STREAM = "first-hour-clicks"
"""In place of the page's: other tests on this server have a stream of that name."""
PRINTER, PUT = re.findall(r"```python\n(.*?)```", PAGE.replace('"clicks"', f'"{STREAM}"'), re.DOTALL)
[PROPERTIES] = re.findall(r"```properties\n(.*?)```", PAGE.replace("= clicks", f"= {STREAM}"), re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "printer.py").write_text(PRINTER)
    (tmp_path / "put.py").write_text(PUT)
    (tmp_path / "app.properties").write_text(PROPERTIES)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return tmp_path


def conformance(place: Path) -> subprocess.CompletedProcess[str]:
    command = [MLD, "conformance", "--", "python", "printer.py"]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=2 * PATIENCE_S)


def test_the_processor_keeps_all_rules_and_one_that_wants_text_does_not(place: Path) -> None:
    good = conformance(place)
    assert good.returncode == 0, good.stdout + good.stderr
    assert f"It prints {good.stdout.count(' pass ')} rules" in PAGE
    (place / "printer.py").write_text(PRINTER.replace("record.data)", "record.data.decode())"))
    bad = conformance(place)
    assert bad.returncode != 0
    assert re.search(r"FAIL +required +unusual-records", bad.stdout)


def test_the_daemon_prints_the_ten_records(place: Path, aws: EmbeddedAws) -> None:
    shell = {"AWS_ENDPOINT_URL": aws.endpoint, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    shell |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    subprocess.run([sys.executable, "put.py"], cwd=place, env=os.environ | shell, check=True, timeout=PATIENCE_S)
    keys = {entry.key: entry.value.strip() for entry in parse(PROPERTIES.encode())}
    with Daemon(place, keys, name="app", environment=shell, cwd=place) as daemon:
        seen = r"user-(\d) b'click \1'.*child_stderr"
        until(lambda: len([1 for line in daemon.lines if re.search(seen, line)]) == 10, PATIENCE_S, "ten records")
        assert daemon.stop() == 0


def test_check_names_the_misspelled_key(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (place / "app.properties").open("a") as file:
        file.write("maxRecord = 5\n")
    print_check(str(place / "app.properties"), (), as_json=False, show_all=False)
    assert re.search(r"app\.properties:7: maxRecord: .*did you mean maxRecords\?", capsys.readouterr().out)
