"""`KeptCredentials`: credentials that expire; new keys are fetched in the background while the old ones are valid.

botocore renews credentials in the thread of a call. If the renewal fails within ten minutes of the expiry, botocore
fails that call, although the keys still work. Here a renewal never delays a call while there are valid keys: it runs in
a thread of its own, is tried again every few seconds, and its failure is logged once. A call waits for the renewal, or
fails because the renewal failed, only if there are no valid keys.

Expiry is judged by AWS's clock (`ServiceTime`). Keys that a provider has just issued are used even if they seem to have
expired: if that is so because our clock is wrong, they work; else AWS refuses them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from botocore.credentials import (
    Credentials,
    ReadOnlyCredentials,
    RefreshableCredentials,
)
from botocore.utils import parse_timestamp

from mld.aws.service_time import ServiceTime

logger = logging.getLogger(__name__)
RENEW_BEFORE_S = 15 * 60.0
"""When before their expiry keys are renewed, as in botocore. Providers issue new keys this early or earlier."""
RENEW_AT_SHARE = 0.5
"""Keys that live for less than half an hour are renewed after this share of their life."""
PAUSE_S = 10.0
"""Pause between two attempts at a renewal, counted from the end of the first."""
_FIELDS = ("access_key", "secret_key", "token", "expiry_time")


class CredentialsExpiredError(Exception):
    """The keys have expired and no new ones are available; the text says why."""


class _Kept(NamedTuple):
    """Keys, and when they expire (`expiry_s`, None: never) and are to be renewed (`renew_at_s`), in epoch seconds."""

    keys: ReadOnlyCredentials
    expiry_s: float | None
    renew_at_s: float


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="aws-credentials", daemon=True).start()


def kept(
    credentials: Credentials, service_time: ServiceTime, *, provider: str, reason_of: Callable[[Exception], str]
) -> Credentials:
    """Return `KeptCredentials` in place of `credentials` if botocore would renew these, else `credentials` itself.
    Raises what the provider raises.
    """
    renews = isinstance(credentials, RefreshableCredentials)
    if not renews or type(credentials).get_frozen_credentials is not RefreshableCredentials.get_frozen_credentials:
        return credentials  # they never expire, or the application renews them in its own way
    return KeptCredentials(credentials, service_time, provider=provider, reason_of=reason_of)


class KeptCredentials(Credentials):
    """Replaces `source`, and fetches new keys from the provider of `source`. Used by all threads.

    `provider` is its name in messages; `reason_of` says without secrets why a renewal failed; `spawn` starts work in
    another thread. Creating an instance may fetch the first keys, and raises what the provider raises.
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
        botos: Any = source  # botocore has no public access to these attributes
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
        """Return valid keys. Blocks only if there are none; raises CredentialsExpiredError if none can be fetched
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
        """Renew the keys in a thread, unless a renewal is under way or was tried just now."""
        if not self._renewing.acquire(blocking=False):
            return
        begun = False
        try:
            if not self._was_tried_just_now:
                self._spawn(self._renew_and_release)
                begun = True
        except RuntimeError:
            return  # no thread can be started; the next call tries again
        finally:
            if not begun:
                self._renewing.release()

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._renewing.release()

    def _renewed(self, expired: _Kept) -> ReadOnlyCredentials:
        """Return new keys in place of expired ones. Blocks. Raises CredentialsExpiredError."""
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
        """Fetch new keys, or note why that failed. Logs the first failure, and the first success after it."""
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
        """Return the keys with the times at which they expire and are to be renewed."""
        if expiry is None:
            return _Kept(keys, None, 0.0)
        expiry_s = (expiry if expiry.tzinfo is not None else expiry.replace(tzinfo=UTC)).timestamp()
        return _Kept(keys, expiry_s, expiry_s - min(RENEW_BEFORE_S, (expiry_s - self._time.now()) * RENEW_AT_SHARE))


def _text_of(known: _Kept) -> str:
    assert known.expiry_s is not None, "only these are renewed"
    return f"{datetime.fromtimestamp(known.expiry_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
