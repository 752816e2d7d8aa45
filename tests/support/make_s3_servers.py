"""Build S3 servers of others under `.cache/s3/bin`: ``python -m tests.support.make_s3_servers``.

Both are pinned by version: versitygw from the Go module proxy, whose checksums Go verifies, s3s-fs from crates.io by
the lock file that it was published with. Needs Go and Cargo, and some minutes; does nothing if they are there.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.s3_servers import BIN

VERSITYGW, S3S_FS = "v1.8.0", "0.14.1"
BUILD_TIMEOUT_S = 3_600


def main() -> int:
    BIN.mkdir(parents=True, exist_ok=True)
    go = ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW}"]
    cargo = ["cargo", "install", "s3s-fs", "--locked", "--version", S3S_FS, "--features", "binary"]
    cargo += ["--root", str(BIN.parent)]
    for program, command in (("versitygw", go), ("s3s-fs", cargo)):
        if (BIN / program).is_file():
            continue
        try:
            environment = os.environ | {"GOBIN": str(BIN)}
            subprocess.run(command, env=environment, check=True, timeout=BUILD_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{program} cannot be built: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
