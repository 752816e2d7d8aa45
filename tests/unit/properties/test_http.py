"""What is said of the address of the status page, which asks for no password."""

from __future__ import annotations

import pytest

from mld.properties.remarks import Level
from tests.unit.properties.conftest import Configure


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        pytest.param("mld.http=0.0.0.0:9404", "mld.http", "not a loopback address", id="every address"),
        pytest.param("mld.http=10.0.0.5:9404", "mld.http", "not a loopback address", id="one address"),
        pytest.param("mld.http=[::]:9404", "mld.http", "not a loopback address", id="IPv6"),
        pytest.param("mld.httpHosts=worker.internal", "mld.httpHosts", "mld.http is not set", id="names without it"),
    ],
)
def test_it_is_a_warning_with_a_remedy(configure: Configure, text: str, key: str, said: str) -> None:
    (remark,) = [one for one in configure(text).remarks if one.key.startswith("mld.http")]
    assert (remark.key, remark.level) == (key, Level.WARNING)
    assert said in remark.message
    assert remark.remedy


@pytest.mark.parametrize("address", ["127.0.0.1:9404", "[::1]:9404", "localhost:9404", "127.0.0.1:0"])
def test_a_loopback_address_needs_no_remark(configure: Configure, address: str) -> None:
    assert [one for one in configure(f"mld.http={address}").remarks if one.key.startswith("mld.http")] == []
