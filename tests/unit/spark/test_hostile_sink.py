"""What somebody who may write into a sink can do with its ledger: nothing outside it is moved, removed or read."""

from __future__ import annotations

import os

import pytest

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import OWNER_FILE, STAGING, Journal
from mld.processors.spark.commit.ledger import FileMove, LedgerEntry
from mld.processors.spark.commit.ledger_files import DONE, ENTRIES_SWEPT_FROM, FLOOR, LEDGER, path_of
from mld.processors.spark.commit.store import FILE_BYTES_MAX, PosixStore
from mld.processors.spark.sink_port import SinkError, SinkRefused

SECRET = b"aws_secret_access_key = x"
TARGET = "c000000000001-credentials"


@pytest.fixture
def home(tmp_path):
    """A directory beside the sink, which has a file that nobody else may see."""
    secret = tmp_path / "home" / "data" / "credentials"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(SECRET)
    (tmp_path / "lake" / LEDGER).mkdir(parents=True)
    (tmp_path / "lake" / STAGING).mkdir()
    yield tmp_path / "home"
    assert secret.read_bytes() == SECRET, "it is there"
    assert [path for path in (tmp_path / "lake").rglob("*") if path.is_file() and path.read_bytes() == SECRET] == []


def opened(tmp_path):
    return Journal(PosixStore(tmp_path / "lake"), "out").open()


def commit(tmp_path, token, source="data/credentials"):
    entry = LedgerEntry(1, token, moves=(FileMove(source, TARGET),))
    (tmp_path / "lake" / path_of(1)).write_bytes(ledger.encode(entry))


@pytest.mark.parametrize("token", ["../../../home", "", "."])
def test_a_token_that_is_a_path_is_no_staging_area(tmp_path, home, token):
    commit(tmp_path, token)
    with pytest.raises(SinkRefused, match="is damaged: no name of a staging area"):
        opened(tmp_path)


@pytest.mark.parametrize("linked", ["_mld/staging/token/data", "_mld/staging/token", "_mld/staging"])
def test_a_staging_area_that_is_a_link_is_not_followed(tmp_path, home, linked):
    commit(tmp_path, "token")
    at = tmp_path / "lake" / linked
    to = {"data": home / "data", "token": home, "staging": home.parent / "home2"}[at.name]
    if at.name == "staging":
        at.rmdir()
        to.mkdir()
        (to / "token").symlink_to(home)
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(to)
    with pytest.raises(SinkError):
        opened(tmp_path)


def test_a_link_to_another_directory_is_removed_and_what_it_leads_to_stays(tmp_path, home):
    store = PosixStore(tmp_path / "lake")
    (tmp_path / "lake" / STAGING / "token").symlink_to(home)
    store.remove(f"{STAGING}/token")
    assert store.names(STAGING) == []
    (tmp_path / "lake" / STAGING / "token").symlink_to(home)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        store.remove(f"{STAGING}/token/data")


def test_an_entry_that_is_no_file_or_has_no_end_is_refused_at_once(tmp_path, home):
    path = tmp_path / "lake" / path_of(1)
    os.mkfifo(path)
    with pytest.raises(SinkRefused, match="is no file"):
        opened(tmp_path)
    path.unlink()
    path.touch()
    os.truncate(path, FILE_BYTES_MAX + 1)
    with pytest.raises(SinkRefused, match="has more than"):
        opened(tmp_path)
    path.unlink()
    path.symlink_to(home / "data" / "credentials")
    with pytest.raises(SinkError):
        opened(tmp_path)
    path.unlink()


def test_an_entry_under_another_number_is_refused(tmp_path, home):
    commit(tmp_path, "token")
    lake = tmp_path / "lake"
    (lake / path_of(1)).rename(lake / path_of(2))
    with pytest.raises(SinkRefused, match="is damaged: it is that of 1"):
        opened(tmp_path)


def put(path, kind):
    """Something else in the place of a file: a pipe, a device by a link, a directory, a file without end."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case "huge":
            path.touch()
            os.truncate(path, FILE_BYTES_MAX + 1)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "huge", "nothing"])
def test_a_staging_area_of_an_old_name_is_removed_whatever_stands_in_the_place_of_its_owner(tmp_path, home, kind):
    commit(tmp_path, "token")
    (tmp_path / "lake" / path_of(1, DONE)).touch()
    area = tmp_path / "lake" / STAGING / "0000000001-x"
    area.mkdir()
    put(area / OWNER_FILE, kind)
    assert PosixStore(tmp_path / "lake").held(f"{STAGING}/{area.name}/{OWNER_FILE}") is None
    assert opened(tmp_path).number == 2, "after the entry that makes late writers stop"
    assert not area.exists()


def test_a_mark_is_made_through_no_link_and_waits_for_no_reader(tmp_path, home):
    store = PosixStore(tmp_path / "lake")
    (tmp_path / "lake" / path_of(7, DONE)).symlink_to(home / "made")
    with pytest.raises(OSError, match="Too many levels"):
        store.mark(path_of(7, DONE))
    assert not (home / "made").exists()
    os.mkfifo(tmp_path / "lake" / path_of(8, DONE))
    with pytest.raises(OSError, match="No such device"):
        store.mark(path_of(8, DONE))


def test_an_area_that_cannot_be_removed_keeps_no_other_one_and_no_old_entry(tmp_path, home, monkeypatch):
    """As one of another user, in a directory in which both may write."""
    lake = tmp_path / "lake"
    for number in range(1, ENTRIES_SWEPT_FROM + 1):
        (lake / path_of(number)).write_bytes(ledger.encode(LedgerEntry(number, "token")))
        (lake / path_of(number, DONE)).touch()
    areas = [lake / STAGING / f"000000000{number}-x" for number in range(3)]
    for area in areas:
        area.mkdir()
    remove = PosixStore.remove

    def refused(store, path):
        if path.endswith(areas[1].name):
            raise PermissionError(13, "Permission denied")
        remove(store, path)

    monkeypatch.setattr(PosixStore, "remove", refused)
    assert opened(tmp_path).number == ENTRIES_SWEPT_FROM + 1
    assert [area.exists() for area in areas] == [False, True, False]
    assert not (lake / path_of(1)).exists()
    assert [path.name for path in (lake / LEDGER).glob(f"*.{FLOOR}")], "old entries are gone"
