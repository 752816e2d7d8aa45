"""The children of one daemon find each other, and nobody else can be in their way."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mld.protocol import fork_requests, meeting
from mld.protocol.meeting import MeetingError, find, is_ours_alone, meet, meetings, runtime_places

GONE = (4194305, 1)
"""No process has this id: the name of its directory cannot be locked."""


@pytest.fixture
def me():
    identity = fork_requests.process_identity(os.getpid())
    assert identity is not None
    return identity


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="z", dir="/tmp") as directory:
        yield directory


def test_all_children_of_a_daemon_meet_in_one_directory_however_many_come_at_once(me, place):
    asked = f"from mld.protocol.meeting import meet; print(meet('mld-x', {me}, [{place!r}]))"
    children = [subprocess.Popen([sys.executable, "-c", asked], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    (found,) = {child.communicate()[0].strip() for child in children}
    assert Path(found).stat().st_mode & 0o777 == 0o700
    assert [find("mld-x", me, [place]), meet("mld-x", me, [place])] == [found, found]
    assert list(meetings("mld-x", [place])) == [(me, found)]


def test_its_name_cannot_be_foreseen(me, place):
    prefix = f"mld-x-{me[0]}-{me[1]}-"
    names = set()
    for _ in range(2):
        found = Path(meet("mld-x", me, [place]))
        names.add(found.name)
        found.rmdir()
    assert len(names) == 2 and all(name.startswith(prefix) and len(name) == len(prefix) + 12 for name in names)


@pytest.mark.parametrize("decoy", ["open", "file", "link"])
def test_what_others_could_have_put_there_is_passed_over(me, place, decoy):
    first = Path(place) / f"mld-x-{me[0]}-{me[1]}-0"
    if decoy == "open":
        first.mkdir()
        first.chmod(0o755)
    elif decoy == "file":
        first.touch(0o600)
    else:
        target = Path(place) / "target"
        target.mkdir(0o700)
        first.symlink_to(target)
    assert not is_ours_alone(str(first))
    found = meet("mld-x", me, [place])
    assert found != str(first) and is_ours_alone(found)


@pytest.mark.skipif(os.getuid() != 0, reason="makes a directory of another user")
def test_a_directory_of_another_user_is_passed_over(me, place):
    first = Path(place) / f"mld-x-{me[0]}-{me[1]}-0"
    first.mkdir(0o700)
    os.chown(first, 65534, 65534)
    assert is_ours_alone(meet("mld-x", me, [place])) and not is_ours_alone(str(first))
    assert [path for _, path in meetings("mld-x", [place])] == [find("mld-x", me, [place])]


def test_where_nothing_can_be_locked_the_name_is_fixed_and_that_of_others_is_refused(place):
    first = meet("mld-x", GONE, [place])
    assert first == f"{place}/mld-x-4194305-1-0" == meet("mld-x", GONE, [place])
    Path(first).chmod(0o755)
    with pytest.raises(MeetingError, match=r"mld-x-4194305-1-0 is not a directory of this user alone; remove it"):
        meet("mld-x", GONE, [place])


def test_a_place_with_a_path_too_long_for_a_socket_is_left_out(me, place):
    long = Path(place) / ("x" * 60)
    long.mkdir()
    assert meet("mld-x", me, [str(long)]).startswith(str(long)), "data needs no short path"
    assert meet("mld-y", me, [str(long), place], room_bytes=20).startswith(f"{place}/mld-y-")
    with pytest.raises(MeetingError, match=r"107 bytes.*set TMPDIR"):
        meet("mld-z", me, [str(long)], room_bytes=20)


def test_places_are_those_of_the_service_of_the_session_and_for_temporary_files(place):
    for name in ("service", "session", "others"):
        (Path(place) / name).mkdir(0o700)
    environment = {
        b"RUNTIME_DIRECTORY": f"{place}/service:{place}/second".encode(),
        b"XDG_RUNTIME_DIR": f"{place}/session/".encode(),
        b"TMPDIR": place.encode(),
    }
    assert runtime_places(environment) == [f"{place}/service", f"{place}/session", place, "/tmp"]
    assert meeting.temporary_places(environment) == [place, "/tmp"]
    assert runtime_places({}) == ["/tmp"]
    (Path(place) / "session").chmod(0o777)
    assert runtime_places(environment) == [f"{place}/service", place, "/tmp"], "left from another user's session"
