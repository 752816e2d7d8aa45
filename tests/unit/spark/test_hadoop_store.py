"""What the store of HDFS decides without a JVM: URIs, errors, and whether an owner lives."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from mld.processors.spark.commit import hadoop_store
from mld.processors.spark.commit.hadoop_store import lives, os_error, split
from mld.processors.spark.commit.store import as_sink_error
from mld.processors.spark.sink_port import SinkError, SinkFull, SinkRefused
from mld.processors.spark.spark_errors import failure

REMOTE = "org.apache.hadoop.ipc.RemoteException"
HDFS = "org.apache.hadoop.hdfs"


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("hdfs://host:8020/a/b", ("host:8020", "/a/b")),
        ("hdfs://cluster/a b/%41é/../c/", ("cluster", "/a b/c")),
        ("hdfs://cluster", ("cluster", "/")),
        ("hdfs:///a", ("", "/a")),
        ("hdfs:/a:b", ("", "/a:b")),
    ],
)
def test_uris_are_taken_as_hadoop_takes_them(uri, parts):
    assert split(uri) == parts


@pytest.mark.parametrize(
    ("name", "message", "number", "kind"),
    [
        (f"{HDFS}.protocol.NSQuotaExceededException", "The NameSpace quota is exceeded", errno.EDQUOT, SinkFull),
        (f"{HDFS}.protocol.DSQuotaExceededException", "The DiskSpace quota is exceeded", errno.EDQUOT, SinkFull),
        (
            "java.io.IOException",
            "File /f could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s)",
            errno.ENOSPC,
            SinkFull,
        ),
        ("org.apache.hadoop.security.AccessControlException", "Permission denied: user=x", errno.EACCES, SinkRefused),
        ("org.apache.hadoop.fs.ParentNotDirectoryException", "/f (is no directory)", errno.ENOTDIR, SinkRefused),
        ("org.apache.hadoop.fs.InvalidPathException", "Invalid path name /a:b", errno.EINVAL, SinkRefused),
        (
            f"{HDFS}.protocol.FSLimitException$PathComponentTooLongException",
            "The maximum path component name limit is exceeded",
            errno.ENAMETOOLONG,
            SinkRefused,
        ),
        (f"{HDFS}.server.namenode.SafeModeException", "Name node is in safe mode.", errno.EAGAIN, SinkError),
        ("org.apache.hadoop.ipc.StandbyException", "not supported in state standby", errno.EAGAIN, SinkError),
        ("java.net.ConnectException", "Connection refused", errno.ECONNREFUSED, SinkError),
        ("java.net.SocketTimeoutException", "120000 millis timeout", errno.ETIMEDOUT, SinkError),
        ("java.io.EOFException", "End of File Exception", errno.EIO, SinkError),
    ],
)
def test_exceptions_of_java_are_errors_of_the_system(name, message, number, kind):
    error = os_error([("java.lang.RuntimeException", "outer"), (name, f"{message}\n\tat a.b.C")], "hdfs://h/p")
    if number == errno.EIO:
        error = os_error([(name, f"{message}\n\tat a.b.C")], "hdfs://h/p")
    assert error.errno == number
    said = as_sink_error(error, "sink out: doing")
    assert type(said) is kind
    assert message in str(said)
    assert "(hdfs://h/p); " in str(said)
    assert "at a.b.C" not in str(said)


def test_not_found_and_exists_are_the_exceptions_that_python_has_for_them():
    assert isinstance(os_error([("java.io.FileNotFoundException", "x")], "p"), FileNotFoundError)
    assert isinstance(os_error([("org.apache.hadoop.fs.FileAlreadyExistsException", "x")], "p"), FileExistsError)
    assert isinstance(os_error([(f"{HDFS}.protocol.AlreadyBeingCreatedException", "x")], "p"), FileExistsError)


def test_words_are_short_and_say_whose_they_are():
    long = os_error([("java.net.UnknownHostException", "nowhere")], "p")
    assert long.strerror == "UnknownHostException: nowhere"
    words = "Call From a to b failed: Connection refused; For more details see:  http://wiki"
    assert os_error([("java.net.ConnectException", words)], "p").strerror == words.partition(";")[0]
    assert len(os_error([("a.B", "x" * 9999)], "p").strerror) < 400


def test_a_jvm_that_is_gone_is_an_error_after_which_the_session_is_looked_at():
    protocol = pytest.importorskip("py4j.protocol")
    for error in (
        protocol.Py4JNetworkError("Answer from Java side is empty"),
        protocol.Py4JError("while calling o1.x"),
    ):
        with (
            pytest.raises(OSError, match="the JVM of Spark does not answer") as caught,
            hadoop_store._calls("hdfs://h/p"),
        ):
            raise error
        assert type(as_sink_error(caught.value, "doing")) is SinkError
    with pytest.raises(protocol.Py4JError, match="does not exist"), hadoop_store._calls("hdfs://h/p"):
        raise protocol.Py4JError("while calling o1.x. Trace:\npy4j.Py4JException: Method x does not exist")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            f"Job aborted.\nCaused by: {HDFS}.protocol.DSQuotaExceededException: The DiskSpace quota of /x is …",
            SinkFull,
        ),
        (
            "x\nCaused by: java.io.IOException: File /x could only be written to 0 of the 1 minReplication nodes",
            SinkFull,
        ),
        ("x\nCaused by: org.apache.hadoop.security.AccessControlException: Permission denied: user=u", SinkRefused),
    ],
)
def test_what_hdfs_says_within_a_job(text, kind):
    assert type(failure(RuntimeError(text), "sink out: writing")) is kind


def test_an_owner_lives_as_long_as_its_process():
    """A dead process that nobody has reaped is no owner, nor is another process with the same number."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        said = hadoop_store._said(process.pid)
        assert lives(said) is True
        place, pid, started = said.split()
        assert lives(f"{place} {pid} {int(started) + 1}") is False
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert lives(said) is False
    assert lives(said) is False


@pytest.mark.parametrize("said", ["", "x", "elsewhere 1 1", "\ufffd \ufffd", "here 1x 1", "here -1 1"])
def test_nobody_can_tell_of_another_machine_or_container(said):
    here = hadoop_store._said(1).split()[0]
    assert lives(said.replace("here", here) if "elsewhere" not in said else said) is None


def test_a_process_that_is_hidden_may_live(monkeypatch):
    """As with `hidepid`: the kernel says that it is there, and not what it is."""

    def kill(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(hadoop_store.os, "kill", kill)
    place = hadoop_store._said(1).split()[0]
    assert lives(f"{place} 4194305 1") is None
    monkeypatch.undo()
    assert lives(f"{place} 4194305 1") is False
