"""`Overdue`: warns when a child takes long over one request. The warning says how long the request takes, how long the
child has been silent, and which records it has.

`Overdue` never ends a child; `timeoutInSeconds` does. The first warning comes after `logWarningForTaskAfterMillis`,
further ones whenever the duration has doubled, and at least once an hour. A request that is answered in time costs
almost nothing, because the timer is not reset with each request. When the timer fires, it checks which request is under
way.
"""

from __future__ import annotations

import asyncio
import logging

from mld.consumer.ports import Holds
from mld.core.clock import Clock
from mld.core.log_fields import about, of_child
from mld.properties.settings import ChildSettings

log = logging.getLogger(__name__)

REPEAT_MIN_S = 1.0  # the pause between warnings if `logWarningForTaskAfterMillis` is 0; Java checks once a second
REPEAT_MAX_S = 3600.0  # so that every hour of the log has a warning
TIMER_SLACK_S = 0.001  # a timer may fire slightly early, and must not be set again because of that


def next_warning_s(running_s: float) -> float:
    """Return the age of a request, in seconds, at which to warn again after a warning at the age `running_s`."""
    return running_s + min(max(running_s, REPEAT_MIN_S), REPEAT_MAX_S)


class Overdue:
    """Watches the requests of one child, one at a time."""

    def __init__(
        self, clock: Clock, shard_id: str, child: str, settings: ChildSettings, number: int | None = None
    ) -> None:
        """Make the watch of one child. `child` describes it for the log; `number` is its number if the shard has
        several children, else None.
        """
        self._clock = clock
        self._shard_id = shard_id
        self._child = child
        self._number = number
        self._first_s = settings.warn_after_s  # age of a request at which to warn first
        self._due_s = settings.warn_after_s  # age of the present request at which to warn next
        self._is_bounded = settings.reply_timeout_s is not None
        self._request: str | None = None  # the request under way; None between requests
        self._holds: Holds = dict  # returns log fields about the request's records; `dict` returns none
        self._began_s = self._heard_s = 0.0  # when the request began, and when the child last sent a message
        self._timer: asyncio.TimerHandle | None = None
        self.is_storing = False
        """Whether a checkpoint of the child is being written to the table, so that the child waits for us."""
        self.refused: str | None = None
        """The child's last line during this request that looks like a message but is not one."""

    def adjust(self, settings: ChildSettings) -> None:
        """Warn by these settings from now on. If there was a warning about the present request already, they count from
        the next request on.
        """
        was_warned, first_s = self._due_s != self._first_s, settings.warn_after_s
        self._is_bounded = settings.reply_timeout_s is not None
        if first_s == self._first_s:
            return
        self._first_s = first_s
        if was_warned:
            return
        self._due_s = first_s
        self._forget_timer()
        if self._request is not None:
            self._check_after(max(0.0, first_s - (self._clock.monotonic() - self._began_s)))

    def begin(self, request: str, holds: Holds) -> None:
        """Note that the child gets a request; `holds` describes its records for a warning. A timer is set only if none
        runs: when a timer that was set for an earlier request fires, it checks this one.
        """
        self._request, self._holds, self.refused = request, holds, None
        self._began_s = self._heard_s = self._clock.monotonic()
        self._due_s = self._first_s
        if self._timer is None:
            self._check_after(self._first_s)

    def heard(self) -> None:
        """Note that the child has sent a valid message."""
        self._heard_s = self._clock.monotonic()

    def end(self) -> None:
        """Note that the request is answered, or was given up."""
        self._request, self._holds = None, dict
        if self._due_s != self._first_s:  # there was a warning, and the timer is set for the next one
            self._forget_timer()

    def close(self) -> None:
        """Stop watching: there will be no more requests."""
        self.end()
        self._forget_timer()

    def _forget_timer(self) -> None:
        """Cancel the timer for the next check, if one is set."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _check_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        """Warn if the request under way is due for a warning, and set the timer for the next check."""
        self._timer = None
        if self._request is None:
            return
        running_s = self._clock.monotonic() - self._began_s
        if running_s >= self._due_s - TIMER_SLACK_S:
            self._warn(self._request, running_s)
            self._due_s = next_warning_s(running_s)
        self._check_after(self._due_s - running_s)

    def _warn(self, request: str, running_s: float) -> None:
        """Warn that the child takes long over a request. The warning says what the child does, and which records it
        has.
        """
        silent_s = self._clock.monotonic() - self._heard_s
        held = dict(self._holds())
        if self.is_storing:
            state = "the lease table has not answered its checkpoint yet"
        elif self._is_bounded:
            state = f"it is silent for {silent_s:.0f} s"
        else:
            state = f"it is silent for {silent_s:.0f} s, and without timeoutInSeconds nothing ends it"
        if self.refused is not None:
            state += f"; it wrote a line that is no message: {self.refused}"
        holding = f"; it holds {', '.join(f'{name} {value}' for name, value in held.items())}" if held else ""
        log.warning(
            "%s takes longer than %.0f s over %s: %s%s",
            "the child" if self._number is None else f"child {self._number}",
            running_s,
            request,
            state,
            holding,
            extra=about(
                "slow_task",
                self._shard_id,
                **of_child(self._number),
                child=self._child,
                request=request,
                running_s=round(running_s, 1),
                silent_s=round(silent_s, 1),
                **held,
            ),
        )
