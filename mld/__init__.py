"""A pure-Python daemon that replaces Amazon's Java MultiLangDaemon.

Importing this package imports neither boto3 nor any extra; see `docs/develop/architecture.md` for the rooms and arrows.
"""

__version__ = "0.3.0"

DISTRIBUTION = "mld-kinesis"
"""The name under which pip installs this; `mld` on the package index is somebody else's."""


def pip_install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
