"""Settings of files written for a test, and an environment without AWS."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mld.properties.loader import load
from mld.properties.settings import Settings

Configure = Callable[..., Settings]


@pytest.fixture
def no_aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, no profiles and no instance metadata of the machine the tests run on."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def configure(no_aws_environment: None, tmp_path: Path) -> Configure:
    """Settings of a file with these credentials and lines."""

    def run(
        credentials: str = "AnonymousCredentialsProvider", *lines: str, region: str | None = "eu-west-1"
    ) -> Settings:
        path = tmp_path / "app.properties"
        text = f"executableName=x\napplicationName=a\nstreamName=s\nAwsCredentialsProvider={credentials}\n"
        text += f"regionName={region}\n" if region else ""
        path.write_text(text + "\n".join(lines))
        return load(path).settings

    return run
