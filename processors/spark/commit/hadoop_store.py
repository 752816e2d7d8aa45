"""A directory of HDFS as a `Store`, through the JVM of the session: with its Hadoop configuration, as its user.

How HDFS keeps the contract, since it is not a POSIX file system:

* `take` is a rename that fails if the target exists, which the name node does in one step; HDFS has no hard links. The
  source is gone afterwards, and the journal does not look for it. The name node remembers the answers to its last calls
  (retry cache), so a client that repeats a rename whose answer was lost mostly gets the same one; where not, it hears
  "not found" or "exists", and the journal looks whose entry it is.
* The name node puts all changes into one order and has one on its disks before it answers who made it. So our own
  changes are durable when we hear of them, and with them every earlier one. What another writer has just changed may
  be seen a moment before that, hence `sync`: a change of nothing but a time, whose answer says that all before is kept.
* What `write` writes is on the disks of the data nodes (hsync). Files that Spark has written are complete when they are
  closed, and on these disks only with `dfs.datanode.synconclose`: nobody but their writer could say more.
* No file brings back the directory it stood in: a staging area that was taken away stays away (createParent = false).
* `held`: the owner's file names a process, and whoever runs on the same machine sees whether it lives. A lock of this
  machine would do no better, because HDFS has none to share with it: nobody is asked about other machines, daemons of
  one machine need not have any directory in common, and no other user can end or fake the life of a process.
* Where the configuration lets reads go to a standby (observer), each is told to wait until it has seen all changes.

Any number of threads may use a store: py4j gives each its own connection, and a FileContext is made to be shared.
"""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark.processes import boot_id, stat_of
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.spark_errors import NO_DATA_NODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME = "hdfs"
SEPARATOR = "\0"
"""Between names that the JVM gives in one text: a call for each name would take longer than a commit."""
AUTO_MSYNC = "dfs.client.failover.observer.auto-msync-period"
"""0: a client that may read from observers asks before each read how far they have to be."""
CAUSES_MAX = 8
WORDS_MAX = 300
KINDS = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "AlreadyBeingCreatedException": errno.EEXIST,
    "RecoveryInProgressException": errno.EEXIST,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotDirectoryException": errno.ENOTDIR,
    "PathComponentTooLongException": errno.ENAMETOOLONG,
    "InvalidPathException": errno.EINVAL,
    "AccessControlException": errno.EACCES,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "QuotaExceededException": errno.EDQUOT,
    "MaxDirectoryItemsExceededException": errno.EDQUOT,
    "SafeModeException": errno.EAGAIN,
    "RetriableException": errno.EAGAIN,
    "StandbyException": errno.EAGAIN,
    "ConnectException": errno.ECONNREFUSED,
    "NoRouteToHostException": errno.EHOSTUNREACH,
    "UnknownHostException": errno.EHOSTUNREACH,
    "SocketTimeoutException": errno.ETIMEDOUT,
    "ConnectTimeoutException": errno.ETIMEDOUT,
}
"""What exceptions of Java mean, by their simple names; any other is EIO, which is tried again."""

_held: set[str] = set()
"""Owner files of this process, which no one but itself can tell from those that it has let go. Their paths below the
sink are unique, and the same whichever way its URI is written."""


def named(path: str) -> bool:
    """Return whether a path of the settings is one of HDFS."""
    return path.lower().startswith(f"{SCHEME}:/")


