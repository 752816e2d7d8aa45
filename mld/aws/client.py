"""`BotoService`: the `Service` port over a botocore client, called in a few threads of its own.

A call is one HTTP attempt; the caller does the retries. The answer comes back to the event loop as a plain dict, a
failure as an error of `mld.core.errors`. The caller may give up at any time. A call that is still queued is then never
sent. A call under way ends by the client's own read timeout, and its outcome is dropped.

Importing this module must stay cheap, so botocore is imported by the first thread that needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mld.aws.aws_failures import aws_failure, is_no_connection, limit_words
from mld.aws.botocore_answers import RAW_BODY
from mld.aws.boundary import OUR_OWN, Surprises, reason_of
from mld.aws.threads import GivenUpError, Workers
from mld.core.errors import AwsUnreachableError, StartupError

if TYPE_CHECKING:
    from botocore.client import BaseClient


logger = logging.getLogger(__name__)
T = TypeVar("T")
CALL_TIMEOUT_S = 90.0
"""Limit of a call without a `timeout_s`. It is above any sensible read timeout, and ends answers that only trickle."""
OPEN_TIMEOUT_S = 60.0
"""Reading the service model takes about 0.1 s. If it takes longer than this, a disk or a credentials provider hangs."""
CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for calls under way. Their threads then end with the process."""
SILENCE_S_MIN = 0.5
"""A connection that has waited this long for an answer is not used again, nor is any older connection."""


