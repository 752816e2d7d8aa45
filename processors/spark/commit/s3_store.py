"""A directory of an S3 bucket for a sink, with the contract of `store.Store`.

A commit needs one property of the bucket's server: a conditional write creates an object only if its key is free
(`If-None-Match: *`). This is tried before the first commit. Objects are durable once they exist. A move is a copy; the
source is removed with its staging area.

In local mode Spark writes to a directory of this machine, and the files are uploaded at the step at which files on a
disk are synced (`Uploads`). On a cluster the executors write to the staging area themselves, with S3A. Then each
attempt of a task writes below `_temporary`, and only the attempt that the driver allows to commit moves its files to
their places. If that attempt fails afterwards, the job fails. So after a successful job the listed files are complete,
and none of them changes.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from mld.aws.client_factory import bucket_client
from mld.aws.objects import NotMatched, ObjectError, S3Bucket
from mld.core.errors import StartupError
from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger_files import HOME, LEDGER, Names, path_of
from mld.processors.spark.commit.store import PosixStore, each
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import S3Access

AT_ONCE = 8
"""Most requests of one client at the same time."""
OLD_HEAD = f"{HOME}/head.json"
"""The object in which mld 0.2.0 kept its only entry. To replace this object was the commit."""
CLOSED = 2
"""A version of that object that mld 0.2.0 does not know, so that mld 0.2.0 does not replace the object."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
ANSWER_S = 60.0
"""Longest wait for an answer of S3."""


