"""Credentials values: every form of configuration#credentials-syntax, and what is said about the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.properties.credentials import AssumeRole, CredentialsChain, Provider, ProviderKind
from mld.properties.credentials_syntax import parse_chain
from tests.unit.properties.conftest import Configure, problems, remarks_on

ROLE = "arn:aws:iam::123456789012:role/reader"


def chain(text: str) -> CredentialsChain:
    parsed, complaints = parse_chain(text)
    assert parsed is not None, complaints
    return parsed


def role(arguments: str) -> AssumeRole | None:
    return chain(f"StsAssumeRoleCredentialsProvider|{ROLE}|me{arguments}").providers[0].role


@pytest.mark.parametrize("kind", [kind for kind in ProviderKind if kind.value.endswith("Provider")])
def test_every_provider_is_known_by_its_short_and_its_full_name(kind: ProviderKind) -> None:
    arguments = f"|{ROLE}|me" if kind is ProviderKind.ASSUME_ROLE else ""
    for package in ("", "software.amazon.awssdk.auth.credentials.", "software.amazon.kinesis.multilang.auth."):
        parsed, complaints = parse_chain(f"{package}{kind.value}{arguments}")
        assert parsed is not None
        assert [provider.kind for provider in parsed.providers] == [kind]
        assert complaints == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DefaultAWSCredentialsProviderChain", ProviderKind.DEFAULT),
        ("com.amazonaws.auth.DefaultAWSCredentialsProviderChain", ProviderKind.DEFAULT),
        ("com.amazonaws.auth.profile.ProfileCredentialsProvider", ProviderKind.PROFILE),
        ("SystemPropertiesCredentialsProvider", ProviderKind.SYSTEM_PROPERTY),
        ("EC2ContainerCredentialsProviderWrapper", ProviderKind.CONTAINER),
        ("WebIdentityTokenCredentialsProvider", ProviderKind.WEB_IDENTITY),
        (f"STSAssumeRoleSessionCredentialsProvider|{ROLE}|me", ProviderKind.ASSUME_ROLE),
        (f"KclSTSAssumeRoleSessionCredentialsProvider|{ROLE}|me", ProviderKind.ASSUME_ROLE),
        ("com.amazonaws.auth.EnvironmentVariableCredentialsProvider", ProviderKind.ENVIRONMENT),
    ],
)
def test_names_of_the_first_sdk_are_mapped_with_a_complaint(name: str, kind: ProviderKind) -> None:
    parsed, complaints = parse_chain(name)
    assert parsed is not None
    assert parsed.providers[0].kind is kind
    assert [complaint.fatal for complaint in complaints] == [False]
    assert kind.value in complaints[0].remedy


def test_a_chain_keeps_its_order_and_skips_empty_pieces() -> None:
    text = " EnvironmentVariableCredentialsProvider ,, ProfileCredentialsProvider|dev,DefaultCredentialsProvider"
    kinds = [provider.kind for provider in chain(text).providers]
    assert kinds == [ProviderKind.ENVIRONMENT, ProviderKind.PROFILE, ProviderKind.DEFAULT]


def test_nested_arguments_of_an_assumed_role() -> None:
    assert role("") == AssumeRole(ROLE, "me")
    assert role("|externalId=x|endpointRegion=eu-west-1") == AssumeRole(ROLE, "me", "x", "eu-west-1")
    assert role("|endpoint=sts.local^us-east-1|endpointRegion=eu-west-1") == AssumeRole(
        ROLE, "me", None, "us-east-1", "https://sts.local"
    )
    assert role("|endpoint=http://localhost:99^us-east-1") == AssumeRole(
        ROLE, "me", None, "us-east-1", "http://localhost:99"
    )
    assert role("|externalId=a|externalId=b") == AssumeRole(ROLE, "me", "b")


@pytest.mark.parametrize("argument", ["whatever", "externalId=", "color=red"])
def test_odd_nested_arguments_are_dropped_with_a_complaint(argument: str) -> None:
    parsed, complaints = parse_chain(f"StsAssumeRoleCredentialsProvider|{ROLE}|me|{argument}")
    assert parsed == CredentialsChain((Provider(ProviderKind.ASSUME_ROLE, role=AssumeRole(ROLE, "me")),))
    assert len(complaints) == 1


@pytest.mark.parametrize(
    "value",
    [
        "", " , ", "NoSuchProvider", "defaultcredentialsprovider", "StaticCredentialsProvider|a|b",
        "StsAssumeRoleCredentialsProvider", f"StsAssumeRoleCredentialsProvider|{ROLE}",
        f"StsAssumeRoleCredentialsProvider|{ROLE}|me|endpoint=host",
        f"StsAssumeRoleCredentialsProvider|{ROLE}|me|endpoint=a^b^c",
        f"StsAssumeRoleCredentialsProvider|{ROLE}|me|endpointRegion=Not A Region",
    ],
)  # fmt: skip
def test_a_value_without_a_usable_provider_is_an_error(configure: Configure, value: str) -> None:
    found = problems(lambda: configure(f"AwsCredentialsProvider={value}", without=["AwsCredentialsProvider"]))
    assert len(found) == 1
    assert found[0].startswith("AwsCredentialsProvider ")


def test_an_unknown_name_is_skipped_with_the_nearest_known_one(configure: Configure) -> None:
    loaded = configure(
        "AwsCredentialsProvider=EnvironmentVariablesCredentialProvider,DefaultCredentialsProvider",
        without=["AwsCredentialsProvider"],
    )
    assert len(loaded.settings.kinesis.credentials.providers) == 1
    assert "did you mean EnvironmentVariableCredentialsProvider?" in remarks_on(loaded, "AwsCredentialsProvider")[0]


def test_a_role_is_shown_without_its_external_id(configure: Configure) -> None:
    shown = f"StsAssumeRoleCredentialsProvider|{ROLE}|me|externalId={{}}|endpointRegion=eu-west-1"
    loaded = configure(f"AwsCredentialsProviderDynamoDB={shown.format('hunter2')}")
    row = next(row for row in loaded.effective if row.key == "AwsCredentialsProviderDynamoDB")
    assert row.value == shown.format("***")


def test_of_a_chain_from_the_environment_only_the_kinds_are_shown(configure: Configure) -> None:
    loaded = configure(
        "AwsCredentialsProviderDynamoDB=${CHAIN}", env={"CHAIN": "AProvider,ProfileCredentialsProvider|x"}
    )
    row = next(row for row in loaded.effective if row.key == "AwsCredentialsProviderDynamoDB")
    assert row.value == "ProfileCredentialsProvider|***"
    assert [remark.message for remark in row.remarks] == [
        "unknown credentials provider taken from the environment, skipped"
    ]


def test_own_providers_are_named_by_module_and_callable() -> None:
    assert chain("my.package:make.credentials|a|b").providers == (
        Provider(ProviderKind.CALLABLE, ("a", "b"), target="my.package:make.credentials"),
    )


def test_surplus_arguments_are_dropped_with_a_complaint() -> None:
    parsed, complaints = parse_chain("ProfileCredentialsProvider|a|b,AnonymousCredentialsProvider|c")
    assert parsed is not None
    assert [provider.arguments for provider in parsed.providers] == [("a",), ()]
    assert len(complaints) == 2


@given(st.lists(st.sampled_from([*"aS|,=^: .", "StsAssumeRoleCredentialsProvider|r|s", "|endpoint", "|externalId"])))
def test_no_text_breaks_the_parser(parts: list[str]) -> None:
    parsed, _ = parse_chain("".join(parts))
    assert parsed is None or parse_chain(str(parsed))[0] is not None
