"""A pure-Python daemon that replaces Amazon's Java MultiLangDaemon.

Importing this package imports neither boto3 nor the packages of an extra. `docs/develop/architecture.md` describes its
subpackages, and which may import which.
"""

__version__ = "0.3.0"

DISTRIBUTION = "mld-kinesis"
"""The name under which pip installs this package; on the package index, `mld` is a different project."""


def pip_install(extra: str) -> str:
    """Return the shell command that installs this package with an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
