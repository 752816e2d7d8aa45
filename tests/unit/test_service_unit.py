"""`mld systemd-unit`: what it finds out, what it prints, and what systemd makes of that."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace
from pathlib import Path

import pytest

from mld.operating.service_facts import (
    SERVICE_PATH,
    ServiceFacts,
    Surroundings,
    UnitRefused,
    loaded_for_unit,
    service_of,
)
from mld.operating.service_unit import unit
from tests.support.daemon import ROOT
from tests.support.written_pages import PLAIN_SERVICE as PLAIN

DOCS = ROOT / "docs" / "use"
EXPOSURE = re.compile(r"Overall exposure level for mld-\w+\.service: (\d+\.\d)")
ANALYZE = shutil.which("systemd-analyze")
with_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")
COMMAND = ("/opt/mld/bin/mld", "run", "/etc/mld/app.properties")
SPARK = ServiceFacts(
    name="mld-clicks",
    stream="clicks",
    command=COMMAND,
    grace_s=60.0,
    child_stop_s=5.0,
    user="mld",
    makes_code=True,
    is_spark=True,
)
EVERYTHING = ServiceFacts(
    name="mld-odd",
    stream="50% of it",
    command=("/opt/my tools/mld", "run", '-Dworker"Id=a\\b $HOME 50%', "/etc/mld/app.properties"),
    grace_s=0.5,
    child_stop_s=0.0,
    working_directory="/srv/my app",
    search_path=f"/opt/my tools:{SERVICE_PATH}",
    python_path="/opt/mld",
    writable=("/data/lake", "/data/my lake"),
    is_in_home=True,
    variables=("HOST",),
    credentials=("token",),
)


def settings(text: str) -> dict[str, list[str]]:
    """What the unit says, by key."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


# --- what is printed --------------------------------------------------------------------------------------------------


def test_the_documented_drop_in_says_what_is_printed_for_spark() -> None:
    printed = settings(unit(SPARK))
    for key, (value,) in settings((DOCS / "mld-spark.conf").read_text()).items():
        if key == "TimeoutStopSec":
            assert int(value) >= int(printed[key][0])
        else:
            assert value.replace("%S/mld", "%S/mld-clicks") in printed[key]


def test_a_stop_gets_more_time_than_the_daemon_takes() -> None:
    assert settings(unit(PLAIN))["TimeoutStopSec"] == ["50"]  # the grace of 25, two steps of 5, and 15
    assert settings(unit(EVERYTHING))["TimeoutStopSec"] == ["16"]


def test_odd_signs_are_quoted_for_systemd() -> None:
    said = settings(unit(EVERYTHING))
    assert said["ExecStart"] == ['"/opt/my tools/mld" run "-Dworker\\"Id=a\\\\b $$HOME 50%%" /etc/mld/app.properties']
    assert said["Description"] == ["mld: Kinesis stream 50%% of it"]
    assert said["ReadWritePaths"] == ['/data/lake "/data/my lake"']
    assert said["DynamicUser"] == ["yes"]
    assert said["ProtectHome"] == ["read-only"]


# --- what is found out ------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for program in ("mld", "processor"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    return tmp_path


def found(
    directory: Path,
    text: str = "executableName=python3 -m mld.processors.archive",
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    user: str | None = "mld",
) -> tuple[ServiceFacts, list[str]]:
    stream = "" if "mld.streams" in text else "streamName=s\n"
    (directory / "app.properties").write_text(
        f"applicationName=my app/1\n{stream}retrievalMode=POLLING\nregionName=eu-west-1\n"
        f"AwsCredentialsProvider=DefaultCredentialsProvider\n{text}\n"
    )
    env = {"PATH": "/usr/bin:/bin", **(env or {})}
    around = Surroundings("./mld", "/usr/bin/python3", directory, env)
    loaded = loaded_for_unit(str(directory / "app.properties"), overrides, env)
    return service_of(loaded, "app.properties", overrides, around, user=user, group=None)


def test_paths_are_those_of_here(directory: Path) -> None:
    service, remarks = found(directory, overrides=["maxRecords=50"])
    assert service.name == "mld-my-app-1"
    assert service.command == (f"{directory}/mld", "run", "-DmaxRecords=50", f"{directory}/app.properties")
    assert (service.working_directory, service.search_path, service.makes_code) == (None, None, False)
    assert remarks == []


