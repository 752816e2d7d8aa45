"""The spool: a directory of pages on their way to Spark. Children on this machine write them, Spark reads them, and
they are removed after their batch.

If executors read from a bucket, each page is also copied there as soon as its child has written it, so that no record
passes through the driver. A page belongs to one session host, and is useless once that host has ended. If a host was
killed, the next one on the machine removes its pages from a shared directory. Any host removes copies from a bucket
that are older than a week.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from mld.aws.objects import ObjectRefused
from mld.processors.spark.batch import page_file
from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.record_columns import Row, SparkRecord
from mld.processors.spark.commit.s3_store import AT_ONCE, S3Store
from mld.processors.spark.commit.store import local_directory
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import S3Access, is_s3

KEY = "mld.spark.spool"
LOCK_FILE = ".lock"
HOSTS = "mld-"
"""The names of the hosts' directories begin with this."""
_COPY = re.compile(r"mld-.+-\d+-[0-9a-f]{8}/[0-9a-f]{8}-(?:\d{8}|part)-\d{8}\.parquet", re.ASCII)
"""Matches the names of all hosts' copies in a bucket (`S3Spool._upload`)."""
CLOSE_WAIT_S = 5.0
"""How long the end of a host may be delayed by deleting its copies in a bucket."""
LEFT_S = 7 * 86_400.0
"""A copy in a bucket that is older than this was left by a host that is gone."""


