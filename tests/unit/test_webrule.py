"""Who may call an HTTP server of ours, as a table: headers of programs pass, those of pages and odd ones do not."""

from __future__ import annotations

import pytest

from mld.core.webrule import WebRule

RULE = WebRule(frozenset({"mld", "aws.example.org"}), "start it with --allow-host")
HERE = "192.168.1.5"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:4567",
        "127.0.0.1",
        "127.0.0.1:4567",
        "127.8.9.10:1",
        "[::1]",
        "[::1]:4567",
        HERE,
        f"{HERE}:80",
        "mld:4567",
        "AWS.example.org",
    ],
)
def test_a_program_passes_by_loopback_by_the_address_and_by_an_allowed_name(host: str) -> None:
    assert RULE.refusal("/", {"host": host, "content-type": "text/plain", "sec-fetch-mode": "cors"}, HERE) is None


def test_the_address_of_an_ipv6_connection_passes() -> None:
    assert RULE.refusal("/", {"host": "[2001:DB8::5]:4567"}, "2001:db8::5") is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "rebound.test",
        "rebound.test:4567",
        "localhost.rebound.test",
        "evil.localhost",
        "localhost.",
        "127.0.0.1.rebound.test",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0.0.0.0",
        "[::]",
        "[::ffff:10.0.0.1]",
        "192.168.1.6",
        "sub.mld",
        "localhost, rebound.test",
        "localhost,localhost",
        "localhost rebound.test",
        "rebound.test@localhost",
        "localhost/rebound.test",
        "localhost:",
        "localhost:http",
        "localhost:45670000",
        "::1",
        "[localhost]",
        "http://localhost",
        "lоcalhost",  # noqa: RUF001 — a Cyrillic o
        "localhost\x00",
        "localhost\n",
    ],
)
def test_any_other_host_is_refused_with_a_sentence(host: str) -> None:
    refusal = RULE.refusal("/", {"host": host}, HERE)
    assert refusal is not None and "Host header" in refusal and refusal.isprintable()


def test_no_host_is_refused() -> None:
    assert "exactly one" in (RULE.refusal("/", {}, HERE) or "")


def test_a_foreign_name_is_told_how_to_be_allowed() -> None:
    assert "start it with --allow-host" in (RULE.refusal("/", {"host": "compose-service"}, HERE) or "")


@pytest.mark.parametrize("origin", ["null", "", "http://localhost:3000", "http://localhost", "https://example.org"])
def test_every_origin_is_refused_its_own_too(origin: str) -> None:
    assert "Origin" in (RULE.refusal("/", {"host": "localhost", "origin": origin}, HERE) or "")


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_what_the_user_typed_and_our_own_page_pass(site: str) -> None:
    assert RULE.refusal("/", {"host": "localhost", "sec-fetch-site": site}, HERE) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "something-new", "none, cross-site"])
def test_a_page_of_another_site_is_refused_without_an_origin_too(site: str) -> None:
    assert "Sec-Fetch-Site" in (RULE.refusal("/", {"host": "localhost", "sec-fetch-site": site}, HERE) or "")


@pytest.mark.parametrize("target", ["http://localhost/", "http://rebound.test/", "localhost:4567", "*", ""])
def test_a_target_that_is_no_path_is_refused(target: str) -> None:
    assert "not a path" in (RULE.refusal(target, {"host": "localhost"}, HERE) or "")


def test_a_long_foreign_header_is_cut_and_bears_no_markup() -> None:
    refusal = RULE.refusal("/", {"host": "localhost", "origin": "<script>&\x1b[2J" + "x" * 10_000}, HERE)
    assert refusal is not None and len(refusal) < 400
    assert refusal.isprintable() and not set("<&") & set(refusal)


def test_without_an_address_only_loopback_and_names_pass() -> None:
    assert RULE.refusal("/", {"host": "localhost"}, "") is None
    assert RULE.refusal("/", {"host": HERE}, "") is not None