@pytest.mark.parametrize(
    ("command", "is_here", "makes_code"),
    [
        ("./processor", True, True),
        ("python3 -m mine", True, False),
        ("python3 mine.py", True, False),
        ("python3 -m installed", False, False),
        ("python3 /srv/child.py .", False, False),
        ("node /srv/child.js", False, True),
        ("java -cp /srv/x.jar Main", False, True),
        ("mld-zygote /srv/child.py", False, False),
        ("mld-spark", False, True),
    ],
)
def test_the_directory_counts_if_the_processor_is_in_it_and_compilers_may_compile(
    directory: Path, command: str, is_here: bool, makes_code: bool
) -> None:
    (directory / "mine.py").touch()
    service, _ = found(directory, f"executableName={command}\nmld.spark.pipeline=/srv/p.py:f")
    assert service.working_directory == (str(directory) if is_here else None)
    assert service.makes_code is makes_code


def test_a_program_on_the_path_of_this_shell_only_is_found_by_the_service_too(directory: Path) -> None:
    service, _ = found(directory, "executableName=processor", env={"PATH": f"{directory}:/usr/bin"})
    assert service.search_path == f"{directory}:{SERVICE_PATH}"
    shutil.copy(directory / "processor", directory / "python3")  # a virtual environment's, which is not the system's
    service, _ = found(directory, env={"PATH": f"{directory}:/usr/bin"})
    assert service.search_path == f"{directory}:{SERVICE_PATH}"


def test_what_is_written_to_must_be_writable_and_exist(directory: Path) -> None:
    (directory / "archive").mkdir()
    text = "executableName=python3 -m mld.processors.archive archive\nmld.poisonAttempts=3\n"
    text += "mld.deadLetter=/var/none/letters"
    service, remarks = found(directory, text)
    assert service.writable == ("/var/none/letters", str(directory / "archive"))
    assert any("install -d -m 0700 -o mld /var/none/letters" in remark for remark in remarks)
    _, remarks = found(directory, text, user=None)
    assert any("give --user" in remark for remark in remarks)


def test_sinks_of_spark_are_written_to_where_they_are(directory: Path) -> None:
    (directory / "p:1.py").touch()
    text = (
        "executableName=mld-spark\nmld.spark.pipeline=p:1.py:f\nmld.spark.sink.a.path=lake/a\n"
        "mld.spark.sink.b.path=s3a://bucket/b\nmld.spark.sink.c.path=file:///data/c"
    )
    service, _ = found(directory, text)
    assert service.writable == (str(directory / "lake/a"), "/data/c")
    assert service.is_spark
    (directory / "p:1.py").unlink()
    assert found(directory, text)[0].writable == ("/data/c",)  # lake/a is in the state directory


def test_what_the_file_refers_to_comes_from_systemd(directory: Path) -> None:
    text = (
        "executableName=child\nkinesisClient.proxyUrl=http://${WHO}:${file:${CREDENTIALS_DIRECTORY}/proxy}@p:1\n"
        "tableName=${TABLE:-t}-$${NO}"
    )
    service, remarks = found(directory, text, env={"WHO": "me"})
    assert (service.variables, service.credentials) == (("WHO",), ("proxy",))
    said = settings(unit(service))
    assert said["LoadCredential"] == ["proxy:/etc/mld/proxy"]
    assert said["EnvironmentFile"] == ["/etc/mld/mld-my-app-1.env"]
    assert sum("root's, mode 0600" in remark for remark in remarks) == 2


def test_several_streams_need_their_list_their_programs_and_what_the_list_refers_to(directory: Path) -> None:
    (directory / "streams.txt").write_text("orders\nclicks\nmld.stream.orders.epoch=${EPOCH}\n")
    text = "executableName=python3 -m mld.processors.archive\nmld.stream.clicks.executableName=node /srv/clicks.js\n"
    env = {"EPOCH": "5"}
    service, _ = found(directory, f"{text}mld.streamsFile={directory}/streams.txt", env=env)
    assert (service.stream, service.working_directory, service.makes_code) == ("orders, clicks", None, True)
    assert service.variables == ("EPOCH",)
    service, _ = found(directory, text + "mld.streams=orders,clicks")
    assert (service.stream, service.variables) == ("orders, clicks", ())


