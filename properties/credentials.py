"""`CredentialsChain`: the providers that are asked for credentials, as frozen values. `str` of a chain hides secrets.

`credentials_syntax` makes a chain from the value of a key; `mld.aws` builds the real providers from it. No credentials
are looked up here. Rules: configuration#known-providers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from mld.properties.redaction import HIDDEN, Shown, redacted
from mld.properties.scrubber import secrets_in

_ROLE_ARN = re.compile(r"arn:[a-z-]+:iam::[0-9]*:role/[\w+=,.@/-]+", re.ASCII)


class ProviderKind(Enum):
    """The kinds of providers that can be built; the value is the class name in the SDK."""

    DEFAULT = "DefaultCredentialsProvider"
    ENVIRONMENT = "EnvironmentVariableCredentialsProvider"
    SYSTEM_PROPERTY = "SystemPropertyCredentialsProvider"
    PROFILE = "ProfileCredentialsProvider"
    INSTANCE_METADATA = "InstanceProfileCredentialsProvider"
    CONTAINER = "ContainerCredentialsProvider"
    WEB_IDENTITY = "WebIdentityTokenFileCredentialsProvider"
    ANONYMOUS = "AnonymousCredentialsProvider"
    ASSUME_ROLE = "StsAssumeRoleCredentialsProvider"
    CALLABLE = "module:callable"


@dataclass(frozen=True, slots=True)
class AssumeRole:
    """The arguments of an assume-role provider; `endpoint_url` comes with `sts_region`, its signing region."""

    role_arn: str = field(repr=False)
    session_name: str = field(repr=False)
    external_id: str | None = field(default=None, repr=False)
    sts_region: str | None = None
    endpoint_url: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider. `arguments` has the name of the profile, or the arguments of a callable; `target` is
    `module:callable`.
    """

    kind: ProviderKind
    arguments: tuple[str, ...] = field(default=(), repr=False)
    role: AssumeRole | None = None
    target: str | None = None

    def __str__(self) -> str:
        """Return the provider as in the file, with everything hidden that may be secret."""
        parts = [self.target or self.kind.value]
        if self.role is not None:
            is_role = _ROLE_ARN.fullmatch(self.role.role_arn) is not None
            parts += [self.role.role_arn if is_role else HIDDEN, self.role.session_name]
            parts += [f"externalId={HIDDEN}"] if self.role.external_id is not None else []
            if self.role.endpoint_url is not None:
                parts.append(f"endpoint={redacted('', Shown.ENDPOINT, self.role.endpoint_url)}^{self.role.sts_region}")
            elif self.role.sts_region is not None:
                parts.append(f"endpointRegion={self.role.sts_region}")
        elif self.kind is ProviderKind.PROFILE:
            parts += self.arguments
        else:
            parts += [HIDDEN for _ in self.arguments]
        return "|".join(parts)


@dataclass(frozen=True, slots=True)
class CredentialsChain:
    """Providers in the order in which they are asked; the first one that yields credentials is used."""

    providers: tuple[Provider, ...]

    def __str__(self) -> str:
        return ",".join(str(provider) for provider in self.providers)

    def secrets(self) -> Iterator[str]:
        """Yield the texts that must never be shown: external ids, users in STS endpoints, and arguments of the user's
        own providers.
        """
        for provider in self.providers:
            if provider.kind is ProviderKind.CALLABLE:
                yield from provider.arguments
            if provider.role is not None:
                yield provider.role.external_id or ""
                yield from secrets_in("", Shown.ENDPOINT, provider.role.endpoint_url or "")
