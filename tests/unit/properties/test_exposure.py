"""Secrets that other users of the machine can read are named, with the remedy, and their values never."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mld.properties.exposure import who_else
from mld.properties.loader import load
from mld.properties.remarks import Level
from tests.unit.properties.conftest import Configure

SECRET = "hunter2"
SPARK = "mld.spark.pipeline=p.py:transform\n"
S3A = "mld.spark.conf.spark.hadoop.fs.s3a.secret.key"


def said(configure: Configure, text: str, overrides: list[str]) -> list[str]:
    loaded = configure(text, overrides, {"KEY": SECRET})
    assert SECRET not in json.dumps(loaded.to_json())
    return [str(remark) for remark in loaded.remarks if remark.level is Level.WARNING]


@pytest.mark.parametrize(
    "override",
    [f"{S3A}={SECRET}", f"AwsCredentialsProvider=StaticCredentialsProvider|AKIA|{SECRET},DefaultCredentialsProvider"],
)
def test_a_secret_on_our_command_line_is_named(configure: Configure, override: str) -> None:
    (remark,) = [one for one in said(configure, SPARK, [override]) if "command line" in one]
    assert remark.startswith(f"-D: {override.partition('=')[0]}: ") and "mode 0600" in remark and "${NAME}" in remark


@pytest.mark.parametrize(
    "override",
    [
        f"{S3A}=${{KEY}}",
        "AwsCredentialsProvider=DefaultCredentialsProvider",
        "mld.spark.conf.spark.hadoop.fs.s3a.aws.credentials.provider=a.Class",
        "mld.spark.conf.spark.sql.shuffle.partitions=3",
    ],
)
def test_what_is_no_secret_or_stands_in_the_environment_is_not(configure: Configure, override: str) -> None:
    assert said(configure, SPARK, [override]) == []


@pytest.mark.parametrize(
    "line",
    [
        f"executableName=child.py --password {SECRET}",
        f"{SPARK}mld.spark.conf.spark.driver.extraJavaOptions=-Da=1 -Dmy.password={SECRET}",
    ],
)
def test_a_secret_for_the_command_line_of_another_process_is_named(configure: Configure, line: str) -> None:
    remarks = [str(remark) for remark in configure(line, without=[line.partition("=")[0]]).remarks]
    (remark,) = [one for one in remarks if "command line of" in one]
    assert "every user of this machine can read" in remark and SECRET not in remark


@pytest.mark.parametrize(("mode", "who"), [(0o644, "every user"), (0o640, "its group"), (0o600, None)])
def test_a_file_with_secrets_is_for_its_user_alone(configure: Configure, tmp_path: Path, mode: int, who: str) -> None:
    configure(f"{SPARK}{S3A}={SECRET}")
    file = tmp_path / "app.properties"
    file.chmod(mode)
    remarks = [str(remark) for remark in load(file).remarks if "can read it" in remark.message]
    assert len(remarks) == (who is not None)
    for remark in remarks:
        assert f"holds secrets ({S3A}), and {who}" in remark and f"chmod 600 {file}" in remark and SECRET not in remark


def test_a_file_without_secrets_may_be_read_by_all(configure: Configure, tmp_path: Path) -> None:
    configure(f"{SPARK}{S3A}=${{KEY:-x}}")
    (tmp_path / "app.properties").chmod(0o644)
    assert load(tmp_path / "app.properties").remarks == ()


def test_the_group_of_somebody_elses_file_is_how_we_read_it() -> None:
    assert who_else(0o100640, own=False) is None
    assert who_else(0o100644, own=False) == "every user of this machine"
