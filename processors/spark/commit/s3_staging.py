"""What the ledger of a sink on S3 needs of a bucket, and the staging areas that executors of a cluster write to.

Executors write with a client of their own (S3A), each attempt of a task below `_temporary`; only the attempt that the
driver has let commit moves its files to their places, and a job whose attempt failed after that is a failed job. So
once a job has succeeded, what is listed is all there is, and none of it changes any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from mld.aws.client_factory import bucket_client
from mld.aws.objects import ListedObject, ObjectError, ObjectRefused, StoredObject
from mld.core.errors import StartupError
from mld.processors.spark.commit.s3_head import StagedFile
from mld.processors.spark.commit.store import as_sink_error
from mld.processors.spark.sink_port import S3Access, SinkError, SinkRefused

AT_ONCE = 8
"""Requests of one client at the same time."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


class Objects(Protocol):
    """What is needed of a bucket: `mld.aws.objects.S3Bucket`, or its twin in memory."""

    def now_s(self) -> float: ...
    def put(self, key: str, data: bytes, *, if_etag: str | None = None, if_absent: bool = False) -> str: ...
    def upload(self, key: str, file: Path) -> tuple[str, int]: ...
    def get(self, key: str) -> StoredObject | None: ...
    def exists(self, key: str) -> bool: ...
    def copy(self, source: str, etag: str, size: int, target: str) -> None: ...
    def delete(self, keys: Iterable[str]) -> None: ...
    def list(self, prefix: str, *, most: int | None = None, after: str = "") -> Iterable[ListedObject]: ...


@dataclass(frozen=True, slots=True)
class S3Place:
    """A directory of a bucket: `prefix` ends with a slash, or is empty."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def place_of(path: str, key: str) -> S3Place:
    """Return what a path names. Raises SinkRefused with the key of the settings."""
    bucket, _, rest = path.partition("://")[2].partition("/")
    parts = [part for part in rest.split("/") if part]
    if not _BUCKET.fullmatch(bucket):
        raise SinkRefused(f"{key} = {path}: {bucket or 'nothing'} is no name of a bucket; write s3://bucket/directory")
    if any(part in (".", "..") or part.startswith(("_", ".")) for part in parts):
        raise SinkRefused(f"{key} = {path}: readers skip directories that begin with _ or a dot; use another name")
    return S3Place(bucket, "".join(f"{part}/" for part in parts))


class LateClient:
    """Makes the client when it is first used: a sink that is only made touches nothing."""

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._client: object | None = None

    def __getattr__(self, name: str) -> object:
        if self._client is None:
            access = self._access
            try:
                self._client = bucket_client(
                    access.credentials,
                    region=access.region,
                    endpoint_url=access.endpoint,
                    path_style=access.path_style,
                    timeout_s=access.timeout_s,
                    connections_max=AT_ONCE,
                )
            except StartupError as error:
                raise SinkError(str(error)) from error
        return getattr(self._client, name)


class S3Staging:
    """A `StagingStore` below `prefix`, a key that ends with a slash or is empty. Raises SinkError and its kinds."""

    def __init__(self, objects: Objects, bucket: str, prefix: str, name: str) -> None:
        self._objects, self._bucket, self._prefix, self._name = objects, bucket, prefix, name

    def uri(self, path: str) -> str:
        return f"s3a://{self._bucket}/{self._prefix}{path}"

    def make(self, path: str) -> None:
        """Do nothing: S3 has no directories."""

    def exists(self, path: str) -> bool:
        return bool(self.files(path))

    def remove(self, path: str) -> None:
        with object_failures(f"sink {self._name}: removing what is staged"):
            below = [one.key for one in self._below(path)]
            self._objects.delete([f"{self._prefix}{path}", *below])

    def files(self, path: str) -> list[tuple[str, int]]:
        with object_failures(f"sink {self._name}: looking at what is staged"):
            start = len(f"{self._prefix}{path}/")
            return [(one.key[start:], one.size) for one in self._below(path) if not _marks_directory(one)]

    def sync(self, path: str) -> None:
        """Do nothing: an object is durable once it is there."""

    def sync_below(self, path: str) -> None:
        """Do nothing, as `sync`."""

    def staged(self, path: str, data: str) -> dict[str, StagedFile]:
        """Return the files of the directory `data` in a staging area, by their paths in it. What else is there, such as
        the marks of directories, is removed, so that nothing is left once the files have been moved.
        """
        start = len(f"{self._prefix}{path}/")
        found = list(self._below(path))
        files = [one for one in found if one.key[start:].startswith(f"{data}/") and not _marks_directory(one)]
        self._objects.delete(one.key for one in found if one not in files)
        names = ((one.key[start:], one) for one in files)
        return {name: StagedFile(name, one.etag, one.size) for name, one in names}

    def _below(self, path: str) -> Iterable[ListedObject]:
        return self._objects.list(f"{self._prefix}{path}/")


def _marks_directory(one: ListedObject) -> bool:
    return one.key.endswith("/") or not PurePosixPath(one.key).name


class object_failures:
    """Turns an error of the store into a SinkError that says what was being done."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ObjectRefused):
            raise SinkRefused(f"{self._doing}: {error}") from error
        if isinstance(error, ObjectError):
            raise SinkError(f"{self._doing}: {error}") from error
        if isinstance(error, OSError):
            raise as_sink_error(error, self._doing) from error
