"""Records which seeds catch the variants, and counts how many do.

    python -m tests.simulation.variants record [names]    finds a seed for each variant, writes seeds.py
    python -m tests.simulation.variants count N [names]   how many of the seeds below N catch each; writes counts.json
    python -m tests.simulation.variants table             prints what each breaks, and what catches it

Record again after every change of the world or of the drawn plans: the seeds mean something else then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.simulation.run import run_plan
from tests.simulation.shrink import kind_of
from tests.simulation.variants import seeds as recorded
from tests.simulation.variants.catalog import BY_NAME, VARIANTS
from tests.simulation.variants.hunting import Catch, plan_of, run_broken, small_seeds
from tests.simulation.variants.variant import Variant

SEEDS_MAX = 600
CATCHES_MAX = 3
"""Recorded per variant: the second is tried if a change of the daemon's timing makes the first one miss."""
TRIED_MAX = 30
CATCH_CPU_S_MAX = 1.5
CATCH_CPU_S_MAX_3X = 3.0
HERE = Path(__file__).parent
COUNTS = HERE / "counts.json"


def main(command: str, *arguments: str) -> None:
    match command:
        case "record":
            record(arguments or tuple(BY_NAME))
        case "count":
            count(int(arguments[0]), arguments[1:] or tuple(BY_NAME))
        case "table":
            print(table())


def record(names: tuple[str, ...]) -> None:
    """Keeps a recorded seed that still catches; else takes the first that does and that passes unbroken."""
    found = dict(recorded.CATCHES)
    for name in names:
        found[name] = _first_catches(name)
        print(f"{name}: {found[name] or 'SURVIVES'}", flush=True)
        _write(found)


def _first_catches(name: str) -> tuple[Catch, ...]:
    """One in any case; more only if they are found soon."""
    known = [catch.seed for catch in recorded.CATCHES.get(name, ())]
    mode = BY_NAME[name].mode
    alike = [catches for other, catches in recorded.CATCHES.items() if other in BY_NAME and BY_NAME[other].mode == mode]
    shared = sorted({catch.seed for catches in alike for catch in catches} - set(known))
    fresh = [seed for seed in small_seeds(range(SEEDS_MAX), mode) if seed not in {*known, *shared}]
    found: list[Catch] = []
    for tried, seed in enumerate([*known, *shared, *fresh]):
        if len(found) == CATCHES_MAX or (found and tried >= TRIED_MAX):
            break
        result = run_broken(BY_NAME[name], seed)
        most_s = CATCH_CPU_S_MAX if mode == "2x" else CATCH_CPU_S_MAX_3X
        if result.violation and result.cpu_s < most_s and not _fails_unbroken(name, seed):
            found.append(Catch(seed, kind_of(result.violation)))
    return tuple(found)


def _fails_unbroken(name: str, seed: int) -> bool:
    return bool(run_plan(plan_of(seed, BY_NAME[name].needs, BY_NAME[name].mode)).violation)


def _write(found: dict[str, tuple[Catch, ...]]) -> None:
    lines = []
    for name in BY_NAME:
        if of_it := found.get(name):
            inner = ", ".join(f'Catch({catch.seed}, "{catch.kind}")' for catch in of_it)
            lines.append(f'    "{name}": ({inner},),')
    text = '"""Which seed catches which variant. Written by `python -m tests.simulation.variants record`."""\n\n'
    text += "from tests.simulation.variants.hunting import Catch\n\nCATCHES: dict[str, tuple[Catch, ...]] = {\n"
    (HERE / "seeds.py").write_text(text + "\n".join(lines) + "\n}\n")


def count(below: int, names: tuple[str, ...]) -> None:
    counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    for name in names:
        seeds = [seed for seed in small_seeds(range(below), BY_NAME[name].mode) if not _fails_unbroken(name, seed)]
        kinds: dict[str, int] = {}
        for seed in seeds:
            result = run_broken(BY_NAME[name], seed)
            if result.violation:
                kind = kind_of(result.violation)
                kinds[kind] = kinds.get(kind, 0) + 1
        counts[name] = {"seeds": len(seeds), "below": below, "caught": sum(kinds.values()), "by": kinds}
        print(name, counts[name], flush=True)
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


def table() -> str:
    """Return what each variant breaks, the recorded seed, and how many of the small plans show the fault.

    A variant may need a rare combination of faults, in a mode that stands before it unless it is 2x.
    """
    counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    lines = ["| Variant | What is broken | Needs | Seed | Seen by | Caught |", "|---|---|---|---|---|---|"]
    for variant in VARIANTS:
        catch, counted = next(iter(recorded.CATCHES.get(variant.name, ())), None), counts.get(variant.name)
        share = f"{counted['caught']} of {counted['seeds']}" if counted else ""
        seen = (catch.seed, catch.kind) if catch else ("", "nobody")
        lines.append(f"| {variant.name} | {variant.breaks} | {_needs(variant)} | {seen[0]} | {seen[1]} | {share} |")
    return "\n".join(lines)


def _needs(variant: Variant) -> str:
    return variant.needs if variant.mode == "2x" else f"{variant.mode} {variant.needs}".strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
