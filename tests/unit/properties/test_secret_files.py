"""`${file:/path}`: what becomes of a secret in a file of its own, and what is refused."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mld.cli import commands
from mld.logging.logs import TextFormatter
from mld.properties import keys
from mld.properties.loader import SECRET_BYTES_MAX
from mld.properties.scrubber import Scrubber
from mld.properties.spark_keys import KEYS as SPARK_KEYS
from mld.properties.value_kinds import ValueKind
from tests.unit.properties.conftest import MINIMUM, Configure, problems

SECRET = "pl4nted-Zq7+x"
PROXY = "kinesisClient.proxyUrl=http://me:${{file:{}}}@proxy:3128"
ROLE = "StsAssumeRoleCredentialsProvider|arn:aws:iam::1:role/r|s"
EXTERNAL_ID = f"AwsCredentialsProvider={ROLE}|externalId=${{{{file:{{}}}}}}"
TAKING = {key.name: key.kind for key in (*keys.KEYS, *SPARK_KEYS) if key.takes_file and "<" not in key.name}
REFUSING = {key.name for key in (*keys.KEYS, *SPARK_KEYS) if "<" not in key.name} - {*TAKING}
REFUSING |= {"mld.spark.sink.out.path", "mld.spark.sink.out.partitionBy", "mld.spark.table.t"}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [("orders", "orders"), ("orders\n", "orders"), ("orders\r\n", "orders"), ("${HOME}", "${HOME}"), ("a,b", "a,b")],
)
def test_the_content_is_the_value_without_its_line_break_and_is_not_substituted(
    configure: Configure, secret: Path, content: str, expected: str
) -> None:
    secret.write_bytes(content.encode())
    loaded = configure(f"mld.notify=https://h/${{file:{secret}}}", env={"HOME": "/root"})
    assert loaded.settings.serving.notify == f"https://h/{expected}"


def test_a_credential_of_systemd_is_found_by_its_directory(configure: Configure, secret: Path) -> None:
    text = "kinesisClient.proxyUrl=http://me:${file:${CREDENTIALS_DIRECTORY}/token}@${HOST:-proxy}:3128"
    loaded = configure(text, env={"CREDENTIALS_DIRECTORY": str(secret.parent)})
    assert loaded.settings.kinesis.proxy_url == f"http://me:{SECRET}@proxy:3128"
    assert problems(lambda: configure(text)) == [
        "kinesisClient.proxyUrl environment variable CREDENTIALS_DIRECTORY is not set"
    ]


@pytest.mark.parametrize("line", [PROXY, EXTERNAL_ID, "mld.spark.conf.spark.x.password=${{file:{}}}"])
def test_a_secret_is_used_and_shown_nowhere(configure: Configure, secret: Path, line: str) -> None:
    loaded = configure(line.format(secret))
    assert SECRET in str(loaded.secrets)
    assert SECRET not in str(loaded.to_json())
    record = logging.LogRecord("mld", logging.INFO, "f", 1, "refused: %s", (SECRET,), None)
    assert SECRET not in TextFormatter(Scrubber(loaded.secrets)).format(record)
    assert SECRET not in repr(loaded)


@pytest.mark.parametrize("key", sorted(REFUSING))
def test_what_is_shown_anywhere_comes_from_no_file(configure: Configure, secret: Path, key: str) -> None:
    (problem, *_) = problems(lambda: configure(f"{key}=${{file:{secret}}}", without=[key]))
    assert problem.startswith(f"{key} takes no ${{file:…}}") and SECRET not in problem
    (problem, *_) = problems(lambda: configure(f"{key}=x${{file:/dev/zero}}", without=[key]))
    assert problem.startswith(f"{key} takes no ${{file:…}}"), "and the file is not even read"


def test_the_host_of_an_address_comes_from_no_file(configure: Configure, secret: Path) -> None:
    secret.write_text("h1dden-host")
    for key in ("kinesisEndpoint", "kinesisClient.proxyUrl", "mld.notify"):
        for url in ("https://${{file:{}}}/x", "https://a.${{file:{}}}.b:1/x"):
            (problem,) = problems(lambda key=key, url=url: configure(f"{key}={url.format(secret)}"))  # type: ignore[misc]
            assert problem.startswith(f"{key} takes no ${{file:…}} for a host") and "h1dden" not in problem
    secret.write_text("https://hooks.example.com/services/T0KEN")
    assert configure(f"mld.notify=${{file:{secret}}}").settings.serving.notify == secret.read_text()


COMMANDS = (["check"], ["check", "--all"], ["check", "-o", "json"], ["iam-policy"], ["table"],
            ["table", "--cloudformation"], ["alerts"], ["alerts", "--cloudwatch"], ["dashboard"],
            ["systemd-unit"])  # fmt: skip


@pytest.mark.parametrize("key", sorted(TAKING))
def test_no_command_shows_what_is_in_a_file(secret: Path, tmp_path: Path, key: str) -> None:
    forms = {ValueKind.URL: "https://u:FILE@h/FILE?x=FILE", ValueKind.CREDENTIALS: f"{ROLE}|externalId=FILE"}
    form = "https://h/FILE?x=FILE" if key == "mld.notify" else forms.get(TAKING[key], "xFILE")
    file = tmp_path / "app.properties"
    minimum = MINIMUM.replace("=child", "=/bin/cat")
    lines = [line for line in minimum.splitlines() if line.partition("=")[0] != key]
    file.write_text("\n".join([*lines, f"{key}={form.replace('FILE', f'${{file:{secret}}}')}"]))
    for command in COMMANDS:
        result = CliRunner().invoke(commands, [*command, str(file)], prog_name="mld")
        assert result.exit_code in (0, 1), result.output
        assert SECRET not in result.output, command


def test_a_program_takes_none_as_everybody_could_read_it(configure: Configure, secret: Path) -> None:
    (problem,) = problems(lambda: configure(f"executableName=child ${{file:{secret}}}"))
    assert "every user of this machine" in problem
    (remark,) = configure(f"mld.spark.conf.spark.driver.extraJavaOptions=-Dx=${{file:{secret}}}").remarks
    assert "every user of this machine" in remark.message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"x" * (SECRET_BYTES_MAX + 1), "is larger than 65536 bytes"),
        (b"\xff\xfe\x00", "is no text"),
        (b"a\0b", "is no text"),
    ],
)
def test_what_cannot_be_a_value_is_refused_by_its_path(
    configure: Configure, secret: Path, content: bytes, expected: str
) -> None:
    secret.write_bytes(content)
    assert problems(lambda: configure(PROXY.format(secret))) == [f"kinesisClient.proxyUrl {secret} {expected}"]


def test_what_is_no_readable_file_is_refused_and_nobody_waits_for_a_pipe(configure: Configure, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = [
        problems(lambda path=path: configure(PROXY.format(path)))[0].removeprefix("kinesisClient.proxyUrl ")  # type: ignore[misc]
        for path in (tmp_path / "none", tmp_path / "pipe", tmp_path, "relative/path", "/a\0b")
    ]
    assert found == [
        f"{tmp_path}/none cannot be read: No such file or directory",
        f"{tmp_path}/pipe is no regular file",
        f"{tmp_path} cannot be read: Is a directory",
        "${file:…} does not name an absolute path",
        "/a\\x00b is no file name",
    ]


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(configure: Configure, secret: Path) -> None:
    secret.chmod(0)
    assert "Permission denied" in problems(lambda: configure(PROXY.format(secret)))[0]


def test_an_open_reference_is_refused(configure: Configure) -> None:
    assert "no NAME}" in problems(lambda: configure("mld.notify=${file:/run/secrets/x"))[0]
