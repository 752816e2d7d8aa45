"""Build Helm under `.cache/helm`: ``python -m tests.support.make_chart_tools``.

Pinned by version, from the Go module proxy, whose checksums Go verifies. Needs Go and some minutes; does nothing if it
is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HELM_VERSION = "v3.22.0"
HELM = Path(__file__).resolve().parents[2] / ".cache" / "helm" / "helm"
BUILD_TIMEOUT_S = 3_600


def main() -> int:
    if HELM.is_file():
        return 0
    HELM.parent.mkdir(parents=True, exist_ok=True)
    command = ["go", "install", f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"]
    environment = os.environ | {"GOBIN": str(HELM.parent), "CGO_ENABLED": "0"}
    try:
        subprocess.run(command, env=environment, check=True, timeout=BUILD_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"helm cannot be built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
