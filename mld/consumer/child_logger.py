"""Logs what a child logs (`child_log` says how it looks), under our own logger and with our own fields."""

from __future__ import annotations

import logging

from mld.consumer.child_log import CHILD_PREFIX, event_of


class ChildLogger:
    """For one output of one child; `action` names it. `as_fields`: JSON objects become fields.

    `stream` is named if the application reads several.
    """

    def __init__(
        self,
        log: logging.Logger,
        action: str,
        shard_id: str,
        pid: int | None = None,
        *,
        as_fields: bool,
        stream: str | None = None,
    ) -> None:
        self._log = log
        self._as_fields = as_fields
        self._own = {"action": action, "shard": shard_id, **({} if pid is None else {"pid": pid})}
        if stream is not None:
            self._own["stream"] = stream

    def log(self, line: str) -> None:
        """Log a line at the level it names. What the child prints below INFO counts as INFO: it has chosen to."""
        event = event_of(line, as_fields=self._as_fields)
        if self._log.isEnabledFor(max(event.level, logging.INFO)):
            fields = {**event.fields, **self._own}
            if "stream" in event.fields and "stream" in self._own:
                fields[f"{CHILD_PREFIX}stream"] = event.fields["stream"]
            record = self._log.makeRecord(
                self._log.name, event.level, __file__, 0, event.message, (), None, extra=fields
            )
            self._log.handle(record)
