"""Network file systems are found in the table of mounts, and refused."""

from __future__ import annotations

import pytest

from mld.processors.spark.commit.network_files import NETWORK, mount_of, refuse_network
from mld.processors.spark.sink_port import SinkRefused

TABLE = r"""
22 27 0:21 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /mnt rw - autofs systemd-1 rw
31 30 0:31 / /mnt rw,relatime shared:2 master:3 - nfs4 server:/export rw,vers=4.1
32 22 0:32 / /mnt/local\040disk rw - xfs /dev/sdb rw
33 22 0:33 /a /lake rw - fuse.mount-s3 mountpoint-s3 rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/", ("/", "ext4")),
        ("/mntx/a", ("/", "ext4")),
        ("/mnt", ("/mnt", "nfs4")),
        ("/mnt/a/b", ("/mnt", "nfs4")),
        ("/mnt/local disk/a", ("/mnt/local disk", "xfs")),
        ("/lake/x", ("/lake", "fuse.mount-s3")),
    ],
)
def test_the_mount_of_a_path(path, wanted):
    assert mount_of(path, TABLE) == wanted


@pytest.mark.parametrize(
    ("type", "wanted"),
    [
        *((name, True) for name in ("nfs", "nfs4", "cifs", "9p", "ceph", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse")),
        *((name, False) for name in ("ext4", "xfs", "tmpfs", "overlay", "btrfs", "fuseblk", "fuse.portal", "virtiofs")),
    ],
)
def test_types_of_the_network(type, wanted):
    assert bool(NETWORK.fullmatch(type)) is wanted


def table(tmp_path, type):
    file = tmp_path / "mountinfo"
    file.write_text(f"1 0 0:1 / / rw - ext4 d rw\n2 1 0:2 / {tmp_path.resolve()} rw - {type} d rw\n")
    return file


def test_a_network_file_system_is_refused_with_what_to_use(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "new" / "deeper", f"file://{tmp_path}/x", tmp_path / "link" / "x"):
        with pytest.raises(SinkRefused, match=r"mld.k = .* is on nfs4, mounted at .*; use a disk of this machine"):
            refuse_network({"mld.none": None, "mld.k": str(path)}, table(tmp_path, "nfs4"))


def test_disks_and_what_is_no_local_path_pass(tmp_path):
    refuse_network({"mld.k": str(tmp_path / "x")}, table(tmp_path, "ext4"))
    elsewhere = {"mld.k": "gs://bucket/x", "mld.l": "s3a://bucket/x"}
    refuse_network(elsewhere, table(tmp_path, "nfs4"))
    refuse_network({"mld.k": str(tmp_path)}, tmp_path / "no table")


def test_this_machine_is_asked(tmp_path):
    refuse_network({"mld.k": str(tmp_path)})
