"""`ServiceTime`: what time it is at AWS, for all that signs requests or judges whether credentials have expired.

AWS refuses a signature that is more than five minutes off its own clock. Its refusal has a `Date` header, which says by
how much our clock is wrong; one measurement serves all clients of a daemon. The lean client asks for `now`. botocore
signs with this machine's clock and corrects nothing, so `attach` adds to a session what is missing, by its events:
a request is signed again with AWS's time, and one that was refused for its time is sent once more. Clients made by
that session have this too, those that assume roles included.

Importing this module must stay cheap: botocore is imported when it is needed.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from botocore.session import Session
    from botocore.signers import RequestSigner

logger = logging.getLogger(__name__)

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
"""What services answer to a signature that is too old or too new; most of them mean other things too."""
ATTEMPTS_MAX = 5
"""Of one call of a botocore client: an end for a service whose dates are never the same."""
SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request,")
"""Region and service in an Authorization header."""
_SIGNER = "mld_signer"
_SIGNED_WITH = "mld_signed_with_s"


class Scope(NamedTuple):
    """What a signature is good for."""

    region: str
    service: str


class ServiceTime:
    """`wall` is this machine's clock, in epoch seconds. Used by all threads."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self.offset_s = 0.0
        """AWS's clock minus ours."""
        self.is_measured = False

    def now(self) -> float:
        """Return AWS's time in epoch seconds, as far as it is known."""
        return self._wall() + self.offset_s

    def learn(self, date: str | None) -> bool:
        """Take the `Date` header of a refusal; whether the time is known better now."""
        if date is None:
            return False
        try:
            offset_s = parsedate_to_datetime(date).timestamp() - self._wall()
        except (ValueError, OverflowError):
            return False
        if abs(offset_s - self.offset_s) < SKEW_MIN_S:
            return False
        self.offset_s, self.is_measured = offset_s, True
        logger.warning(
            "the clock of this machine is %+.0f s off that of AWS: requests are signed with AWS's time; set the clock",
            -offset_s,
            extra={"action": "clock_skew", "skew_s": round(offset_s, 1)},
        )
        return True

    def attach(self, session: Session) -> None:
        """Watch all clients that `session` will make."""
        # Handlers of a whole event come after those of a client's own part of it: after botocore's signature.
        handlers: dict[str, Any] = {
            "before-sign": self._note_signer,
            "request-created": self._sign_again,
            "needs-retry": self._pause_before_retry,
        }
        for event, handler in handlers.items():
            session.register(event, handler, unique_id=f"mld-time-{event}")

    # --- events of botocore, in its threads --------------------------------------------------------------------------

    def _note_signer(self, request: AWSRequest, request_signer: RequestSigner, **_: Any) -> None:
        request.context[_SIGNER] = request_signer

    def _sign_again(self, request: AWSRequest, **_: Any) -> None:
        signer: RequestSigner | None = request.context.pop(_SIGNER, None)
        authorization: Any = request.headers.get("Authorization")
        if isinstance(authorization, bytes):
            authorization = authorization.decode()
        scope = None if authorization is None else SCOPE.match(authorization)
        if signer is None or scope is None:
            return  # unsigned, or otherwise than with a time of ours
        offset_s = self.offset_s
        request.context[_SIGNED_WITH] = offset_s
        if offset_s:
            _sign(request, signer, scope[1], scope[2], self._wall() + offset_s)

    def _pause_before_retry(self, request_dict: dict[str, Any], response: Any, attempts: int, **_: Any) -> float | None:
        """Return 0 if the request is to be sent again at once; None if that is for others to say."""
        if response is None or response[1].get("Error", {}).get("Code") not in SKEWED_CODES:
            return None
        self.learn(response[0].headers.get("Date"))
        signed_with_s = request_dict["context"].get(_SIGNED_WITH, self.offset_s)
        is_worth_it = abs(self.offset_s - signed_with_s) >= SKEW_MIN_S and attempts < ATTEMPTS_MAX
        return 0.0 if is_worth_it else None


def _sign(request: AWSRequest, signer: RequestSigner, region: str, service: str, at_s: float) -> None:
    """Sign in place of the signature that is there."""
    from botocore.auth import SigV4Auth

    class Timed(SigV4Auth):
        def _modify_request_before_signing(self, request: AWSRequest) -> None:
            request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
            super()._modify_request_before_signing(request)  # type: ignore[misc]

    credentials = signer.get_auth_instance(service, region).credentials
    Timed(credentials, service, region).add_auth(request)
