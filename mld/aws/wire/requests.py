"""`Requests`: makes the requests of one service: where to, with which head, signed with which keys at which time.

botocore is asked for the blueprint of each operation once, and for the keys every few seconds. Asking may take long, or
wait for new keys, so only threads ask (`made`); what they were told is good for the loop for a while (`usual`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mld.aws.servicetime import SKEWED_CODES, ServiceTime
from mld.aws.wire.answers import Answer
from mld.aws.wire.botocore_side import Blueprint, Canned, UnusualError
from mld.aws.wire.connection import Origin
from mld.aws.wire.sigv4 import Keys, Signer

if TYPE_CHECKING:
    from botocore.credentials import Credentials

ENDPOINT_PARAMS = ("StreamARN", "TableName", "ConsumerARN")
"""Parameters that an endpoint may depend on: accounts have their own."""
BLUEPRINTS_MAX = 64
"""A daemon has a handful of operations on a handful of tables."""
KEYS_AGE_MAX_S = 5.0
"""How long the loop signs with the same keys before a thread asks again; providers renew keys minutes early."""
_NEVER = float("-inf")


class Usual(NamedTuple):
    """What a request is made of, besides its body."""

    blueprint: Blueprint
    signer: Signer | None
    keys: Keys | None

    @property
    def origin(self) -> Origin:
        return self.blueprint.origin


class Requests:
    """Used by threads and by the loop."""

    def __init__(self, service_time: ServiceTime) -> None:
        self._time = service_time
        self._canned: Canned | None = None
        self._credentials: Credentials | None = None
        self._context: ssl.SSLContext | None = None
        self._blueprints: dict[tuple[object, ...], tuple[Blueprint, Signer | None]] = {}
        self._keys: tuple[Keys | None, float] = (None, _NEVER)  # and until when they are used without asking

    def prepare(self, canned: Canned, credentials: Credentials | None, context: ssl.SSLContext | None) -> None:
        self._canned, self._credentials, self._context = canned, credentials, context

    def usual(self, operation: str, params: Mapping[str, Any]) -> Usual | None:
        """Return the usual request; None if a thread has to ask."""
        keys, until_s = self._keys
        if time.monotonic() > until_s:
            return None
        known = self._blueprints.get(_key(operation, params, keys))
        return None if known is None else Usual(*known, keys)

    def signed(self, usual: Usual, body: bytes) -> bytes:
        """Return a whole request."""
        blueprint, signer, keys = usual
        signature = ""
        if signer is not None and keys is not None:
            signature = signer.headers(
                keys,
                self._time.now(),
                content_type=blueprint.content_type,
                host=blueprint.host,
                target=blueprint.target,
                body=body,
            )
        return f"{blueprint.head}{signature}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    # --- in threads --------------------------------------------------------------------------------------------------

    def made(self, operation: str, params: Mapping[str, Any], body: bytes) -> tuple[Origin, bytes]:
        """Return where a request goes, and the whole of it. Raises UnusualError, and what botocore raises."""
        keys: Any = None if self._credentials is None else self._credentials.get_frozen_credentials()
        blueprint, signer = self._blueprint(operation, params, keys)
        self._keys = (keys, time.monotonic() + KEYS_AGE_MAX_S)
        return blueprint.origin, self.signed(Usual(blueprint, signer, keys), body)

    def ask_for_keys(self) -> None:
        """Ask for keys before the next request."""
        self._keys = (None, _NEVER)

    def corrected_clock(self, error: Exception, answer: Answer) -> bool:
        """Return whether the error may have been about time, and AWS's time is known now: perhaps since it was sent
        only.
        """
        response: Any = getattr(error, "response", {})
        if response.get("Error", {}).get("Code") not in SKEWED_CODES:
            return False
        date = answer.headers.get(b"date")
        return self._time.learn(None if date is None else date.decode("latin-1")) or self._time.is_measured

    def _blueprint(
        self, operation: str, params: Mapping[str, Any], keys: Keys | None
    ) -> tuple[Blueprint, Signer | None]:
        """Take the blueprint from botocore, anew with every change of the keys, as an endpoint may depend on their
        account.
        """
        wanted = _key(operation, params, keys)
        known = self._blueprints.get(wanted)
        if known is not None:
            return known
        if self._canned is None:
            raise UnusualError("not prepared")
        blueprint = self._canned.blueprint(operation, params, self._context)
        made = blueprint, None if blueprint.scope is None else Signer(blueprint.scope)
        if len(self._blueprints) >= BLUEPRINTS_MAX:
            self._blueprints = {}
        self._blueprints[wanted] = made
        return made


def _key(operation: str, params: Mapping[str, Any], keys: Keys | None) -> tuple[object, ...]:
    return (operation, None if keys is None else keys.access_key, *map(params.get, ENDPOINT_PARAMS))
