"""What names a sink in the settings: `mld.spark.sink.<name>.*`, and how buckets are reached.

Values only; `sinks.factory` makes a sink of a spec, and refuses what cannot work.
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
    """How buckets are reached: `mld.spark.s3.*`, with the daemon's credentials and region where it has none."""

    credentials: CredentialsChain
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = False
    kms_key: str | None = None
    bucket_owner: str | None = None


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """One sink of the settings, `mld.spark.sink.<name>.*`."""

    name: str
    format: str = "parquet"
    path: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: tuple[str, ...] = ()
    mode: str = "append"
    keys: tuple[str, ...] = ()
    """Columns that name a row, for mode `merge`."""
    delete_when: str | None = None
    """Condition under which mode `merge` deletes a row (`mld.spark.sink.<name>.deleteWhen`)."""
    order_by: tuple[str, ...] = ()
    """Columns by which mode `merge` leaves out what is older than the row there (`mld.spark.sink.<name>.orderBy`)."""
    writer: WriterIdentity = field(default_factory=WriterIdentity)
    shared: bool = False
    """Whether writers of other identities are meant to write here as well (`mld.spark.sink.<name>.writers`)."""
    private: bool = False
    """Whether its files are for this user alone; else the umask says for whom."""
    one_file: bool | None = None
    """Without partitions: whether a commit is one file; None: on S3 only (`mld.spark.sink.<name>.files`)."""
    s3: S3Access | None = field(default=None, repr=False)
