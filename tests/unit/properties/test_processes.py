"""How many workers a file asks for, and what cannot be shared by several."""

from __future__ import annotations

import pytest

from mld.properties.remarks import ConfigurationError
from mld.properties.values import ONE_FOR_EACH_CPU, PROCESSES_MAX
from tests.unit.properties.conftest import Configure


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 1), ("mld.processes=1", 1), ("mld.processes=4", 4), ("mld.processes=AUTO", ONE_FOR_EACH_CPU)],
)
def test_a_number_or_auto(configure: Configure, text: str, count: int) -> None:
    assert configure(text).settings.processes == count


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", str(PROCESSES_MAX + 1), "٣"])
def test_anything_else_is_refused_with_a_remedy(configure: Configure, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure(f"mld.processes={value}")
    (problem,) = caught.value.problems
    assert problem.key == "mld.processes"
    assert "auto" in problem.message
    assert problem.remedy


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("mld.controlSocket=/run/mld/app.sock", "mld.controlSocket", id="one socket"),
        pytest.param("executableName=mld-spark pipeline.py", "mld.processes", id="one Spark session"),
    ],
)
@pytest.mark.parametrize("count", ["2", "auto"])
def test_what_there_can_be_only_one_of_is_refused_for_several(
    configure: Configure, text: str, key: str, count: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure(f"{text}\nmld.processes={count}")
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.parametrize("text", ["mld.controlSocket=/run/mld/app.sock", "executableName=mld-spark pipeline.py"])
def test_and_is_fine_for_one(configure: Configure, text: str) -> None:
    assert configure(f"{text}\nmld.processes=1").settings.processes == 1


def test_several_may_have_no_control_socket(configure: Configure) -> None:
    assert configure("mld.controlSocket=off\nmld.processes=2").settings.processes == 2
