"""The pages of a group: probes and metrics of all its workers together, and the status page of each.

`/` is the page of the first worker that runs; the pages of all workers show the same fleet. `/2/` is the page of worker
2, with the details that only this worker knows about its shards. `/metrics` has the metrics of all workers, each value
labelled with its worker. The supervisor passes requests on to the workers over their sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from urllib.parse import urlsplit

from mld.aws.wire.answers import NothingSentBackError
from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.single_exchange import exchange, request
from mld.daemon.group import GroupMember, WorkerGroup
from mld.serving.http_answers import (
    HttpAnswer,
    Question,
    Route,
    SharedAnswers,
    text_answer,
)
from mld.serving.web_pages import exposed, probed

TIMEOUT_S = 8.0
READ_BYTES = 256 * 1024
_ASKED = ("accept", "accept-encoding")
"""Headers of a request that are passed on to the worker."""
_PASSED_ON = ("content-encoding", "content-security-policy", "vary")
"""Headers of the worker's answer that are passed on to the client, besides the content type."""
NOT_RUNNING = "is not running, and will be started again"


class GroupPages:
    """Serves the pages of a group, under the same paths as the pages of a single daemon."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._expositions = SharedAnswers()  # metrics of all workers, made once for callers that ask together

    def routes(self) -> dict[str, Route]:
        """Return the routes by their paths."""
        routes: dict[str, Route] = {
            "/": self._first,
            "/status.json": self._first,
            "/apps.json": self._first,
            "/livez": self._live,
            "/healthz": self._live,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }
        for number, worker in enumerate(self._group.workers, 1):
            for path in ("/", "/status.json", "/apps.json"):
                routes[f"/{number}{path}"] = partial(_of_worker, worker, path)
        return routes

    async def _first(self, question: Question) -> HttpAnswer:
        """Return the answer of the first worker that is ready; if none is, that of the first worker."""
        running = [worker for worker in self._group.workers if worker.is_ready] or self._group.workers
        return await _of_worker(running[0], question.target, question)

    async def _live(self, question: Question) -> HttpAnswer:
        """Answer the liveness probe: yes, unless a running worker answers no."""
        # A worker that has ended is being restarted: the group is alive.
        running = [worker for worker in self._group.workers if worker.process is not None and worker.is_ready]
        return probed(await why_not(running, question.target))

    async def _ready(self, question: Question) -> HttpAnswer:
        """Answer the readiness probe: yes, if each worker of the group runs and answers yes."""
        return probed(await why_not(self._group.workers, question.target))

    async def _metrics(self, question: Question) -> HttpAnswer:
        """Return the metrics of all workers. Callers that ask at the same time get one answer (`_exposed`)."""
        return await exposed(question, self._expositions, self._exposed)

    async def _exposed(self, accept: str) -> HttpAnswer:
        """Return the metrics of all running workers as one text; if none answers, the first worker's error. `accept` is
        the Accept header of the request: it chooses the format of the text.
        """
        from mld.serving.group_exposition import merged

        plain = Question("/metrics", {"accept": "text/plain"})
        workers = [worker for worker in self._group.workers if worker.process is not None]
        answers = await asyncio.gather(*(_of_worker(worker, plain.target, plain) for worker in workers))
        texts = [
            (worker.name, _text(answer))
            for worker, answer in zip(workers, answers, strict=True)
            if answer.status == 200
        ]
        if answers and not texts:
            return answers[0]
        restarts = {worker.name: worker.restarts for worker in self._group.workers}
        running = sum(worker.is_ready for worker in self._group.workers)
        # In a thread: it takes seconds with 10,000 shards, and the supervisor must notice workers that die meanwhile.
        content_type, body = await asyncio.to_thread(merged, texts, running, restarts, accept)
        return HttpAnswer(200, content_type, body)


async def why_not(workers: Sequence[GroupMember], path: str) -> str | None:
    """Return what the first unhealthy worker answers to the probe at `path`; None if all are healthy."""
    whys = await asyncio.gather(*(_probe(worker, path) for worker in workers))
    unhealthy = [(worker, why) for worker, why in zip(workers, whys, strict=True) if why is not None]
    return f"worker {unhealthy[0][0].name}: {unhealthy[0][1]}" if unhealthy else None


async def _probe(worker: GroupMember, path: str) -> str | None:
    """Ask a worker's probe; return why the answer is no, None if it is yes."""
    if worker.process is None:
        return NOT_RUNNING
    if not worker.is_ready:  # it may not serve its pages yet
        return worker.status
    answer = await _of_worker(worker, path, Question(path, {}))
    return None if answer.status == 200 else _text(answer).strip()


async def _of_worker(worker: GroupMember, path: str, question: Question) -> HttpAnswer:
    """Return the worker's answer to this request; 503 if none comes."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _fetched(worker, path, question)
    except TimeoutError:
        return text_answer(503, f"worker {worker.name} gives no answer within {TIMEOUT_S:g} s")
    except (OSError, BrokenAnswerError, NothingSentBackError):
        return text_answer(503, f"worker {worker.name} {NOT_RUNNING if worker.process is None else 'is starting'}")


async def _fetched(worker: GroupMember, path: str, question: Question) -> HttpAnswer:
    """Pass a request on to the worker over its socket, and return its answer. Of the headers, only those in `_ASKED`
    go to the worker, and only those in `_PASSED_ON` come back.
    """
    sent_headers = {
        name: value for name in _ASKED if (value := question.headers.get(name, "")).isprintable() and value.isascii()
    }
    streams = await asyncio.open_unix_connection(str(worker.pages), limit=READ_BYTES)
    answer = await exchange(streams, request("GET", urlsplit(f"http://localhost{path}"), sent_headers))
    headers = {name.decode(): value.decode("ascii", "replace") for name, value in answer.headers.items()}
    passed_on = {name: headers[name] for name in _PASSED_ON if name in headers}
    return HttpAnswer(answer.status, headers.get("content-type", "text/plain"), answer.body, passed_on)


def _text(answer: HttpAnswer) -> str:
    """Return the body of an answer as text."""
    pieces: Iterable[bytes] = (answer.body,) if isinstance(answer.body, bytes) else answer.body
    return b"".join(pieces).decode("utf-8", "replace")