class S3Store:
    """A directory of a bucket. `prefix` ends with a slash, or is empty. Raises ObjectError, which is an OSError, and
    FileNotFoundError."""

    at_once = AT_ONCE

    def __init__(self, objects: S3Bucket, prefix: str) -> None:
        self.objects, self.prefix = objects, prefix
        self.place = f"s3://{objects.name}/{prefix}"
        self._is_prepared = False

    @classmethod
    def at(cls, path: str, key: str, access: S3Access) -> S3Store:
        """Return the directory that a path names; no request is made yet. Raises SinkRefused, with the `key` of the
        settings."""
        bucket, _, rest = path.partition("://")[2].partition("/")
        parts = [part for part in rest.split("/") if part]
        if not _BUCKET.fullmatch(bucket):
            named = bucket or "nothing"
            raise SinkRefused(f"{key} = {path}: {named} is no name of a bucket; write s3://bucket/directory")
        if any(part.startswith(("_", ".")) for part in parts):
            raise SinkRefused(f"{key} = {path}: readers skip directories that begin with _ or a dot; use another name")

        def client() -> Any:
            """Make the client of the bucket. Raises ObjectError."""
            try:
                return bucket_client(
                    access.credentials,
                    region=access.region,
                    endpoint_url=access.endpoint,
                    path_style=access.path_style,
                    timeout_s=ANSWER_S,
                    connections_max=AT_ONCE,
                )
            except StartupError as error:
                raise ObjectError(str(error)) from error

        objects = S3Bucket(client, bucket, owner=access.bucket_owner, kms_key=access.kms_key)
        return cls(objects, "".join(f"{part}/" for part in parts))

    def uri(self, path: str) -> str:
        return f"s3a://{self.objects.name}/{self._key(path)}"

    def now_s(self) -> float:
        return self.objects.now_s()

    def make(self, path: str) -> None:
        """Do nothing: a bucket has no directories."""

    def exists(self, path: str) -> bool:
        return self.objects.exists(self._key(path))

    def names(self, path: str) -> list[str]:
        return list(dict.fromkeys(name.partition("/")[0] for name in self.files(path)))

    def files(self, path: str) -> Iterator[str]:
        start = f"{self._key(path)}/" if path else self.prefix
        return (one.key.removeprefix(start) for one in self.objects.list(start) if not one.key.endswith("/"))

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError if it does not exist."""
        found = self.objects.get(self._key(path))
        if found is None:
            raise self._gone(path)
        return found.data

    def write(self, path: str, data: bytes) -> None:
        self.objects.repeated(lambda: self.objects.put(self._key(path), data))

    def create(self, path: str, data: bytes, draft: str) -> bool:
        """Create an object with this content, unless there is one with this name: then return False. No draft is
        written.
        """
        try:
            self.objects.repeated(lambda: self.objects.put(self._key(path), data, if_absent=True))
        except NotMatched:
            return False
        return True

    def mark(self, path: str) -> None:
        self.write(path, b"")

    def hold(self, path: str) -> Callable[[], None]:
        """Do nothing: a bucket has no locks."""
        return lambda: None

    def held(self, path: str) -> None:
        """Return None: in a bucket it cannot be known whether a process lives."""

    def move(self, source: str, target: str) -> None:
        """Copy a file to its new name, and leave the source. Raises FileNotFoundError if the source does not exist."""
        try:
            self.objects.copy(self._key(source), self._key(target))
        except NotMatched as error:
            raise self._gone(source) from error

    def remove(self, path: str) -> None:
        self.objects.delete([self._key(path), *(one.key for one in self.objects.list(f"{self._key(path)}/"))])

    def sync(self, path: str) -> None:
        """Do nothing: an object is durable once it exists."""

    def persist(self, path: str, files: Sequence[str]) -> None:
        """Do nothing: an object is durable once it exists."""

    def upload(self, path: str, file: Path) -> None:
        self.objects.repeated(lambda: self.objects.upload(self._key(path), file))

    def prepare(self, sink: str) -> None:
        """Try a conditional write, and take over a ledger of mld 0.2.0. Raises SinkRefused if the bucket's server
        ignores the condition."""
        if self._is_prepared:
            return
        probe = f"{HOME}/probe/{uuid4().hex}"
        try:
            self.create(probe, b"1", "")
            if self.create(probe, b"2", ""):
                raise unconditional(sink, self.place)
        finally:
            with suppress(OSError):
                self.remove(probe)
        self._take_over(sink)
        self._is_prepared = True

    def _take_over(self, sink: str) -> None:
        """Make the head of mld 0.2.0 the first entry of a new ledger. The old object gets a version that mld 0.2.0
        refuses (`CLOSED`), so that a process of mld 0.2.0 no longer commits.

        If this process dies on the way, the next call completes it. Raises SinkRefused, and NotMatched if mld 0.2.0 has
        replaced the head meanwhile."""
        key = self._key(OLD_HEAD)
        if Names.of(self.names(LEDGER)).taken or (found := self.objects.get(key)) is None:
            return
        where = f"sink {sink}: {self.place}{OLD_HEAD}"
        try:
            head = json.loads(found.data)
            value = head["entry"]
            entry = None if value is None else ledger.decode(json.dumps(value).encode(), where)
            # If an entry is done, all its files are moved already.
            unmoved = () if entry is None or head["done"] else entry.moves
            moves = tuple(ledger.FileMove(head["sources"][move.source][0], move.target) for move in unmoved)
        except Exception as error:
            raise ledger.damaged(where, error) from error
        self.objects.put(key, json.dumps({**head, "version": CLOSED}).encode(), if_etag=found.etag)
        if entry is not None:
            self.create(path_of(entry.number), ledger.encode(replace(entry, moves=moves)), "")
            # This head must not be taken over a second time.
            self.write(OLD_HEAD, json.dumps({"version": CLOSED, "entry": None}).encode())

    def _gone(self, path: str) -> FileNotFoundError:
        """Return the error for a path that does not exist."""
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri(path))

    def _key(self, path: str) -> str:
        return f"{self.prefix}{path}"


def unconditional(sink: str, place: object) -> SinkRefused:
    """Return the error that refuses a store because it overwrites an object although the write has a condition."""
    return SinkRefused(
        f"sink {sink}: the store behind {place} takes writes whose condition does not hold (If-None-Match), so that "
        "two workers would overwrite each other's commits; use S3, or a store that has conditional writes "
        "(docs/use/spark-files.md#files-on-s3 names some)"
    )


class Uploads(PosixStore):
    """A directory of this machine for files on their way to the bucket `target`. After a crash its
    content is useless.
    """

    def __init__(self, root: Path, target: S3Store) -> None:
        super().__init__(root, private=True)
        self._target = target

    def persist(self, path: str, files: Sequence[str]) -> None:
        """Copy these files below a directory to the bucket, where they are durable."""

        def upload(name: str) -> None:
            self._target.upload(f"{path}/{name}", self.root / path / name)

        each(self._target, upload, files)
