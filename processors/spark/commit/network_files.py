"""Network file systems under a commit: found in the table of mounts, and refused unless the user answers for them.

A commit stands on an exclusive name, an atomic rename and locks (`commit.store`). A server of NFS that sends its answer
again after a lost one, a client that caches names, a share without locks: each of these can break one of them, and none
could be tried with kills as disks were. So such a place is refused by default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mld.processors.spark.commit.store import local_directory
from mld.processors.spark.sink_port import SinkRefused, SinkSpec

MOUNTS = Path("/proc/self/mountinfo")
"""Linux; elsewhere nothing is found, and nothing refused."""
KEY = "mld.spark.networkFileSystem"
NETWORK = frozenset(("nfs", "nfs4", "efs", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "9p", "afs", "coda", "davfs")) | {
    *("ceph", "glusterfs", "lustre", "gpfs", "beegfs", "beegfs_nodev", "orangefs", "pvfs2"),
    *("gfs2", "ocfs2", "panfs", "wekafs"),
}
FUSE_NETWORK = re.compile(
    r"fuse\.(?:.*(?:s3|gcs|blob|rclone|goofys|sshfs|gluster|ceph|juicefs|alluxio|hdfs|nfs|davfs|weka|lustre|smb|curlftp).*)"
)
"""What mounts buckets and servers as files."""
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    type: str


def mounts(table: str) -> Iterator[Mount]:
    """Yield the lines of Linux's `mountinfo`, in their order; what is no such line is left out."""
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if dash and len(fields) > 4 and after:
            yield Mount(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]), after.split(" ")[0])


def mount_of(path: str, table: Iterable[Mount]) -> Mount | None:
    """Return the mount that an absolute path without links is on: the longest, and of several at one point the last."""
    found = None
    for mount in table:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def is_network(type: str) -> bool:
    """Return whether files of this type are on another machine."""
    return type in NETWORK or FUSE_NETWORK.fullmatch(type) is not None


def places(
    sinks: Iterable[SinkSpec], *, dead_letter: str | None, ledger: str | None, checkpoint: str | None
) -> Iterator[tuple[str, str]]:
    """Return key and path of everything in the settings that commits stand on."""
    for sink in sinks:
        if sink.path:
            yield f"mld.spark.sink.{sink.name}.path", sink.path
    named = {"deadLetter": dead_letter, "ledger": ledger, "checkpoint": checkpoint}
    yield from ((f"mld.spark.{name}", path) for name, path in named.items() if path)


def check(every: Iterable[tuple[str, str]], table: Path = MOUNTS) -> None:
    """Raise SinkRefused for the first place that is on a network file system."""
    for key, path in every:
        if _is_elsewhere(path):
            continue
        there = _existing(local_directory(path, key))
        try:
            found = mount_of(str(there), mounts(table.read_text("utf-8", "surrogateescape")))
        except OSError:
            return
        if found is not None and is_network(found.type):
            raise SinkRefused(
                f"{key} = {path} is on {found.type}, mounted at {found.point}. Nobody has proven that exactly-once "
                "commits hold there through lost answers and cached names; use a disk of this machine, s3, or a "
                f"table with a catalog, or answer for it yourself with {KEY} = trust"
            )


def _is_elsewhere(path: str) -> bool:
    """Return a URI of another file system, or a name in a catalog; others refuse it or know what to do with it."""
    scheme, colon, rest = path.partition(":")
    return bool(colon) and "/" not in scheme and scheme != "file" and rest.startswith("/")


def _existing(path: Path) -> Path:
    """Return the nearest directory that is there, without links. To look at it has an automounter mount it."""
    for one in (path, *path.parents):
        try:
            os.listdir(one)  # noqa: PTH208 - only that it is done counts
        except FileNotFoundError:
            continue
        except OSError:
            pass
        return Path(os.path.realpath(one))
    return path