class HadoopStore:
    """A directory of HDFS. Nothing is asked of the name node before the first operation."""

    def __init__(self, session: SparkSession, uri: str, key: str) -> None:
        """Open the store; `uri` is what the setting `key` says. Raises SinkRefused if there is no JVM of ours, or no
        name node.
        """
        # The client of Spark Connect has no JVM, and says so by an exception.
        jvm: Any = getattr(session, "_jvm", None)
        if jvm is None:
            raise SinkRefused(
                f"{key} = {uri}: files on {SCHEME} are written through a JVM of this host, and with mld.spark.remote "
                "there is none; use mld.spark.master, a directory that the server shares, or format delta or iceberg"
            )
        self._session = session
        self._authority, self._top = split(uri)
        if not self._authority:
            default = str(jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(self._configuration()).toString())
            self._authority = split(default)[0] if default.startswith(f"{SCHEME}://") else ""
            if not self._authority:
                raise SinkRefused(
                    f"{key} = {uri}: names no name node, and fs.defaultFS is {default}; write {SCHEME}://host:port/…, "
                    "or set mld.spark.conf.spark.hadoop.fs.defaultFS"
                )

    def uri(self, path: str) -> str:
        return f"{SCHEME}://{self._authority}{self._absolute(path)}"

    def names(self, path: str) -> list[str]:
        try:
            with self._at(path) as (java, where):
                found = java.util.listStatus(where)
                count = len(found)
                objects = java.array("java.lang.Object", count)
                java.jvm.java.lang.System.arraycopy(java.fs.FileUtil.stat2Paths(found), 0, objects, 0, count)
                listed = java.jvm.java.util.Arrays.asList(objects)
                text = java.jvm.org.apache.hadoop.util.StringUtils.join(SEPARATOR, listed)
        except FileNotFoundError:
            return []
        return [posixpath.basename(name) for name in text.split(SEPARATOR) if name]

    def read(self, path: str) -> bytes:
        with self._at(path) as (java, where):
            stream = java.context.open(where)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write by one rename over what is there, and the draft has no name that anybody looks for."""
        draft = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.draft")
        self._create(draft, data)
        self._rename(draft, path, overwrite=True)

    def mark(self, path: str) -> None:
        with suppress(FileExistsError):  # also while somebody else is creating it
            self._create(path, None)

    def hold(self, path: str) -> Callable[[], None]:
        self._create(path, _said(os.getpid()).encode())
        _held.add(path)
        return lambda: _held.discard(path)

    def held(self, path: str) -> bool | None:
        said = self.read(path).decode(errors="replace")
        if said == _said(os.getpid()):
            return path in _held
        return lives(said)

    def make(self, path: str) -> None:
        try:
            with self._at(path) as (java, where):
                java.context.mkdir(where, java.directories, True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, error.strerror, error.filename) from error

    def take(self, source: str, target: str) -> bool:
        try:
            self._rename(source, target, overwrite=False)
        except FileExistsError:
            return False
        return True

    def move(self, source: str, target: str) -> None:
        self._rename(source, target, overwrite=False)

    def exists(self, path: str) -> bool:
        with self._at(path) as (java, where):
            return bool(java.util.exists(where))

    def age_s(self, path: str, now: float) -> float:
        with self._at(path) as (java, where):
            return now - int(java.context.getFileStatus(where).getModificationTime()) / 1000

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError), self._at(path) as (java, where):
            java.context.delete(where, True)

    def files(self, path: str) -> list[tuple[str, int]]:
        found = []
        above = f"{self._absolute(path)}/"
        with self._at(path) as (java, where):
            listed = java.util.listFiles(where, True)
            while listed.hasNext():
                status = listed.next()
                name = split(str(status.getPath().toString()))[1]
                found.append((name.removeprefix(above), int(status.getLen())))
        return sorted(found)

    def sync(self, path: str) -> None:
        with self._at(path) as (java, where):
            java.context.setTimes(where, int(time.time() * 1000), -1)

    def sync_below(self, path: str) -> None:
        """Sync names only: see above for what the data nodes do."""
        self.sync(path)

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._top, path))

    def _create(self, path: str, data: bytes | None) -> None:
        """Replace a file, on the disks of the data nodes; or make an empty one (None) that must not be there."""
        with self._at(path) as (java, where):
            flags = java.new if data is None else java.anew
            stream = java.context.create(where, flags, java.orphan)
            try:
                if data is not None:
                    stream.write(bytearray(data))
                    stream.hsync()
            except BaseException:
                with suppress(Exception):  # it says the same again, and lets go of the file
                    stream.close()
                raise
            stream.close()

    def _rename(self, source: str, target: str, *, overwrite: bool) -> None:
        with self._at(source) as (java, where):
            options = java.replacing if overwrite else java.not_replacing
            java.context.rename(where, java.path(self.uri(target)), options)

    @contextmanager
    def _at(self, path: str) -> Iterator[tuple[_Java, Any]]:
        """Give the JVM, and the path as it knows it; exceptions of Java are those of `_calls`."""
        java = self._java
        with _calls(self.uri(path)):
            yield java, java.path(self.uri(path))

    def _configuration(self) -> Any:
        """Return a copy of the session's."""
        return self._session._jsparkSession.sessionState().newHadoopConf()

    @cached_property
    def _java(self) -> _Java:
        with _calls(self.uri("")):
            configuration = self._configuration()
            configuration.set(f"{AUTO_MSYNC}.{self._authority.partition(':')[0]}", "0")
            return _Java(self._session.sparkContext._gateway, f"{SCHEME}://{self._authority}/", configuration)


