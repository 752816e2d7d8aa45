"""The contract of `Store` on a real HDFS, and what HDFS has of its own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mld.processors.spark.commit import hadoop_store
from mld.processors.spark.commit.hadoop_store import HadoopStore
from mld.processors.spark.sink_port import SinkRefused
from tests.hdfs.cluster import Cluster
from tests.unit.spark.test_store import (  # the contract: collected here with the store of this file
    test_a_directory_moves_with_all_in_it,
    test_a_name_is_taken_once,
    test_a_write_makes_no_directory,
    test_files_are_written_as_a_whole_and_listed,
    test_removing_is_idempotent,
)

__all__ = [
    "test_a_directory_moves_with_all_in_it",
    "test_a_name_is_taken_once",
    "test_a_write_makes_no_directory",
    "test_files_are_written_as_a_whole_and_listed",
    "test_removing_is_idempotent",
]
StoreAt = Callable[[str], HadoopStore]
WRITERS = 4
NUMBERS = 15


@pytest.fixture
def store(store_at: StoreAt, home: str) -> HadoopStore:
    return store_at(home)


def test_names_of_all_kinds_come_back(store: HadoopStore) -> None:
    names = ["a b", "é", "日本", "%41", "a=b", "*", "{x}", "new\nline", "'\"", "#?"]
    for name in names:
        store.make(f"d/{name}")
        store.write(f"d/{name}/f[{name}", name.encode())
    assert sorted(store.names("d")) == sorted(names)
    assert store.files("d") == sorted((f"{name}/f[{name}", len(name.encode())) for name in names)
    assert store.read("d/%41/f[%41") == b"%41"
    assert store.names("d/*") == ["f[*"]


def test_a_thousand_names_and_more_are_listed(store: HadoopStore) -> None:
    """A name node gives a thousand at a time."""
    for number in range(1_010):
        store.make(f"many/{number:04d}")
    assert sorted(store.names("many")) == [f"{number:04d}" for number in range(1_010)]


def test_one_of_several_writers_gets_each_name(store_at: StoreAt, home: str) -> None:
    """Whoever loses keeps its draft; nobody ever replaces a name."""
    won: dict[int, list[int]] = {number: [] for number in range(NUMBERS)}
    start = threading.Barrier(WRITERS)
    store_at(home).make("names")

    def write(me: int) -> None:
        store = store_at(home)
        for number in range(NUMBERS):
            store.write(f"draft{me}", str(me).encode())
            start.wait(60)
            if store.take(f"draft{me}", f"names/{number}"):
                won[number].append(me)
            else:
                assert store.read(f"draft{me}") == str(me).encode()

    threads = [threading.Thread(target=write, args=(me,)) for me in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = {number: store_at(home).read(f"names/{number}") for number in range(NUMBERS)}
    assert found == {number: b"".join(str(me).encode() for me in mine) for number, mine in won.items()}
    assert all(len(mine) == 1 for mine in won.values())


def test_nothing_goes_into_a_directory_that_was_taken_away(store: HadoopStore) -> None:
    store.make("staging/token")
    store.write("staging/token/entry", b"")
    store.move("staging/token", "trash")
    for operation in (
        lambda: store.write("staging/token/entry", b""),
        lambda: store.hold("staging/token/owner"),
        lambda: store.mark("staging/token/mark"),
        lambda: store.take("staging/token/entry", "number"),
        lambda: store.read("staging/token/entry"),
        lambda: store.files("staging/token"),
        lambda: store.sync("staging/token"),
    ):
        with pytest.raises(FileNotFoundError):
            operation()
    assert store.names("staging") == []


def test_a_directory_never_moves_into_another(store: HadoopStore) -> None:
    """The older rename of Hadoop would do that."""
    store.make("s/d")
    store.make("t")
    with pytest.raises(FileExistsError):
        store.move("s/d", "t")
    assert (store.names("s"), store.names("t")) == (["d"], [])


def test_a_mark_is_made_once_though_others_are_just_making_it(store: HadoopStore, store_at: StoreAt, home: str) -> None:
    store.make("d")
    java = store._java
    stream = java.context.create(java.path(store.uri("d/mark")), java.new, java.orphan)
    store_at(home).mark("d/mark")
    stream.close()
    assert store.files("d") == [("mark", 0)]


def test_a_sync_is_a_change_that_is_on_the_disk_of_the_name_node(store: HadoopStore, cluster: Cluster) -> None:
    """The name node keeps its changes in one order, so all earlier ones are there as well."""
    store.make("d")
    for sync in (store.sync, store.sync_below):
        before = cluster.changes()
        sync("d")
        assert cluster.changes() > before


def test_ages_are_those_of_the_name_node(store: HadoopStore) -> None:
    store.make("d")
    now = hadoop_store.time.time()
    assert 3500 < store.age_s("d", now + 3600) < 3700


HOLDER = """
import sys, time
from mld.processors.spark.commit import hadoop_store
print(hadoop_store._said(hadoop_store.os.getpid()), flush=True)
time.sleep(60)
"""


def test_an_owner_is_held_until_it_lets_go_or_ends(store: HadoopStore) -> None:
    store.make("d")
    release = store.hold("d/owner")
    assert store.held("d/owner") is True
    release()
    assert store.held("d/owner") is False
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        store.write("d/owner", holder.stdout.readline().strip().encode())
        assert store.held("d/owner") is True
        holder.kill()
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        assert store.held("d/owner") is False, "dead, and not reaped yet"
    assert store.held("d/owner") is False
    store.write("d/owner", b"elsewhere 1 1")
    assert store.held("d/owner") is None
    with pytest.raises(FileNotFoundError):
        store.held("d/nobody")


def test_errors_are_those_of_the_system(store: HadoopStore, store_at: StoreAt, cluster: Cluster) -> None:
    def number(operation: Callable[[], Any]) -> int | None:
        with pytest.raises(OSError) as caught:
            operation()
        assert caught.value.filename.startswith("hdfs://")
        assert caught.value.strerror
        assert "\n" not in caught.value.strerror
        return caught.value.errno

    store.write("file", b"")
    assert number(lambda: store.make("file")) == errno.ENOTDIR
    assert number(lambda: store.make("file/below")) == errno.ENOTDIR
    assert number(lambda: store.write("n" * 300, b"")) == errno.ENAMETOOLONG
    cluster.make("/theirs", mode="700")
    assert number(lambda: store_at(f"{cluster.uri}/theirs").names("")) == errno.EACCES
    assert number(lambda: store_at(f"{cluster.uri}/mine").make("")) == errno.EACCES
    assert number(lambda: store_at("hdfs://localhost:1/x").names("")) == errno.ECONNREFUSED
    assert number(lambda: store_at("hdfs://nowhere.invalid/x").names("")) == errno.EHOSTUNREACH
    cluster.safe_mode(enter=True)
    try:
        assert number(lambda: store.write("safe", b"")) == errno.EAGAIN
    finally:
        cluster.safe_mode(enter=False)


def test_quotas_are_no_room(store: HadoopStore, home: str, cluster: Cluster) -> None:
    path = home.removeprefix(cluster.uri)
    store.make("d")
    for quota in ({"names": 2}, {"size": 1000}):
        cluster.quota(path, **quota)
        with pytest.raises(OSError, match=r"quota .*of .* is exceeded") as caught:
            store.write("d/f", b"x" * 2000)
        assert caught.value.errno == errno.EDQUOT
        cluster.no_quota(path)
        store.write("d/f", b"x" * 2000)
        store.remove("d/f")


def test_no_data_node_is_no_room(store: HadoopStore, cluster: Cluster) -> None:
    stopped = cluster.stop_data_node()
    try:
        with pytest.raises(OSError, match="could only be written to 0 of the 1 minReplication nodes") as caught:
            store.write("f", b"x")
        assert caught.value.errno == errno.ENOSPC
        assert store.names("") == [".f.draft"], "a file appears as a whole or not at all"
    finally:
        cluster.start_data_node(stopped)
    store.write("f", b"x")
    assert store.read("f") == b"x"


def test_without_a_name_node_it_is_that_of_the_configuration(
    spark: Any, store_at: StoreAt, home: str, cluster: Cluster
) -> None:
    with pytest.raises(SinkRefused, match=r"names no name node, and fs.defaultFS is file:///; write hdfs://host:port"):
        store_at("hdfs:///x")
    spark.conf.set("fs.defaultFS", cluster.uri)
    try:
        for path in (home.removeprefix(cluster.uri), f"//{home.removeprefix(cluster.uri)}"):
            store = store_at(f"hdfs:{path}")
            assert store.uri("a/b") == f"{home}/a/b"
            store.make("a")
            assert store.exists("a")
    finally:
        spark.conf.unset("fs.defaultFS")
