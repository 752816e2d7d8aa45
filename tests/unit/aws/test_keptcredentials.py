"""Credentials whose provider goes away are used until they really expire, by both clients."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials, DeferredRefreshableCredentials, RefreshableCredentials
from botocore.utils import ContainerMetadataFetcher

from mld.aws import kept_credentials as credentials_module
from mld.aws.client_factory import client_factory
from mld.aws.kept_credentials import (
    PAUSE_S,
    RENEW_BEFORE_S,
    RENEWAL_S_MAX,
    RENEWALS_MAX,
    CredentialsExpiredError,
    KeptCredentials,
    kept,
)
from mld.aws.service_factory import service_of
from mld.aws.service_time import ServiceTime
from mld.core.errors import AwsUnreachableError
from tests.support.strict_aws import StrictAws
from tests.unit.aws.conftest import Configure
from tests.unit.aws.endpoint import CredentialsEndpoint

T0 = 1_800_000_000.0
LIFE_S = 3600.0
ROLE = "arn:aws:iam::123456789012:role/reader"


# --- in virtual time --------------------------------------------------------------------------------------------------


@dataclass
class Agent:
    """Hands out keys of an hour; `fails` raises instead. With `waits`, renewals wait in `elsewhere`."""

    now_s: float = T0
    calls: int = 0
    fails: BaseException | None = None
    waits: bool = False
    life_s: float = LIFE_S
    elsewhere: list[Callable[[], None]] = field(default_factory=list)

    def fetch(self) -> dict[str, Any]:
        self.calls += 1
        if self.fails is not None:
            raise self.fails
        return {
            "access_key": f"AK{self.calls}",
            "secret_key": "SK",
            "token": "T",
            "expiry_time": datetime.fromtimestamp(self.now_s + self.life_s, UTC).isoformat(),
        }

    def kept(self) -> KeptCredentials:
        return KeptCredentials(
            DeferredRefreshableCredentials(self.fetch, "agent"),
            ServiceTime(lambda: self.now_s),
            provider="agent",
            spawn=self.spawn,
        )

    def spawn(self, work: Callable[[], None]) -> None:
        if self.waits:
            self.elsewhere.append(work)
        else:
            work()

    def do_what_is_elsewhere(self) -> None:
        while self.elsewhere:
            self.elsewhere.pop(0)()


def key_of(credentials: Credentials) -> str | None:
    return credentials.get_frozen_credentials().access_key


def test_keys_are_renewed_before_they_expire_without_holding_up_a_call() -> None:
    agent = Agent(waits=True)
    credentials = agent.kept()
    agent.now_s += LIFE_S - RENEW_BEFORE_S - 1
    assert (key_of(credentials), len(agent.elsewhere)) == ("AK1", 0)
    agent.now_s += 1
    assert [key_of(credentials) for _ in range(3)] == ["AK1"] * 3
    assert (agent.calls, len(agent.elsewhere)) == (1, 1)
    agent.do_what_is_elsewhere()
    assert (key_of(credentials), agent.calls) == ("AK2", 2)


def test_keys_whose_renewal_fails_are_used_until_they_expire_and_then_the_reason_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()
    credentials = agent.kept()
    agent.fails = OSError("the agent is gone")
    agent.now_s = T0 + LIFE_S - RENEW_BEFORE_S
    while agent.now_s < T0 + LIFE_S:
        assert key_of(credentials) == "AK1"
        agent.now_s += 1
    assert agent.calls == 1 + RENEW_BEFORE_S / PAUSE_S
    agent.now_s += PAUSE_S
    with pytest.raises(CredentialsExpiredError, match=r"agent expired at 2027-01-15T09:00:00Z .*: the agent is gone"):
        credentials.get_frozen_credentials()
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.__dict__["action"] for record in warnings] == ["credentials_not_renewed"]


def test_without_good_keys_each_call_learns_why_at_once() -> None:
    agent = Agent()
    credentials = agent.kept()
    agent.fails = OSError("gone")
    agent.now_s += LIFE_S
    for _ in range(20):
        with pytest.raises(CredentialsExpiredError):
            credentials.get_frozen_credentials()
    assert agent.calls == 2


def test_a_provider_that_is_back_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    agent = Agent()
    credentials = agent.kept()
    agent.now_s += LIFE_S
    agent.fails = OSError("gone")
    with pytest.raises(CredentialsExpiredError):
        credentials.get_frozen_credentials()
    agent.fails = None
    agent.now_s += PAUSE_S
    assert key_of(credentials) == "AK3"
    assert [record.__dict__["action"] for record in caplog.records] == [
        "credentials_not_renewed",
        "credentials_renewed",
    ]


def test_keys_that_were_just_issued_are_used_even_if_our_clock_says_that_they_have_expired() -> None:
    agent = Agent(life_s=-7200.0)
    credentials = agent.kept()
    assert [key_of(credentials) for _ in range(3)] == ["AK1"] * 3
    agent.now_s += PAUSE_S
    assert [key_of(credentials) for _ in range(3)] == ["AK2"] * 3


def test_of_keys_that_live_short_half_the_life_is_used() -> None:
    agent = Agent(life_s=120.0, waits=True)
    credentials = agent.kept()
    agent.now_s += 59
    key_of(credentials)
    assert agent.elsewhere == []
    agent.now_s += 1
    key_of(credentials)
    assert len(agent.elsewhere) == 1


def test_a_renewal_without_all_its_fields_has_failed() -> None:
    agent = Agent()
    credentials = agent.kept()
    agent.fetch = dict  # type: ignore[method-assign]
    credentials._fetch = dict
    agent.now_s += LIFE_S
    with pytest.raises(CredentialsExpiredError, match="returned no access_key, secret_key, token, expiry_time"):
        credentials.get_frozen_credentials()


def test_credentials_that_botocore_does_not_renew_are_left_alone() -> None:
    class Own(RefreshableCredentials):
        def get_frozen_credentials(self) -> Any:
            raise AssertionError("not asked here")

    agent = Agent()
    own = Own("a", "b", "c", datetime.now(UTC), agent.fetch, "own")
    for credentials in (Credentials("a", "b"), own):
        assert kept(credentials, ServiceTime(), provider="p", reason_of=str) is credentials


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["action"] for record in caplog.records]


def test_a_renewal_that_hangs_is_reported_and_followed_by_another_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    agent = Agent(waits=True)
    credentials = agent.kept()
    agent.now_s += LIFE_S - RENEW_BEFORE_S
    assert key_of(credentials) == "AK1"
    agent.now_s += RENEWAL_S_MAX - 1
    assert (key_of(credentials), len(agent.elsewhere), actions(caplog)) == ("AK1", 1, [])
    agent.now_s += 1
    assert (key_of(credentials), len(agent.elsewhere)) == ("AK1", 2)
    assert "no answer within 60 s" in caplog.text
    agent.elsewhere.pop()()
    assert key_of(credentials) == "AK2"
    agent.fails = OSError("gone")
    agent.elsewhere.pop()()
    assert key_of(credentials) == "AK2"
    assert actions(caplog) == ["credentials_not_renewed", "credentials_renewed"], "the first one matters no more"


def test_keys_that_come_late_are_used() -> None:
    agent = Agent(waits=True)
    credentials = agent.kept()
    agent.now_s += LIFE_S - RENEW_BEFORE_S
    key_of(credentials)
    agent.now_s += RENEWAL_S_MAX
    key_of(credentials)
    first, second = agent.elsewhere
    first()
    assert key_of(credentials) == "AK2"
    second()
    assert key_of(credentials) == "AK2"


def test_a_provider_that_only_hangs_gets_a_few_threads_and_no_call_waits_for_good() -> None:
    agent = Agent(waits=True)
    credentials = agent.kept()
    agent.now_s += LIFE_S - RENEW_BEFORE_S
    for _ in range(int(RENEW_BEFORE_S / PAUSE_S)):
        assert key_of(credentials) == "AK1"
        agent.now_s += PAUSE_S
    assert len(agent.elsewhere) == RENEWALS_MAX
    for _ in range(3):
        with pytest.raises(CredentialsExpiredError, match="cannot be renewed: no answer within 60 s"):
            credentials.get_frozen_credentials()
    agent.do_what_is_elsewhere()
    assert key_of(credentials) == "AK2"


def test_a_call_without_good_keys_waits_only_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_module, "RENEWAL_S_MAX", 0.05)
    agent = Agent(waits=True)
    credentials = agent.kept()
    agent.now_s += LIFE_S
    with pytest.raises(CredentialsExpiredError, match=r"cannot be renewed: no answer within 0\.05 s"):
        credentials.get_frozen_credentials()


def test_a_renewal_that_fails_beside_one_that_hangs_is_repeated_only_after_the_pause() -> None:
    agent = Agent(waits=True)
    credentials = agent.kept()
    agent.now_s += LIFE_S - RENEW_BEFORE_S
    key_of(credentials)
    agent.now_s += RENEWAL_S_MAX
    agent.fails, agent.waits = OSError("gone"), False
    for _ in range(5):
        key_of(credentials)
    assert agent.calls == 2
    agent.now_s += PAUSE_S
    key_of(credentials)
    assert agent.calls == 3


@pytest.mark.parametrize("fails", [SystemExit(1), OSError("gone")])
def test_whatever_a_provider_raises_is_the_reason(fails: BaseException) -> None:
    agent = Agent()
    credentials = agent.kept()
    agent.fails = fails
    agent.now_s += LIFE_S
    with pytest.raises(CredentialsExpiredError, match=f"cannot be renewed: {fails}"):
        credentials.get_frozen_credentials()


def test_without_a_thread_for_a_renewal_the_next_call_tries_again() -> None:
    agent = Agent()
    credentials = agent.kept()
    agent.now_s += LIFE_S

    def no_thread(work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    credentials._spawn = no_thread
    with pytest.raises(CredentialsExpiredError, match="can't start new thread"):
        credentials.get_frozen_credentials()
    credentials._spawn = agent.spawn
    assert key_of(credentials) == "AK2"


# --- with providers that go away --------------------------------------------------------------------------------------


@pytest.fixture
def aws() -> Iterator[StrictAws]:
    with StrictAws(ahead_s=0.0, secrets={}) as server:
        yield server


@pytest.fixture
def endpoint(
    aws: StrictAws, monkeypatch: pytest.MonkeyPatch, no_aws_environment: None
) -> Iterator[CredentialsEndpoint]:
    monkeypatch.setattr(credentials_module, "PAUSE_S", 0.0)
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    server = CredentialsEndpoint(aws=aws)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/creds")
    yield server
    server.go()


@pytest.mark.parametrize("lean", [True, False])
async def test_calls_go_on_until_the_keys_expire_and_with_new_ones_when_the_endpoint_is_back(
    configure: Configure, aws: StrictAws, endpoint: CredentialsEndpoint, caplog: pytest.LogCaptureFixture, lean: bool
) -> None:
    settings = configure("ContainerCredentialsProvider", f"dynamoDBEndpoint={aws.url}")
    dynamo = service_of(
        client_factory(settings), "dynamodb", label="DynamoDB", threads_max=2,
        read_timeout_s=5, calls_max=2 if lean else None,
    )  # fmt: skip
    get = {"TableName": "t", "Key": {"k": {"S": "x"}}}
    await dynamo.open()
    try:
        endpoint.go()
        for operation, params in [("GetItem", get), ("DescribeTable", {"TableName": "t"})] * 5:
            await dynamo.call(operation, params)
        assert aws.keys_used == ["AK1"] * 10

        aws.ahead_s = 400.0  # at AWS, time has passed: the keys have expired
        for operation, params in [("DescribeTable", {"TableName": "t"}), ("GetItem", get)]:
            with pytest.raises(
                AwsUnreachableError, match=r"ContainerCredentialsProvider expired at .* cannot be renewed"
            ):
                await dynamo.call(operation, params)
        assert caplog.text.count("cannot be renewed") == 1

        endpoint.come()
        for operation, params in [("GetItem", get), ("DescribeTable", {"TableName": "t"})]:
            await dynamo.call(operation, params)
        assert set(aws.keys_used[10:]) == {f"AK{endpoint.issued}"}
    finally:
        await dynamo.close()


@pytest.mark.parametrize(
    "provider",
    [
        "ContainerCredentialsProvider",
        "InstanceProfileCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
        f"StsAssumeRoleCredentialsProvider|{ROLE}|me",
        "ProfileCredentialsProvider|process",
        "ProfileCredentialsProvider|role",
        "DefaultCredentialsProvider",
    ],
)
def test_no_provider_that_goes_away_takes_good_keys_with_it(
    configure: Configure, endpoint: CredentialsEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(endpoint.keys())
    script = tmp_path / "process.py"
    script.write_text(f"print(open({str(keys)!r}).read())")
    (tmp_path / "config").write_text(
        f"[profile process]\ncredential_process = {sys.executable} {script}\n"
        f"[profile role]\nrole_arn={ROLE}\nregion=eu-west-1\ncredential_source=EcsContainer\n"
    )
    (tmp_path / "token").write_text("web-token")
    if "WebIdentity" in provider:
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint.url)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint.url)
    factory = client_factory(configure(provider))
    credentials = factory.credentials_of("kinesis")
    assert isinstance(credentials, Credentials)
    first = key_of(credentials)
    endpoint.go()
    keys.unlink()
    factory.service_time.learn(formatdate(time.time() + 200.0))
    assert [key_of(credentials) for _ in range(3)] == [first] * 3
