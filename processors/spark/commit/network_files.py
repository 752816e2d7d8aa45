"""Refuses a sink on a network file system, which the table of mounts shows.

A commit needs an exclusive name, an atomic rename and locks (`store`). A server of NFS that repeats an answer that was
lost, a client that caches names, a share without locks: each of these can break one of them, and none could be tested
by killing processes as disks were.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from mld.processors.spark.commit.store import local_directory, scheme_of
from mld.processors.spark.sink_port import SinkRefused

MOUNTS = Path("/proc/self/mountinfo")
"""Linux; elsewhere nothing is found, and nothing refused."""
NETWORK = re.compile(
    r"nfs4?|efs|cifs|smb2|smb3|smbfs|ncpfs|9p|afs|coda|davfs|ceph|glusterfs|lustre|gpfs|beegfs|beegfs_nodev|orangefs"
    r"|pvfs2|gfs2|ocfs2|panfs|wekafs"
    r"|fuse\..*(?:s3|gcs|blob|rclone|goofys|sshfs|gluster|ceph|juicefs|alluxio|hdfs|nfs|davfs|weka|lustre|smb|curlftp).*"
)
"""Types of files that are on another machine; those of FUSE by what mounts buckets and servers."""
_MOUNT = re.compile(r"^(?:\S+ ){4}(?P<point>\S+) .*? - (?P<type>\S+)", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_of(path: str, table: str) -> tuple[str, str]:
    """Return point and type of the mount that an absolute path without links is on, by Linux's `mountinfo`: of the
    longest point, and of several there the last; empty if there is none.
    """
    found = "", ""
    for line in _MOUNT.finditer(table):
        point = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), line["point"])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(found[0]):
            found = point, line["type"]
    return found


def refuse_network(places: Mapping[str, str | None], table: Path = MOUNTS) -> None:
    """Raise SinkRefused for the first of these places, by their keys, that is on a network file system."""
    for key, path in places.items():
        if not path or scheme_of(path):  # others refuse the latter, or know what to do with it
            continue
        try:
            mounts = table.read_text("utf-8", "surrogateescape")
        except OSError:
            return
        point, type_ = mount_of(_existing(local_directory(path, key)), mounts)
        if NETWORK.fullmatch(type_):
            raise SinkRefused(
                f"{key} = {path} is on {type_}, mounted at {point}. Nobody has proven that exactly-once commits hold "
                "there through lost answers and cached names; use a disk of this machine, s3, or a table with a catalog"
            )


def _existing(path: Path) -> str:
    """Return the nearest directory that is there, without links. To look at it has an automounter mount it."""
    try:
        os.listdir(path)  # noqa: PTH208 - only that it is done counts
    except FileNotFoundError:
        return _existing(path.parent)
    except OSError:
        pass
    return os.path.realpath(path)
