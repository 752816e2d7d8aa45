"""`KeptCredentials`: credentials that expire; new keys are fetched in the background while the old ones are valid.

botocore renews credentials in the thread of a call. If the renewal fails within ten minutes of the expiry, botocore
fails that call, although the keys still work. Here a renewal never delays a call while there are valid keys: it runs in
a thread of its own, is tried again every few seconds, and its failure is logged once. A call waits for the renewal, or
fails because the renewal failed, only if there are no valid keys.

A provider may also hang: a metadata service that sends a byte now and then, a process that never ends. A renewal that
takes too long counts as failed, and another one is begun. If the first one ends after all, its keys are still used.

Expiry is judged by AWS's clock (`ServiceTime`). Keys that a provider has just issued are used even if they seem to have
expired: if that is so because our clock is wrong, they work; else AWS refuses them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
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
"""How long before their expiry keys are renewed, as in botocore. Providers issue new keys this early or earlier."""
RENEW_AT_SHARE = 0.5
"""Keys that live for less than half an hour are renewed after this share of their life."""
PAUSE_S = 10.0
"""Pause between two attempts at a renewal, counted from the end of the first."""
RENEWAL_S_MAX = 60.0
"""A renewal that takes longer counts as failed. STS, with its repetitions, takes 45 s at most."""
RENEWALS_MAX = 4
"""Most renewals under way. There are several only if the provider hangs: their threads cannot be ended."""
_FIELDS = ("access_key", "secret_key", "token", "expiry_time")  # what a provider must return


class CredentialsExpiredError(Exception):
    """The keys have expired and no new ones are available; the text says why."""


class _Kept(NamedTuple):
    """Keys, and when they expire (`expiry_s`, None: never) and are to be renewed (`renew_at_s`), in epoch seconds."""

    keys: ReadOnlyCredentials
    expiry_s: float | None
    renew_at_s: float


@dataclass(eq=False, slots=True)
class _Renewal:
    """A renewal under way: the keys that it is to replace, when it began (epoch seconds), and whether it is over."""

    replaced: _Kept
    begun_s: float
    over: threading.Event = field(default_factory=threading.Event)

    def time_left_s(self, now_s: float) -> float:
        """Return for how many seconds the renewal may still go on; 0 if it has taken too long. If the clock was set
        back meanwhile, that is not more than RENEWAL_S_MAX.
        """
        return max(0.0, min(RENEWAL_S_MAX, self.begun_s + RENEWAL_S_MAX - now_s))


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="aws-credentials", daemon=True).start()


def kept(
    credentials: Credentials, service_time: ServiceTime, *, provider: str, reason_of: Callable[[BaseException], str]
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

    Creating an instance may fetch the first keys, and raises what the provider raises.
    """

    def __init__(
        self,
        source: Credentials,
        service_time: ServiceTime,
        *,
        provider: str,
        reason_of: Callable[[BaseException], str] = str,
        spawn: Callable[[Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        """Take over the keys of `source`, or fetch the first ones. `provider` names their provider in messages,
        `reason_of` says without secrets why a renewal failed, and `spawn` starts work in another thread.
        """
        botos: Any = source  # botocore has no public access to these attributes
        self.method = source.method
        self._fetch: Callable[[], Mapping[str, Any]] = botos._refresh_using
        self._time = service_time
        self._provider = provider
        self._reason_of = reason_of
        self._spawn = spawn
        self._lock = threading.Lock()  # held for moments only
        self._under_way: list[_Renewal] = []  # the renewals that have not ended, the oldest first
        self._tried_s = float("-inf")  # when the last renewal ended (epoch seconds)
        self._failure: str | None = None  # why the present keys could not be renewed; None if no renewal has failed
        if botos._frozen_credentials is None:
            self._kept = self._fetched()
            self._tried_s = self._time.now()
        else:
            self._kept = self._with_times(botos._frozen_credentials, botos._expiry_time)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return valid keys. If there are none, block for at most `RENEWAL_S_MAX`, and raise CredentialsExpiredError if
        none can be fetched either.
        """
        now_s = self._time.now()
        known = self._kept
        if known.expiry_s is None or now_s < known.renew_at_s:
            return known.keys
        if now_s < known.expiry_s:
            self._begin_renewal_if_due()
            return known.keys
        return self._renewed_keys(known)

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

    def _begin_renewal_if_due(self) -> _Renewal | None:
        """Begin a renewal if one is due, and return the newest renewal that is under way. Return None if none is,
        because the last one ended just now, or because no thread can be started.

        A renewal is due if none is under way, or if the newest one hangs and there are not too many; but not within
        `PAUSE_S` of the end of the last one. A hang is noted if no more renewals may be begun, or if the renewal that
        hangs was to replace the present keys.
        """
        with self._lock:
            now_s = self._time.now()
            newest = self._under_way[-1] if self._under_way else None
            hangs = newest is not None and not newest.time_left_s(now_s)
            is_full = len(self._under_way) >= RENEWALS_MAX
            begun = None
            if (newest is None or (hangs and not is_full)) and not self._was_tried_just_now:
                begun = _Renewal(self._kept, now_s)
                self._under_way.append(begun)
        if newest is not None and hangs and (is_full or newest.replaced is self._kept):
            self._note_hang()
        if begun is None:
            return newest
        try:
            self._spawn(partial(self._run, begun))
        except RuntimeError as error:  # no thread can be started; the next call tries again
            with self._lock:
                self._under_way.remove(begun)
            self._note_failure(str(error))
            return newest
        return begun

    def _run(self, renewal: _Renewal) -> None:
        """Carry out a renewal. Runs in a thread of its own."""
        try:
            self._renew(renewal.replaced)
        finally:
            with self._lock:
                self._under_way.remove(renewal)
                self._tried_s = self._time.now()
            renewal.over.set()

    def _renewed_keys(self, expired: _Kept) -> ReadOnlyCredentials:
        """Return new keys in place of expired ones. Blocks. Raises CredentialsExpiredError."""
        renewal = self._begin_renewal_if_due()
        if renewal is not None and not renewal.over.wait(renewal.time_left_s(self._time.now())):
            self._note_hang()
        if self._kept is expired and self._failure is not None:
            raise CredentialsExpiredError(
                f"the credentials of {self._provider} expired at {_text_of(expired)} "
                f"and cannot be renewed: {self._failure}"
            )
        return self._kept.keys

    @property
    def _was_tried_just_now(self) -> bool:
        """Whether the last renewal ended less than `PAUSE_S` ago. False if the clock was set back since."""
        return 0.0 <= self._time.now() - self._tried_s < PAUSE_S

    def _renew(self, replaced: _Kept) -> None:
        """Fetch new keys, or note why that failed. If a later renewal has replaced the keys meanwhile, drop the result
        of this one.
        """
        try:
            fetched = self._fetched()
        except BaseException as error:  # SystemExit too: an own provider may raise it, and the call must learn why
            if self._kept is replaced:
                self._note_failure(self._reason_of(error))
            return
        if self._kept is not replaced:
            return
        if self._failure is not None:
            logger.info(
                "the credentials of %s are renewed again", self._provider,
                extra={"action": "credentials_renewed", "provider": self._provider},
            )  # fmt: skip
        self._kept, self._failure = fetched, None

    def _note_hang(self) -> None:
        """Note that a renewal has taken too long, unless it is known already why the keys cannot be renewed."""
        if self._failure is None:
            self._note_failure(f"no answer within {RENEWAL_S_MAX:g} s")

    def _note_failure(self, why: str) -> None:
        """Note why the keys could not be renewed. Logs the first failure."""
        failed_before, self._failure = self._failure, why
        if failed_before is None:
            logger.warning(
                "the credentials of %s cannot be renewed (%s); those in use are good until %s",
                self._provider,
                why,
                _text_of(self._kept),
                extra={"action": "credentials_not_renewed", "provider": self._provider},
            )

    def _fetched(self) -> _Kept:
        """Fetch new keys. Raises what the provider raises, or ValueError."""
        found = self._fetch()
        if missing := [name for name in _FIELDS if not found or name not in found]:
            raise ValueError(f"the provider returned no {', '.join(missing)}")
        expiry = found["expiry_time"]
        keys = ReadOnlyCredentials(found["access_key"], found["secret_key"], found["token"], found.get("account_id"))
        return self._with_times(keys, None if expiry is None else parse_timestamp(expiry))

    def _with_times(self, keys: ReadOnlyCredentials, expiry: datetime | None) -> _Kept:
        """Return the keys with the time at which they expire (None: never), and the time at which they are to be
        renewed: RENEW_BEFORE_S before they expire, but not in the first half of their life (RENEW_AT_SHARE).
        """
        if expiry is None:
            return _Kept(keys, None, 0.0)
        expiry_s = (expiry if expiry.tzinfo is not None else expiry.replace(tzinfo=UTC)).timestamp()
        return _Kept(keys, expiry_s, expiry_s - min(RENEW_BEFORE_S, (expiry_s - self._time.now()) * RENEW_AT_SHARE))


def _text_of(known: _Kept) -> str:
    """Return the time at which the keys expire, as text in UTC."""
    assert known.expiry_s is not None, "only these are renewed"
    return f"{datetime.fromtimestamp(known.expiry_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