def test_what_is_in_a_home_directory_cannot_be_hidden(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mld.operating.service_facts._HOMES", (str(directory),))
    service, remarks = found(directory)
    assert service.is_in_home
    assert any("home directory" in remark for remark in remarks)


def test_an_account_made_up_by_systemd_must_be_able_to_read_the_file(directory: Path) -> None:
    (directory / "app.properties").touch(mode=0o600)
    assert any("chmod 644" in remark for remark in found(directory, user=None)[1])
    (directory / "app.properties").chmod(0o644)
    assert found(directory, user=None)[1] == []


@pytest.mark.parametrize(
    ("overrides", "user", "expected"),
    [
        (["mld.spark.conf.x.password=s3cret"], None, "a secret into the unit"),
        (["kinesisClient.proxyUrl=http://me:s3cret@p:1"], None, "a secret into the unit"),
        ([], "mld\nExecStartPre=/bin/evil", "cannot stand in a unit"),
        (["workerId=a\nb"], None, "cannot stand in a unit"),
    ],
)
def test_what_a_unit_cannot_hold_is_refused(
    directory: Path, overrides: list[str], user: str | None, expected: str
) -> None:
    with pytest.raises(UnitRefused, match=expected) as refused:
        unit(found(directory, overrides=overrides, user=user)[0])
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("field", fields(ServiceFacts), ids=lambda field: field.name)
@pytest.mark.parametrize("sign", ["\nUser=root\n#", "\r", "\x85", "\x1b[2J", "\u202e"])
def test_no_fact_becomes_a_line_of_its_own(field: Field[object], sign: str) -> None:
    """Whoever writes the properties file does not write root's unit: facts to come are judged like those of today."""
    value = getattr(EVERYTHING, field.name)
    match value:
        case str() | None:
            hostile: object = f"x{sign}"
        case tuple():
            hostile = (*value, f"x{sign}")
        case _:
            return
    with pytest.raises(UnitRefused, match="cannot stand in a unit"):
        unit(replace(EVERYTHING, **{"user": "mld", field.name: hostile}))


def test_no_line_swallows_the_next_one() -> None:
    with pytest.raises(UnitRefused):
        unit(replace(PLAIN, stream="clicks\\"))


# --- what systemd makes of it -----------------------------------------------------------------------------------------


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ANALYZE), *arguments], capture_output=True, text=True, timeout=60, check=False)


def installed(directory: Path, service: ServiceFacts) -> Path:
    """As it would be on a machine, with a program that exists."""
    path = directory / f"{service.name}.service"
    text = unit(service).replace("/opt/mld/bin/mld", "/bin/true").replace('"/opt/my tools/mld"', "/bin/true")
    path.write_text(text)
    return path


@with_systemd
@pytest.mark.parametrize("service", [PLAIN, SPARK, EVERYTHING], ids=["plain", "Spark", "everything"])
def test_systemd_understands_every_line(tmp_path: Path, service: ServiceFacts) -> None:
    path = installed(tmp_path, service)
    looked = analyze("verify", "--man=no", "--recursive-errors=no", str(path))
    assert (looked.returncode, looked.stderr) == (0, "")
    path.write_text(path.read_text().replace("UMask=", "NoSuchMask="))
    assert "NoSuchMask" in analyze("verify", "--man=no", "--recursive-errors=no", str(path)).stderr


@with_systemd
@pytest.mark.parametrize(("service", "which"), [(PLAIN, 1), (SPARK, 2)], ids=["plain", "Spark"])
def test_what_it_leaves_open_is_what_the_documentation_says(tmp_path: Path, service: ServiceFacts, which: int) -> None:
    said = analyze("security", "--offline=true", "--no-pager", str(installed(tmp_path, service))).stdout
    measured = EXPOSURE.search(said)
    assert measured is not None, said
    named = re.search(r"exposure of (\d\.\d), with Spark (\d\.\d)", (DOCS / "running.md").read_text())
    assert named is not None
    assert float(measured[1]) <= float(named[which]), said
