"""Which generation of the child protocol a program speaks, as `mld check` guesses it from the files."""

import sys
from pathlib import Path

import pytest

from mld.check.protocol_generation import guess
from mld.protocol.messages import Dialect
from tests.support.fetch_kclpy import LEGACY_VERSION, VERSION, installed

KCLPY = "from amazon_kclpy import kcl\n"


@pytest.fixture
def program(tmp_path):
    def write(text: str) -> list[str]:
        path = tmp_path / "processor.py"
        path.write_text(text)
        path.chmod(0o755)
        return [sys.executable, str(path), "--fast"]

    return write


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("if action == 'shutdown': pass", Dialect.KCL_1),
        ('match action:\n    case "shutdown" | "shardEnded" | "leaseLost": ...', None),
        ("def shutdown(self): ...", None),
        (KCLPY, None),
        ("\0'shutdown'", None),
    ],
)
def test_the_text_of_a_program_tells_the_generation_if_it_knows_shutdown_alone(program, text, dialect):
    found = guess(program(text), {})
    assert (found and found[0]) == dialect


def a_venv(place: Path, *, is_new: bool) -> Path:
    library = place / "lib" / "python3.11" / "site-packages" / "amazon_kclpy"
    (library / "v3" if is_new else library).mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(sys.executable)
    return place / "bin" / "python"


@pytest.mark.parametrize(("is_new", "dialect"), [(True, Dialect.KCL_2), (False, Dialect.KCL_1)])
def test_a_program_on_amazons_library_speaks_what_the_library_of_its_interpreter_speaks(
    program, tmp_path, is_new, dialect
):
    interpreter = a_venv(tmp_path / "venv", is_new=is_new)
    _, path, _ = program(f"#!{interpreter}\n{KCLPY}")
    for command in ([path], [str(interpreter), path]):
        assert guess(command, {})[0] is dialect


@pytest.mark.parametrize(("version", "dialect"), [(VERSION, Dialect.KCL_2), (LEGACY_VERSION, Dialect.KCL_1)])
def test_amazons_own_releases_are_told_apart(program, version, dialect):
    directory = installed(version)
    if directory is None:
        pytest.skip("amazon_kclpy is not fetched")
    assert guess(program(KCLPY), {"PYTHONPATH": str(directory)})[0] is dialect


def test_what_is_not_there_tells_nothing():
    assert guess(["no-such-program", "nowhere.py"], {}) is None
    assert guess([""], {}) is None
