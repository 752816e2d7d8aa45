"""`CredentialsResolver`: gets botocore credentials from the providers that the properties file names.

Rules: configuration#credentials-in-use, configuration#assume-role-arguments. A chain asks its providers in order, and
keeps the first one that yields credentials. The credentials are fetched at once, and roles assumed, so that a wrong
setting fails the start of the daemon and not its first request. If no provider yields credentials, the error names each
with its reason. No message has a secret in it. Sessions come from a factory, so that all share one model loader.
Everything here blocks: call it in a thread of `mld.aws`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    AssumeRoleWithWebIdentityProvider,
    Credentials,
    DeferredRefreshableCredentials,
    EnvProvider,
    create_credential_resolver,
)
from botocore.session import Session

from mld.aws.botocore_answers import limit_metadata
from mld.aws.kept_credentials import kept
from mld.aws.own_provider import ProviderError, from_callable
from mld.aws.service_time import ServiceTime
from mld.core.errors import StartupError
from mld.properties.credentials import AssumeRole, CredentialsChain, Provider, ProviderKind

logger = logging.getLogger(__name__)
STS_CONNECT_TIMEOUT_S = 5
STS_READ_TIMEOUT_S = 10
STS_ATTEMPTS_MAX = 3  # three attempts of 15 s at most keep a start within a minute
# botocore also asks these providers, which have nothing to do with the profile. A profile without credentials must fail
# instead.
_NOT_OF_A_PROFILE = ("env", "ec2-credentials-file", "boto-config", "container-role", "iam-role")
SessionFactory = Callable[[str | None], Session]
"""Returns a new session for the named profile; for None, for the active profile."""


class CredentialsUnavailableError(StartupError):
    """No provider of a chain yields credentials."""


class _NoCache(dict[str, Any]):
    """A cache that keeps nothing: botocore would judge by our clock, which may be wrong, whether cached keys have
    expired.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        return


@dataclass(frozen=True, slots=True)
class ResolvedCredentials:
    """`credentials` is None if requests go unsigned; `provider` names the provider that was used."""

    credentials: Credentials | None
    provider: str


