"""`correct_clock`: makes the clients of a botocore session sign with AWS's time.

By itself, botocore signs with this machine's clock, however wrong that is. `correct_clock` registers handlers of
botocore's events. If this machine's clock is far off, they sign each request again with AWS's time. If AWS refuses a
request because of the time of its signature, they have it sent once more. All clients that the session makes get these
handlers, also those that assume roles.

Importing this module must stay cheap, so botocore is imported when it is needed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mld.aws.service_time import SKEW_MIN_S, SKEWED_CODES, ServiceTime
from mld.aws.wire.signing import SCOPE

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from botocore.session import Session
    from botocore.signers import RequestSigner

ATTEMPTS_MAX = 5
"""Attempts of one call of a botocore client, so that the call ends even if each answer has another date."""
_SIGNER = "mld_signer"  # key of the signer in the context of a request
_SIGNED_WITH = "mld_signed_with_s"  # key of the correction of our clock with which the request was signed


def correct_clock(session: Session, service_time: ServiceTime) -> None:
    """Register the handlers for all clients that `session` will make."""
    corrected = _CorrectedClients(service_time)
    # botocore signs in a handler for the event of one service, such as request-created.kinesis. Handlers for a shorter
    # name, like ours, are called after it, so they see the signature.
    handlers: dict[str, Any] = {
        "before-sign": corrected.note_signer,
        "request-created": corrected.sign_again,
        "needs-retry": corrected.pause_before_retry,
    }
    for event, handler in handlers.items():
        session.register(event, handler, unique_id=f"mld-time-{event}")


class _CorrectedClients:
    """The handlers of botocore's events. They are called in the threads that use the clients."""

    def __init__(self, service_time: ServiceTime) -> None:
        self._time = service_time

    def note_signer(self, request: AWSRequest, request_signer: RequestSigner, **_: Any) -> None:
        """Keep the signer with the request, for `sign_again`."""
        request.context[_SIGNER] = request_signer

    def sign_again(self, request: AWSRequest, **_: Any) -> None:
        """Sign a signed request again, with AWS's time, if this machine's clock is too far off."""
        signer: RequestSigner | None = request.context.pop(_SIGNER, None)
        authorization: Any = request.headers.get("Authorization")
        if isinstance(authorization, bytes):
            authorization = authorization.decode()
        scope = None if authorization is None else SCOPE.match(authorization)
        if signer is None or scope is None:
            return  # unsigned, or signed in another way
        correction_s = self._time.correction_s
        request.context[_SIGNED_WITH] = correction_s
        if correction_s:
            _sign(request, signer, scope[1], scope[2], self._time.now())

    def pause_before_retry(self, request_dict: dict[str, Any], response: Any, attempts: int, **_: Any) -> float | None:
        """Measure AWS's time by the `Date` header of an answer. Return 0 to send the request again at once; None leaves
        the decision to other handlers.

        The date of a refusal for a wrong time (`SKEWED_CODES`) is believed at once (`learn`); the date of any other
        answer is believed only if it is plausible (`saw`). A refused request is sent again if the correction of our
        clock now differs from the correction with which the request was signed.
        """
        if response is None:  # no answer came
            return None
        date = response[0].headers.get("Date")  # `response` is a pair: the HTTP answer, and what botocore parsed of it
        if response[1].get("Error", {}).get("Code") not in SKEWED_CODES:
            self._time.saw(date)
            return None
        self._time.learn(date)
        correction_s = self._time.correction_s
        signed_with_s = request_dict["context"].get(_SIGNED_WITH, correction_s)
        sends_again = abs(correction_s - signed_with_s) >= SKEW_MIN_S and attempts < ATTEMPTS_MAX
        return 0.0 if sends_again else None


def _sign(request: AWSRequest, signer: RequestSigner, region: str, service: str, at_s: float) -> None:
    """Replace the signature of a request by one of the time `at_s` (epoch seconds)."""
    from botocore.auth import SigV4Auth

    class Timed(SigV4Auth):
        def _modify_request_before_signing(self, request: AWSRequest) -> None:
            """Put the time `at_s` into the request, in place of this machine's time that botocore has put there."""
            request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
            super()._modify_request_before_signing(request)  # type: ignore[misc]

    credentials = signer.get_auth_instance(service, region).credentials
    Timed(credentials, service, region).add_auth(request)
