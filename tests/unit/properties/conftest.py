"""`configure(text, …)` loads a file with the required keys and `text`; `problems` and `remarks_on` read the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from mld.properties.loader import LoadedConfiguration, load
from mld.properties.remarks import ConfigurationError, Level

MINIMUM = "executableName=child\napplicationName=app\nstreamName=s\nAwsCredentialsProvider=DefaultCredentialsProvider\n"
MINIMUM += "regionName=eu-west-1\nretrievalMode=POLLING\n"
FIRST_LINE_AFTER_MINIMUM = 7

Configure = Callable[..., LoadedConfiguration]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def run(
        text: str = "",
        overrides: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        without: Sequence[str] = (),
    ) -> LoadedConfiguration:
        minimum = [line for line in MINIMUM.splitlines() if line.split("=")[0] not in without]
        path = tmp_path / "app.properties"
        path.write_text("\n".join([*minimum, text]) + "\n", encoding="utf-8")
        return load(path, overrides, env or {})

    return run


def problems(run: Callable[[], object]) -> list[str]:
    """The errors of a load that must fail: key and message."""
    with pytest.raises(ConfigurationError) as caught:
        run()
    return [f"{problem.key} {problem.message}" for problem in caught.value.problems]


def remarks_on(loaded: LoadedConfiguration, key: str, level: Level = Level.WARNING) -> list[str]:
    """What is said about a key: message and remedy."""
    return [
        f"{remark.message}; {remark.remedy}" for remark in loaded.remarks if remark.key == key and remark.level is level
    ]
