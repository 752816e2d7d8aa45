"""Clients and credentials on real botocore objects. STS is a small server on the loopback, profiles are real files."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore import UNSIGNED
from botocore.client import BaseClient
from botocore.credentials import Credentials
from botocore.session import Session

from mld.aws.client_factory import USER_AGENT_TOKEN, ClientFactory, client_factory
from mld.aws.credentials import CredentialsUnavailableError
from mld.core.errors import StartupError
from mld.properties.settings import Settings
from tests.unit.aws.conftest import Configure
from tests.unit.aws.endpoint import CredentialsEndpoint

ROLE = "arn:aws:iam::123456789012:role/reader"


pytestmark = pytest.mark.usefixtures("no_aws_environment")


def create(settings: Settings, service: str = "kinesis") -> BaseClient:
    return create_by(client_factory(settings), service)


def create_by(factory: ClientFactory, service: str = "kinesis") -> BaseClient:
    return factory.create_client(service, read_timeout_s=30.0, connect_timeout_s=5.0, pool_connections_max=7)


def new_keys_of(client: BaseClient, old: str) -> None:
    """Ask until others than the `old` ones have come; they are fetched in a thread that nobody waits for."""
    while keys_of(client)[0] == old:
        time.sleep(0.001)


def keys_of(client: BaseClient) -> tuple[str | None, str | None, str | None]:
    credentials: Credentials = client._request_signer._credentials  # type: ignore[attr-defined]
    frozen = credentials.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token


def use_environment_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SKENV")


@pytest.fixture
def sts() -> Iterator[CredentialsEndpoint]:
    server = CredentialsEndpoint(life=timedelta(hours=1))
    yield server
    server.go()


# --- clients ---------------------------------------------------------------------------------------------------------


def test_a_client_makes_one_attempt_and_says_who_it_is(configure: Configure) -> None:
    config = create(configure()).meta.config
    assert config.retries["total_max_attempts"] == 1  # type: ignore[attr-defined]
    assert (config.read_timeout, config.connect_timeout, config.max_pool_connections) == (30.0, 5.0, 7)  # type: ignore[attr-defined]
    assert USER_AGENT_TOKEN in config.user_agent.split()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("service", "line", "region", "url"),
    [
        ("kinesis", "", "eu-west-1", "https://kinesis.eu-west-1.amazonaws.com"),
        ("kinesis", "kinesisEndpoint=http://localhost:4567", "eu-west-1", "http://localhost:4567"),
        ("dynamodb", "dynamoDBEndpoint=http://localhost:8000", "eu-west-1", "http://localhost:8000"),
        ("dynamodb", "dynamoDbClient.region=us-east-2", "us-east-2", "https://dynamodb.us-east-2.amazonaws.com"),
        ("kinesis", "kinesisClient.fipsEnabled=true", "eu-west-1", "https://kinesis-fips.eu-west-1.amazonaws.com"),
        ("dynamodb", "dynamoDbClient.dualstackEnabled=true", "eu-west-1", "https://dynamodb.eu-west-1.api.aws"),
    ],
)
def test_region_and_endpoint_of_each_service(
    configure: Configure, service: str, line: str, region: str, url: str
) -> None:
    meta = create(configure("AnonymousCredentialsProvider", line), service).meta
    assert (meta.region_name, meta.endpoint_url) == (region, url)


def test_without_regionname_the_profile_decides(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = ap-south-1\n")
    assert create(configure(region=None)).meta.region_name == "ap-south-1"


def test_without_any_region_the_start_fails_with_a_remedy(configure: Configure) -> None:
    with pytest.raises(StartupError, match="set regionName"):
        create(configure(region=None))


def test_a_missing_active_profile_is_a_startup_error(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StartupError, match="nobody"):
        create(configure())


def test_each_service_has_its_own_credentials_and_shares_equal_ones(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment_keys(monkeypatch)
    (tmp_path / "credentials").write_text("[leases]\naws_access_key_id=AKP\naws_secret_access_key=SKP\n")
    dynamo_db = "AwsCredentialsProviderDynamoDB=ProfileCredentialsProvider|leases"
    for line, keys in ((dynamo_db, ["AKENV", "AKP"]), ("", ["AKENV", "AKENV"])):
        factory = client_factory(configure("EnvironmentVariableCredentialsProvider", line))
        clients = [create_by(factory, name) for name in ("kinesis", "dynamodb")]
        assert [keys_of(client)[0] for client in clients] == keys
        first, second = (client._request_signer._credentials for client in clients)  # type: ignore[attr-defined]
        assert (first is second) == (line == "")


def test_a_client_is_made_without_a_look_into_the_directory_of_every_service(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []
    listdir = os.listdir

    def noted(path: Any = ".") -> list[Any]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", noted)
    factory = client_factory(configure())
    assert create_by(factory).meta.service_model.service_name == "kinesis"
    assert 0 < len(listed) < 20, "of 440 services"
    with pytest.raises(StartupError, match="no-such-service"):
        factory.create_client(
            "no-such-service",
            read_timeout_s=1.0,
            connect_timeout_s=1.0,
            pool_connections_max=1,
            access=factory.access_as_kinesis(None, None),
        )


# --- providers -------------------------------------------------------------------------------------------------------


def test_anonymous_requests_are_not_signed(configure: Configure) -> None:
    client = create(configure())
    assert client.meta.config.signature_version is UNSIGNED  # type: ignore[attr-defined]


def test_the_environment_and_the_default_chain(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    use_environment_keys(monkeypatch)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "T")
    for provider in ("EnvironmentVariableCredentialsProvider", "DefaultCredentialsProvider"):
        assert keys_of(create(configure(provider))) == ("AKENV", "SKENV", "T")


def test_a_profile_ignores_the_environment(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment_keys(monkeypatch)
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id=AKD\naws_secret_access_key=SKD\n")
    assert keys_of(create(configure("ProfileCredentialsProvider"))) == ("AKD", "SKD", None)


def test_a_profile_without_credentials_does_not_fall_through(
    configure: Configure, tmp_path: Path, sts: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment_keys(monkeypatch)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{sts.url}/creds")
    (tmp_path / "config").write_text("[profile bare]\nregion = eu-west-1\n")
    with pytest.raises(CredentialsUnavailableError, match="ProfileCredentialsProvider: found none"):
        create(configure("ProfileCredentialsProvider|bare"))


def test_a_profile_may_assume_a_role(
    configure: Configure, tmp_path: Path, sts: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
    (tmp_path / "config").write_text(
        f"[profile base]\naws_access_key_id=AKB\naws_secret_access_key=SKB\n"
        f"[profile role]\nrole_arn={ROLE}\nsource_profile=base\nregion=eu-west-1\n"
    )
    assert keys_of(create(configure("ProfileCredentialsProvider|role"))) == ("AK1", "SK", "T")
    assert "AKB/" in sts.requests[0]["auth"]


def test_an_assumed_role_uses_all_its_arguments(
    configure: Configure, sts: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment_keys(monkeypatch)
    value = f"StsAssumeRoleCredentialsProvider|{ROLE}|me|externalId=eid|endpoint={sts.url}^us-west-2"
    assert keys_of(create(configure(value))) == ("AK1", "SK", "T")
    request = sts.requests[0]
    assert (request["RoleArn"], request["RoleSessionName"], request["ExternalId"]) == (ROLE, "me", "eid")
    assert "AKENV/" in request["auth"]
    assert "/us-west-2/sts/" in request["auth"]


@pytest.mark.parametrize(
    ("nested", "env", "region"),
    [
        ("|endpointRegion=us-east-2", "ap-south-1", "us-east-2"),
        ("", "ap-south-1", "ap-south-1"),
        ("", None, "eu-west-1"),
    ],
)
def test_sts_has_its_own_region_then_the_environments_then_regionname(
    configure: Configure,
    sts: CredentialsEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    nested: str,
    env: str | None,
    region: str,
) -> None:
    use_environment_keys(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
    if env:
        monkeypatch.setenv("AWS_REGION", env)
    create(configure(f"StsAssumeRoleCredentialsProvider|{ROLE}|me{nested}"))
    assert f"/{region}/sts/" in sts.requests[0]["auth"]


def test_credentials_of_a_role_are_fetched_again_before_they_expire(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment_keys(monkeypatch)
    short = CredentialsEndpoint(life=timedelta(minutes=5))
    try:
        factory = client_factory(
            configure(f"StsAssumeRoleCredentialsProvider|{ROLE}|me|endpoint={short.url}^us-west-2")
        )
        client = create_by(factory)
        assert (keys_of(client)[0], keys_of(client)[0]) == ("AK1", "AK1")
        factory.service_time.learn(formatdate(time.time() + 240.0))
        new_keys_of(client, "AK1")
    finally:
        short.go()


def test_a_refused_role_is_reported_without_its_external_id(
    configure: Configure, sts: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment_keys(monkeypatch)
    sts.refusal = (
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not hunter2</Message></Error></ErrorResponse>"
    )
    with pytest.raises(CredentialsUnavailableError, match="AccessDenied") as caught:
        create(configure(f"StsAssumeRoleCredentialsProvider|{ROLE}|me|externalId=hunter2|endpoint={sts.url}^eu-west-1"))
    assert "hunter2" not in str(caught.value)


def test_a_web_identity_token_is_exchanged(
    configure: Configure, sts: CredentialsEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("web-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
    assert keys_of(create(configure("WebIdentityTokenFileCredentialsProvider")))[2] == "T"
    assert sts.requests[0]["WebIdentityToken"] == "web-token"
    assert sts.requests[0]["auth"] == ""


def test_an_instance_has_credentials_and_a_region(
    configure: Configure, sts: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", sts.url)
    client = create(configure("InstanceProfileCredentialsProvider", region=None))
    assert (keys_of(client)[0], client.meta.region_name) == ("AK1", "sa-east-1")


def test_the_first_provider_that_yields_wins(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    use_environment_keys(monkeypatch)
    value = "SystemPropertyCredentialsProvider,ProfileCredentialsProvider|gone,EnvironmentVariableCredentialsProvider"
    assert keys_of(create(configure(value)))[0] == "AKENV"


def test_when_none_yields_each_is_named_with_its_reason(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half")
    value = "SystemPropertyCredentialsProvider,ProfileCredentialsProvider|gone,EnvironmentVariableCredentialsProvider,"
    value += "ContainerCredentialsProvider,InstanceProfileCredentialsProvider,WebIdentityTokenFileCredentialsProvider"
    with pytest.raises(CredentialsUnavailableError) as caught:
        create(configure(value))
    text = str(caught.value)
    for part in (
        "SystemPropertyCredentialsProvider: there are no Java system properties here",
        "ProfileCredentialsProvider: The config profile (gone) could not be found",
        "EnvironmentVariableCredentialsProvider: Partial credentials found",
        "ContainerCredentialsProvider: found none",
        "InstanceProfileCredentialsProvider: found none",
        "WebIdentityTokenFileCredentialsProvider: found none",
    ):
        assert part in text


# --- module:callable -------------------------------------------------------------------------------------------------


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def write(text: str) -> None:
        (tmp_path / "own_credentials_module.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield write
    sys.modules.pop("own_credentials_module", None)


OWN = "own_credentials_module:make"


def test_an_own_provider_may_return_a_mapping_or_an_object(
    configure: Configure, own_module: Callable[[str], None]
) -> None:
    own_module(
        "from types import SimpleNamespace\n"
        "def make(name): return {'access_key': name, 'secret_key': 'SK', 'token': 'T'}\n"
        "def thing(): return SimpleNamespace(access_key='AKO', secret_key='SK')\n"
    )
    assert keys_of(create(configure(f"{OWN}|AKM"))) == ("AKM", "SK", "T")
    assert keys_of(create(configure("own_credentials_module:thing"))) == ("AKO", "SK", None)


def test_an_own_provider_with_an_expiry_is_asked_again(configure: Configure, own_module: Callable[[str], None]) -> None:
    own_module(
        "from datetime import datetime, timedelta, timezone\nn = 0\n"
        "def make():\n    global n\n    n += 1\n"
        "    soon = datetime.now(timezone.utc) + timedelta(minutes=5)\n"
        "    return {'access_key': f'AK{n}', 'secret_key': 'SK', 'token': 'T', 'expiry': soon}\n"
    )
    factory = client_factory(configure(OWN))
    client = create_by(factory)
    assert keys_of(client)[0] == "AK1"
    factory.service_time.learn(formatdate(time.time() + 240.0))
    new_keys_of(client, "AK1")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("make = 5", "is not callable"),
        ("other = 5", "cannot be imported"),
        ("def make(): raise ValueError('hunter2')", "raised ValueError"),
        ("def make(): return None", "must return access_key and secret_key"),
        ("def make(): return {'access_key': 'a', 'secret_key': ''}", "must return access_key and secret_key"),
        ("def make(): return {'access_key': 'a', 'secret_key': 'b', 'expiry': 'soon'}", "expiry must be"),
        ("def make(): return {'access_key': 'a', 'secret_key': 'b', 'expiry': '2026-01-01'}", "expiry must be"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_own_provider_is_said(
    configure: Configure, own_module: Callable[[str], None], code: str, reason: str
) -> None:
    own_module(code)
    with pytest.raises(CredentialsUnavailableError, match=reason) as caught:
        create(configure(OWN))
    assert "hunter2" not in str(caught.value)


def test_of_clients_that_several_threads_ask_for_one_is_created_at_a_time(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment_keys(monkeypatch)
    factory = client_factory(configure("EnvironmentVariableCredentialsProvider"))
    together, real, overlaps = threading.Barrier(2), Session.create_client, list[str]()

    def create(session: Session, service: str, **options: Any) -> BaseClient:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.1)
            overlaps.append(service)
        return real(session, service, **options)

    monkeypatch.setattr(Session, "create_client", create)
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(partial(create_by, factory), ("kinesis", "dynamodb", "kinesis")))
    assert (len(made), overlaps) == (3, [])