class Spool:
    """A directory of pages. `written` is called on the engine's thread, everything else on any. The argument `link` is
    the number of a child's connection."""

    def __init__(self, directory: Path, *, shared: bool = False) -> None:
        """Make the directory. `shared`: executors read it as well, so this user's group gets access."""
        self.directory = directory
        self._parts = 0
        try:
            directory.mkdir(mode=0o750 if shared else 0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise page_file.no_room(directory, error) from error

    def pages(self, link: int) -> str:
        """Return the beginning of the paths of a child's pages. The number of the page follows it (`page`)."""
        return str(self.directory / f"{link:08d}-")

    def page(self, link: int, number: int) -> Path:
        """Return the path of a child's page."""
        return Path(f"{self.pages(link)}{number:08d}.parquet")

    def offered(self, offer: Offer) -> None:
        """Note that a page is complete. Nothing has to be done here; a spool on S3 copies the page to the bucket."""

    def uris(self, offers: Sequence[Offer]) -> list[str]:
        """Return the URIs by which Spark reads these pages. Raises SpoolError."""
        for offer in offers:  # a page whose copying has failed is copied again
            self.offered(offer)
        return [self._uri(self.page(offer.link, offer.number)) for offer in offers]

    def rows(self, offer: Offer) -> Iterator[Row]:
        """Yield the records of a page."""
        return page_file.rows(self.page(offer.link, offer.number))

    @contextmanager
    def written(self, records: Sequence[SparkRecord]) -> Iterator[str]:
        """Write a page with these records, and yield its URI. The page is removed after this block.
        Raises SpoolError.
        """
        self._parts += 1
        path = self.directory / f"part-{self._parts:08d}.parquet"
        page_file.write_records(path, records)
        try:
            yield self._uri(path)
        finally:
            self.remove(path)

    def _uri(self, path: Path) -> str:
        """Return the URI by which Spark reads a file of the directory. Raises SpoolError."""
        return path.as_uri()

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_pages(self, link: int, kept: set[tuple[int, int]]) -> None:
        """Remove all pages of a child, also unfinished ones, except those in `kept` (pairs of link and number)."""
        kept_paths = {self.page(*page) for page in kept}
        for path in self.directory.glob(f"{link:08d}-*.parquet"):
            if path not in kept_paths:
                self.remove(path)

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class S3Spool(Spool):
    """A spool whose pages are copied to a bucket, for executors on other machines."""

    def __init__(self, directory: Path, store: S3Store) -> None:
        super().__init__(directory)
        self._store = store
        self._mine = f"{HOSTS}{os.uname().nodename}-{os.getpid()}-{uuid4().hex[:8]}/"
        """The names of this host's copies in the bucket begin with this."""
        self._workers = ThreadPoolExecutor(AT_ONCE, "spool")
        self._copied: dict[str, Future[str]] = {}
        """By the page's name, the copying of each page, whose result is the key. After a failure the page is copied
        again under another key."""
        self._workers.submit(self._sweep, HOSTS, LEFT_S)  # removes old copies of hosts that are gone

    def offered(self, offer: Offer) -> None:
        self._copy(self.page(offer.link, offer.number))

    def _copy(self, path: Path) -> Future[str]:
        """Start to copy a page to the bucket, unless that has been done or is under way."""
        known = self._copied.get(path.name)
        if known is None or (known.done() and known.exception() is not None):
            known = self._copied[path.name] = self._workers.submit(self._upload, path)
        return known

    def _upload(self, path: Path) -> str:
        """Copy a page to the bucket under a new key, and return the key."""
        copy = f"{self._mine}{uuid4().hex[:8]}-{path.name}"
        self._store.upload(copy, path)
        return copy

    def _uri(self, path: Path) -> str:
        """Wait until the page is copied to the bucket, and return the URI of the copy. Raises SpoolError."""
        try:
            return self._store.uri(self._copy(path).result())
        except OSError as error:
            remedy = f"; correct {KEY} or the rights of this user" if isinstance(error, ObjectRefused) else ""
            raise SpoolError(f"a page cannot be copied to {KEY}: {error}{remedy}") from error

    def remove(self, path: Path) -> None:
        super().remove(path)
        # By now the page may still be copied: `_delete` waits for that.
        if (copied := self._copied.pop(path.name, None)) is not None:
            self._workers.submit(self._delete, copied)  # if that fails, a later host sweeps it

    def _delete(self, copied: Future[str]) -> None:
        """Delete the copy whose key is the result of `copied`. Raises OSError, which nobody looks at."""
        self._store.objects.delete([f"{self._store.prefix}{copied.result()}"])

    def _sweep(self, begin: str, older_s: float = -math.inf) -> None:
        """Delete copies whose names begin with `begin` and that are older than `older_s` seconds (default: of any age).
        Objects whose names are not those of a spool's copies are left alone."""
        objects, prefix = self._store.objects, self._store.prefix
        with suppress(OSError):
            listed = objects.list(f"{prefix}{begin}")
            copies = [copy for copy in listed if _COPY.fullmatch(copy.key.removeprefix(prefix))]
            objects.delete([copy.key for copy in copies if objects.now_s() - copy.modified_s > older_s])

    def close(self) -> None:
        """Delete our copies and the directory, within CLOSE_WAIT_S. A later host removes copies that are left."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._copied.clear()
        deleting = threading.Thread(target=self._sweep, args=(self._mine,), daemon=True)
        deleting.start()
        deleting.join(CLOSE_WAIT_S)
        super().close()


def open_spool(named: str | None, scratch: Path, access: S3Access | None = None) -> Spool:
    """Return a spool of this process: at the place `named` by `mld.spark.spool`, or if that is None in `scratch`.

    In a shared directory, the spools of killed hosts are removed first, and this spool is locked until this process
    ends, so that later hosts see that it is in use. Raises SpoolError.
    """
    if named is None:
        return Spool(scratch / "spool")
    try:
        if is_s3(named):
            assert access is not None
            return S3Spool(scratch / "spool", S3Store.at(named, KEY, access))
        base = local_directory(named, KEY)
    except SinkRefused as error:
        raise SpoolError(
            f"{error}; executors need a directory that every node mounts at the same path, or s3"
        ) from error
    prefix = f"{HOSTS}{os.uname().nodename}-"
    _sweep(base, prefix)
    spool = Spool(base / f"{prefix}{os.getpid()}-{uuid4().hex[:8]}", shared=True)  # a container's pid is not unique
    held = os.open(spool.directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # on a file system without locks nothing is swept
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
    return spool


def _sweep(base: Path, prefix: str) -> None:
    """Remove the directories of killed hosts of this machine: those whose lock nobody holds any more."""
    for directory in base.glob(f"{prefix}*"):
        with suppress(OSError), (directory / LOCK_FILE).open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
