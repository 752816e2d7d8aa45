"""Keeps the ledger of a sink on S3, and publishes files by it. The protocol is S3's own; no file system stands between.

    <sink>/_mld/head.json               the newest entry (`s3_head`); replacing it is the commit
    <sink>/_mld/staging/<token>/…       files that are uploaded and not published
    <sink>/_mld/probe/…                 what the store was tried with

A commit
--------

1. Spark writes the files to this machine; they are uploaded to the staging area, each to a key that is written once.
   Executors of a cluster write to the staging area themselves, and it is listed.
2. The head is read. If its files are not all in place they are put there first (4), whoever they are from. The batch
   must fit it (`Fenced` otherwise).
3. The head is replaced by one with our entry, if it is still the one that was read. That is the commit. If it is
   not, or nobody says, the head is read again: its token says whether it is ours.
4. Each file is copied to its place, if its source is still what was uploaded; then the head is replaced by one that
   says so; then the sources are deleted. Anybody may do that, any number of times, at the same time.

A writer that dies before 3 leaves a staging area and nothing else. One that dies after 3 has committed. Two programs
that both believe in a shard cannot both replace the head that both have read, and whoever comes second finds the shard
moved.

When it is not known whether a request to replace the head was carried out, it may be yet. So our staging area is
deleted only if the head is known to be another one than that request asks for; else it stays for the sweep, which first
replaces the head (`s3_head`).

What the ledger of a sink on S3 needs of a bucket, and the staging areas that executors of a cluster write to.

Executors write with a client of their own (S3A), each attempt of a task below `_temporary`; only the attempt that the
driver has let commit moves its files to their places, and a job whose attempt failed after that is a failed job. So
once a job has succeeded, what is listed is all there is, and none of it changes any more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar
from uuid import uuid4

from mld.aws.client_factory import bucket_client
from mld.aws.objects import ListedObject, NotMatched, ObjectError, ObjectRefused, SourceGone, StoredObject
from mld.core.errors import StartupError
from mld.processors.spark.commit import ledger, s3_head
from mld.processors.spark.commit.journal import DATA, HOME, RACES_MAX, SinkJournal
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit.s3_head import Head, StagedFile, WriterStep
from mld.processors.spark.commit.store import StagingStore, as_sink_error, stage
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


ANSWER_S = 60.0
"""Longest wait for an answer of S3."""


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
                    timeout_s=ANSWER_S,
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


Item = TypeVar("Item")
Result = TypeVar("Result")

HEAD_KEY, STAGING_KEY, PROBE_KEY = f"{HOME}/head.json", f"{HOME}/staging/", f"{HOME}/probe/"
ABANDONED_S = 24 * 3600.0
"""A staging area of that age has no writer any more that may still commit it."""
SWEEP_EVERY = 256
"""Commits between two looks for abandoned staging areas; each costs a LIST."""
UPLOADS_MAX = 3
"""Keys that are tried for one file."""
UNKNOWN_MAX = 5
"""Unanswered requests to replace the head, one after the other, before the host backs off."""
PAUSE_S = 0.5
LOOKED_AT = 1_000


class S3Journal(SinkJournal):
    """The ledger of one sink below `prefix`, a key that ends with a slash or is empty. `scratch` is where Spark stages
    its files, on this machine or in the bucket. Raises SinkError and its kinds."""

    def __init__(
        self,
        objects: Objects,
        prefix: str,
        scratch: StagingStore,
        name: str,
        *,
        place: str = "",
        at_once: int = AT_ONCE,
        sleep: Callable[[float], None] = time.sleep,
        unique: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        super().__init__(name)
        self._objects = objects
        self._prefix = prefix
        self._scratch = scratch
        self._place = place
        self._at_once = at_once
        self._sleep = sleep
        self._unique = unique
        self._uploaded: dict[str, dict[str, StagedFile]] = {}
        self._unsettled: dict[str, set[str | None]] = {}
        """Etags of heads that a request of ours may still replace, as nobody has answered it; by token."""
        self._is_tried = False

    # --- what all journals have --------------------------------------------------------------------------------------

    def open(self) -> LedgerEntry | None:
        """Try the store, finish what is half done, clean up, and give the head."""
        with object_failures(f"sink {self._name}: opening its ledger"):
            if not self._is_tried:
                self._try_store()
                self._is_tried = True
            head, etag = self._finished_head()
            if head is None or head.entry is None:
                self._check_new()
            elif head.sources:
                self._delete_sources(head)
            self._sweep(head, etag)
            return None if head is None else head.entry

    def head(self) -> LedgerEntry | None:
        with object_failures(f"sink {self._name}: reading its ledger"):
            head, _ = self._read()
            return None if head is None else head.entry

    def stage(self) -> str:
        token = s3_head.new_token(self._objects.now_s(), self._unique())
        self._scratch.make(self._local(token))
        return token

    def data(self, token: str) -> str:
        """Return where Spark writes the files, as a path of the store on this machine."""
        return f"{self._local(token)}/{DATA}"

    def check_owned(self, token: str) -> None:
        """Do nothing: nobody else takes away what is on this machine."""

    def discard(self, token: str) -> None:
        in_bucket = isinstance(self._scratch, S3Staging)
        if not in_bucket:
            with suppress(OSError):
                self._scratch.remove(self._local(token))
        uploaded = self._uploaded.pop(token, {})
        unsettled = self._unsettled.pop(token, set())
        with suppress(SinkError, ObjectError):
            if not uploaded and not in_bucket:
                return
            head, etag = self._read()
            is_ours = head is not None and head.entry is not None and head.entry.token == token
            if etag in unsettled or is_ours:
                return
            if in_bucket:
                self._scratch.remove(self._local(token))
            else:
                self._objects.delete(self._key(token, file.key) for file in uploaded.values())

    def commit(self, token: str, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        with object_failures(f"sink {self._name}: committing a batch"):
            self._upload(token)
            stage("uploaded")
            entry = self._replace_head(token, follow)
            stage("finished")
            if not isinstance(self._scratch, S3Staging):
                with suppress(OSError):
                    self._scratch.remove(self._local(token))
            self._uploaded.pop(token, None)
            self._unsettled.pop(token, None)
            if entry.number % SWEEP_EVERY == 0:
                self._sweep(*self._finished_head())
            return entry

    # --- a commit ----------------------------------------------------------------------------------------------------

    def _upload(self, token: str) -> None:
        stage("uploading")
        root = self._local(token)
        if isinstance(self._scratch, S3Staging):
            self._uploaded[token] = self._scratch.staged(root, DATA)
            return
        names = [f"{DATA}/{name}" for name, _ in self._scratch.files(self.data(token))]

        def upload(name: str) -> tuple[str, StagedFile]:
            file = Path(self._scratch.uri(f"{root}/{name}").removeprefix("file://"))
            for attempt in range(1, UPLOADS_MAX + 1):
                key = name if attempt == 1 else f"{attempt}/{name}"
                try:
                    etag, size = self._objects.upload(self._key(token, key), file)
                except ObjectError as error:
                    if isinstance(error, ObjectRefused) or attempt == UPLOADS_MAX:
                        raise
                    self._sleep(PAUSE_S * attempt)
                else:
                    return name, StagedFile(key, etag, size)
            raise AssertionError("unreachable")

        self._uploaded[token] = dict(self._each(upload, names))

    def _replace_head(self, token: str, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        unknown = 0
        for _ in range(RACES_MAX):
            head, etag = self._read()
            match s3_head.next_step(head, token):
                case WriterStep.COMMITTED:
                    assert head is not None and head.entry is not None
                    return head.entry
                case WriterStep.FINISH_OURS:
                    assert head is not None and head.entry is not None
                    self._finish(head, etag)
                    return head.entry
                case WriterStep.FINISH:
                    assert head is not None
                    self._finish(head, etag)
                    continue
                case WriterStep.CLEARED_AWAY:
                    raise SinkError(
                        f"sink {self._name}: the staged batch was cleared away as abandoned, or the clock of this "
                        "machine is a day behind; nothing is published, and it is tried again"
                    )
            entry = follow(None if head is None else head.entry)
            sources = {move.source: self._uploaded[token][move.source] for move in entry.moves}
            wanted = s3_head.committed(head, entry, sources, self._unique())
            stage("entry")
            unsettled = self._unsettled.setdefault(token, set())
            was_settled = etag not in unsettled
            unsettled.add(etag)  # before it is sent: whatever ends this process's patience, it may be carried out
            try:
                new_etag = self._put_head(wanted, etag)
            except NotMatched:
                if was_settled:
                    unsettled.discard(etag)
                continue
            except ObjectError as error:
                unknown += 1
                if isinstance(error, ObjectRefused) or unknown == UNKNOWN_MAX:
                    raise
                self._sleep(PAUSE_S * unknown)
                continue
            stage("committed")
            if not wanted.done:
                self._finish(wanted, new_etag)
            return entry
        raise SinkError(
            f"sink {self._name}: {RACES_MAX} other commits came first, nothing was published; it is tried again"
        )

    def _put_head(self, head: Head, etag: str | None) -> str:
        return self._objects.put(self._prefix + HEAD_KEY, s3_head.encode(head), if_etag=etag, if_absent=etag is None)

    # --- finishing ---------------------------------------------------------------------------------------------------

    def _finished_head(self) -> tuple[Head | None, str | None]:
        for _ in range(RACES_MAX):
            head, etag = self._read()
            if head is None or head.done:
                return head, etag
            self._finish(head, etag)
        raise SinkError(f"sink {self._name}: {RACES_MAX} commits came while its ledger was opened; it is tried again")

    def _finish(self, head: Head, etag: str | None) -> None:
        """Put the files of a head into their places, unless another head has come: then somebody did."""
        assert head.entry is not None
        token, number = head.entry.token, head.entry.number

        def move(one: tuple[str, str]) -> None:
            source, target = one
            file = head.sources[source]
            try:
                self._objects.copy(self._key(token, file.key), file.etag, file.size, self._prefix + target)
            except NotMatched as error:
                self._check_moved(error, target, number, etag)
            stage("moving")

        self._each(move, [(move.source, move.target) for move in head.entry.moves])
        stage("moved")
        done = s3_head.finished(head, self._unique())
        try:
            self._put_head(done, etag)
        except NotMatched:
            return  # somebody else has finished it; whether this is so, or we are wrong, the next look says
        stage("done")
        self._delete_sources(done)

    def _check_moved(self, error: NotMatched, target: str, number: int, etag: str | None) -> None:
        """Check a file whose source is gone, or is not what was uploaded. Fine if it was moved before."""
        if self._objects.exists(self._prefix + target) or self._read()[1] != etag:
            return
        what = "is gone" if isinstance(error, SourceGone) else "has been changed"
        raise SinkRefused(
            f"sink {self._name}: commit {number} is published, but the staged file of {self._place}{target} {what}; "
            f'restore it (a versioned bucket has it), or, if it is to be lost, write "done":true into {HEAD_KEY}'
        ) from error

    def _delete_sources(self, head: Head) -> None:
        """Delete the sources. Deleting is no part of the commit: what is left over goes when the sink is opened, or
        with the sweep.
        """
        assert head.entry is not None
        token = head.entry.token
        with suppress(ObjectError):
            self._objects.delete(self._key(token, file.key) for file in head.sources.values())
        stage("deleted")

    # --- cleaning ----------------------------------------------------------------------------------------------------

    def _sweep(self, head: Head | None, etag: str | None) -> None:
        """Remove the staging areas of the dead, given a head that is done. Failing to clean is no failure."""
        with suppress(ObjectError):
            start, to_s = self._prefix + STAGING_KEY, int(self._objects.now_s() - ABANDONED_S)
            old = [one.key for one in self._objects.list(start) if self._is_old(one.key.removeprefix(start), to_s)]
            if not old:
                return
            stage("sweeping")
            if head is None or head.swept_to < to_s:
                try:
                    self._put_head(s3_head.swept(head, to_s, self._unique()), etag)
                except ObjectError:
                    return  # not known to be swept: nothing is removed
            self._objects.delete(old)

    @staticmethod
    def _is_old(name: str, to_s: int) -> bool:
        made = s3_head.made_at(name.partition("/")[0])
        return made is not None and made < to_s

    # --- the store ---------------------------------------------------------------------------------------------------

    def _try_store(self) -> None:
        """Check whether the store refuses a write whose condition does not hold. Raises SinkRefused if it does not."""
        key = f"{self._prefix}{PROBE_KEY}{self._unique()}"
        try:
            first = self._objects.put(key, b"1", if_absent=True)
            self._objects.put(key, b"2", if_etag=first)
            for is_new in (True, False):
                try:
                    self._objects.put(key, b"3", if_absent=is_new, if_etag=None if is_new else first)
                except NotMatched:
                    continue
                raise SinkRefused(
                    f"sink {self._name}: the store behind {self._place} takes writes whose condition does not hold "
                    "(If-None-Match, If-Match), so that two workers would overwrite each other's commits; use S3, or a "
                    "store that has conditional writes (docs/use/spark-sinks.md#files-on-s3 names some)"
                )
        finally:
            with suppress(ObjectError):
                self._objects.delete([key])

    def _check_new(self) -> None:
        """Check a new directory: one without a ledger must not have files of ours: their marks are lost, and all would
        come twice.
        """
        first = self._objects.list(self._prefix, most=LOOKED_AT)
        for one in (*first, *self._objects.list(self._prefix, most=LOOKED_AT, after=f"{self._prefix}{HOME}0")):
            name = PurePosixPath(one.key).name
            if name[:1] == "c" and name[1:13].isdigit() and name[13:14] == "-" and HOME not in one.key.split("/"):
                if self._read()[0] is not None:
                    return  # the first commit has come meanwhile; whoever has no marks yet is fenced by it
                raise SinkRefused(
                    f"sink {self._name}: {self._place} holds files of commits, {name} among them, but no ledger; "
                    f"restore {HEAD_KEY} (a versioned bucket has it), or use a new directory"
                )

    def _read(self) -> tuple[Head | None, str | None]:
        found = self._objects.get(self._prefix + HEAD_KEY)
        if found is None:
            return None, None
        try:
            return s3_head.decode(found.data), found.etag
        except ValueError as error:
            remedy = "restore it, or use a new directory"
            raise ledger.refusal(self._name, f"{self._place}{HEAD_KEY}", error, remedy) from error

    def _key(self, token: str, name: str) -> str:
        return f"{self._prefix}{STAGING_KEY}{token}/{name}"

    @staticmethod
    def _local(token: str) -> str:
        return f"{HOME}/staging/{token}"

    def _each(self, act: Callable[[Item], Result], these: Sequence[Item]) -> list[Result]:
        if self._at_once == 1 or len(these) < 2:
            return [act(one) for one in these]
        with ThreadPoolExecutor(min(self._at_once, len(these)), "s3") as threads:
            return list(threads.map(act, these))
