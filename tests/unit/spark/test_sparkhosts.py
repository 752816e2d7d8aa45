"""What `mld check` says of Spark sessions: those that run, and where the UI of the next one will be."""

from __future__ import annotations

import json
import os

import pytest

from mld.check.command import print_check
from mld.core import sparkhosts
from mld.processors.spark.host.host_status import HostStatus
from mld.processors.spark.run_directory import run_directory

COUNTS = {"records": 20, "bytes": 4_000, "rows": 18, "commits": 2}
FILE = """\
executableName = {program}
applicationName = clicks
streamName = clicks
regionName = eu-central-1
AwsCredentialsProvider = DefaultCredentialsProvider
mld.spark.pipeline = pipeline.py:transform
mld.spark.sink.clicks.path = /data/clicks
mld.spark.conf.spark.ui.enabled = true
mld.spark.conf.spark.ui.port = 4050
"""


@pytest.fixture
def file(short_tmp):
    file = short_tmp / "app.properties"
    file.write_text(FILE.format(program="mld-spark"))
    return file


def checked(file, capsys, *, as_json=False):
    assert print_check(str(file), (), as_json=as_json, show_all=False) == 0
    return capsys.readouterr().out


def test_without_a_session_check_says_where_the_ui_will_be(file, capsys):
    assert "Its UI will be http://127.0.0.1:4050, or the next free port" in checked(file, capsys)


def test_check_shows_the_session_that_runs_and_its_counters(file, capsys):
    status = HostStatus(run_directory(os.getpid()), "clicks", str(file), 7)
    status.ready({"ui": "http://127.0.0.1:4041", "applicationId": "local-1"})
    status.triggered(COUNTS, {"shardId-000000000000": 0})
    said = checked(file, capsys)
    assert f"UI http://127.0.0.1:4041, pid {os.getpid()} of daemon 7, Spark application local-1" in said
    assert "triggers 1, records 20, bytes 4000, rows 18, commits 2" in said
    (one,) = json.loads(checked(file, capsys, as_json=True))["spark"]["sessions"]
    assert (one["ui"], one["counters"]["records"]) == ("http://127.0.0.1:4041", 20)


def test_a_daemon_is_told_for_how_long_its_host_has_committed_nothing(file):
    """Ages grow with the clock, whatever becomes of the host that has written when they began."""
    status = HostStatus(run_directory(os.getpid()), "clicks", str(file), 7, 120.0)
    status.triggered({"malformed": 2, "poisoned": 1, "stray": 5, "dropped": 3}, {})
    status.waits(300.0, 200.0)
    told = sparkhosts.figures("clicks", 7)
    assert told is not None and told.uncommitted_since is not None and told.trigger_since is not None
    assert (told.interval_s, told.dropped, told.malformed, told.poisoned, told.stray) == (
        120.0,
        3,
        2,
        1,
        5,
    )
    assert round(told.written_at - told.uncommitted_since) == 300
    assert round(told.written_at - told.trigger_since) == 200
    assert sparkhosts.figures("clicks", 8) is None
    assert sparkhosts.figures("another", 7) is None
    status.waits(None, None)
    told = sparkhosts.figures("clicks", 7)
    assert told is not None and (told.uncommitted_since, told.trigger_since) == (None, None)


def test_the_status_page_is_told_of_the_session_and_its_triggers_and_no_more(file):
    status = HostStatus(run_directory(os.getpid()), "clicks", str(file), 7)
    status.ready({"ui": "http://127.0.0.1:4041", "master": "spark://secret@host"})
    status.triggered(COUNTS, {})
    (told,) = sparkhosts.shown("clicks")
    assert (told["ui"], told["counters"]["triggers"], told["pid"]) == ("http://127.0.0.1:4041", 1, os.getpid())
    assert told.keys() == set(sparkhosts.SHOWN_FIELDS)
    assert sparkhosts.shown("another") == []


def test_another_processor_hears_nothing_of_spark(file, capsys):
    file.write_text(FILE.format(program="python3 other.py"))
    assert "UI" not in checked(file, capsys)
    assert "spark" not in json.loads(checked(file, capsys, as_json=True))


def test_a_directory_that_others_may_enter_is_not_believed(file):
    directory = run_directory(os.getpid())
    HostStatus(directory, "clicks", str(file), 7).write()
    assert len(sparkhosts.running("clicks")) == 1
    directory.chmod(0o755)
    assert sparkhosts.running("clicks") == []


@pytest.mark.parametrize(
    ("conf", "master", "words"),
    [
        ({}, None, "none: every user of this machine could read it"),
        ({"spark.ui.port": "4050"}, "local[2]", "none: every user of this machine could read it"),
        ({"spark.ui.enabled": "true"}, None, "http://127.0.0.1:4040"),
        ({}, "spark://h:7077", "http://127.0.0.1:4040"),
        ({"spark.ui.enabled": "True", "spark.ui.port": "0"}, None, "a free port"),
        ({"spark.ui.enabled": "False"}, None, "none (mld.spark.conf.spark.ui.enabled is false)"),
    ],
)
def test_where_the_ui_will_be(conf, master, words):
    assert words in sparkhosts.expected_ui(conf, master)


def test_check_refuses_plain_files_in_the_directory_of_a_delta_table(file, capsys):
    (file.parent / "table" / "_delta_log").mkdir(parents=True)
    file.write_text(f"{file.read_text()}\nmld.spark.sink.more.path = {file.parent / 'table'}\n")
    assert print_check(str(file), (), as_json=False, show_all=False) == 2
    assert "has _delta_log" in " ".join(capsys.readouterr().out.split())
