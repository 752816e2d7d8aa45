"""Credential specs of the properties file -> botocore credentials, used for as long as they are good.

Rules: configuration#credentials-in-use, configuration#assume-role-arguments. A chain asks its providers in order; the
first that yields credentials is used for good. A provider is asked at once, role assumption included, so that a wrong
one shows at start and not at the first record; when none yields, the error names each and why. No secret goes into a
message. Sessions come from a factory, so that all share one model loader. Everything here blocks: call it in a thread
of `mld.aws`.

botocore renews credentials in the thread of a call, and fails that call if the renewal fails in the last ten minutes,
although the keys still work. With `KeptCredentials` a renewal never holds a call up while there are good keys: it runs
in a thread of its own, is tried again every few seconds, and says once that it fails. Only without good keys is a call
made to wait for it, or told why there are none. The clock is AWS's (`ServiceTime`). Keys that a provider has just
issued are used even if they seem to have expired: it is the clock then that is wrong, or AWS will say so.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    AssumeRoleWithWebIdentityProvider,
    Credentials,
    DeferredRefreshableCredentials,
    EnvProvider,
    ReadOnlyCredentials,
    RefreshableCredentials,
    create_credential_resolver,
)
from botocore.session import Session
from botocore.utils import parse_timestamp

from mld.aws.service_time import ServiceTime
from mld.core.errors import StartupError
from mld.properties.credentials import AssumeRole, CredentialsChain, Provider, ProviderKind

logger = logging.getLogger(__name__)


# --- keys that are kept ----------------------------------------------------------------------------------------------

RENEW_BEFORE_S = 15 * 60.0
"""Providers hand out new keys a quarter of an hour or more before the old ones expire; botocore begins then, too."""
RENEW_AT_SHARE = 0.5
"""Of the life that keys have left when they come, if that is short."""
PAUSE_S = 10.0
"""Between two tries. A hanging provider takes longer than that by itself."""
_FIELDS = ("access_key", "secret_key", "token", "expiry_time")


class CredentialsExpiredError(Exception):
    """The keys have expired and no new ones are available; the text says why."""


class _Kept(NamedTuple):
    """`expiry_s` is None for keys that stay good."""

    keys: ReadOnlyCredentials
    expiry_s: float | None
    renew_at_s: float


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="aws-credentials", daemon=True).start()


def kept(
    credentials: Credentials, service_time: ServiceTime, *, provider: str, reason_of: Callable[[Exception], str]
) -> Credentials:
    """Return `credentials` themselves if botocore does not renew them. Raises what their provider raises."""
    renews = isinstance(credentials, RefreshableCredentials)
    if not renews or type(credentials).get_frozen_credentials is not RefreshableCredentials.get_frozen_credentials:
        return credentials  # such as those of an application that renews them in its own way
    return KeptCredentials(credentials, service_time, provider=provider, reason_of=reason_of)


class KeptCredentials(Credentials):
    """Takes over `source`, which is not used any more. Used by all threads.

    `provider` is for messages; `reason_of` says without secrets why a renewal failed; `spawn` begins work elsewhere.
    Creating one may fetch the first keys: raises what the provider raises.
    """

    def __init__(
        self,
        source: Credentials,
        service_time: ServiceTime,
        *,
        provider: str,
        reason_of: Callable[[Exception], str] = str,
        spawn: Callable[[Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        botos: Any = source  # the three attributes have no other access
        self.method = source.method
        self._fetch: Callable[[], Mapping[str, Any]] = botos._refresh_using
        self._time = service_time
        self._provider = provider
        self._reason_of = reason_of
        self._spawn = spawn
        self._renewing = threading.Lock()
        self._tried_s = float("-inf")
        self._failure: str | None = None
        if botos._frozen_credentials is None:
            self._kept = self._fetched()
            self._tried_s = self._time.now()
        else:
            self._kept = self._judged(botos._frozen_credentials, botos._expiry_time)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return good keys. Blocks only if there are none; raises CredentialsExpiredError if none can be fetched
        either.
        """
        now_s = self._time.now()
        known = self._kept
        if known.expiry_s is None or now_s < known.renew_at_s:
            return known.keys
        if now_s < known.expiry_s:
            self._renew_elsewhere()
            return known.keys
        return self._renewed(known)

    @property
    def access_key(self) -> Any:  # type: ignore[override]
        return self.get_frozen_credentials().access_key

    @property
    def secret_key(self) -> Any:  # type: ignore[override]
        return self.get_frozen_credentials().secret_key

    @property
    def token(self) -> Any:  # type: ignore[override]
        return self.get_frozen_credentials().token

    @property
    def account_id(self) -> Any:
        return self.get_frozen_credentials().account_id

    # --- renewing ----------------------------------------------------------------------------------------------------

    def _renew_elsewhere(self) -> None:
        """Renew in a thread, unless that is under way or was tried just now."""
        if not self._renewing.acquire(blocking=False):
            return
        begun = False
        try:
            if not self._was_tried_just_now:
                self._spawn(self._renew_and_release)
                begun = True
        except RuntimeError:
            return  # no thread is available: there will be other calls
        finally:
            if not begun:
                self._renewing.release()

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._renewing.release()

    def _renewed(self, expired: _Kept) -> ReadOnlyCredentials:
        with self._renewing:
            if self._kept is expired and not self._was_tried_just_now:
                self._renew()
            if self._kept is expired and self._failure is not None:
                raise CredentialsExpiredError(
                    f"the credentials of {self._provider} expired at {_text_of(expired)} "
                    f"and cannot be renewed: {self._failure}"
                )
            return self._kept.keys

    @property
    def _was_tried_just_now(self) -> bool:
        return 0.0 <= self._time.now() - self._tried_s < PAUSE_S

    def _renew(self) -> None:
        try:
            fetched = self._fetched()
        except Exception as error:
            failed_before, self._failure = self._failure, self._reason_of(error)
            if failed_before is None:
                logger.warning(
                    "the credentials of %s cannot be renewed (%s); those in use are good until %s",
                    self._provider,
                    self._failure,
                    _text_of(self._kept),
                    extra={"action": "credentials_not_renewed", "provider": self._provider},
                )
        else:
            if self._failure is not None:
                logger.info(
                    "the credentials of %s are renewed again", self._provider,
                    extra={"action": "credentials_renewed", "provider": self._provider},
                )  # fmt: skip
            self._kept, self._failure = fetched, None
        finally:
            self._tried_s = self._time.now()

    def _fetched(self) -> _Kept:
        """Fetch new keys. Raises what the provider raises, or ValueError."""
        found = self._fetch()
        if missing := [name for name in _FIELDS if not found or name not in found]:
            raise ValueError(f"the provider returned no {', '.join(missing)}")
        expiry = found["expiry_time"]
        keys = ReadOnlyCredentials(found["access_key"], found["secret_key"], found["token"], found.get("account_id"))
        return self._judged(keys, None if expiry is None else parse_timestamp(expiry))

    def _judged(self, keys: ReadOnlyCredentials, expiry: datetime | None) -> _Kept:
        if expiry is None:
            return _Kept(keys, None, 0.0)
        expiry_s = (expiry if expiry.tzinfo is not None else expiry.replace(tzinfo=UTC)).timestamp()
        return _Kept(keys, expiry_s, expiry_s - min(RENEW_BEFORE_S, (expiry_s - self._time.now()) * RENEW_AT_SHARE))


def _text_of(known: _Kept) -> str:
    assert known.expiry_s is not None, "only these are renewed"
    return f"{datetime.fromtimestamp(known.expiry_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


# --- providers -------------------------------------------------------------------------------------------------------

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
