"""An HDFS of one name node and one data node in a JVM of its own, on loopback and free ports; and what upsets it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.hdfs.fetch import jars
from tests.prove_spark.jvm import Bare

CONF = {
    "dfs.namenode.fs-limits.min-block-size": "0",
    "dfs.blocksize": "1048576",
    "dfs.namenode.safemode.extension": "0",
    "dfs.permissions.enabled": "true",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
}
CLASSES = ":".join(map(str, jars()))
OPTIONS = (
    f'--driver-class-path {CLASSES} --driver-memory 500m --conf "spark.driver.extraJavaOptions=-XX:+UseSerialGC '
    '-XX:TieredStopAtLevel=1 -Dlog4j2.level=ERROR" pyspark-shell'
)
SCHEDULERS = "org.apache.hadoop.yarn.server.resourcemanager.scheduler"
YARN_CONF = {
    "yarn.resourcemanager.scheduler.class": f"{SCHEDULERS}.fifo.FifoScheduler",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.delete.debug-delay-sec": "600",
}
YARN_ADDRESSES = [f"yarn.resourcemanager.{name}address" for name in ("", "scheduler.", "webapp.")]
YARN_WAIT_MS = 60_000
UNLIMITED = 0x7FFFFFFFFFFFFFFF


class Cluster(Bare):
    """A cluster that ends with its JVM, which ends with this process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(OPTIONS)
        self._jvm = self._gateway.jvm
        hadoop = self._jvm.org.apache.hadoop
        self._conf = hadoop.conf.Configuration()
        self._conf.set("hdfs.minidfs.basedir", str(directory))
        for key, value in CONF.items():
            self._conf.set(key, value)
        builder = getattr(hadoop.hdfs, "MiniDFSCluster$Builder")(self._conf)
        self._cluster = builder.numDataNodes(1).format(True).build()
        self._cluster.waitActive()
        self.port = int(self._cluster.getNameNodePort())
        self.uri = f"hdfs://localhost:{self.port}"

    # --- what an administrator does ----------------------------------------------------------------------------------

    def stop_name_node(self) -> None:
        self._cluster.shutdownNameNode(0)

    def start_name_node(self) -> None:
        """Start it again at the same address, with what it had on its disk."""
        self._cluster.restartNameNode(0)

    def safe_mode(self, *, enter: bool) -> None:
        action = self._jvm.org.apache.hadoop.fs.SafeModeAction
        self._files().setSafeMode(action.ENTER if enter else action.LEAVE)

    def quota(self, path: str, *, names: int = UNLIMITED, size: int = UNLIMITED) -> None:
        self._files().setQuota(self._path(path), names, size)

    def no_quota(self, path: str) -> None:
        self._files().setQuota(self._path(path), -1, -1)

    def names(self, path: str) -> int:
        """How many files and directories there are, the directory included."""
        summary = self._files().getContentSummary(self._path(path))
        return int(summary.getFileCount() + summary.getDirectoryCount())

    def make(self, path: str, *, owner: str = "", mode: str = "755") -> None:
        files = self._files()
        files.mkdirs(self._path(path))
        files.setPermission(self._path(path), self._jvm.org.apache.hadoop.fs.permission.FsPermission(mode))
        if owner:
            files.setOwner(self._path(path), owner, owner)

    def stop_data_node(self) -> Any:
        return self._cluster.stopDataNode(0)

    def start_data_node(self, stopped: Any) -> None:
        self._cluster.restartDataNode(stopped, True)
        self._cluster.waitActive()

    def changes(self) -> int:
        """How many changes the name node has on its disk."""
        return int(self._cluster.getNamesystem().getEditLog().getSyncTxId())

    # --- and YARN ----------------------------------------------------------------------------------------------------

    def start_yarn(self, directory: Path) -> None:
        """Start one node, whose containers run as this user."""
        conf = self._jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(self._conf)
        for key, value in YARN_CONF.items():
            conf.set(key, value)
        self._jvm.java.lang.System.setProperty("test.build.data", str(directory))
        self._yarn = self._jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", 1, 1, 1, 1)
        self._yarn.init(conf)
        self._yarn.start()
        assert self._yarn.waitForNodeManagersToConnect(YARN_WAIT_MS)

    def write_configuration(self, directory: Path) -> None:
        """Write what clients need into a directory for HADOOP_CONF_DIR."""
        directory.mkdir()
        conf = self._yarn.getConfig()
        values = {name: str(conf.get(name)) for name in YARN_ADDRESSES} | {"fs.defaultFS": self.uri}
        items = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items())
        text = f"<configuration>{''.join(items)}</configuration>"
        for file in ("core-site.xml", "yarn-site.xml"):
            (directory / file).write_text(text)

    def applications(self) -> list[str]:
        """The states of all applications so far."""
        found = self._yarn.getResourceManager().getRMContext().getRMApps().values()
        return [str(one.createApplicationState().toString()) for one in found]

    def _files(self) -> Any:
        return self._cluster.getFileSystem()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self.kill()
