"""The processor in the README is one: it runs as it is printed there."""

import io
import re
import sys
from pathlib import Path

from mld.check.conformance import run
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def test_the_processor_of_the_readme_conforms(tmp_path: Path) -> None:
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / "printer.py"
    program.write_text("def handle(key, data): pass\n\n" + block)
    verdict = io.StringIO()
    assert run([sys.executable, str(program)], timeout_s=PATIENCE_S, out=verdict), verdict.getvalue()
