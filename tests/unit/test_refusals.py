"""What `mld check` and `mld run` say before AWS or the kernel does: names, programs, packages."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.loaders import Loader

from mld.check.command import print_check
from mld.check.refusals import CONSUMER_NAME, TABLE_NAME, NameRule, refusals
from mld.check.refusals import STREAM_NAME as STREAM_RULE
from mld.daemon.process import RunRequest, run_daemon
from mld.properties.loader import load
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.settings import Settings
from mld.properties.value_parsers import STREAM_NAME

GOOD = {
    "executableName": "true",
    "applicationName": "app",
    "streamName": "clicks",
    "regionName": "eu-west-1",
    "AwsCredentialsProvider": "AnonymousCredentialsProvider",
    "retrievalMode": "POLLING",
}


def written(place: Path, **keys: str) -> Path:
    file = place / "app.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in {**GOOD, **keys}.items() if value))
    return file


def settings_of(place: Path, **keys: str) -> Settings:
    return load(written(place, **{name.replace("__", "."): value for name, value in keys.items()})).settings


def refused(place: Path, **keys: str) -> list[Remark]:
    return refusals(settings_of(place, **keys), "app.properties")


@pytest.mark.parametrize(
    ("keys", "key", "what", "remedy"),
    [
        ({"streamName": "<STREAM_NAME>"}, "streamName", "is no name of a stream", "in the place of the placeholder"),
        ({"streamName": "my stream"}, "streamName", "1 to 128 characters", "such characters alone"),
        ({"streamName": "a" * 129}, "streamName", "is no name of a stream", "at most 128"),
        (
            {"streamName": "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"},
            "streamName",
            "is no name of a stream",
            "write the ARN as streamArn",
        ),
        ({"tableName": "ab"}, "tableName", "is no name of a table: 3 to 255 characters", "at least 3 such"),
        ({"applicationName": "ab"}, "applicationName", "is no name of a table", "at least 3 such"),
        ({"applicationName": "my app", "tableName": "good"}, "applicationName", "is no name of a table", "alone"),
        ({"applicationName": "a" * 250}, "applicationName", "is no name of a table", "at most 237 such"),
        (
            {"tableName": "arn:aws:dynamodb:eu-west-1:123456789012:table/app"},
            "tableName",
            "is no name of a table",
            "without the ARN",
        ),
        ({"workerMetricsTableName": "a/b"}, "workerMetricsTableName", "is no name of a table", "characters alone"),
        (
            {"retrievalMode": "FANOUT", "fanoutConfig__consumerName": "my app"},
            "fanoutConfig.consumerName",
            "is no name of a consumer",
            "characters alone",
        ),
        ({"executableName": "cd x && y"}, "executableName", "no executable file 'cd' is found", "there is no shell"),
        ({"executableName": "A=b x"}, "executableName", "no executable file 'A***' is found", "there is no shell"),
        ({"executableName": "'my child' x"}, "executableName", "no executable file", "there is no shell"),
        ({"executableName": "./nowhere"}, "executableName", "'./nowhere' is found", "a path relative to"),
        ({"executableName": "<COMMAND>"}, "executableName", "no executable file", "a path relative to"),
    ],
)
def test_what_aws_or_the_kernel_refuses_is_an_error_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], key: str, what: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    (one,) = refused(tmp_path, **keys)
    assert (one.level, one.key) == (Level.ERROR, key)
    assert what in one.message
    assert remedy in one.remedy


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"applicationName": "abc", "streamName": "a.b_c-1"},
        {"streamName": "", "streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"},
        {"retrievalMode": "FANOUT"},
        {
            "retrievalMode": "FANOUT",
            "fanoutConfig__consumerName": "my app",
            "fanoutConfig__consumerArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks/consumer/app:1",
        },
        {"executableName": "sh -c true"},
    ],
)
def test_what_works_is_not_refused(tmp_path: Path, keys: dict[str, str]) -> None:
    assert refused(tmp_path, **keys) == []


def test_a_file_without_the_right_to_run_is_said_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("child.py").write_text("#!/usr/bin/env python3\n")
    (one,) = refused(tmp_path, executableName="./child.py")
    assert (one.message, one.remedy) == ("the file './child.py' is not executable", "chmod +x ./child.py")
    (one,) = refused(tmp_path, executableName=str(tmp_path))
    assert (one.message, one.remedy) == (f"{str(tmp_path)!r} is a directory", "name the program in it")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("sh -c 'cd x && y'", "signs that only a shell understands"),
        ('python3 "my child.py"', "signs that only a shell understands"),
        ("env true | cat", "signs that only a shell understands"),
        ("sh nowhere.sh", "nowhere.sh does not exist in"),
    ],
)
def test_what_hardly_works_is_a_warning_and_an_error_if_the_file_is_strict(
    tmp_path: Path, command: str, what: str
) -> None:
    (one,) = refused(tmp_path, executableName=command)
    assert (one.level, what in one.message) == (Level.WARNING, True)
    (one,) = refused(tmp_path, executableName=command, mld__strict="true")
    assert one.level is Level.ERROR


def test_each_stream_has_its_own_program(tmp_path: Path) -> None:
    keys = {"streamName": "", "mld__streams": "a,b", "mld__stream__b__executableName": "./nowhere"}
    (one,) = refused(tmp_path, **keys)
    assert one.key == "mld.stream.b.executableName"


def test_no_value_is_repeated_but_what_may_be_shown(tmp_path: Path) -> None:
    keys = {"streamName": "geheim geheim", "tableName": "geheim/geheim", "executableName": "PASSWORD=geheim x"}
    assert "geheim" not in " ".join(map(str, refused(tmp_path, **keys)))
    (one,) = refused(tmp_path, executableName="sh --password=geheim.sh")
    assert "does not exist" in one.message and "geheim" not in str(one)


async def start(settings: Settings) -> None:
    await run_daemon(RunRequest(settings, "app.properties"))


@pytest.mark.parametrize("keys", [{"streamName": "a b"}, {"applicationName": "ab"}, {"executableName": "./nowhere"}])
def test_check_and_run_refuse_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError) as error:
        asyncio.run(start(settings_of(tmp_path, **keys)))
    file = written(tmp_path, **keys)
    assert print_check(str(file), (), as_json=True, show_all=False) == 2
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    assert [one["message"] for one in remarks if one["level"] == "error"] == [
        one.message for one in error.value.problems
    ]
    assert print_check(str(file), (), as_json=False, show_all=False) == 2
    assert "1 error(s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("service", "shape", "rule"),
    [
        ("kinesis", "StreamName", STREAM_RULE),
        ("kinesis", "ConsumerName", CONSUMER_NAME),
        ("dynamodb", "TableName", TABLE_NAME),
    ],
)
def test_the_rules_of_names_are_those_of_the_service(service: str, shape: str, rule: NameRule) -> None:
    found = Loader().load_service_model(service, "service-2")["shapes"][shape]
    assert rule == NameRule(found["min"], found["max"], found["pattern"])


def test_the_names_of_a_list_are_those_of_the_service() -> None:
    rule = STREAM_RULE
    assert STREAM_NAME.pattern == f"{rule.pattern.removesuffix('+')}{{{rule.least},{rule.most}}}"


@pytest.mark.parametrize(
    ("keys", "module", "key", "level"),
    [
        pytest.param({"mld__http": "127.0.0.1:1"}, "prometheus_client", "mld.metrics", Level.WARNING, id="no page"),
        pytest.param({"mld__schemaRegistry": "json"}, "fastavro", "mld.schemaRegistry", Level.ERROR, id="no codec"),
        pytest.param({}, "prometheus_client", "", None, id="nobody can scrape anyway"),
    ],
)
def test_a_package_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], module: str, key: str, level: Level | None
) -> None:
    assert refused(tmp_path, **keys) == []
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    said = refused(tmp_path, **keys)
    assert [(one.level, one.key) for one in said] == ([] if level is None else [(level, key)])
    assert all("pip install 'mld-kinesis[" in one.remedy for one in said)


def test_checking_a_file_imports_neither_botocore_nor_the_rooms_of_the_daemon(tmp_path: Path) -> None:
    code = """
import sys
from mld.check.command import print_check
print_check(sys.argv[1], (), as_json=True, show_all=False)
rooms = ("botocore", "asyncio", "mld.consumer", "mld.leases", "mld.retrieval", "mld.schemas", "mld.serving")
found = [name for name in sys.modules if name.startswith(rooms)]
sys.exit(f"imported: {found}" if found else 0)
"""
    command = [sys.executable, "-c", code, str(written(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
