"""The refusal of an operation by a service that the embedded AWS models itself."""

from __future__ import annotations

from mld.core.errors import MldError


class ServiceError(MldError):
    """`code` goes to the client as ``__type``, `status` is the HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
