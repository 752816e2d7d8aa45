"""`Accounts`: finds the account of a request from the access key in its signature.

The embedded AWS has no passwords and no IAM:

* an access key of twelve digits belongs to the account with that number, as in other stand-ins for AWS;
* a key that STS issued for a role belongs to the account of the role;
* every other key belongs to the account 123456789012.

Every account may read and write the streams of all others, if it names them by ARN.
"""

from __future__ import annotations

import re

from mld.local.kinesis_errors import ACCOUNT

_CREDENTIAL = re.compile(r"Credential=([^/]+)/")
_NUMBER = re.compile(r"\d{12}")
_KEY_GIVEN = re.compile(rb"<AccessKeyId>([^<]+)</AccessKeyId>")
_ROLE_GIVEN = re.compile(rb"<Arn>arn:aws[^:<]*:sts::(\d{12}):")
_KEYS_MAX = 10_000
"""Most keys that are remembered; the oldest are forgotten first."""


class Accounts:
    """Maps access keys to accounts, including the keys that STS has issued."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}  # access keys that STS has issued, each with the account of its role

    def of(self, authorization: str) -> str:
        """Return the account of a request with this Authorization header."""
        credential = _CREDENTIAL.search(authorization)
        key = credential[1] if credential else ""
        return key if _NUMBER.fullmatch(key) else self._given.get(key, ACCOUNT)

    def learn(self, answer: bytes) -> None:
        """Remember the access key in this answer of STS with the account of its role, if the answer contains a key."""
        key, role = _KEY_GIVEN.search(answer), _ROLE_GIVEN.search(answer)
        if key and role:
            self._given[key[1].decode("latin-1")] = role[1].decode()
            if len(self._given) > _KEYS_MAX:
                del self._given[next(iter(self._given))]
