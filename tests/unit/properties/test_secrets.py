"""Nothing shown of a configuration holds a secret: not the effective values, not the remarks, not the errors."""

from __future__ import annotations

import json

import pytest

from properties import ConfigurationError
from properties.redaction import Shown, is_secret_key, redacted
from tests.unit.properties.conftest import Configure

SECRET = "hunter2"
ROLE = "arn:aws:iam::123456789012:role/reader"
STS = f"StsAssumeRoleCredentialsProvider|{ROLE}|me"
LEAKY_VALUES = [
    f"{STS}|externalId={SECRET}",
    f"{STS}|externalId={SECRET}=x",
    f"{STS}|{SECRET}",
    f"{STS}|{SECRET}=x,DefaultCredentialsProvider",
    f"{STS}|colour={SECRET}",
    f"{STS}|endpoint={SECRET},DefaultCredentialsProvider",
    f"{STS}|endpoint=https://{SECRET}@sts.local^eu-west-1",
    f"StaticCredentialsProvider|AKIA|{SECRET},DefaultCredentialsProvider",
    f"DefaultCredentialsProvider|{SECRET}",
    f"some.module:function|{SECRET}",
    f"StsAssumeRoleCredentialsProvider|{SECRET}",
    f"NoSuchProvider|{SECRET}",
    "${FROM_ENV},DefaultCredentialsProvider",
    "some.module:function|${FROM_ENV}",
    "ProfileCredentialsProvider|${FROM_ENV}",
    f"StsAssumeRoleCredentialsProvider|${{FROM_ENV}}|{SECRET}",
    "${FROM_ENV}",
    f"${{GONE:-{SECRET}}}",
]


def everything_shown(configure: Configure, text: str, overrides: list[str]) -> str:
    env = {"FROM_ENV": SECRET}
    try:
        loaded = configure(text, overrides, env, without=["AwsCredentialsProvider"])
    except ConfigurationError as error:
        return f"{error} {error.remarks}"
    chains = repr(loaded.settings.aws_credentials_provider)
    return json.dumps(loaded.to_json()) + repr(loaded.remarks) + chains


@pytest.mark.parametrize("value", LEAKY_VALUES)
@pytest.mark.parametrize("key", ["AwsCredentialsProvider", "AwsCredentialsProviderDynamoDB"])
def test_no_secret_of_a_credentials_key_is_shown(configure: Configure, key: str, value: str) -> None:
    main = "" if key == "AwsCredentialsProvider" else "AwsCredentialsProvider=DefaultCredentialsProvider\n"
    assert SECRET not in everything_shown(configure, f"{main}{key}={value}", [])
    assert SECRET not in everything_shown(configure, main, [f"{key}={value}"])


@pytest.mark.parametrize(
    "line",
    [
        f"dynamoDBEndpoint=http://user:{SECRET}@localhost:8000",
        f"kinesisClient.proxyUrl=http://user:{SECRET}@proxy:3128",
        f"kinesisClient.proxyUrl=http://user:p/{SECRET}@proxy:3128",
        f"kinesisClient.proxyUrl=http://user:p@{SECRET}@proxy:3128",
        f"dynamoDbClient.proxyUrl=user:{SECRET}@proxy:3128",
        "dynamoDbClient.proxyUrl=http://user:${FROM_ENV}@proxy:3128",
        f"executableName=child --db-password {SECRET}",
        f"executableName=child --token={SECRET}",
        "maxRecords=${FROM_ENV}",
        f"externalId={SECRET}",
        f"mySecretKey={SECRET}",
    ],
)
def test_no_secret_of_another_key_is_shown(configure: Configure, line: str) -> None:
    text = "AwsCredentialsProvider=DefaultCredentialsProvider\n" + line
    assert SECRET not in everything_shown(configure, text, [])


def test_ordinary_values_are_shown_as_they_are() -> None:
    assert redacted("streamName", Shown.FULL, "clicks") == "clicks"
    assert not is_secret_key("maxRecords")


def test_the_value_of_a_key_with_a_telling_name_is_hidden() -> None:
    assert is_secret_key("AWS_SECRET_ACCESS_KEY")
    assert redacted("externalId", Shown.FULL, SECRET) == "***"


def test_a_role_is_shown_without_its_external_id(configure: Configure) -> None:
    loaded = configure(f"AwsCredentialsProviderDynamoDB={STS}|externalId={SECRET}|endpointRegion=eu-west-1")
    row = next(row for row in loaded.effective if row.key == "AwsCredentialsProviderDynamoDB")
    assert row.value == f"{STS}|externalId=***|endpointRegion=eu-west-1"
