"""Build Helm and kustomize under `.cache/helm`: ``python -m tests.support.make_chart_tools``.

Pinned by version, from the Go module proxy, whose checksums Go verifies. Needs Go and some minutes; does nothing if
both are there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[2] / ".cache" / "helm"
HELM, KUSTOMIZE = DIRECTORY / "helm", DIRECTORY / "kustomize"
PACKAGES = {HELM: "helm.sh/helm/v3/cmd/helm@v3.22.0", KUSTOMIZE: "sigs.k8s.io/kustomize/kustomize/v5@v5.8.0"}
BUILD_TIMEOUT_S = 3_600


def main() -> int:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"GOBIN": str(DIRECTORY), "CGO_ENABLED": "0"}
    for tool in (tool for tool in PACKAGES if not tool.is_file()):
        try:
            subprocess.run(["go", "install", PACKAGES[tool]], env=environment, check=True, timeout=BUILD_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{tool.name} cannot be built: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
