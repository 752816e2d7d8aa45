"""`finish`: runs a command and exits, with a sentence on stderr if the command fails or is interrupted.

Nothing heavy is imported here, because a supervisor may call `mld status --live` every few seconds.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from mld.core.errors import MldError
from mld.core.terminal import (
    EXIT_FAILURE,
    EXIT_OK,
    say,
)
from mld.operating.error_remedies import with_remedy


def finish(
    work: Callable[[], int | Coroutine[Any, Any, int]], *, doubt: str = "", is_open_ended: bool = False
) -> NoReturn:
    """Run `work` and exit with its code; after an error print one line on stderr, and exit with 1.

    Ctrl-C, a closed terminal and a closed output count as errors; `doubt` is a sentence about what is then unknown.
    With `is_open_ended` they are the usual end of the command, with code 0, as in `mld peek … | head`.
    """
    _handle_ends()
    try:
        code = work()
        if not isinstance(code, int):
            import asyncio

            code = asyncio.run(code)
        sys.exit(code)
    except KeyboardInterrupt:
        if is_open_ended:
            sys.exit(EXIT_OK)
        say(f"interrupted{doubt and ': '}{doubt}")
    except BrokenPipeError:
        # Python flushes stdout at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_open_ended:
            sys.exit(EXIT_OK)
        say(f"nobody reads the output{doubt and ': '}{doubt}")
    except MldError as error:
        say(with_remedy(error))
    except OSError as error:  # such as a full disk behind stdout
        say(f"{error}{doubt and '; '}{doubt}")
    sys.exit(EXIT_FAILURE)


def _handle_ends() -> None:
    """Make a closed terminal and SIGTERM act like Ctrl-C, so that a command gives back the leases that it holds.

    Signals that are ignored stay ignored (nohup). If Ctrl-C is ignored, all signals are left as they are.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
