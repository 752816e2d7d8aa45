"""Which proxy leads where, and what is said to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.session import Session

from mld.aws.wire.blueprints import Canned
from mld.aws.wire.proxies import HEAD_BYTES_MAX, Proxy, ProxyRefusedError, open_tunnel, proxies_of
from mld.aws.wire.unusual import UnusualError

ENDPOINT = "https://kinesis.eu-west-1.amazonaws.com"
ACCOUNTS = "https://123456789012.data-kinesis.eu-west-1.amazonaws.com"
PLAIN = "http://localhost:4566"
OURS = "http://proxy:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch, no_aws_environment: None) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def client_at(url: str, **config: Any) -> Any:
    session = Session()
    session.set_credentials("a", "b")
    return session.create_client("kinesis", region_name="eu-west-1", endpoint_url=url, config=Config(**config))


@pytest.mark.parametrize(
    ("endpoint", "variables", "expected"),
    [
        (ENDPOINT, {"https_proxy": OURS}, Proxy("proxy", 3128)),
        (ENDPOINT, {"HTTPS_PROXY": OURS}, Proxy("proxy", 3128)),
        (ENDPOINT, {"HTTPS_PROXY": "proxy"}, Proxy("proxy", 80)),
        (ENDPOINT, {"HTTPS_PROXY": "//[::1]:8080/"}, Proxy("::1", 8080)),
        (ENDPOINT, {"HTTPS_PROXY": "http://u:p%40@proxy:1"}, Proxy("proxy", 1, "Basic dTpwQA==")),
        (ENDPOINT, {"HTTPS_PROXY": "http://u@proxy:1"}, Proxy("proxy", 1)),  # as botocore: half of it is nothing
        (ENDPOINT, {"http_proxy": OURS}, None),
        (ENDPOINT, {"all_proxy": OURS, "ftp_proxy": OURS}, None),
        (ENDPOINT, {"https_proxy": OURS, "no_proxy": ".amazonaws.com"}, None),
        (ENDPOINT, {"https_proxy": OURS, "no_proxy": "*"}, None),
        (ENDPOINT, {"https_proxy": OURS, "no_proxy": "example.com"}, Proxy("proxy", 3128)),
        (PLAIN, {"http_proxy": OURS}, Proxy("proxy", 3128)),
        (PLAIN, {"https_proxy": OURS, "ALL_PROXY": OURS}, None),
        (PLAIN, {"http_proxy": OURS, "no_proxy": "localhost"}, None),
    ],
)
def test_the_proxy_is_that_of_botocore(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, variables: dict[str, str], expected: Proxy | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxies_of(client_at(endpoint))(endpoint) == expected


def test_an_accounts_own_endpoint_has_the_proxy_of_the_clients_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore looks at NO_PROXY once, for the client."""
    monkeypatch.setenv("https_proxy", OURS)
    monkeypatch.setenv("no_proxy", "kinesis.eu-west-1.amazonaws.com")
    assert proxies_of(client_at(ENDPOINT))(ACCOUNTS) is None


def test_a_configured_proxy_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", OURS)
    monkeypatch.setenv("no_proxy", "*")
    assert proxies_of(client_at(ENDPOINT, proxies={"https": "http://other:1"}))(ENDPOINT) == Proxy("other", 1)
    assert proxies_of(client_at(ENDPOINT, proxies={}))(ENDPOINT) is None


@pytest.mark.parametrize(
    "url", ["https://u:hunter2@p:1", "http://p:hunter2", "http://p/hunter2", "http://u:\u2603@p:1"]
)
def test_a_proxy_that_only_botocore_may_know_is_unusual_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("https_proxy", url)
    with pytest.raises(UnusualError, match="proxy") as caught:
        Canned(client_at(ENDPOINT))
    assert "hunter2" not in str(caught.value)


def test_a_password_is_not_in_what_is_printed_of_a_proxy() -> None:
    proxy = Proxy("p", 1, "Basic c2VjcmV0")
    assert "c2VjcmV0" not in f"{proxy} {proxy!r}"
    assert proxy.header == "Proxy-Authorization: Basic c2VjcmV0\r\n"


# --- tunnels ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, and that of the proxy."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_tunnel_is_asked_for_and_leaves_the_connection_as_it_was(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
    open_tunnel(ours, Proxy("p", 1, "Basic x"), "::1", 443, timeout_s=5)
    expected = b"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\nProxy-Authorization: Basic x\r\n\r\n"
    assert theirs.recv(4096) == expected
    assert ours.gettimeout() == 5


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 9\r\n\r\ngo away!!",
            "HTTP status 407 Proxy Auth",
        ),
        (b"HTTP/1.0 503 " + b"x" * 500 + b"\r\n\r\n", "HTTP status 503 x+$"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "SSH-2.0-OpenSSH"),
        (b"", "''"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "with a document"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX, "with a document"),
    ],
)
def test_a_proxy_that_does_not_connect_us_is_an_error_that_says_what_it_said(
    ends: tuple[socket.socket, socket.socket], answer: bytes, says: str
) -> None:
    ours, theirs = ends
    theirs.sendall(answer)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ProxyRefusedError, match=says):
        open_tunnel(ours, Proxy("p", 1), "h", 443, timeout_s=5)


def test_a_silent_proxy_is_not_waited_for(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        open_tunnel(ends[0], Proxy("p", 1), "h", 443, timeout_s=0.01)
