"""When the signals that end a daemon are heard (`mld.daemon.signals`)."""

from __future__ import annotations

import asyncio
import os
import signal

from mld.daemon.signals import HangUp, StopSignals


def test_a_step_of_the_start_that_never_ends_ends_with_the_signal() -> None:
    async def story() -> tuple[bool, bool, bool]:
        stop = StopSignals(HangUp.NOTHING, lambda: None)
        begun, ended = asyncio.Event(), asyncio.Event()

        async def silent_credentials() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        opening = asyncio.ensure_future(stop.unless_asked(silent_credentials()))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        return await opening, ended.is_set(), await stop.unless_asked(asyncio.sleep(0))

    assert asyncio.run(story()) == (False, True, False)


def test_a_step_of_the_start_that_is_done_is_no_stop() -> None:
    async def story() -> bool:
        return await StopSignals(HangUp.NOTHING, lambda: None).unless_asked(asyncio.sleep(0))

    assert asyncio.run(story())