class BotoService:
    """One service client (Kinesis, DynamoDB). `threads_max` calls run in parallel; `name` is for threads and messages.

    `client_factory` runs in one of the threads, at `open` or at the first call. If it fails, the next call runs it
    again. `source_of` returns the setting that decides to which address the client connects, see `address_source`.
    """

    def __init__(
        self,
        client_factory: Callable[[], BaseClient],
        *,
        threads_max: int,
        name: str,
        source_of: Callable[[BaseClient], str] | None = None,
    ) -> None:
        """Make a service without a client; `client_factory` makes the client in a thread. The class describes the other
        arguments.
        """
        self._client_factory = client_factory
        self._source_of = source_of
        self._name = name
        self._threads = Workers(threads_max=threads_max, name=f"aws-{name}")
        self._client_lock = threading.Lock()
        self._client: BaseClient | None = None
        self._surprises = Surprises()  # logs each kind of unexpected error once
        self._asked: dict[object, float] = {}
        """The calls that wait for an answer, each with the time when it was sent (monotonic seconds)."""
        self._renewed_s = 0.0
        """Only connections that were made after this time (monotonic seconds) may be used."""

    async def open(self) -> None:
        """Create the client now. Several services open in parallel, each in its own thread.

        Raises `StartupError` with the reason if it cannot be created.
        """
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await self._threads.run(self._made_client)
        except TimeoutError:
            raise StartupError(f"the {self._name} client was not ready within {OPEN_TIMEOUT_S:g} s") from None
        except Exception as error:  # whatever the model loader or an application's own credential provider raises
            raise StartupError(f"the {self._name} client cannot be created: {reason_of(error)}") from error

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """Call an operation once in a thread, as `mld.aws.service.Service.call` describes. `timeout_s` includes the
        wait for a free thread.
        """
        return await self._awaited(operation, partial(self._call_in_thread, operation, params), timeout_s)

    async def _awaited(self, operation: str, work: Callable[[], T], timeout_s: float | None) -> T:
        """Run `work` in a thread, and return its result. Whatever goes wrong, raises only errors of mld.

        `operation` names the call in these errors. `timeout_s` None: CALL_TIMEOUT_S is the limit.
        """
        limit_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._threads.run(partial(self._as_ours, operation, work))
        except GivenUpError:
            raise AwsUnreachableError(operation, f"the {self._name} client is closed") from None
        except TimeoutError:
            self._forget_connections()
            raise AwsUnreachableError(operation, f"no answer within {limit_s:g} s") from None
        except OUR_OWN:
            raise
        except Exception as error:  # no thread could be started
            raise AwsUnreachableError(operation, reason_of(error)) from error

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """Call an operation once in a thread, and return what `read` makes of the body; see
        `mld.aws.service.RawService.fetch`.
        """
        return await self._awaited(operation, partial(self._fetch_in_thread, operation, params, read), timeout_s)

    async def with_client(self, use: Callable[[BaseClient], T]) -> T:
        """Return what `use` returns for the client. It runs in a thread and may block."""
        return await self._threads.run(lambda: use(self._made_client()))

    def remedy(self) -> str:
        """Return a text to append to the reason of a failed connection: which setting to check; empty if unknown."""
        client = self._client
        return "" if client is None or self._source_of is None else f"; check {self._source_of(client)}"

    async def close(self) -> None:
        """End the threads. Queued calls are refused; calls under way get `CLOSE_TIMEOUT_S`. May be called again."""
        if under_way := self._threads.close():
            _, late = await asyncio.wait(under_way, timeout=CLOSE_TIMEOUT_S)
            if late:
                logger.info(
                    "left %d %s calls without an answer behind", len(late), self._name, extra={"action": "aws_close"}
                )
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _forget_connections(self) -> None:
        """Drop the open connections, so that the next calls make new ones.

        After a call without an answer, the open connections may be dead.
        """
        self._renewed_s = time.monotonic()
        client = self._client
        if client is not None:
            with contextlib.suppress(Exception):  # errors of sockets that nobody will use any more
                client.close()

    # --- below: in the threads ----------------------------------------------------------------------------------------

    def _as_ours(self, operation: str, work: Callable[[], T]) -> T:
        """Return what `work` returns; raise AwsUnreachableError for every error of it that is not one of mld."""
        try:
            return work()
        except OUR_OWN:
            raise
        except Exception as error:
            self._surprises.report(operation, error)
            raise AwsUnreachableError(operation, reason_of(error)) from error

    def _made_client(self) -> BaseClient:
        """Return the botocore client. The first call makes it."""
        with self._client_lock:
            if self._client is None:
                self._client = self._client_factory()
            return self._client

    def _call_in_thread(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Make one attempt at the call, and return the answer. Raises MldError.

        If a time limit of botocore has ended the call, the error names the limit. If there was no connection, it names
        the setting to check (`remedy`). After a call without an answer, the open connections are dropped.
        """
        try:
            import botocore

            method = getattr(self._made_client(), botocore.xform_name(operation))
        except Exception as error:
            raise AwsUnreachableError(operation, f"no {self._name} client: {reason_of(error)}") from error
        self._drop_if_silent()
        call = object()
        sent_s = self._asked[call] = time.monotonic()
        try:
            answer: dict[str, Any] = method(**params)
        except Exception as error:
            client, took_s = self._made_client(), time.monotonic() - sent_s
            reason = limit_words(client, error, took_s)  # None if no time limit of botocore ended the call
            if is_no_connection(client, error, took_s):
                reason = f"{reason or reason_of(error)}{self.remedy()}"
            failure = aws_failure(operation, error) if reason is None else AwsUnreachableError(operation, reason)
            if isinstance(failure, AwsUnreachableError):
                self._forget_connections()
            raise failure from error
        finally:
            del self._asked[call]
        return answer

    def _drop_if_silent(self) -> None:
        """Drop the open connections if another call has waited for its answer for too long (`SILENCE_S_MIN`), unless
        they were dropped since that call was sent.

        The connection of that call may be dead, and so may all connections that were made before the call was sent.
        """
        late_s = time.monotonic() - SILENCE_S_MIN
        if any(self._renewed_s < asked_s < late_s for asked_s in list(self._asked.values())):
            self._forget_connections()

    def _fetch_in_thread(self, operation: str, params: dict[str, Any], read: Callable[[bytes], T]) -> T:
        """Make one attempt at the call, and return the result of `read` for the body of the answer.

        `keep_raw_body` has made the client return only the body, under the key RAW_BODY.
        """
        return read(self._call_in_thread(operation, params)[RAW_BODY])
