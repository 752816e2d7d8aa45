"""Where a daemon writes, what a trial there shows, and what is said when that changes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.core.disks import DiskPlace, DiskRoom, places_of, room_of
from mld.metrics.disks import DiskMetrics
from mld.metrics.events import EventBuffer, EventKind
from mld.operating.faults import Severity
from mld.operating.findings import Health, disk_finding
from mld.operating.fleet_sight import DiskTrouble, FleetSight, Own
from mld.operating.verdicts import faults_of
from mld.properties.loader import load
from mld.serving.disks import ANSWER_TIMEOUT_S, LOOK_PERIOD_S, DiskWatcher
from tests.twins.streams import VirtualClock
from tests.unit.properties.conftest import MINIMUM
from tests.virtual_time import virtual

HERE = DiskPlace("deadLetter", Path("/letters"))
ROOM, LOW = DiskRoom(10**9, 0.5), DiskRoom(10**6, 0.01)
FULL = DiskRoom(0, 0.0, "/letters cannot be written to: No space left on device", "free some room there")


def places(tmp_path: Path, text: str, command: str = "child") -> dict[str, str]:
    file = tmp_path / "app.properties"
    file.write_text(MINIMUM.replace("=child", f"={command}") + text)
    return {one.name: str(one.path) for one in places_of(load(str(file), (), {}))}


def test_the_places_are_those_that_the_file_names(tmp_path: Path) -> None:
    assert places(tmp_path, "mld.deadLetter=/letters\n") == {"deadLetter": "/letters"}
    assert places(tmp_path, "mld.deadLetter=s3://bucket\n") == {}
    assert places(tmp_path, "", "python3 -m mld.processors.archive /data") == {"archive": "/data"}
    spark = "mld.spark.pipeline=p.py:transform\nmld.spark.sink.a.path=/lake\n"
    of_spark = f"{spark}mld.spark.spool=/spool\nmld.spark.deadLetter=/dead\n"
    assert places(tmp_path, of_spark, "mld-spark") == {"spool": "/spool", "sparkDeadLetter": "/dead"}
    assert places(tmp_path, f"{spark}mld.spark.spool=s3://bucket/x\n", "mld-spark") == {}
    assert list(places(tmp_path, spark, "mld-spark")) == ["spool"], "the directory for temporary files"


def test_a_place_that_does_not_exist_yet_is_the_one_above_it_and_nothing_is_left(tmp_path: Path) -> None:
    room = room_of(DiskPlace("deadLetter", tmp_path / "a" / "b"))
    assert room.why is None and room.free_bytes > 0 and 0 < room.free_share <= 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("")
    room = room_of(DiskPlace("deadLetter", tmp_path / "letters"))
    assert room.why is not None and "Not a directory" in room.why


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few pages."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    is_possible = os.geteuid() == 0 and shutil.which("mount") is not None
    if not is_possible or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can make a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_low_before_and_fails_when_it_is_full(small_disk: Path) -> None:
    place = DiskPlace("deadLetter", small_disk / "letters")
    assert not room_of(place).is_low and disk_finding(place, room_of(place)).health is Health.OK
    page = os.sysconf("SC_PAGESIZE")
    with (small_disk / "other").open("wb", buffering=0) as other:
        other.write(bytes(64 * 1024 - page))
        assert room_of(DiskPlace("log", small_disk, other.fileno())).free_bytes == page
        other.write(bytes(page))
        assert room_of(DiskPlace("log", small_disk, other.fileno())).is_low
    room = room_of(place)
    assert room.free_bytes == 0 and room.is_low
    finding = disk_finding(place, room)
    assert finding.health is Health.FAIL and "No space left on device" in finding.words
    assert finding.remedy.startswith("free some room there")


UNDER_A_QUOTA = """
import resource, signal, sys
from pathlib import Path
from mld.core.disks import DiskPlace, room_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
print(room_of(DiskPlace("archive", Path(sys.argv[1]))).why)
"""


def test_a_limit_that_no_figure_shows_is_found_by_the_trial(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNDER_A_QUOTA, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path} cannot be written to: File too large\n"


def test_little_room_is_a_warning(tmp_path: Path) -> None:
    finding = disk_finding(HERE, LOW)
    assert finding.health is Health.WARN and "977 KiB free, 1.0%" in finding.words and finding.remedy


class Disk:
    """A place whose answers the test decides."""

    def __init__(self, *rooms: DiskRoom | None) -> None:
        self.rooms = list(rooms)
        self.looks = 0

    async def look_at(self, _: DiskPlace) -> DiskRoom:
        self.looks += 1
        room = self.rooms.pop(0)
        if room is None:
            await asyncio.Event().wait()
        assert room is not None
        return room


def watcher_of(disk: Disk) -> DiskWatcher:
    return DiskWatcher([HERE], disk.look_at, DiskMetrics(), EventBuffer(), VirtualClock())


@virtual
async def test_a_change_is_told_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    disk = Disk(ROOM, FULL, FULL, ROOM)
    watcher = watcher_of(disk)
    running = asyncio.create_task(watcher.run())
    await asyncio.sleep(3.5 * LOOK_PERIOD_S)
    running.cancel()
    assert disk.looks == 4
    assert [one.kind for one in watcher.events.take()] == [EventKind.DISK] * 2
    assert watcher.metrics.faults() == {}
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("deadLetter")]
    assert told == [f"deadLetter: {FULL.why}", "deadLetter: there is room again"]


def test_a_place_without_room_is_a_fault_of_its_worker_and_little_room_a_lesser_one() -> None:
    metrics = DiskMetrics()
    metrics.rooms = {HERE: FULL, DiskPlace("log", Path("/log")): LOW, DiskPlace("spool", Path("/spool")): ROOM}
    own = Own(worker="w", disks=[DiskTrouble(*one) for one in metrics.troubles()])
    full, low = faults_of(FleetSight(own=own))
    assert (full.kind, full.severity, full.subject) == ("disk-unwritable", Severity.PAGE, "deadLetter")
    assert full.sentence == f"deadLetter: {FULL.why} -> {FULL.remedy}"
    assert (low.kind, low.severity, low.subject) == ("disk-low", Severity.TICKET, "log")
    assert "977 KiB free" in low.words and low.remedy


@virtual
async def test_a_disk_that_hangs_is_said_to_and_has_one_look_under_way() -> None:
    disk = Disk(None)
    watcher = watcher_of(disk)
    running = asyncio.create_task(watcher.run())
    await asyncio.sleep(ANSWER_TIMEOUT_S + 5 * LOOK_PERIOD_S)
    assert disk.looks == 1
    assert watcher.metrics.faults() == {"deadLetter": "deadLetter: /letters does not answer"}
    running.cancel()
