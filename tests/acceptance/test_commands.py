"""The commands of the README, typed as a user types them: output, exit codes, any directory, a bare environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

import mld as package
from mld.cli import commands
from mld.command_list import SECTIONS
from tests.acceptance.commands import CRON_PATH, MLD, ROOT, mld
from tests.support.patience import PATIENCE_S

GOOD = """\
executableName = python3 -m processor
applicationName = clicks-app
streamName = clicks
regionName = eu-central-1
AwsCredentialsProvider = DefaultCredentialsProvider
retrievalMode = POLLING
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "app.properties"
    file.write_text(GOOD)
    return file


def test_version_is_one_line() -> None:
    result = mld("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"mld {package.__version__}\n", "")


def test_help_names_every_command_and_fits_a_terminal() -> None:
    result = mld("--help")
    assert result.returncode == 0
    for command in ("check", "conformance", "local", "quickstart", "run", "status", "tap"):
        assert re.search(rf"^  {command} +\S", result.stdout, re.MULTILINE), command
        page = mld(command, "--help").stdout
        assert page.startswith("Usage: mld " + command)
        assert max(map(len, page.splitlines())) <= 80
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not re.search(r"[a-z,]\.\.\.$", result.stdout, re.MULTILINE), "no line is cut"


def test_the_list_of_commands_names_each_once() -> None:
    named = [name for section in SECTIONS.values() for name in section]
    assert sorted(named) == commands.list_commands(click.Context(commands))


def test_the_help_and_the_completion_import_no_command() -> None:
    """They answer a person who waits."""
    words = {"_MLD_COMPLETE": "bash_complete", "COMP_WORDS": "mld le", "COMP_CWORD": "1"}
    for arguments, environment, answer in ((["--help"], {}, "Look:"), ([], words, "leases")):
        run = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "mld", *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
        assert answer in run.stdout
        assert not imported & {"asyncio", "boto3", "botocore", "h11", "pyspark", "ssl"}
        assert not any(name.startswith("mld.operating") for name in imported)


def test_help_is_a_command_too() -> None:
    assert mld("help").stdout == mld("--help").stdout
    assert mld("help", "reset").stdout == mld("reset", "--help").stdout
    assert "now, a time" in " ".join(mld("help", "reset").stdout.split())
    guessed = mld("help", "stauts")
    assert guessed.returncode == 2 and "did you mean `mld status`?" in guessed.stderr


def test_no_argument_shows_the_help_and_fails() -> None:
    result = mld()
    assert result.returncode == 2
    assert "Usage: mld" in result.stdout + result.stderr


def test_an_unknown_option_is_named() -> None:
    result = mld("--propertiesfile", "x")
    assert result.returncode == 2
    assert "--propertiesfile" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_of_an_earlier_version_says_what_to_use(good: Path) -> None:
    result = mld("top", good)
    assert result.returncode == 2
    assert "there is no `mld top` any more: use `mld lag --watch`" in result.stderr


def test_a_command_with_a_slip_of_the_finger_is_guessed_and_a_file_is_none(good: Path, tmp_path: Path) -> None:
    result = mld("stauts", good)
    assert (result.returncode, "did you mean `mld status`?" in result.stderr) == (2, True)
    (tmp_path / "stauts").write_text("")
    assert "did you mean" not in mld("stauts", cwd=tmp_path).stderr


@pytest.mark.parametrize("word", ["x" * 5000, "no\x1bsuch.properties"])
def test_a_word_that_is_neither_a_command_nor_a_file_ends_in_a_sentence(word: str) -> None:
    result = mld(word)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr and "\x1b" not in result.stderr


def test_a_time_without_its_condition_is_refused(good: Path) -> None:
    result = mld("run", good, "--max-time", "5m")
    assert result.returncode == 2
    assert "--max-time goes with --until-caught-up" in result.stderr


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_shows_value_and_source_of_each_key(good: Path) -> None:
    result = mld("check", good, "-D", "failoverTimeMillis=5000")
    assert result.returncode == 0
    assert re.search(r"streamName\s.*clicks", result.stdout)
    assert re.search(r"failoverTimeMillis\s.*5000\s.*-D", result.stdout)
    assert "0 error(s), 0 warning(s)" in result.stdout


def test_check_as_json_is_one_document(good: Path) -> None:
    result = mld("check", "-o", "json", "-p", good, "-D", "maxRecords=77")
    assert (result.returncode, result.stderr) == (0, "")
    values = {value["key"]: value for value in json.loads(result.stdout)["values"]}
    assert values["streamName"]["source"].endswith("app.properties:3")
    assert (values["maxRecords"]["value"], values["maxRecords"]["source"]) == ("77", "-D")
    assert values["failoverTimeMillis"]["source"] == "default"


def test_the_former_spellings_of_options_work_with_a_sentence(good: Path, tmp_path: Path) -> None:
    former, now = mld("check", "--json", good), mld("check", "-o", "json", good)
    assert former.stdout == now.stdout
    assert (former.stderr, now.stderr) == ("mld: --json is -o json now; the next version of mld knows only that\n", "")
    (tmp_path / "there").write_text("")
    for option, sentence in (("--to", "--to is --file now"), ("--file", "")):
        refused = mld("skip", good, "0", "--only", "1", option, tmp_path / "there" / "x")
        assert refused.returncode == 1
        assert refused.stderr.count("--file now") == (1 if sentence else 0)
    for command in ("skip", "export"):
        page = mld(command, "--help").stdout
        assert "--file FILE" in page
        assert "--to" not in page
    assert "Missing option '--file'" in mld("skip", good, "0", "--only", "1").stderr


def test_check_prints_the_monthly_price_and_what_longer_leases_would_cost(good: Path) -> None:
    result = mld("check", good)
    rows = re.findall(r"^│ +(\d+) │ +(\d+) │ +([\d,.]+) │ +([\d,.]+) │$", result.stdout, re.MULTILINE)
    assert [row[:2] for row in rows] == [(leases, workers) for leases in ("1", "10", "100") for workers in ("1", "10")]
    assert "failoverTimeMillis=10000 (this file)" in result.stdout
    assert "Planned moves do not wait for it" in result.stdout
    assert "November 2024" in result.stdout
    assert "check them" in result.stdout


def test_check_prices_the_fleet_that_is_asked_for_by_the_settings_of_the_file(good: Path) -> None:
    def fleet(*more: str) -> dict[str, float]:
        document = json.loads(mld("check", "-o", "json", good, "--leases", "64", "--workers", "4", *more).stdout)
        (only,) = document["dynamoDbDollarsPerMonth"]["fleets"]
        assert (only.pop("leases"), only.pop("workers")) == (64, 4)
        return dict(only["byFailoverTimeMillis"])

    usual, own = fleet(), fleet("-D", "failoverTimeMillis=20000")
    assert usual["30000"] < usual["10000"] / 2
    assert own.keys() == {"10000", "20000", "30000"}
    assert own.items() > usual.items()


def test_check_reports_every_error_at_once_with_exit_2(good: Path) -> None:
    good.write_text(GOOD + "failoverTimeMillis = soon\nmaxRecords = -1\n")
    result = mld("check", good)
    assert result.returncode == 2
    assert "app.properties:7" in result.stdout
    assert "app.properties:8" in result.stdout
    assert "2 error(s)" in result.stdout
    as_json = mld("check", good, "-o", "json")
    assert as_json.returncode == 2
    assert [remark["key"] for remark in json.loads(as_json.stdout)["remarks"]] == ["failoverTimeMillis", "maxRecords"]


def test_conformance_passes_a_shipped_processor_with_a_verdict_per_rule(tmp_path: Path) -> None:
    result = mld("conformance", "--", sys.executable, "-m", "mld.processors.archive", tmp_path / "data")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(result.stdout.splitlines()) > 5
    assert "FAIL" not in result.stdout


def test_conformance_fails_a_program_that_is_no_processor() -> None:
    result = mld("conformance", "--timeout", "5", "--", "true")
    assert result.returncode == 1
    assert "FAIL" in result.stdout
    assert "Traceback" not in result.stderr


# --- local -----------------------------------------------------------------------------------------------------------


@contextmanager
def local(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that runs, and its endpoint as it prints it."""
    command = [str(MLD), "local", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            [endpoint] = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            yield process, endpoint
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_local_says_what_to_paste_serves_and_stops(number: signal.Signals) -> None:
    with local() as (process, endpoint):
        with urllib.request.urlopen(endpoint + "/_mld/health", timeout=PATIENCE_S) as answer:
            assert json.loads(answer.read())["ready"] is True
        process.send_signal(number)
        assert process.stdout is not None and process.stderr is not None
        said, errors = process.stdout.read(), process.stderr.read()
        process.wait(PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert f"kinesisEndpoint = {endpoint}" in said


def test_local_can_be_called_by_a_name_that_was_allowed() -> None:
    with local("--host", "0.0.0.0", "--allow-host", "aws") as (_, endpoint):
        health = urllib.request.Request(endpoint + "/_mld/health", headers={"Host": "aws:4567"})
        with urllib.request.urlopen(health, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        health.add_header("Host", "foreign:4567")
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(health, timeout=PATIENCE_S)
        refused.value.close()


def test_local_on_a_taken_port_says_so() -> None:
    with local() as (_, endpoint):
        port = endpoint.rpartition(":")[2]
        result = mld("local", "--port", port)
    assert result.returncode == 1
    assert port in result.stderr and "Traceback" not in result.stderr


# --- the launcher ----------------------------------------------------------------------------------------------------


def test_the_launcher_works_through_links_from_any_directory(tmp_path: Path) -> None:
    link = tmp_path / "mld"
    link.symlink_to(MLD)
    second = tmp_path / "sub" / "mld-again"
    second.parent.mkdir()
    second.symlink_to("../mld")
    for program in (link, second):
        assert mld("--version", program=program, cwd=tmp_path).returncode == 0


def test_packages_of_the_same_names_in_the_working_directory_do_no_harm(tmp_path: Path) -> None:
    for name in ("mld", "properties", "protocol", "processors", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    result = mld("--version", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_bare_environment_is_enough(good: Path, tmp_path: Path) -> None:
    environment = {"PATH": CRON_PATH, "HOME": str(tmp_path)}
    assert mld("--version", cwd=Path("/"), environment=environment).returncode == 0
    assert mld("check", good, cwd=Path("/"), environment=environment).returncode == 0


def test_a_checkout_that_is_not_set_up_says_what_to_do(tmp_path: Path) -> None:
    copy = tmp_path / "bin" / "mld"
    copy.parent.mkdir()
    copy.write_bytes(MLD.read_bytes())
    copy.chmod(0o755)
    result = mld("--version", program=copy)
    assert result.returncode != 0
    assert "make" in result.stderr
    assert str(ROOT) not in result.stderr
