"""The unit of systemd in docs/use: systemd knows its keys, and judges it as the documentation says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "use"
UNIT, DROP_IN = DOCS / "mld.service", DOCS / "mld-spark.conf"
EXPOSURE = re.compile(r"Overall exposure level for mld\.service: (\d+\.\d)")
ANALYZE = shutil.which("systemd-analyze")
with_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")


def installed(directory: Path, *, spark: bool) -> Path:
    """As it would be on a machine, with programs that exist."""
    text = UNIT.read_text().replace("/opt/mld/bin/mld", "/bin/true")
    unit = directory / "mld.service"
    unit.write_text(text)
    if spark:
        (directory / "mld.service.d").mkdir()
        shutil.copy(DROP_IN, directory / "mld.service.d")
    return unit


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ANALYZE), *arguments], capture_output=True, text=True, timeout=60, check=False)


@with_systemd
@pytest.mark.parametrize("spark", [False, True])
def test_systemd_knows_every_key(tmp_path: Path, spark: bool) -> None:
    unit = installed(tmp_path, spark=spark)
    looked = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert (looked.returncode, looked.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("UMask=", "NoSuchMask="))
    assert "NoSuchMask" in analyze("verify", "--man=no", "--recursive-errors=no", str(unit)).stderr


@with_systemd
@pytest.mark.parametrize("spark", [False, True])
def test_what_it_leaves_open_is_what_the_documentation_says(tmp_path: Path, spark: bool) -> None:
    said = analyze("security", "--offline=true", "--no-pager", str(installed(tmp_path, spark=spark))).stdout
    found = EXPOSURE.search(said)
    assert found is not None, said
    text = (DOCS / "operations.md").read_text()
    named = re.search(r"exposure of (\d\.\d), with Spark (\d\.\d)", text)
    assert named is not None
    assert float(found[1]) <= float(named[2 if spark else 1]), said


def test_there_is_one_unit_and_the_pages_name_it() -> None:
    pages = {page.name: page.read_text() for page in DOCS.glob("*.md")}
    assert (
        "[mld.service](mld.service)" in pages["operations.md"]
        and "[mld-spark.conf](mld-spark.conf)" in pages["spark.md"]
    )
    assert not [name for name, text in pages.items() if "[Service]" in text]