class CredentialsResolver:
    """Finds the credentials of a chain of providers. STS is called in `region_name` if nothing else names a region."""

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
        """Ask the providers of `chain` in order, and return the credentials of the first that has some. Raises
        CredentialsUnavailableError naming each that failed.
        """
        failures = []
        for provider in chain.providers:
            if provider.kind is ProviderKind.ANONYMOUS:
                return ResolvedCredentials(None, provider.kind.value)
            try:
                credentials = self._kept_fresh(self._load(provider), provider)  # those of a role are fetched now
            except Exception as error:  # of botocore, or anything from an own provider
                failures.append(f"{provider.kind.value}: {_reason(provider, error)}")
                logger.debug("no credentials", extra={"action": "credentials", "provider": provider.kind.value})
                continue
            return ResolvedCredentials(credentials, provider.kind.value)
        raise CredentialsUnavailableError(
            f"no credentials provider yields credentials ({'; '.join(failures)}); "
            "repair one of them, or name another in AwsCredentialsProvider"
        )

    def _kept_fresh(self, credentials: Credentials, provider: Provider) -> Credentials:
        """Return `credentials`, renewed in the background if they expire. Fetches the first keys."""
        found = kept(
            credentials,
            self._service_time,
            provider=provider.target or provider.kind.value,
            reason_of=partial(_reason, provider),
        )
        found.get_frozen_credentials()
        return found

    def _load(self, provider: Provider) -> Credentials:
        """Return the credentials of one provider. Raises ProviderError or whatever the provider raises."""
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
                credentials = from_callable(provider.target, provider.arguments)
            case ProviderKind.SYSTEM_PROPERTY:
                raise ProviderError("there are no Java system properties here")
            case ProviderKind.ANONYMOUS:
                raise AssertionError("handled by resolve")
        if credentials is None:
            raise ProviderError("found none")
        return credentials

    def _builtin(self, method: str) -> Credentials | None:
        """Return the credentials of one provider of botocore's default chain; None if it has none. `method` is
        botocore's name of the provider.
        """
        resolver = limit_metadata(create_credential_resolver(self._new_session(None), cache=_NoCache()))
        credentials: Credentials | None = resolver.get_provider(method).load()
        return credentials

    def _profile(self, name: str | None) -> Credentials | None:
        """Return the credentials of a profile (default: the active one); None if it has none."""
        name = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
        session = self._new_session(name)
        session.get_scoped_config()  # raises for a profile that does not exist
        resolver = limit_metadata(
            create_credential_resolver(session, cache=_NoCache(), region_name=session.get_config_variable("region"))
        )
        for method in _NOT_OF_A_PROFILE:
            resolver.remove(method)
        credentials: Credentials | None = resolver.load_credentials()
        return credentials

    def _default(self) -> Credentials | None:
        """Return the credentials of botocore's default chain; None if it has none."""
        session = self._new_session(None)
        region = self._sts_region(None, session)
        resolver = limit_metadata(create_credential_resolver(session, cache=_NoCache(), region_name=region))
        credentials: Credentials | None = resolver.load_credentials()
        return credentials

    def _web_identity(self) -> Credentials | None:
        """Return the credentials of the role that a web identity token in the environment allows; None if there is
        no token.
        """
        provider = AssumeRoleWithWebIdentityProvider(
            load_config=dict,  # only the environment counts, no profile
            client_creator=self._sts_client_creator(None, None),
            profile_name="default",
            cache=_NoCache(),
        )
        credentials: Credentials | None = provider.load()
        return credentials

    def _assumed(self, role: AssumeRole, provider: Provider) -> Credentials:
        """Return the credentials of a role. It is assumed with the credentials of the default chain."""
        base = self._default()
        if base is None:
            raise ProviderError("the default chain has no credentials to assume the role with")
        arguments = {"RoleSessionName": role.session_name}
        if role.external_id is not None:
            arguments["ExternalId"] = role.external_id
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=self._sts_client_creator(role.sts_region, role.endpoint_url),
            source_credentials=self._kept_fresh(base, provider),
            role_arn=role.role_arn,
            extra_args=arguments,
            cache=_NoCache(),
        )
        return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")

    def _sts_client_creator(self, region: str | None, endpoint_url: str | None) -> Callable[..., Any]:
        """Return the function by which botocore's providers make their STS client, with our region and time limits."""
        session = self._new_session(None)
        region = self._sts_region(region, session)
        if region is None:
            raise ProviderError("no region for STS: set endpointRegion, regionName or AWS_REGION")
        base = Config(
            connect_timeout=STS_CONNECT_TIMEOUT_S,
            read_timeout=STS_READ_TIMEOUT_S,
            retries={"total_max_attempts": STS_ATTEMPTS_MAX, "mode": "standard"},
        )

        def create(service: str, *, config: Config | None = None, **keywords: Any) -> Any:
            """Create a client with our time limits (`base`). Options in the caller's `config` replace ours."""
            merged = base if config is None else base.merge(config)
            return session.create_client(
                service, region_name=region, endpoint_url=endpoint_url, config=merged, **keywords
            )

        return create

    def _sts_region(self, wanted: str | None, session: Session) -> str | None:
        """Return the region for a client of STS; None if no setting names one. `wanted` is a region that the provider's
        own arguments name.

        AWS_REGION and botocore's own setting come before regionName of the properties file, because Java does not use
        regionName for STS.
        """
        return wanted or os.environ.get("AWS_REGION") or session.get_config_variable("region") or self._region_name


def _reason(provider: Provider, error: BaseException) -> str:
    """Return why a provider failed, as a clause. For a function of the application this is only the type of the error,
    because the text may hold a secret.
    """
    if provider.kind is ProviderKind.CALLABLE and not isinstance(error, ProviderError):
        return f"{provider.target} raised {type(error).__name__}"
    text = " ".join(str(error).split()) or type(error).__name__
    external_id = provider.role.external_id if provider.role is not None else None
    return text.replace(external_id, "***") if external_id else text  # an error of STS may quote it
