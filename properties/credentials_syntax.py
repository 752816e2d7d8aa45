"""`parse_chain`: parses the value of an `AwsCredentialsProvider…` key into a chain of providers. No credentials are
looked up.

Rules: configuration#credentials-syntax, configuration#known-providers. A value is a chain `provider,provider,…`; a
provider is `name|argument|…`; an assume-role provider has a role, a session name and nested `key=value` arguments. Java
silently drops providers and arguments that it cannot use; here each of them is reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mld.properties.credentials import AssumeRole, CredentialsChain, Provider, ProviderKind
from mld.properties.remarks import nearest

_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_PROVIDER_NAME = re.compile(r"[A-Za-z][\w.$]*(?:Provider|ProviderChain|Chain|Credentials|Wrapper)", re.ASCII)
_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)+", re.ASCII)
_PACKAGES = (
    "software.amazon.kinesis.multilang.auth.",
    "software.amazon.awssdk.auth.credentials.",
    "software.amazon.awssdk.services.sts.auth.",
    "com.amazonaws.services.kinesis.multilang.auth.",
    "com.amazonaws.auth.profile.",
    "com.amazonaws.auth.",
)
"""Packages of Java, one of which may stand before the name of a class."""
_V1_PACKAGE_PREFIX = "com.amazonaws."
_V2_ALIASES = {"KclStsAssumeRoleCredentialsProvider": ProviderKind.ASSUME_ROLE}
_V1_NAMES = {
    "DefaultAWSCredentialsProviderChain": ProviderKind.DEFAULT,
    "SystemPropertiesCredentialsProvider": ProviderKind.SYSTEM_PROPERTY,
    "EC2ContainerCredentialsProviderWrapper": ProviderKind.CONTAINER,
    "WebIdentityTokenCredentialsProvider": ProviderKind.WEB_IDENTITY,
    "STSAssumeRoleSessionCredentialsProvider": ProviderKind.ASSUME_ROLE,
    "KclSTSAssumeRoleSessionCredentialsProvider": ProviderKind.ASSUME_ROLE,
    "AnonymousAWSCredentials": ProviderKind.ANONYMOUS,
}
_BY_NAME = {kind.value: kind for kind in ProviderKind if kind is not ProviderKind.CALLABLE} | _V2_ALIASES | _V1_NAMES
_UNBUILDABLE = {
    "StaticCredentialsProvider": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and use "
    "EnvironmentVariableCredentialsProvider",
    "ProcessCredentialsProvider": "put credential_process into a profile and use ProfileCredentialsProvider|<profile>",
    "AwsCredentialsProviderChain": "list its providers here, separated by commas",
    "HttpCredentialsProvider": "use ContainerCredentialsProvider or InstanceProfileCredentialsProvider",
    "PropertiesFileCredentialsProvider": "put the keys into a profile and use ProfileCredentialsProvider|<profile>",
    "ClasspathPropertiesFileCredentialsProvider": "put the keys into a profile and use "
    "ProfileCredentialsProvider|<profile>",
}
"""Classes of Java that no value of a key can describe, each with what to do instead."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A message about a part of the value that was dropped or translated; it contains no secrets. `fatal` means that
    the provider cannot be used.
    """

    message: str
    remedy: str = ""
    fatal: bool = False


def parse_chain(text: str, *, reveal_names: bool = True) -> tuple[CredentialsChain | None, list[Complaint]]:
    """Parse a credentials value. Return the chain, or None if no provider is left, which is an error; and the
    complaints.

    With `reveal_names` False, complaints do not show unknown names, because these may be secrets.
    """
    complaints: list[Complaint] = []
    providers = []
    for piece in (piece.strip() for piece in text.split(",")):
        if piece:
            provider = _parse_provider(piece, complaints, reveal_names)
            if provider is not None:
                providers.append(provider)
    return CredentialsChain(tuple(providers)) if providers else None, complaints


def _parse_provider(text: str, complaints: list[Complaint], reveal_names: bool) -> Provider | None:
    """Return the provider that one element of the chain describes; None, with a complaint, if it cannot be used."""
    name, *arguments = (part.strip() for part in text.split("|"))
    if _CALLABLE.fullmatch(name):
        return Provider(ProviderKind.CALLABLE, tuple(arguments), target=name)
    kind = _known_kind(name, complaints, reveal_names)
    if kind is None:
        return None
    if kind is ProviderKind.ASSUME_ROLE:
        role = _parse_role(arguments, complaints)
        return None if role is None else Provider(kind, role=role)
    allowed = 1 if kind is ProviderKind.PROFILE else 0
    if len(arguments) > allowed:
        complaints.append(
            Complaint(f"{kind.value} takes {allowed or 'no'} argument{'s' * (allowed != 1)}, {len(arguments)} given",
                      f"only the first {allowed} is used" if allowed else "remove them")
        )  # fmt: skip
    return Provider(kind, tuple(argument for argument in arguments[:allowed] if argument))


def _known_kind(name: str, complaints: list[Complaint], reveal_names: bool) -> ProviderKind | None:
    """Return the kind of provider that a class name means; None, with a complaint, if it is unknown."""
    package = next((package for package in _PACKAGES if name.startswith(package)), "")
    short = name.removeprefix(package)
    kind = _BY_NAME.get(short)
    if kind is None:
        # A text that does not look like a class name may be a secret, such as an access key in the wrong place.
        named = name if _PROVIDER_NAME.fullmatch(name) else ""
        complaints.append(_unknown(short, named if reveal_names else "taken from the environment"))
        return None
    if package.startswith(_V1_PACKAGE_PREFIX) or short in _V1_NAMES:
        complaints.append(
            Complaint(f"{short} is the name of the SDK v1, used as {kind.value}; Java KCL 3.x does not know it",
                      f"write {kind.value}")
        )  # fmt: skip
    return kind


def _unknown(short: str, shown: str) -> Complaint:
    """Return the complaint about a class name that cannot be used. `shown` is the part of it that may be shown."""
    if short in _UNBUILDABLE:
        return Complaint(f"{short} cannot be built from a properties file and is skipped", _UNBUILDABLE[short], True)
    meant = nearest(short, _BY_NAME, cutoff=0.7)
    remedy = f"did you mean {meant}?" if meant else "see Credentials in docs/use/configuration.md"
    return Complaint(f"unknown credentials provider{shown and ' '}{shown}, skipped", remedy, True)


def _parse_role(arguments: list[str], complaints: list[Complaint]) -> AssumeRole | None:
    """Return the arguments of an assume-role provider; None, with a complaint, if they cannot be used."""
    name = ProviderKind.ASSUME_ROLE.value
    if len(arguments) < 2 or not arguments[0] or not arguments[1]:
        remedy = f"write {name}|<role ARN>|<session name>"
        complaints.append(Complaint(f"{name} needs a role ARN and a session name", remedy, True))
        return None
    nested: dict[str, str] = {}
    for position, argument in enumerate(arguments[2:], start=3):
        _collect_nested(argument, position, nested, complaints)
    region, url = nested.get("endpointRegion"), None
    if region is not None and not _REGION.fullmatch(region):
        complaints.append(Complaint(f"{name}: endpointRegion is no region name", "write one as eu-west-1", True))
        return None
    if "endpoint" in nested:
        endpoint = _parse_endpoint(nested["endpoint"])
        if endpoint is None:
            remedy = "write endpoint=<URL or host>^<signing region>"
            complaints.append(Complaint(f"{name}: malformed endpoint", remedy, True))
            return None
        url, region = endpoint
    return AssumeRole(arguments[0], arguments[1], nested.get("externalId"), region, url)


def _collect_nested(argument: str, position: int, nested: dict[str, str], complaints: list[Complaint]) -> None:
    """Add a nested argument to `nested`. Java splits at every `=`, and drops an argument with more than two parts; here
    an argument is split at its first `=`.
    """
    key, equals, value = argument.partition("=")
    if not equals or not value:
        complaints.append(Complaint(f"argument {position} of the assume-role provider is no key=value, ignored"))
    elif key not in ("endpoint", "endpointRegion", "externalId"):
        remedy = "known are endpoint, endpointRegion and externalId"
        complaints.append(Complaint(f"argument {position} of the assume-role provider has an unknown key", remedy))
    else:
        if "=" in value:
            complaints.append(Complaint(f"the value of {key} contains '='; Java ignores this argument"))
        nested[key] = value


def _parse_endpoint(text: str) -> tuple[str, str] | None:
    """Return the URL and the signing region of ``endpoint^region``; None if it is malformed."""
    url, hat, region = text.partition("^")
    if not hat or not url or not _REGION.fullmatch(region):
        return None
    return (url if "://" in url else f"https://{url}"), region
