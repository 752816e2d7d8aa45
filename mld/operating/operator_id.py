"""Names an operator: the name of the account, and the worker id under which one command owns leases."""

from __future__ import annotations

import getpass
import os
import uuid

OPERATOR_PREFIX = "mld-operator-"


def user_name() -> str:
    """Return the name of the operator's account; its number if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the former before Python 3.13
        return str(os.getuid())


def operator_id() -> str:
    """Return a new id for one run of one command. It contains the account's name, for other operators to see."""
    plain = "".join(letter for letter in user_name() if letter.isascii() and letter.isalnum())[:32]
    return f"{OPERATOR_PREFIX}{plain}-{uuid.uuid4().hex[:8]}"


def is_operator(owner: str | None) -> bool:
    return owner is not None and owner.startswith(OPERATOR_PREFIX)
