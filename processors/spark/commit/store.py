"""`Store`: the few operations of a sink's file system that the journal needs. `PosixStore` has them for a disk.

The journal relies on three properties. Names in a directory are linearizable: a name that one process has created is
seen by every process that looks afterwards. If several processes `create` the same name, at most one succeeds. And
`move` is atomic. A POSIX file system (ext4, xfs, tmpfs) has these properties, and so has S3 (`s3_store`). Network file
systems are refused (`network_files`). Paths are relative to the root and written with slashes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar
from uuid import uuid4

from mld.aws.objects import ObjectError, ObjectRefused
from mld.processors.spark.sink_port import SinkError, SinkRefused

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
NO_PLACE = frozenset((errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP))
NOT_ALLOWED = NO_PLACE | {errno.EACCES, errno.EPERM, errno.EROFS}
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MARK = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FILE_BYTES_MAX = 1 << 30
"""Largest file that is read as a whole: an entry, or a file of dead letters. A larger file is not ours, and must not
fill the memory.
"""
NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV))
Item = TypeVar("Item")
Result = TypeVar("Result")


class Store(Protocol):
    """A directory in which commits can be made. Raises OSError; FileNotFoundError if a path does not exist."""

    at_once: int
    """How many operations one process may run at the same time."""
    place: str
    """The directory, as messages name it."""

    def uri(self, path: str) -> str:
        """Return the URI of a path for Spark."""

    def now_s(self) -> float:
        """Return the time, in seconds since 1970."""

    def make(self, path: str) -> None:
        """Create a directory and its parents, durably, unless it exists."""

    def prepare(self, sink: str) -> None:
        """Check that this sink can commit here. Raises SinkRefused."""

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""

    def files(self, path: str) -> Iterator[str]:
        """Yield every file below `path` that this user may see, as a path relative to `path`."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        ...

    def create(self, path: str, data: bytes, draft: str) -> bool:
        """Create a file with this content, in one step. Return False if it exists already.

        It is durable once its directory is synced. A store that has to write it under another name first uses the path
        `draft`, and leaves that file. After an OSError the file may exist, or may still come to exist later."""

    def mark(self, path: str) -> None:
        """Create an empty file unless it exists. It need not be durable."""

    def hold(self, path: str) -> Callable[[], None]:
        """Create a file and keep it locked until the returned function is called or this process ends."""

    def held(self, path: str) -> bool | None:
        """Return whether a living process holds the file (`hold`). Return None if that cannot be known: the file is
        gone, or another machine made it."""

    def move(self, source: str, target: str) -> None:
        """Move a file in one step. A store may leave the source. If the target exists, it is replaced, because an
        earlier attempt has made it. The move is durable once both directories are synced."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""

    def sync(self, path: str) -> None:
        """Make the names in one directory durable."""

    def persist(self, path: str, files: Sequence[str]) -> None:
        """Make these files below a directory durable, with all directories in between."""


def each(store: Store, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the result of `act` for each item, with as many calls at once as the store allows."""
    if store.at_once == 1 or len(items) < 2:
        return [act(one) for one in items]
    with ThreadPoolExecutor(min(store.at_once, len(items)), "sink") as threads:
        return list(threads.map(act, items))


