"""`from_callable`: gets credentials from a function of the application, which is named as ``module:callable``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from botocore.credentials import (
    Credentials,
    RefreshableCredentials,
)


class ProviderError(Exception):
    """A provider yields no credentials; the text is a clause that says why."""


def from_callable(target: str, arguments: tuple[str, ...]) -> Credentials:
    """Return the credentials that the function `target` (``module:callable``) returns. Raises what the function raises,
    or ProviderError.

    The function returns credentials of botocore, or an object or mapping with access_key, secret_key and optionally
    token and expiry. If there is an expiry, the function is called again before that time.
    """
    function = _imported(target)

    def fetch() -> dict[str, Any]:
        """Call the function again, for new keys."""
        return _metadata(function(*arguments), target)

    first = function(*arguments)
    if isinstance(first, Credentials):
        return first
    metadata = _metadata(first, target)
    if metadata["expiry_time"] is None:
        return Credentials(metadata["access_key"], metadata["secret_key"], metadata["token"], method=target)
    return RefreshableCredentials.create_from_metadata(metadata, refresh_using=fetch, method=target)


def _imported(target: str) -> Callable[..., object]:
    """Return the function that `target` names. Raises ProviderError."""
    module_name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        raise ProviderError(f"{target} cannot be imported; is its directory in PYTHONPATH?") from None
    if not callable(found):
        raise ProviderError(f"{target} is not callable")
    result: Callable[..., object] = found
    return result


def _metadata(result: object, target: str) -> dict[str, Any]:
    """Return what the function returned, in the form of botocore's metadata. Raises ProviderError."""

    def get(name: str) -> Any:
        return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)

    access_key, secret_key, expiry = get("access_key"), get("secret_key"), get("expiry")
    if not isinstance(access_key, str) or not isinstance(secret_key, str) or not access_key or not secret_key:
        raise ProviderError(f"{target} must return access_key and secret_key")
    return {
        "access_key": access_key,
        "secret_key": secret_key,
        "token": get("token"),
        "expiry_time": None if expiry is None else _expiry_text(expiry, target),
    }


def _expiry_text(expiry: object, target: str) -> str:
    """Return an expiry as ISO 8601 text. Raises ProviderError."""
    try:
        moment = expiry if isinstance(expiry, datetime) else datetime.fromisoformat(str(expiry))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ProviderError(f"{target}: expiry must be a datetime or ISO 8601 text with a time zone")
    return moment.isoformat()
