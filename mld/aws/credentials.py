"""Credential specs of the properties file -> botocore credentials that refresh themselves.

Rules: configuration#credentials-in-use, configuration#assume-role-arguments. A chain asks its providers in order; the
first that yields credentials is used for good. A provider is asked at once, role assumption included, so that a wrong
one shows at start and not at the first record; when none yields, the error names each and why. No secret goes into a
message.

Sessions come from a factory, so that all share one model loader. Everything here blocks: call it in a thread of
`mld.aws`.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    AssumeRoleWithWebIdentityProvider,
    Credentials,
    DeferredRefreshableCredentials,
    EnvProvider,
    RefreshableCredentials,
    create_credential_resolver,
)
from botocore.session import Session

from mld.aws.keptcredentials import kept
from mld.aws.servicetime import ServiceTime
from mld.core.errors import StartupError
from mld.properties.credentials import AssumeRole, CredentialsChain, Provider, ProviderKind

logger = logging.getLogger(__name__)

STS_CONNECT_TIMEOUT_S = 5
STS_READ_TIMEOUT_S = 10
STS_ATTEMPTS_MAX = 3  # three attempts of 15 s at most keep a start within a minute

# What botocore appends to a profile's own providers; a profile provider must not fall through to them.
_NOT_OF_A_PROFILE = ("env", "ec2-credentials-file", "boto-config", "container-role", "iam-role")

SessionFactory = Callable[[str | None], Session]
"""A new session for a profile, None for the active one."""


class CredentialsUnavailableError(StartupError):
    """No provider of a chain yields credentials."""


class _NoCache(dict[str, Any]):
    """Keeps nothing for botocore, which would go on giving out what by this machine's clock is good for long."""

    def __setitem__(self, key: str, value: Any) -> None:
        return


class _ProviderError(Exception):
    """Why one provider yields nothing; its text is a clause."""


@dataclass(frozen=True, slots=True)
class ResolvedCredentials:
    """`credentials` is None when requests are to go unsigned; `provider` names the one that was used."""

    credentials: Credentials | None
    provider: str


class CredentialsResolver:
    """Resolves chains. `region_name` is the last resort for STS."""

    def __init__(
        self,
        new_session: SessionFactory,
        service_time: ServiceTime,
        *,
        region_name: str | None,
    ) -> None:
        self._new_session = new_session
        self._service_time = service_time
        self._region_name = region_name

    def resolve(self, chain: CredentialsChain) -> ResolvedCredentials:
        """Ask the providers of `chain` in order. Raises CredentialsUnavailableError naming each that failed."""
        failures = []
        for provider in chain.providers:
            if provider.kind is ProviderKind.ANONYMOUS:
                return ResolvedCredentials(None, provider.kind.value)
            try:
                credentials = self._kept(self._load(provider), provider)  # those of a role are fetched now
            except Exception as error:  # botocore's, or anything out of an own provider
                failures.append(f"{provider.kind.value}: {_reason(provider, error)}")
                logger.debug("no credentials", extra={"action": "credentials", "provider": provider.kind.value})
                continue
            return ResolvedCredentials(credentials, provider.kind.value)
        raise CredentialsUnavailableError(
            f"no credentials provider yields credentials ({'; '.join(failures)}); "
            "repair one of them, or name another in AwsCredentialsProvider"
        )

    def _kept(self, credentials: Credentials, provider: Provider) -> Credentials:
        found = kept(
            credentials,
            self._service_time,
            provider=provider.target or provider.kind.value,
            reason_of=partial(_reason, provider),
        )
        found.get_frozen_credentials()
        return found

    def _load(self, provider: Provider) -> Credentials:
        credentials: Credentials | None = None
        match provider.kind:
            case ProviderKind.DEFAULT:
                credentials = self._default()
            case ProviderKind.ENVIRONMENT:
                credentials = EnvProvider().load()
            case ProviderKind.PROFILE:
                credentials = self._profile(provider.arguments[0] if provider.arguments else None)
            case ProviderKind.INSTANCE_METADATA:
                credentials = self._builtin("iam-role")
            case ProviderKind.CONTAINER:
                credentials = self._builtin("container-role")
            case ProviderKind.WEB_IDENTITY:
                credentials = self._web_identity()
            case ProviderKind.ASSUME_ROLE:
                assert provider.role is not None
                credentials = self._assumed(provider.role, provider)
            case ProviderKind.CALLABLE:
                assert provider.target is not None
                credentials = _from_callable(provider.target, provider.arguments)
            case ProviderKind.SYSTEM_PROPERTY:
                raise _ProviderError("there are no Java system properties here")
            case ProviderKind.ANONYMOUS:
                raise AssertionError("handled by resolve")
        if credentials is None:
            raise _ProviderError("found none")
        return credentials

    def _builtin(self, method: str) -> Credentials | None:
        """Return one provider out of botocore's default chain."""
        resolver = create_credential_resolver(self._new_session(None), cache=_NoCache())
        credentials: Credentials | None = resolver.get_provider(method).load()
        return credentials

    def _profile(self, name: str | None) -> Credentials | None:
        name = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
        session = self._new_session(name)
        session.get_scoped_config()  # raises for a profile that does not exist
        resolver = create_credential_resolver(
            session, cache=_NoCache(), region_name=session.get_config_variable("region")
        )
        for method in _NOT_OF_A_PROFILE:
            resolver.remove(method)
        credentials: Credentials | None = resolver.load_credentials()
        return credentials

    def _default(self) -> Credentials | None:
        session = self._new_session(None)
        region = self._sts_region(None, session)
        resolver = create_credential_resolver(session, cache=_NoCache(), region_name=region)
        credentials: Credentials | None = resolver.load_credentials()
        return credentials

    def _web_identity(self) -> Credentials | None:
        provider = AssumeRoleWithWebIdentityProvider(
            load_config=dict,  # only the environment counts, no profile
            client_creator=self._sts_client_creator(None, None),
            profile_name="default",
            cache=_NoCache(),
        )
        credentials: Credentials | None = provider.load()
        return credentials

    def _assumed(self, role: AssumeRole, provider: Provider) -> Credentials:
        base = self._default()
        if base is None:
            raise _ProviderError("the default chain has no credentials to assume the role with")
        arguments = {"RoleSessionName": role.session_name}
        if role.external_id is not None:
            arguments["ExternalId"] = role.external_id
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=self._sts_client_creator(role.sts_region, role.endpoint_url),
            source_credentials=self._kept(base, provider),
            role_arn=role.role_arn,
            extra_args=arguments,
            cache=_NoCache(),
        )
        return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")

    def _sts_client_creator(self, region: str | None, endpoint_url: str | None) -> Callable[..., Any]:
        session = self._new_session(None)
        region = self._sts_region(region, session)
        if region is None:
            raise _ProviderError("no region for STS: set endpointRegion, regionName or AWS_REGION")
        base = Config(
            connect_timeout=STS_CONNECT_TIMEOUT_S,
            read_timeout=STS_READ_TIMEOUT_S,
            retries={"total_max_attempts": STS_ATTEMPTS_MAX, "mode": "standard"},
        )

        def create(service: str, *, config: Config | None = None, **keywords: Any) -> Any:
            merged = base if config is None else base.merge(config)
            return session.create_client(
                service, region_name=region, endpoint_url=endpoint_url, config=merged, **keywords
            )

        return create

    def _sts_region(self, wanted: str | None, session: Session) -> str | None:
        """Return the region of STS: the SDK's own choice comes before regionName, which Java does not ask at all."""
        return wanted or os.environ.get("AWS_REGION") or session.get_config_variable("region") or self._region_name


