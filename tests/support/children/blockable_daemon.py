"""`mld` whose event loop can be blocked by its own code, in the thread that runs it.

SIGUSR1 blocks it for good. After SIGUSR2 it hangs again and again, and in between has a moment for everybody.
"""

import asyncio
import signal
import sys
import time

FOR_GOOD_S = 600.0
TURN_S, MOMENT_S = 4.0, 0.2


def block(*_: object) -> None:
    time.sleep(FOR_GOOD_S)


def hang_in_turns(*_: object) -> None:
    loop = asyncio.get_running_loop()

    def turn() -> None:
        time.sleep(TURN_S)
        loop.call_later(MOMENT_S, turn)

    loop.call_soon_threadsafe(turn)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, block)
    signal.signal(signal.SIGUSR2, hang_in_turns)
    from mld.cli import main

    sys.exit(main())
