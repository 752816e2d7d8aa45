"""The settings of one sink, `mld.spark.sink.<name>.*`, and of access to buckets.

Values only. `sinks.factory` makes a sink from a spec, and refuses a spec that cannot work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mld.processors.spark.writer_identity import WriterIdentity
from mld.properties.credentials import CredentialsChain

S3_SCHEMES = ("s3://", "s3a://", "s3n://")


def is_s3(path: str | None) -> bool:
    """Return whether a path names a bucket."""
    return path is not None and path.lower().startswith(S3_SCHEMES)


@dataclass(frozen=True, slots=True)
class S3Access:
    """Access to buckets: `mld.spark.s3.*`, with the daemon's credentials and region as defaults."""

    credentials: CredentialsChain
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = False
    kms_key: str | None = None
    bucket_owner: str | None = None


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """The settings of one sink, `mld.spark.sink.<name>.*`."""

    name: str
    format: str = "parquet"
    path: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: tuple[str, ...] = ()
    mode: str = "append"
    keys: tuple[str, ...] = ()
    """Columns that identify a row, for `mode = merge`."""
    delete_when: str | None = None
    """Condition under which `mode = merge` deletes a row (`mld.spark.sink.<name>.deleteWhen`)."""
    order_by: tuple[str, ...] = ()
    """Columns that show, for `mode = merge`, which change of a key is newer. A change that is older than the row in the
    table is dropped."""
    writer: WriterIdentity = field(default_factory=WriterIdentity)
    shared: bool = False
    """Whether other writers may write to this sink, too (`mld.spark.sink.<name>.writers`)."""
    path_key: str | None = None
    """The key that names the path, if it is not `mld.spark.sink.<name>.path`."""
    private: bool = False
    """Whether only this user may read the sink's files. Otherwise the umask decides."""
    one_file: bool | None = None
    """Whether a commit is one file if the sink has no partitions; None means only on S3
    (`mld.spark.sink.<name>.files`)."""
    s3: S3Access | None = field(default=None, repr=False)
