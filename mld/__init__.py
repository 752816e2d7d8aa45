"""A pure-Python daemon that replaces Amazon's Java MultiLangDaemon.

Importing this package imports neither boto3 nor the packages of an extra. `docs/develop/architecture.md` describes its
subpackages, and which may import which.
"""

__version__ = "0.3.0"

DISTRIBUTION = "mld-kinesis"
"""The name under which pip installs this package; on the package index, `mld` is a different project."""


REPOSITORY = ""
"""Where this version is published, filled in when a release is built (`make release-check URL=…`); empty before."""


def page_address(page: str) -> str:
    """Return where to read a page of docs/use: its address in the repository, or its path in a checkout."""
    path = f"docs/use/{page}.md"
    return f"{REPOSITORY}/blob/v{__version__}/{path}" if REPOSITORY else path


def pip_install(extra: str) -> str:
    """Return the shell command that installs this package with an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
