"""`Requests`: makes the signed requests of one service, from blueprints and keys that botocore provides.

botocore is asked once for the blueprint of each operation, and every few seconds for the keys. It may take long,
because it may have to wait for new keys, so it is asked in threads only (`asked`). The loop uses the results until they
are a few seconds old (`usual`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mld.aws.service_time import SKEWED_CODES, ServiceTime
from mld.aws.wire.answers import Answer
from mld.aws.wire.blueprints import Blueprint, Canned
from mld.aws.wire.connection import Origin
from mld.aws.wire.signing import Keys, Signer

if TYPE_CHECKING:
    from botocore.credentials import Credentials


DATE = b"date"
"""The header of an answer that has the service's time."""
ENDPOINT_PARAMS = ("StreamARN", "TableName", "ConsumerARN")
"""Parameters on which the endpoint may depend, because it may contain the id of the account."""
BLUEPRINTS_MAX = 64
"""Most blueprints that are kept. A daemon calls a few operations on a few tables."""
KEYS_AGE_MAX_S = 5.0
"""How old keys may be before a thread asks for them again. Keys are renewed minutes before they expire."""
_NEVER = float("-inf")


class Usual(NamedTuple):
    """The blueprint, signer and keys (credentials) that the requests of one operation share; a request also needs its
    body. `signer` and `keys` are None if requests are not signed.
    """

    blueprint: Blueprint
    signer: Signer | None
    keys: Keys | None

    @property
    def origin(self) -> Origin:
        return self.blueprint.origin


class Requests:
    """Makes requests. Used by threads and by the loop."""

    def __init__(
        self, service_time: ServiceTime, canned: Canned, credentials: Credentials | None, context: ssl.SSLContext | None
    ) -> None:
        self._time = service_time
        self._canned = canned
        self._credentials = credentials
        self._context = context
        self._blueprints: dict[tuple[object, ...], tuple[Blueprint, Signer | None]] = {}
        self._keys: tuple[Keys | None, float] = (None, _NEVER)  # the keys, and until when they are used without asking
        self.explain = canned.explain

    def usual(self, operation: str, params: Mapping[str, Any]) -> Usual | None:
        """Return the known blueprint, signer and keys for a request; None if a thread has to ask botocore for them
        (`asked`).
        """
        keys, until_s = self._keys
        if time.monotonic() > until_s:
            return None
        known = self._blueprints.get(_key(operation, params, keys))
        return None if known is None else Usual(*known, keys)

    def signed(self, usual: Usual, body: bytes) -> bytes:
        """Return a whole request with this body, signed with the present time."""
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

    def asked(self, operation: str, params: Mapping[str, Any]) -> Usual:
        """Ask botocore for the keys and, if it is not known yet, for the blueprint of a request. Return both.

        New keys need a new blueprint, because the endpoint may depend on the account of the keys. Raises UnusualError,
        and what botocore raises.
        """
        keys: Any = None if self._credentials is None else self._credentials.get_frozen_credentials()
        wanted = _key(operation, params, keys)
        known = self._blueprints.get(wanted)
        if known is None:
            blueprint = self._canned.blueprint(operation, params, self._context)
            known = blueprint, None if blueprint.scope is None else Signer(blueprint.scope)
            if len(self._blueprints) >= BLUEPRINTS_MAX:
                self._blueprints = {}
            self._blueprints[wanted] = known
        self._keys = (keys, time.monotonic() + KEYS_AGE_MAX_S)
        return Usual(*known, keys)

    def ask_for_keys(self) -> None:
        """Forget the keys, so that botocore is asked for them before the next request."""
        self._keys = (None, _NEVER)

    def corrected_clock(self, error: Exception, answer: Answer) -> bool:
        """Return whether a refusal may be due to our clock, and another attempt may succeed with AWS's time.

        That is so if this answer corrects AWS's time. It may also be so if our clock was ever found wrong: then another
        answer may have corrected the time after this request was signed.
        """
        response: Any = getattr(error, "response", {})
        if response.get("Error", {}).get("Code") not in SKEWED_CODES:
            return False
        return self._time.learn(answer.headers.get(DATE)) or self._time.was_off


def _key(operation: str, params: Mapping[str, Any], keys: Keys | None) -> tuple[object, ...]:
    """Return everything on which a blueprint depends."""
    return (operation, None if keys is None else keys.access_key, *map(params.get, ENDPOINT_PARAMS))
