"""S3 servers written by others, as processes on loopback: versitygw, which keeps what S3 promises about conditional
writes, and s3s-fs, which does not. Both keep their objects when they are killed.

`make test-s3` builds them (`make_s3_servers`); ministack, which needs no building, is in `servers`.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.support.servers import ACCOUNT, ROOT, ServerProcess, free_port, require, wait_for_answer

BIN = ROOT / ".cache" / "s3" / "bin"
SECRET = "local"


class StoredServer(ServerProcess):
    """A server over a directory, which can be killed and started again on its port."""

    program = ""

    def __init__(self, directory: Path | None = None) -> None:
        require((BIN / self.program).is_file(), self.program)
        self._own = None if directory else tempfile.TemporaryDirectory(prefix=f"{self.program}-")
        self.directory = directory or Path(self._own.name if self._own else "")
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        self.spawn(
            self.command(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.directory,
            ROOT_ACCESS_KEY=ACCOUNT,
            ROOT_SECRET_KEY=SECRET,
        )
        wait_for_answer(self, lambda: self.client("s3", timeout_s=5).list_buckets())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int | None:
        status = super().stop()
        if self._own is not None:
            self._own.cleanup()
        return status


class Versitygw(StoredServer):
    program = "versitygw"

    def command(self) -> list[str]:
        return [str(BIN / self.program), "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", "data"]


class S3sFs(StoredServer):
    program = "s3s-fs"

    def command(self) -> list[str]:
        keys = ["--access-key", ACCOUNT, "--secret-key", SECRET]
        return [str(BIN / self.program), "--host", "127.0.0.1", "--port", str(self.port), *keys, "data"]
