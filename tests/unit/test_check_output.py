"""What `mld check` prints: no markup, escape sequence or line break of a value acts, and any locale can show it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mld.check.command import print_check
from tests.support.tiers import sliced
from tests.unit.test_loglines import BREAKS, CONTROLS

REGION = "regionName = eu-west-1"
FILE = """\
executableName = true
applicationName = app
streamName = clicks
regionName = eu-west-1
AwsCredentialsProvider = DefaultCredentialsProvider
retrievalMode = POLLING
"""
FOUL = [one for one in (*BREAKS, *CONTROLS, "[red]", "[/]", "世界") if one != "\ud800"]  # halves of pairs are refused


def written(text: str) -> str:
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


@pytest.mark.parametrize("foul", FOUL, ids=ascii)
@pytest.mark.parametrize(
    "line",
    sliced(
        [
            "workerId = a{0}forged",
            "applicationName = a{0}forged",
            "a{0}forged = 1",
            "mld.spark.a{0}forged = 1",
            "metricsEnabledDimensions = a{0}forged",
            "mld.spark.conf.a{0}forged = 1",
        ],
        "workerId = a{0}forged",
        "mld.spark.a{0}forged = 1",
    ),
)
def test_a_value_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, foul: str) -> None:
    file = tmp_path / "app.properties"
    file.write_text(FILE + line.format(written(foul)) + "\n")
    print_check(str(file), (), as_json=False, show_all=False)
    said = capsys.readouterr().out
    assert "".join(said.split("\n")).isprintable()
    assert not any(row.lstrip().startswith("forged") for row in said.splitlines())
    if foul in ("[red]", "[/]") and not line.startswith(("a", "mld.spark.a")):
        assert foul in said or "dimension" in said
    print_check(str(file), (), as_json=True, show_all=False)
    assert json.loads(capsys.readouterr().out)


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path: Path) -> None:
    file = tmp_path / "app.properties"
    file.write_text(FILE + "workerId = w世界\n", "utf-8")
    command = [sys.executable, "-m", "mld", "check", str(file)]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "w\\u4e16\\u754c" in done.stdout


def test_what_the_tour_says_is_text() -> None:
    from mld.quickstart.tour import Tour

    out = io.StringIO()
    console = Console(file=out, highlight=False, markup=False)
    Tour.say(type("Stage", (), {"console": console})(), "in /tmp/[red]x\x1b[2J\u2028y")  # type: ignore[arg-type]
    assert out.getvalue() == "in /tmp/[red]x\\x1b[2J\\u2028y\n"


STREAMS = """\
mld.streams = orders, partner
mld.stream.orders.initialPosition = TRIM_HORIZON
mld.stream.partner.arn = arn:aws:kinesis:us-east-1:222222222222:stream/payments
mld.stream.partner.epoch = 1712000000
mld.stream.partner.credentials = StsAssumeRoleCredentialsProvider|arn:aws:iam::222222222222:role/r|s|externalId=geheim
mld.stream.partner.executableName = true --token=geheim pay.js
"""


def test_several_streams_are_shown_without_their_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "app.properties"
    file.write_text(FILE.replace("streamName = clicks\n", STREAMS))
    assert print_check(str(file), (), as_json=False, show_all=False) == 0
    said = capsys.readouterr().out
    assert "mld.stream.partner.epoch" in said
    assert "geheim" not in said
    print_check(str(file), (), as_json=True, show_all=False)
    document = json.loads(capsys.readouterr().out)
    shown = {one["key"]: one["value"] for one in document["values"]}
    assert shown["mld.stream.partner.executableName"] == "true --token=*** pay.js"
    assert "geheim" not in json.dumps(document)


@pytest.mark.parametrize(
    ("line", "variable", "is_said"), [("", "", True), ("", "eu-west-1", False), (REGION, "", False)]
)
def test_a_region_that_neither_the_file_nor_the_environment_names_is_said(
    line: str,
    variable: str,
    is_said: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "app.properties"
    file.write_text(FILE.replace(REGION, line))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, variable)
    assert print_check(str(file), (), as_json=False, show_all=False) == 0
    printed = capsys.readouterr().out
    assert ("regionName: is neither in the file nor in AWS_REGION" in printed) is is_said
    assert "0 error(s), 0 warning(s)" in printed
