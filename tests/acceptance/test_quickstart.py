"""`make quickstart` as a user sees it: what it prints, what it leaves, and that it says so if something is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from mld.leases.lease import Lease
from mld.quickstart.plain_tour import PlainTour
from mld.quickstart.tour import PAGE_PORT, Tour
from tests.acceptance.commands import MLD, ROOT, mld
from tests.support.daemon import until
from tests.support.patience import PATIENCE_S

TOUR_S = 60.0
"""What the tour promises on two cores of its own, once everything is installed."""
GONE_S = PATIENCE_S


def quickstart(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MLD), "quickstart", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


def runs(pid: int) -> bool:
    """Whether the process is there and is not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def killed_in_the_middle(directory: Path) -> None:
    """A tour that is killed once its daemon runs; the daemon must end too."""
    with subprocess.Popen(
        [str(MLD), "quickstart", "--directory", str(directory)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as tour:
        assert tour.stdout is not None
        daemon = next(int(found[1]) for line in tour.stdout if (found := re.search(r"runs as pid (\d+)", line)))
        os.kill(tour.pid, signal.SIGKILL)
    until(lambda: not runs(daemon), GONE_S, "the daemon of the killed tour gone")


@pytest.mark.spark_slice
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_tour_on_spark_shows_the_table_and_the_lineage_after_one_that_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")
    killed_in_the_middle(tmp_path)
    result = quickstart("--directory", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "FAULT" not in result.stdout
    [promised] = re.findall(r"^    (\d+ records in: .*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert promised in result.stdout
    lineage = result.stdout[result.stdout.index("lineage") :]
    shards = re.findall(r"^│ …(\d{4}) +│ +(?:…\d{4} +)?│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │", lineage, re.MULTILINE)
    assert [shard for shard, *_ in shards] == ["0000", "0001", "0002", "0003", "0004", "0005"]
    counts = [[int(count) for count in counts] for _, *counts in shards]
    assert [sum(column) for column in zip(*counts, strict=True)][::3] == [20_001, 1]
    assert all(records == out + filtered + dead for records, out, filtered, dead in counts)
    minutes = re.findall(r"^│ \d\d:\d\d +│.*│ +(\d+) │ +\d+ │$", result.stdout, re.MULTILINE)
    assert sum(map(int, minutes)) == sum(out for _, out, _, _ in counts)
    assert list(tmp_path.glob("lake/per_minute/c[0-9]*.parquet"))
    assert re.search(r"UI http://127\.0\.0\.1:\d+", result.stdout)
    took = re.search(r"all in ([\d.]+) s", result.stdout)
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # the machine may be shared
    assert took and float(took[1]) < TOUR_S * others


def test_without_java_there_is_a_sentence_with_the_remedy_and_another_tour(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")
    bare = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "readlink"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    result = mld("quickstart", "--directory", tmp_path / "tour", environment={**bare, "PATH": str(tools)})
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Spark needs Java, and there is none on PATH; install a JRE 17 or later" in result.stderr
    assert "mld quickstart --plain" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_plain_tour_needs_no_spark(tmp_path: Path) -> None:
    result = quickstart("--plain", "--records", 2_000, "--directory", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2000 records, each exactly once and in order" in result.stdout


@pytest.mark.full
def test_the_address_of_the_status_page_comes_first_and_it_is_served_while_the_daemon_runs(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        with contextlib.suppress(OSError):  # somebody else has it
            taken.bind(("127.0.0.1", PAGE_PORT))
            taken.listen()
        tour = stack.enter_context(
            subprocess.Popen(
                [str(MLD), "quickstart", "--plain", "--directory", str(tmp_path)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert tour.stdout is not None
        first = re.fullmatch(
            r"status page: (http://127\.0\.0\.1:(\d+)/) while the daemon runs\n", tour.stdout.readline()
        )
        assert first is not None
        assert int(first[2]) != PAGE_PORT
        [states] = until(lambda: states_at(first[1]), what="the status page")
        assert states <= {"idle", "processing", "ending", "ended", "unknown", "stopped"}
        tour.communicate(timeout=PATIENCE_S)
    assert tour.returncode == 0


def states_at(page: str) -> list[set[str]]:
    """The states of the shards that a status page shows, none if it is older than they are; [] if nobody serves it."""
    try:
        with urllib.request.urlopen(f"{page}status.json", timeout=PATIENCE_S) as answer:
            return [{shard["state"] for shard in json.load(answer)["shards"]}]
    except OSError:
        return []


def test_one_tour_at_a_time_in_a_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [str(MLD), "quickstart", "--plain", "--directory", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline().startswith("status page: http://127.0.0.1:")
            second = quickstart("--plain", "--directory", tmp_path)
        finally:
            first.terminate()
            first.communicate(timeout=GONE_S)
    assert (second.returncode, first.returncode) == (1, 128 + signal.SIGTERM)
    assert f"wait for the end of another quickstart in {tmp_path}, or give --directory" in second.stderr


class Lossy(PlainTour):
    """Somebody takes a record out of the archive."""

    def report(self, leases: dict[str, Lease]) -> list[str]:
        file = next(self.archive_directory.glob("shardId-*1.jsonl"))
        file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
        return super().report(leases)


@pytest.mark.full
def test_a_record_that_is_missing_fails_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "quickstart")
    said = io.StringIO()
    tour: Tour = Lossy(tmp_path, Console(file=said, width=120), 1_000)
    assert tour.run() == 1
    lacks = r"FAULT the archive: 1 of \d+ records are missing, the first is \('shardId-000000000001', "
    assert re.search(lacks, said.getvalue())
    assert sys.executable in (tmp_path / "quickstart.properties").read_text()