class PosixStore:
    """A directory of a POSIX file system.

    With `private`, only this user may read its files, including those that Spark stages in it, whatever the umask is.
    """

    def __init__(self, root: Path, *, private: bool = False) -> None:
        self.root = root
        self.place = f"file://{root}"
        self._private = private
        # The system takes away the permissions that the umask forbids.
        self._directory_mode, self._file_mode = (0o700, 0o600) if private else (0o777, 0o666)
        self.at_once = 1

    def prepare(self, sink: str) -> None:
        """Do nothing: the first commit shows whether the file system has hard links."""

    def now_s(self) -> float:
        return time.time()

    def uri(self, path: str) -> str:
        return f"file://{self.root / path}"

    def names(self, path: str) -> list[str]:
        with suppress(FileNotFoundError):
            return os.listdir(self.root / path)  # noqa: PTH208 - names only, and there may be many
        return []

    @contextmanager
    def _below(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield a handle of the directory that contains `path`, and the last name of the path. Symbolic links are not
        followed, so no path leads out of the store."""
        *parents, name = Path(path).parts
        handle = os.open(self.root, DIRECTORY)
        try:
            for parent in parents:
                inner = os.open(parent, DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle, name
        finally:
            os.close(handle)

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for reading. Raises SinkRefused if it is no ordinary file, or is too large."""
        with self._below(path) as (handle, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
        with os.fdopen(fd, "rb", closefd=True) as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_BYTES_MAX:
                raise SinkRefused(f"{self.root / path} is no file, or has more than {FILE_BYTES_MAX} bytes; remove it")
            yield file

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises SinkRefused if it is no ordinary file, or is too large."""
        with self._opened(path) as file:
            return file.read()

    def mark(self, path: str) -> None:
        with self._below(path) as (handle, name):
            os.close(os.open(name, MARK, self._file_mode, dir_fd=handle))

    def hold(self, path: str) -> Callable[[], None]:
        """Create a file, and lock it until the returned function is called or this process ends. The file names this
        machine, because locks hold only there.
        """
        # Other users may read the file, to try the lock, but must not write into it, whatever the umask is.
        fd = os.open(self.root / path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._file_mode & 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, _machine())  # only after the lock is taken, because a reader that finds this tries the lock
        except OSError:
            os.close(fd)
            raise
        return lambda: os.close(fd)

    def held(self, path: str) -> bool | None:
        """Return whether a living process of this machine holds the file; None if another machine made it, or if it is
        gone.
        """
        try:
            with self._opened(path) as file:
                if file.read() != _machine():
                    return None
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (OSError, SinkRefused):  # it is gone, or somebody has put something else in its place
            return None
        return False

    def make(self, path: str) -> None:
        """Create a directory and its parents, and make each new name durable."""
        target = self.root / path
        for parent in reversed((target, *target.parents)):
            if not parent.is_dir():
                with suppress(FileExistsError):
                    parent.mkdir(self._directory_mode)
                _sync(parent.parent)

    def create(self, path: str, data: bytes, draft: str) -> bool:
        """Create a file in one step: the draft is written in full, and then linked to the name. Return False if the
        name is taken. Raises SinkRefused if the file system has no hard links.
        """
        self.remove(draft)  # a draft left by a crash is not overwritten: an entry may be a hard link to the same file
        try:
            with self._below(draft) as (here, name), self._below(path) as (there, new):
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._file_mode, dir_fd=here)
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(fd)
                os.link(name, new, src_dir_fd=here, dst_dir_fd=there)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in NO_LINKS:
                raise SinkRefused(
                    f"{self.root}: the file system knows no hard links ({error.strerror}), which the commit needs; use "
                    "another file system, or format delta or iceberg"
                ) from error
            raise
        return True

    def move(self, source: str, target: str) -> None:
        with self._below(source) as (here, name), self._below(target) as (there, new):
            os.rename(name, new, src_dir_fd=here, dst_dir_fd=there)

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists; symbolic links are not followed."""
        with suppress(FileNotFoundError), self._below(path) as (handle, name):
            if stat.S_ISDIR(os.lstat(name, dir_fd=handle).st_mode):
                shutil.rmtree(name, dir_fd=handle)
            else:
                os.unlink(name, dir_fd=handle)

    def files(self, path: str) -> Iterator[str]:
        """List files as `Store.files` describes. If the whole store is listed, skip directories that this user may not
        read, such as `lost+found`. Below a path an unreadable directory is an error, because its files would not be
        committed."""
        top = self.root / path

        def failed(error: OSError) -> None:
            """Raise the error of a directory that cannot be listed. Ignore it if `path` does not exist, or is the
            store."""
            is_absent = isinstance(error, FileNotFoundError) and error.filename == str(top)
            if path and not is_absent:
                raise error

        walk = os.walk(top, onerror=failed)
        return (str(Path(found, name).relative_to(top)) for found, _, names in walk for name in names)

    def sync(self, path: str) -> None:
        _sync(self.root / path)

    def persist(self, path: str, files: Sequence[str]) -> None:
        """Make these files below a directory durable, with all directories in between. In a private store also set
        their modes, because Spark has made them.
        """
        top = self.root / path
        directories = {top / parent for name in files for parent in Path(name).parents}
        for found in (*(top / name for name in files), *directories):
            if self._private:
                found.chmod(self._directory_mode if found in directories else self._file_mode)
            _sync(found)


def local_directory(path: str, key: str) -> Path:
    """Return the directory that a path or a `file:` URI names. Raises SinkRefused for other file systems."""
    if scheme := scheme_of(path):
        raise SinkRefused(
            f"{key} = {path}: files are written to disks and to s3, not to {scheme}, where nobody has proven that they "
            "are there exactly once; use a directory of this host's file system, s3, or format delta or iceberg"
        )
    return Path(os.path.abspath(re.sub(r"^file:/+", "/", path)))  # noqa: PTH100 - links are not resolved


def scheme_of(path: str) -> str:
    """Return the scheme of a URI of another file system; an empty text for a path, or for a name in a catalog."""
    scheme, colon, rest = path.partition(":")
    return scheme if colon and "/" not in scheme and scheme != "file" and rest.startswith("/") else ""


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Turn an error of the operating system or of S3 into a SinkError that names the work (`doing`) and the remedy."""
    try:
        yield
    except ObjectError as error:
        kind = SinkRefused if isinstance(error, ObjectRefused) else SinkError
        raise kind(f"{doing}: {error}") from error
    except OSError as error:
        what = f"{doing}: {error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
        if error.errno in NO_ROOM:
            raise SinkError(f"{what}; make room, nothing was acknowledged and it is tried again") from error
        if error.errno in NOT_ALLOWED:
            raise SinkRefused(f"{what}; give this user a directory to write in") from error
        raise SinkError(f"{what}; it is tried again") from error


@cache
def _machine() -> bytes:
    """Return the id of this boot of this machine. Processes with the same id can check each other's locks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return uuid4().bytes  # no other process has this id


def _sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
