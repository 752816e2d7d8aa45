"""A signal ends the tour even if it comes where Python ignores exceptions."""

import io
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mld.quickstart.plain_tour import PlainTour
from mld.quickstart.tour_processes import EndSignal, signals_end_us


class EndsInItsDestructor:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_python_ignored_is_remembered() -> None:
    with signals_end_us() as end, pytest.raises(SystemExit, match="143"):
        EndsInItsDestructor()
        end.raise_if_received()


def test_a_tour_that_waits_notices_such_a_signal(tmp_path: Path) -> None:
    tour: Any = PlainTour(tmp_path, Console(file=io.StringIO()), 1_000, end_signal=EndSignal(signal.SIGTERM))
    tour.put = [None]
    with subprocess.Popen(["true"]) as daemon:
        for wait in (tour.put_and_split, tour.wait_until_caught_up):
            with pytest.raises(SystemExit, match="143"):
                wait(daemon)