class _Java:
    """What of the JVM a store uses, found once."""

    def __init__(self, gateway: Any, authority: str, configuration: Any) -> None:
        self._gateway = gateway
        self.jvm = gateway.jvm
        self.fs = self.jvm.org.apache.hadoop.fs
        self.path = self.fs.Path
        self.context = self.fs.FileContext.getFileContext(self.jvm.java.net.URI(authority), configuration)
        self.util = self.context.util()
        self.directories = self.fs.permission.FsPermission.getDirDefault()
        flag, sets = self.fs.CreateFlag, self.jvm.java.util.EnumSet
        self.new, self.anew = sets.of(flag.CREATE), sets.of(flag.CREATE, flag.OVERWRITE)
        options, renames = "org.apache.hadoop.fs.Options$CreateOpts", "org.apache.hadoop.fs.Options$Rename"
        self.orphan = self.array(options, 1)
        self.orphan[0] = self._class(options).donotCreateParent()
        self.replacing, self.not_replacing = self.array(renames, 1), self.array(renames, 1)
        self.replacing[0], self.not_replacing[0] = self._class(renames).OVERWRITE, self._class(renames).NONE

    def array(self, name: str, length: int) -> Any:
        return self._gateway.new_array(self._class(name), length)

    def _class(self, name: str) -> Any:
        package, _, simple = name.rpartition(".")
        found = self.jvm
        for part in package.split("."):
            found = getattr(found, part)
        return getattr(found, simple)


def split(uri: str) -> tuple[str, str]:
    """Return authority (may be empty) and absolute path of a URI of HDFS; nothing in it is escaped, as Hadoop
    takes it.
    """
    rest = uri.partition(":")[2]
    authority, path = "", rest
    if rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
    return authority, posixpath.normpath(f"/{path.lstrip('/')}")


def os_error(causes: Sequence[tuple[str, str]], path: str) -> OSError:
    """Return the error of the operating system that an exception of Java is; `causes` are class and message, outermost
    first.

    Pure."""
    for name, message in causes:
        words = _words(message)
        if any(said in words for said in NO_DATA_NODE):
            return OSError(errno.ENOSPC, words, path)
        simple = _simple(name)
        if number := KINDS.get(simple):
            return OSError(number, words if " " in words else f"{simple}: {words}", path)
    name, message = causes[0] if causes else ("java", "")
    return OSError(errno.EIO, f"{_simple(name)}: {_words(message)}", path)


def _words(message: str) -> str:
    """Return the first line, without the address of a page that explains it."""
    return message.strip().split("\n")[0].partition("; For more details")[0][:WORDS_MAX].strip()


def _simple(name: str) -> str:
    return name.rpartition(".")[2].rpartition("$")[2]


@contextmanager
def _calls(path: str) -> Iterator[None]:
    """Turn exceptions of Java as OSError. If the JVM is gone, too: whoever hears of it asks whether the session
    lives.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JJavaError as error:
        raise os_error(_causes(error.java_exception), path) from error
    except Py4JError as error:
        if "Trace:" in str(error):
            raise  # the JVM is there, and does not know what we ask for
        raise OSError(errno.ENOTCONN, "the JVM of Spark does not answer", path) from error


def _causes(exception: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    while exception is not None and len(found) < CAUSES_MAX:
        name = str(exception.getClass().getName())
        if name.endswith(".RemoteException"):
            name = str(exception.getClassName())
        found.append((name, str(exception.getMessage() or "")))
        exception = exception.getCause()
    return found


def lives(said: str) -> bool | None:
    """Return whether the process that an owner file names runs; None if that cannot be told from here."""
    fields = said.split()
    place = _place()
    if len(fields) != 3 or place is None or fields[0] != place or not fields[1].isdigit():
        return None
    pid, started = int(fields[1]), fields[2]
    if found := stat_of(pid):
        return found.started == started and not found.has_ended
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return None  # it runs, and we may not see what it is
    return None


def _said(pid: int) -> str:
    """Return names a process for good: its number is given again, but not on the same boot with the same start."""
    found = stat_of(pid)
    return f"{_place() or 'nowhere'} {pid} {found.started if found else 'unknown'}"


@cache
def _place() -> str | None:
    """Return where process numbers mean what they mean here: this boot of this machine, and this container."""
    try:
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}" if (boot := boot_id()) else None
    except OSError:
        return None
