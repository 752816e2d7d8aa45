"""Refuses a sink on a network file system, by the table of mounts.

A commit needs exclusive names, atomic renames and locks (`store`). An NFS server whose answers are lost and repeated, a
client that caches names, or a share without locks may not provide one of them. Tests that kill processes can prove that
a commit works on a disk, but not that it works on a network file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from mld.processors.spark.commit.store import local_directory, scheme_of
from mld.processors.spark.sink_port import SinkRefused

MOUNTS = Path("/proc/self/mountinfo")
"""Linux only. On other systems nothing is found and nothing is refused."""
NETWORK = re.compile(
    r"nfs4?|efs|cifs|smb2|smb3|smbfs|ncpfs|9p|afs|coda|davfs|ceph|glusterfs|lustre|gpfs|beegfs|beegfs_nodev|orangefs"
    r"|pvfs2|gfs2|ocfs2|panfs|wekafs"
    r"|fuse\..*(?:s3|gcs|blob|rclone|goofys|sshfs|gluster|ceph|juicefs|alluxio|hdfs|nfs|davfs|weka|lustre|smb|curlftp).*"
)
"""Types of file systems that are on another machine. For FUSE these are the names of programs that mount buckets and
servers.
"""
_MOUNT = re.compile(r"^(?:\S+ ){4}(?P<point>\S+) .*? - (?P<type>\S+)", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_of(path: str, table: str) -> tuple[str, str]:
    """Return the mount point and the type of the mount that holds `path`; two empty texts if there is none.

    `path` is absolute and without links, `table` is the text of Linux's `mountinfo`. The longest mount point wins; of
    several mounts on one point, the last one."""
    found = "", ""
    for line in _MOUNT.finditer(table):
        point = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), line["point"])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(found[0]):
            found = point, line["type"]
    return found


def refuse_network(places: Mapping[str, str | None], table: Path = MOUNTS) -> None:
    """Raise SinkRefused for the first of these places that is on a network file system. `places` has the paths by the
    keys of the settings."""
    for key, path in places.items():
        if not path or scheme_of(path):  # URIs of other file systems are judged elsewhere
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
    """Return the path itself if it exists, else its nearest parent that does; with links resolved. The directory is
    listed, because that makes an automounter mount it."""
    try:
        os.listdir(path)  # noqa: PTH208 - for the automounter
    except FileNotFoundError:
        return _existing(path.parent)
    except OSError:  # it exists, but cannot be listed: a file, or a directory of somebody else
        pass
    return os.path.realpath(path)
