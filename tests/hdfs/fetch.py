"""Puts the jar with an HDFS (and a YARN) in one JVM where the tests of HDFS look for it.

    python -m tests.hdfs.fetch

The version is that of the Hadoop client in PySpark, from Maven Central; what is not the pinned jar is not used. Doing
it again costs nothing. Ends with status 1 and a sentence if the jar cannot be had.
"""

from __future__ import annotations

import hashlib
import sys
import urllib.request
from pathlib import Path

VERSION = "3.5.0"
SHA256 = "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"
NAME = f"hadoop-client-minicluster-{VERSION}.jar"
URL = f"https://repo1.maven.org/maven2/org/apache/hadoop/hadoop-client-minicluster/{VERSION}/{NAME}"
JAR = Path(__file__).resolve().parents[2] / ".cache" / "hadoop" / NAME
BYTES_MAX = 100_000_000
TIMEOUT_S = 120


def main() -> int:
    if JAR.is_file():
        return 0
    try:
        with urllib.request.urlopen(URL, timeout=TIMEOUT_S) as answer:
            data = answer.read(BYTES_MAX)
    except OSError as error:
        print(f"{URL} cannot be fetched: {error}", file=sys.stderr)
        return 1
    if (found := hashlib.sha256(data).hexdigest()) != SHA256:
        print(f"{URL} has the hash {found}, and not {SHA256}; it is not used", file=sys.stderr)
        return 1
    JAR.parent.mkdir(parents=True, exist_ok=True)
    draft = JAR.with_suffix(".draft")
    draft.write_bytes(data)
    draft.replace(JAR)  # so that an interrupted run leaves nothing half done
    return 0


if __name__ == "__main__":
    sys.exit(main())
