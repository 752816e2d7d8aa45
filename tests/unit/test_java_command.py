"""Command lines of Amazon's Java daemon, given to mld: a sentence that says what to write, and exit code 2."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from mld.cli import commands
from mld.properties.java_properties import remedy_for
from tests.unit.properties.conftest import MINIMUM, Configure, configure, problems, remarks_on

__all__ = ["configure"]
WHOLE = "`mld -p FILE` with the same properties file is the whole command"


def said_to(command: str) -> str:
    """What mld answers, in one line; its exit code is 2."""
    result = CliRunner().invoke(commands, shlex.split(command), prog_name="mld")
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    "command",
    [
        "java -cp a.jar:b.jar software.amazon.kinesis.multilang.MultiLangDaemon --properties-file app.properties",
        "/usr/bin/java -Xmx1g -jar daemon.jar",
        "software.amazon.kinesis.multilang.MultiLangDaemon --properties-file app.properties",
        "com.amazonaws.services.kinesis.multilang.MultiLangDaemon app.properties",
        "amazon_kclpy_helper.py --print_command --java /usr/bin/java --properties app.properties",
        "node_modules/aws-kcl/bin/kcl-bootstrap -e -p app.properties",
        "-cp a.jar:b.jar software.amazon.kinesis.multilang.MultiLangDaemon --properties-file app.properties",
        "-classpath a.jar app.properties",
        "--class-path=a.jar app.properties",
        "-e -p app.properties",
        "--java /usr/bin/java -p app.properties",
        "--print_command -p app.properties",
        "run -c jars app.properties",
    ],
)
def test_what_starts_java_is_left_out(command: str) -> None:
    assert WHOLE in said_to(command)


@pytest.mark.parametrize(
    "command", ["-Xmx512m app.properties", "check -Xms1g app.properties", "-XX:MaxRAMPercentage=75"]
)
def test_a_size_of_the_heap_names_the_limits_that_there_are(command: str) -> None:
    said = said_to(command)
    assert "mld.prefetchBytesMax bounds what is read ahead" in said
    assert "MemoryMax=" in said


@pytest.mark.parametrize(
    "option", ["-XX:+UseG1GC", "-server", "-ea", "-javaagent:agent.jar", "-verbose:gc", "--add-opens=a"]
)
def test_an_option_of_the_jvm_is_left_out(option: str) -> None:
    assert f"{option} is an option of the JVM, and mld has none: leave it out" in said_to(f"{option} app.properties")


def test_the_name_of_an_option_of_starters_is_written_as_ours() -> None:
    assert "write -p or --properties-file for --properties" in said_to("--properties app.properties")


def test_other_slips_are_answered_as_before() -> None:
    assert "No such option '--bogus'" in said_to("--bogus app.properties")
    assert "No such option '-e'" in said_to("lag -e app.properties"), "no other command is one of Java's"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("https.proxyHost", "HTTPS_PROXY"),
        ("http.nonProxyHosts", "NO_PROXY"),
        ("socksProxyHost", "SOCKS"),
        ("aws.region", "regionName"),
        ("aws.profile", "AWS_PROFILE"),
        ("com.amazonaws.sdk.disableCbor", "remove it"),
        ("software.amazon.awssdk.http.service.impl", "remove it"),
        ("javax.net.ssl.trustStore", "AWS_CA_BUNDLE"),
        ("java.io.tmpdir", "TMPDIR"),
        ("java.net.preferIPv4Stack", "remove it"),
        ("log4j.configuration", "-l FILE"),
        ("log4j2.configurationFile", "-l FILE"),
        ("logback.configurationFile", "-l FILE"),
        ("user.timezone", "remove it"),
    ],
)
def test_a_system_property_has_a_remedy(configure: Configure, name: str, instead: str) -> None:
    [problem] = problems(lambda: configure("", [f"{name}=x"]))
    assert problem == f"{name} is a system property of Java, and mld has no JVM"
    assert instead in (remedy_for(name) or "")
    [remark] = remarks_on(configure(f"{name} = x"), name)
    assert "is a system property of Java, no key, and is ignored" in remark, "a line of the file had no effect in Java"
    assert instead in remark


def test_a_proxy_of_java_stops_the_start_with_the_variable_to_set(tmp_path: Path) -> None:
    file = tmp_path / "app.properties"
    file.write_text(MINIMUM)
    said = said_to(f"-Dhttps.proxyHost=proxy -Dhttps.proxyPort=3128 {file}")
    assert len(re.findall(r"set HTTPS_PROXY=http://host:port in the environment", said)) == 2


def test_no_key_is_taken_for_a_system_property() -> None:
    from mld.properties.keys import BY_NAME

    assert [name for name in BY_NAME if remedy_for(name)] == []


def test_each_property_on_the_page_has_a_remedy_of_its_line() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "use" / "drop-in.md").read_text("utf-8")
    table = page.partition("\n## JAVA_OPTS\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `-D")]
    assert len(rows) == 8
    for given, write in rows:
        for name in re.findall(r"-D([a-z0-9]+[A-Za-z0-9.]*)", given):
            remedy = remedy_for(name)
            assert remedy is not None, name
            words = set(re.findall(r"[A-Z]{2}[A-Z_]+|[a-z]+[A-Z]\w+|-l\b", remedy)) or {"remove it"}
            assert any(word in write for word in words) or "remove it" in remedy, (name, write)
