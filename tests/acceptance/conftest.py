"""What several acceptance tests need and takes long to make."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def image() -> Iterator[Path]:
    """A directory with the `opt` of the image of deploy/Dockerfile."""
    from tests.support.image import build

    with tempfile.TemporaryDirectory(prefix="mld-image-", dir="/var/tmp") as name:
        build(Path(name))
        yield Path(name)
