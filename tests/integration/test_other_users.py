"""Another user of the machine gets nothing of a running daemon: no file, no socket, no port, no process.

As root only: the daemon runs as we do, and he as nobody. The umask is the usual one, 022, so that what is closed to him
is closed by us, and the directories above are open.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_spark import KEYS, PIPELINE, SESSION_S, rows
from tests.integration.world import ENVIRONMENT, World
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws

NOBODY = 65534
INTRUDER = ROOT / "tests" / "support" / "intruder.py"
SECRET = "planted-hunter2"
TRIES_S = 240
IN_PYTHON = (
    PIPELINE.replace("def transform", "def from_spark")
    + """
def transform(records, batch):
    return from_spark(records, batch).withColumn("text", F.udf(lambda text: text, "string", useArrow=False)("text"))
"""
)
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="becomes another user: as root"),
]


@pytest.fixture
def place() -> Iterator[Path]:
    """Open to all, as a test's own directory is not, and with a short path."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="z", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)
    os.umask(before)


@pytest.fixture
def world(aws: EmbeddedAws, place: Path) -> Iterator[World]:
    made = World(aws, place)
    yield made
    made.close()


def intrude(daemon: Daemon, place: Path, *, mine: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What he got, and the number of his attempts; `mine` is meant for others."""
    pids = [daemon.process.pid, *daemon.survivors()]
    inodes = {inode for pid in pids for inode in _inodes_of(pid)}
    kept = [path for path in place.iterdir() if path not in mine]
    told = {
        "pids": [str(pid) for pid in pids],
        "trees": [str(path) for path in kept],
        "files": sorted({link for pid in pids for link in _open_of(pid) if _is_data(link, mine)}),
        "sockets": _unix_sockets(inodes),
        "ports": _ports(inodes),
    }
    command = [*as_nobody(), "-c", INTRUDER.read_text()]
    done = subprocess.run(
        command,
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=TRIES_S,
        check=True,
        cwd="/",
        start_new_session=True,  # SIGCONT may go to whoever is in the same session
    )
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["uid"] == NOBODY and result["attempts"] > 10 * len(pids)
    return {**result, **told}


def as_nobody() -> list[str]:
    """A Python that he may run, too."""
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    for python in (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3"):
        command = [*drop, python, "-I", "-S"]
        if not subprocess.run([*command, "-c", ""], cwd="/", capture_output=True, check=False).returncode:
            return command
    pytest.skip("there is no Python that another user may run")


def _inodes_of(pid: int) -> set[str]:
    """The sockets of a process."""
    return {link.removeprefix("socket:[")[:-1] for link in _open_of(pid) if link.startswith("socket:")}


def _open_of(pid: int) -> Iterator[str]:
    """What a process has open or mapped."""
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                yield os.readlink(entry)  # noqa: PTH115
            except OSError:
                continue
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/" in line:
                yield line[line.index("/") :].removesuffix(" (deleted)")
    except OSError:
        return


def _is_data(path: str, mine: tuple[Path, ...]) -> bool:
    kept = (ROOT, *mine)  # a checkout below /tmp is no secret
    return path.startswith("/tmp/") and not any(path.startswith(f"{one}/") for one in kept)


def _unix_sockets(inodes: set[str]) -> list[str]:
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sorted({line[7] for line in lines if len(line) > 7 and line[6] in inodes})


def _ports(inodes: set[str]) -> list[str]:
    listening = "0A"
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == listening and fields[9] in inodes:
                found.add(str(int(fields[1].rpartition(":")[2], 16)))
    return sorted(found)


def command_lines(pids: list[str]) -> str:
    return "\n".join(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids)


def test_of_a_daemon_with_forked_children_and_an_archive_he_gets_nothing(world: World, place: Path) -> None:
    world.put(20)
    archive, letters = place / "archive", place / "letters"
    daemon = world.daemon(
        child=f"{ROOT / 'bin' / 'mld-zygote'} {ROOT / 'processors' / 'archive.py'} {archive}",
        process={"environment": {**ENVIRONMENT, "TMPDIR": str(place), "PYTHONPATH": str(ROOT)}},
        mld__deadLetter=letters,
        mld__poisonAttempts=3,
    )
    daemon.file.chmod(0o600)
    world.until(
        lambda: sum(len(f.read_bytes().splitlines()) for f in archive.glob("*")) == 20, PATIENCE_S, "the archive"
    )
    found = intrude(daemon, place, mine=(world.records,))
    assert any("mld-zygote-" in path for path in found["sockets"]), "the fork server runs, and has a socket"
    assert found["got"] == []
    assert daemon.stop() == 0


@pytest.mark.full
@pytest.mark.spark_slice
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_of_a_daemon_with_spark_he_gets_nothing(world: World, place: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")
    world.put(50)
    pipeline = place / "pipeline.py"
    pipeline.write_text(IN_PYTHON)
    out = place / "out"
    keys = {
        **{key: value for key, value in KEYS.items() if key != "mld.spark.conf.spark.ui.enabled"},
        "mld.spark.pipeline": f"{pipeline}:transform",
        "mld.spark.sink.out.path": out,
        "mld.spark.deadLetter": place / "dead",
        "mld.spark.conf.spark.hadoop.fs.s3a.secret.key": SECRET,
        "mld.spark.conf.spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": SECRET,
    }
    answer = world.kinesis.put_record(StreamName=world.stream, Data=b"\xff\xfe", PartitionKey="bad")
    assert answer["ShardId"]
    daemon = world.daemon(
        child=str(Path(sys.executable).with_name("mld-spark")),
        process={"environment": {**ENVIRONMENT, "TMPDIR": str(place)}},
        **{name.replace(".", "__"): value for name, value in keys.items()},
    )
    daemon.file.chmod(0o600)
    world.until(lambda: len(list(rows(out))) == 50, SESSION_S, "the records in the sink")
    world.until(lambda: list(rows(place / "dead")), SESSION_S, "the malformed record in the dead letter")

    found = intrude(daemon, place, mine=(world.records, out, pipeline))
    assert len(found["ports"]) >= 3, "driver, blocks, and between Python and the JVM"
    assert any("mld-spark-" in path for path in found["sockets"])
    workers = [pid for pid in found["pids"] if "pyspark.daemon" in command_lines([pid])]
    assert workers, "functions in Python run"
    assert not _ports({inode for pid in workers for inode in _inodes_of(int(pid))}), "nobody makes him workers"
    assert found["got"] == []
    said = command_lines(found["pids"]) + daemon.log()
    assert "SparkSubmit" in said and SECRET not in said
    assert not any(SECRET in file.read_text(errors="replace") for file in _texts(place, but=daemon.file))
    sink = {path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    assert sink <= {0o755, 0o644}, "a sink is for those whom the umask lets in"
    assert daemon.stop(timeout_s=200) == 0
    world.until(lambda: not daemon.survivors(), 60, "host and JVM gone")
    assert not list(place.glob("mld-spark-*")), "nothing is left behind"


def _texts(place: Path, *, but: Path) -> Iterator[Path]:
    return (path for path in place.rglob("*") if path.is_file() and path != but)
