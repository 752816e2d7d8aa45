"""Which imports of a script are made before it runs."""

from __future__ import annotations

import ast
import textwrap

import pytest

from mld.processors.zygote.import_plan import Attempt, Import, plan


def planned(source: str) -> tuple[Import | Attempt, ...]:
    return plan(ast.parse(textwrap.dedent(source)))


def texts(source: str) -> list[str]:
    return [step.text if isinstance(step, Import) else "try" for step in planned(source)]


def test_imports_are_followed_in_order_past_what_only_defines():
    source = '''
        """What it is."""
        from __future__ import annotations
        import os.path, sys as system
        from amazon_kclpy import kcl
        LIMIT = 5
        NAMES: tuple[str, ...] = ("a", "b")
        a, b = 1, 2
        def helper(): import never
        class Processor(kcl.Base): pass
        from . import beside
        import json
    '''
    assert texts(source) == [
        "import os.path, sys as system",
        "from amazon_kclpy import kcl",
        "from . import beside",
        "import json",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "sys.path.insert(0, 'lib')",
        "os.environ['OMP_NUM_THREADS'] = '1'",
        "os.umask = None",
        "path = prepare()",
        "first, rest[0] = 1, 2",
        "del os.environ['HOME']",
        "for name in names: pass",
        "while True: break",
        "with lock: pass",
        "assert ready",
        "raise SystemExit",
        "if __name__ == '__main__': main()",
        "if __name__ == '__main__': pass\nelse: pass",
        "if sys.platform == 'linux': prepare()",
        "if prepare(): x = 1",
        "if (n := prepare()): x = 1",
        "match x:\n    case 1: pass",
        "try:\n    prepare()\nexcept Exception: pass",
        "try: pass\nfinally: prepare()",
    ],
)
def test_nothing_is_imported_behind_a_statement_that_may_change_what_imports_do(statement):
    assert [text for text in texts(f"import sys\n{statement}\nimport boto3") if text != "try"] == ["import sys"]


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING", "False"])
def test_imports_for_type_checkers_are_left_out(test):
    assert texts(f"if {test}:\n    import a\nelse:\n    import b\nimport c") == ["import b", "import c"]


def test_branches_of_a_condition_nobody_knows_are_left_to_the_script():
    assert texts("if sys.version_info < (3, 12):\n    import a\nelse:\n    import b\nimport c") == ["import c"]


def test_a_failed_import_goes_on_where_the_script_does():
    source = """
        try:
            import orjson as json
        except ImportError:
            import json
        else:
            import more
        import last
    """
    attempt = Attempt((Import("import orjson as json"), Import("import more")), (Import("import json"),))
    assert planned(source) == (attempt, Import("import last"))


@pytest.mark.parametrize(
    "handlers", ["except ImportError:\n    install()", "except ImportError: pass\nexcept OSError: pass"]
)
def test_where_nobody_knows_how_a_failure_goes_on_the_plan_ends_there(handlers):
    assert planned(f"try:\n    import a\n{handlers}\nimport b") == (
        Attempt((Import("import a"),), None),
        Import("import b"),
    )


def test_imports_of_a_block_that_is_cut_short_are_made():
    assert texts("try:\n    import a\n    prepare()\n    import b\nexcept Exception: pass\nimport c") == ["import a"]
