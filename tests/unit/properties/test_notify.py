"""The webhook of alerts: what is refused of its address, and that nobody is shown it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mld.cli import commands
from tests.unit.properties.conftest import MINIMUM, Configure, problems

SECRET = "https://hooks.example.com/services/T0KEN/s3cret?key=abc"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "hooks.example.com/x",
        "file:///etc/passwd",
        "https://:80/x",
        "https://host/a b",
        "https://u:pw1@host/",
        r"https://host/services/\u0007T0KEN",
        r"https://host/\u00e9/T0KEN",
        r"https://h\u00f6st/T0KEN",
        r"https://host\n/T0KEN",
        r"https://host/x\r\nEvil: T0KEN",
    ],
)
def test_what_is_no_address_of_a_webhook_ends_the_check_with_2_and_is_not_shown(
    configure: Configure, tmp_path: Path, url: str
) -> None:
    (problem,) = problems(lambda: configure(f"mld.notify={url}"))
    assert problem.startswith("mld.notify")
    file = tmp_path / "bad.properties"
    file.write_text(f"{MINIMUM}mld.notify={url}\n")
    result = CliRunner().invoke(commands, ["check", str(file)], prog_name="mld")
    assert result.exit_code == 2
    assert "mld.notify" in result.output
    assert url not in result.output and "pw1" not in result.output and "T0KEN" not in result.output


def test_an_address_is_a_secret(configure: Configure, tmp_path: Path) -> None:
    loaded = configure(f"mld.notify={SECRET}")
    assert loaded.settings.serving.notify == SECRET
    assert SECRET in loaded.secrets, "so that the log hides it"
    file = tmp_path / "good.properties"
    file.write_text(f"{MINIMUM}mld.notify={SECRET}\n")
    result = CliRunner().invoke(commands, ["check", str(file)], prog_name="mld")
    assert "mld.notify" in result.output
    assert "T0KEN" not in result.output and "s3cret" not in result.output


def test_details_without_a_webhook_are_remarked_on_and_are_off_unless_asked_for(configure: Configure) -> None:
    loaded = configure("mld.notifyDetails=true")
    assert [remark.key for remark in loaded.remarks] == ["mld.notifyDetails"]
    assert configure(f"mld.notify={SECRET}").settings.serving.notify_details is False
    assert configure(f"mld.notify={SECRET}\nmld.notifyDetails=true").settings.serving.notify_details is True
