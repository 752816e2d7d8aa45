"""Both clients of a service trust the same servers, named in the same ways."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from botocore.httpsession import create_urllib3_context

from mld.aws.client_factory import client_factory
from mld.aws.service_factory import AwsService, service_of
from mld.aws.wire.trust import tls_context
from mld.core.errors import AwsUnreachableError
from tests.support.certificates import write_corporate_certificates
from tests.support.strict_aws import StrictAws
from tests.unit.aws.conftest import Configure


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Of the `inspected` server."""
    return write_corporate_certificates(tmp_path, "127.0.0.1")[0]


@pytest.fixture
def inspected(authority: Path) -> Iterator[StrictAws]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.with_name("server.pem"), authority.with_name("server-key.pem"))
    with StrictAws(secrets={"AKENV": "SKENV"}, context=context) as server:
        yield server


@pytest.fixture(autouse=True)
def strict_defaults(monkeypatch: pytest.MonkeyPatch, no_aws_environment: None) -> None:
    """Those that the ssl module has since Python 3.13, whichever one this is; and keys."""
    ordinary = ssl.create_default_context

    def strict(*arguments: object, **keywords: object) -> ssl.SSLContext:
        context = ordinary(*arguments, **keywords)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SKENV")
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)


@asynccontextmanager
async def kinesis_at(url: str, configure: Configure) -> AsyncIterator[AwsService]:
    factory = client_factory(configure("EnvironmentVariableCredentialsProvider", f"kinesisEndpoint={url}"))
    service = service_of(
        factory, "kinesis", label="Kinesis", threads_max=2, calls_max=2, read_timeout_s=5,
    )  # fmt: skip
    await service.open()
    try:
        yield service
    finally:
        await service.close()


def test_the_certificates_are_such_that_strict_defaults_refuse_them(inspected: StrictAws, authority: Path) -> None:
    context = ssl.create_default_context(cafile=authority)
    host, port = inspected.url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port))) as plain, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(plain, server_hostname=host)


@pytest.mark.parametrize("named_by", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "profile"])
async def test_an_authority_that_botocore_trusts_is_trusted_by_the_lean_client(
    configure: Configure,
    inspected: StrictAws,
    authority: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named_by: str,
) -> None:
    if named_by == "profile":
        (tmp_path / "config").write_text(f"[default]\nca_bundle = {authority}\n")
    else:
        monkeypatch.setenv(named_by, str(authority))
    async with kinesis_at(inspected.url, configure) as service:
        await service.call("ListShards", {"StreamName": "s"})  # by botocore
        await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)  # by the lean client
    assert inspected.served == ["ListShards", "GetRecords"]


@pytest.mark.parametrize("operation", ["ListShards", "GetRecords"])
async def test_a_server_that_no_authority_vouches_for_gets_nothing(
    configure: Configure, inspected: StrictAws, operation: str
) -> None:
    params = {"StreamName": "s"} if operation == "ListShards" else {"ShardIterator": "i"}
    async with kinesis_at(inspected.url, configure) as service:
        with pytest.raises(AwsUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            await service.call(operation, params)
    assert inspected.served == inspected.refused == []


@pytest.mark.parametrize("operation", ["ListShards", "GetRecords"])
async def test_a_bundle_that_cannot_be_read_fails_both_clients_alike(
    configure: Configure, inspected: StrictAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path))  # a directory, which botocore does not take
    params = {"StreamName": "s"} if operation == "ListShards" else {"ShardIterator": "i"}
    async with kinesis_at(inspected.url, configure) as service:
        with pytest.raises(AwsUnreachableError):
            await service.call(operation, params)
    assert inspected.served == inspected.refused == []


def test_the_lean_clients_context_is_that_of_botocore(configure: Configure) -> None:
    client = client_factory(configure()).create_client(
        "kinesis", read_timeout_s=5, connect_timeout_s=5, pool_connections_max=1
    )
    ours, theirs = tls_context(client, None), create_urllib3_context()
    facts = [(made.verify_flags, made.options, made.minimum_version, made.verify_mode) for made in (ours, theirs)]
    assert facts[0] == facts[1]
    assert ours.check_hostname
