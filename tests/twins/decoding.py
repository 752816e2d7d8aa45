"""The decoder without a process of its own: the real bytes of both sides, one after the other."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from mld.schemas.decoder import serve
from mld.schemas.decoder_process import DecoderAnswers, DecoderJob, DecoderRequests
from mld.schemas.frame import UndecodableError


async def decode_here(
    jobs: Sequence[DecoderJob], may_go_on: Callable[[float], bool] = lambda _: True
) -> list[bytes | UndecodableError]:
    """Return what `DecoderProcess.decode` does for payloads that do no harm."""
    del may_go_on
    requests = DecoderRequests()
    answers = io.BytesIO()
    serve(io.BytesIO(b"".join(piece for job in jobs for piece in requests.of(job))), answers, lambda _: None)
    return list(DecoderAnswers().feed(answers.getvalue()))
