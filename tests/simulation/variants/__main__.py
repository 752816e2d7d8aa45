"""Records which seeds catch the variants, and counts how many do.

    python -m tests.simulation.variants record [names]    finds a seed for each variant, writes seeds.py
    python -m tests.simulation.variants count N [names]   how many of the seeds below N catch each; writes counts.json
    python -m tests.simulation.variants table             writes docs/simulation-variants.md

Record again after every change of the world or of the drawn plans: the seeds mean something else then.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

from tests.simulation.run import run_plan
from tests.simulation.variants import seeds as recorded
from tests.simulation.variants.catalog import BY_NAME, VARIANTS
from tests.simulation.variants.hunting import Catch, catches, plan_of, run_broken, small_seeds

SEEDS_MAX = 600
HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "simulation-variants.md"
COUNTS = HERE / "counts.json"


def main(command: str, *arguments: str) -> None:
    match command:
        case "record":
            record(arguments or tuple(BY_NAME))
        case "count":
            count(int(arguments[0]), arguments[1:] or tuple(BY_NAME))
        case "table":
            PAGE.write_text(table())


def record(names: tuple[str, ...]) -> None:
    """Keeps a recorded seed that still catches; else takes the first that does and that passes unbroken."""
    found = dict(recorded.CATCHES)
    for name in names:
        catch = _first_catch(name)
        print(f"{name}: {catch or 'SURVIVES'}", flush=True)
        if catch is None:
            found.pop(name, None)
        else:
            found[name] = catch
        _write(found)


def _first_catch(name: str) -> Catch | None:
    known = [recorded.CATCHES[name].seed] if name in recorded.CATCHES else []
    shared = sorted({catch.seed for catch in recorded.CATCHES.values()})
    for catch, result in catches(BY_NAME[name], [*known, *shared, *small_seeds(range(SEEDS_MAX))]):
        if result.real_s < 2.0 and not run_plan(plan_of(catch.seed)).violation:
            return catch
    return None


def _write(found: dict[str, Catch]) -> None:
    lines = [f'    "{name}": Catch({c.seed}, "{c.kind}"),' for name in BY_NAME if (c := found.get(name)) is not None]
    text = '"""Which seed catches which variant. Written by `python -m tests.simulation.variants record`."""\n\n'
    text += "from tests.simulation.variants.hunting import Catch\n\nCATCHES: dict[str, Catch] = {\n"
    (HERE / "seeds.py").write_text(text + "\n".join(lines) + "\n}\n")


def count(below: int, names: tuple[str, ...]) -> None:
    seeds = small_seeds(range(below))
    counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    for name in names:
        kinds: dict[str, int] = {}
        for seed in islice(seeds, None):
            result = run_broken(BY_NAME[name], seed)
            if result.violation:
                kind = result.violation.split(" at ")[0].split(":")[0]
                kinds[kind] = kinds.get(kind, 0) + 1
        counts[name] = {"seeds": len(seeds), "below": below, "caught": sum(kinds.values()), "by": kinds}
        print(name, counts[name], flush=True)
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


def table() -> str:
    counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    lines = [
        "# Broken variants of the daemon, and what catches them",
        "",
        "Each variant is a patch of the source, applied for the length of a test (`tests/simulation/variants`). The",
        "test runs the seed named here, with our workers only, and expects the violation named beside it; unbroken, the",
        "same seed passes. *Caught* is how many of the small plans (workers times shards at most 32) among the first",
        "seeds show the fault by any checker. Written by `python -m tests.simulation.variants table`.",
        "",
        "| Variant | What is broken | Seed | Seen by | Caught |",
        "|---|---|---|---|---|",
    ]
    for variant in VARIANTS:
        catch, counted = recorded.CATCHES.get(variant.name), counts.get(variant.name)
        share = f"{counted['caught']} of {counted['seeds']}" if counted else ""
        seen = (catch.seed, catch.kind) if catch else ("", "nobody")
        lines.append(f"| {variant.name} | {variant.breaks} | {seen[0]} | {seen[1]} | {share} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
