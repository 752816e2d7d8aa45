"""`Requests`: makes the requests of one service: where to, with which head, signed with which keys at which time.

botocore is asked for the blueprint of each operation once, and for the keys every few seconds. Asking may take long, or
wait for new keys, so only threads ask (`made`); what they were told is good for the loop for a while (`usual`).
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from mld.aws.wire.botocore_side import Blueprint, Canned, UnusualError
from mld.aws.wire.connection import Answer, Origin
from mld.aws.wire.sigv4 import Keys, Signer

if TYPE_CHECKING:
    from botocore.credentials import Credentials

logger = logging.getLogger(__name__)

ENDPOINT_PARAMS = ("StreamARN", "TableName", "ConsumerARN")
"""Parameters that an endpoint may depend on: accounts have their own."""
BLUEPRINTS_MAX = 64
"""A daemon has a handful of operations on a handful of tables."""
KEYS_AGE_MAX_S = 5.0
"""How long the loop signs with the same keys before a thread asks again; providers renew keys minutes early."""
SKEW_MIN_S = 60.0
"""A signature is good for five minutes; a smaller difference is not why one was refused."""
SKEWED_CODES = frozenset(
    {
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "RequestInTheFuture",
        "ExpiredToken",
        "ExpiredTokenException",
        "AuthFailure",
    }
)
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
    """`wall` is our clock, in epoch seconds; `service` is for messages. Used by threads and by the loop."""

    def __init__(self, service: str, wall: Callable[[], float]) -> None:
        self._service = service
        self._wall = wall
        self._canned: Canned | None = None
        self._credentials: Credentials | None = None
        self._context: ssl.SSLContext | None = None
        self._blueprints: dict[tuple[object, ...], tuple[Blueprint, Signer | None]] = {}
        self._keys: tuple[Keys | None, float] = (None, _NEVER)  # and until when they are used without asking
        self._skew_s = 0.0

    def prepare(self, canned: Canned, credentials: Credentials | None, context: ssl.SSLContext | None) -> None:
        self._canned, self._credentials, self._context = canned, credentials, context

    def usual(self, operation: str, params: Mapping[str, Any]) -> Usual | None:
        """None if a thread has to ask."""
        keys, until_s = self._keys
        if time.monotonic() > until_s:
            return None
        known = self._blueprints.get(_key(operation, params, keys))
        return None if known is None else Usual(*known, keys)

    def signed(self, usual: Usual, body: bytes) -> bytes:
        """A whole request."""
        blueprint, signer, keys = usual
        signature = ""
        if signer is not None and keys is not None:
            signature = signer.headers(
                keys,
                self._wall() + self._skew_s,
                content_type=blueprint.content_type,
                host=blueprint.host,
                target=blueprint.target,
                body=body,
            )
        return f"{blueprint.head}{signature}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    # --- in threads --------------------------------------------------------------------------------------------------

    def made(self, operation: str, params: Mapping[str, Any], body: bytes) -> tuple[Origin, bytes]:
        """Where a request goes, and the whole of it. Raises UnusualError, and what botocore raises."""
        keys: Any = None if self._credentials is None else self._credentials.get_frozen_credentials()
        blueprint, signer = self._blueprint(operation, params, keys)
        self._keys = (keys, time.monotonic() + KEYS_AGE_MAX_S)
        return blueprint.origin, self.signed(Usual(blueprint, signer, keys), body)

    def ask_for_keys(self) -> None:
        """Before the next request."""
        self._keys = (None, _NEVER)

    def corrected_clock(self, error: Exception, answer: Answer) -> bool:
        """Whether the error was about time, and the time is known better now."""
        response: Any = getattr(error, "response", {})
        date = answer.headers.get(b"date")
        if date is None or response.get("Error", {}).get("Code") not in SKEWED_CODES:
            return False
        try:
            skew_s = parsedate_to_datetime(date.decode("latin-1")).timestamp() - self._wall()
        except ValueError:
            return False
        if abs(skew_s - self._skew_s) < SKEW_MIN_S:
            return False
        logger.warning(
            "our clock is %+.0f s off that of %s: requests are signed with its time", -skew_s, self._service,
            extra={"action": "clock_skew", "skew_s": round(skew_s, 1)},
        )  # fmt: skip
        self._skew_s = skew_s
        return True

    def _blueprint(
        self, operation: str, params: Mapping[str, Any], keys: Keys | None
    ) -> tuple[Blueprint, Signer | None]:
        """From botocore, anew with every change of the keys, as an endpoint may depend on their account."""
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