def _reason(provider: Provider, error: Exception) -> str:
    """Return one clause; what an own provider raises is named by its type only, as its text may hold anything."""
    if provider.kind is ProviderKind.CALLABLE and not isinstance(error, _ProviderError):
        return f"{provider.target} raised {type(error).__name__}"
    text = " ".join(str(error).split()) or type(error).__name__
    external_id = provider.role.external_id if provider.role is not None else None
    return text.replace(external_id, "***") if external_id else text  # STS repeats parameters it does not like


# --- providers of the application: module:callable -------------------------------------------------------------------


def _from_callable(target: str, arguments: tuple[str, ...]) -> Credentials:
    """Return what `module:callable` returns: botocore credentials, or access_key, secret_key and optionally token,
    expiry.

    A result with an `expiry` is asked for again before that time.
    """
    function = _imported(target)

    def fetch() -> dict[str, Any]:
        return _metadata(function(*arguments), target)

    first = function(*arguments)
    if isinstance(first, Credentials):
        return first
    metadata = _metadata(first, target)
    if metadata["expiry_time"] is None:
        return Credentials(metadata["access_key"], metadata["secret_key"], metadata["token"], method=target)
    return RefreshableCredentials.create_from_metadata(metadata, refresh_using=fetch, method=target)


def _imported(target: str) -> Callable[..., object]:
    module_name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        raise _ProviderError(f"{target} cannot be imported; is its directory in PYTHONPATH?") from None
    if not callable(found):
        raise _ProviderError(f"{target} is not callable")
    result: Callable[..., object] = found
    return result


def _metadata(result: object, target: str) -> dict[str, Any]:
    def get(name: str) -> Any:
        return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)

    access_key, secret_key, expiry = get("access_key"), get("secret_key"), get("expiry")
    if not isinstance(access_key, str) or not isinstance(secret_key, str) or not access_key or not secret_key:
        raise _ProviderError(f"{target} must return access_key and secret_key")
    return {
        "access_key": access_key,
        "secret_key": secret_key,
        "token": get("token"),
        "expiry_time": None if expiry is None else _expiry_text(expiry, target),
    }


def _expiry_text(expiry: object, target: str) -> str:
    try:
        moment = expiry if isinstance(expiry, datetime) else datetime.fromisoformat(str(expiry))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _ProviderError(f"{target}: expiry must be a datetime or ISO 8601 text with a time zone")
    return moment.isoformat()
