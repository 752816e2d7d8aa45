"""Which account a request is for, and which partition a region is in. Pure, but for what it learns.

The embedded AWS has no passwords and no IAM; it tells accounts apart by the access key of the signature alone:

* an access key of twelve digits is the account of that number (as in other stand-ins for AWS);
* a key that STS gave for a role is of the role's account;
* every other key is of the account 123456789012.

Every account may read and write the streams of every other one, if it names them by ARN.
"""

from __future__ import annotations

import re

DEFAULT_ACCOUNT = "123456789012"
_PARTITIONS = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"), ("us-isob-", "aws-iso-b"), ("us-iso-", "aws-iso"))
"""Prefixes of regions, and the partitions that they are in; every other region is in ``aws``."""
_CREDENTIAL = re.compile(r"Credential=([^/]+)/")
_ACCOUNT = re.compile(r"\d{12}")
_KEY_GIVEN = re.compile(rb"<AccessKeyId>([^<]+)</AccessKeyId>")
_ROLE_GIVEN = re.compile(rb"<Arn>arn:aws[^:<]*:sts::(\d{12}):")
_KEYS_MAX = 10_000
"""Keys remembered; the oldest are forgotten first."""


def partition_of(region: str) -> str:
    """Return the second part of the ARNs of a region."""
    return next((partition for prefix, partition in _PARTITIONS if region.startswith(prefix)), "aws")


class Accounts:
    """Mutable: STS's answers are shown to it."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, authorization: str) -> str:
        """Return the account of a request with this Authorization header."""
        credential = _CREDENTIAL.search(authorization)
        key = credential[1] if credential else ""
        return key if _ACCOUNT.fullmatch(key) else self._given.get(key, DEFAULT_ACCOUNT)

    def learn(self, answer: bytes) -> None:
        """Remember the account of the key that this answer of STS gives, if it gives one."""
        key, role = _KEY_GIVEN.search(answer), _ROLE_GIVEN.search(answer)
        if key and role:
            self._given[key[1].decode("latin-1")] = role[1].decode()
            if len(self._given) > _KEYS_MAX:
                del self._given[next(iter(self._given))]
