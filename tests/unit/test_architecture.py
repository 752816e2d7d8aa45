"""The arrows of docs/develop/architecture.md, checked on the imports as they are written."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP = ("mld", "protocol", "properties", "processors")
GROUND = {"mld.protocol", "mld.properties"}
EVERYONE_MAY = {"mld.core", "mld.metrics", "mld.aws"} | GROUND
MAY_NOT = {
    "mld.protocol": EVERYONE_MAY,
    "mld.properties": EVERYONE_MAY,
    "mld.processors": EVERYONE_MAY - {"mld.protocol"},
    "mld.core": EVERYONE_MAY - GROUND - {"mld.metrics"},
    "mld.metrics": EVERYONE_MAY - GROUND - {"mld.core"},
}
"""What the ground does not stand on, and what a processor does without: those of Spark have a rule of their own."""
# What each room of mld may import besides `EVERYONE_MAY`.
ROOMS: dict[str, set[str]] = {
    "mld.protocol": set(),
    "mld.properties": set(),
    "mld.processors": set(),
    "mld.sdk": {"mld.processors"},
    "mld.core": set(),
    "mld.metrics": set(),
    "mld.aws": set(),
    "mld.leases": set(),
    "mld.retrieval": set(),
    "mld.local": set(),
    "mld.logging": set(),
    "mld.shards": {"mld.leases"},
    "mld.fleet": {"mld.leases"},
    "mld.consumer": {"mld.leases", "mld.retrieval"},
    "mld.schemas": {"mld.consumer", "mld.retrieval"},
    "mld.tracking": {"mld.consumer", "mld.fleet", "mld.leases", "mld.shards"},
    "mld.check": {"mld.consumer", "mld.schemas"},
    "mld.operating": {
        "mld.check",
        "mld.consumer",
        "mld.fleet",
        "mld.leases",
        "mld.retrieval",
        "mld.shards",
        "mld.tracking",
    },
    "mld.serving": {"mld.consumer", "mld.logging", "mld.operating"},
    "mld.quickstart": {"mld.leases", "mld.local"},
    "mld.daemon": {
        "mld.check",
        "mld.consumer",
        "mld.fleet",
        "mld.leases",
        "mld.logging",
        "mld.operating",
        "mld.retrieval",
        "mld.schemas",
        "mld.serving",
        "mld.shards",
        "mld.tracking",
    },
    "mld.command_list": set(),
    "mld.cli": {"mld.command_list", "mld.check", "mld.daemon", "mld.local", "mld.logging", "mld.quickstart"},
    "mld.__main__": {"mld.cli"},
}
# The same within `mld.fleet`, each after those that it may import; `fleet` may import all others.
SUBROOMS: dict[str, set[str]] = {
    "leader": set(),
    "report": set(),
    "observations": set(),
    "membership": {"report"},
    "other_applications": {"membership", "report"},
    "departure": {"membership", "report"},
    "child_adopter": {"departure"},
    "table_upkeep": set(),
    "migrate": {"leader", "report"},
    "assign": {"leader", "membership", "observations", "other_applications", "report"},
}
FLEET_TOP = ["fleet"]
# What each room of the Spark processor may import besides `SPARK_LEAVES`: modules in no room, which import no room.
# No room imports `testing`.
SPARK_MAY_USE = ("mld.aws", "mld.core.errors", "mld.protocol", "mld.properties")
"""Of mld: `processors/spark` writes to buckets with the daemon's own ways to credentials."""
REPLAY_MAY_USE = (*SPARK_MAY_USE, "mld.core.clock", "mld.operating.stream_access", "mld.retrieval.stream_naming")
"""It runs without a daemon, and asks Kinesis itself which stream this is."""
SPARK_ROOMS: dict[str, set[str]] = {
    "attach": set(),
    "host_connection": {"batch"},
    "relay": {"batch", "host_connection"},
    "child": {"attach", "host", "relay", "replay"},
    "host": {"batch", "commit", "session", "sinks"},
    "batch": {"commit", "session"},
    "sinks": {"commit", "session"},
    "session": set(),
    "commit": set(),
    "letters": {"batch"},
    "replay": {"batch", "host", "letters", "sinks"},
    "testing": {"session"},
}
SPARK_LEAVES = {
    "fatal",
    "high_water_marks",
    "link",
    "pipeline",
    "positions",
    "run_directory",
    "sanitizing",
    "sentences",
    "session_errors",
    "settings",
    "sink_port",
    "sink_spec",
    "writer_identity",
}
# Modules that decide: values in, values out.
PURE = (
    "processors/spark/session/lakehouse.py",
    "processors/spark/session/packages.py",
    "processors/spark/session/s3a.py",
    "processors/spark/session/payload_faults.py",
    "properties/spark.py",
    "mld/tracking/stream_list.py",
    "mld/daemon/catching_up.py",
    "mld/daemon/group_rules.py",
    "mld/daemon/other_workers.py",
    "mld/core/periods.py",
    "mld/core/stillness.py",
    "mld/core/token_budget.py",
    "mld/core/positions.py",
    "mld/core/stream_ids.py",
    "mld/check/price.py",
    "mld/core/webrule.py",
    "properties/derive.py",
    "mld/operating/listings.py",
    "mld/operating/daemon_listing.py",
    "mld/operating/text_table.py",
    "mld/operating/short_ids.py",
    "mld/operating/record_view.py",
    "mld/operating/one_stream.py",
    "mld/operating/iam_policy.py",
    "mld/operating/durations.py",
    "mld/operating/fleet_sight.py",
    "mld/operating/fleet_status.py",
    "mld/operating/plain_values.py",
    "mld/operating/shard_view.py",
    "mld/operating/worker_view.py",
    "mld/serving/alert_book.py",
    "mld/serving/alert_post.py",
    "mld/serving/json_pieces.py",
    "mld/serving/own_shards.py",
    "mld/serving/status.py",
    "mld/operating/faults.py",
    "mld/operating/findings.py",
    "mld/operating/verdicts.py",
    "mld/operating/shard_verdicts.py",
    "mld/operating/stream_verdicts.py",
    "mld/operating/table_verdicts.py",
    "mld/operating/worker_verdicts.py",
    "mld/operating/points.py",
    "mld/operating/held_writes.py",
    "mld/operating/plan.py",
    "mld/operating/reset_rows.py",
    "mld/operating/steering.py",
    "mld/operating/naming.py",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "mld/metrics").glob("*.py"))),
    "mld/leases/lease.py",
    "mld/leases/own_attribute.py",
    "mld/leases/rows.py",
    "mld/leases/write_request.py",
    "mld/leases/writes.py",
    "mld/leases/take_plan.py",
    "mld/fleet/membership.py",
    "mld/fleet/observations.py",
    "mld/fleet/leader/java_shuffle.py",
    "mld/fleet/leader/lock.py",
    "mld/fleet/assign/assignment.py",
    "mld/fleet/assign/fleet_load.py",
    "mld/fleet/assign/leadership.py",
    "mld/fleet/assign/takeover.py",
    "mld/fleet/report/cpu_formulas.py",
    "mld/fleet/report/reports.py",
    "mld/fleet/report/sightings.py",
    "mld/fleet/migrate/single_table.py",
    "mld/fleet/migrate/states.py",
    "mld/shards/graph.py",
    "mld/shards/holes.py",
    "mld/shards/identity.py",
    "mld/retrieval/starting_points.py",
    "mld/retrieval/answer_verdicts.py",
    "mld/retrieval/pacing.py",
    "mld/retrieval/prefetch.py",
    "mld/retrieval/subscriptions.py",
    "mld/retrieval/kpl.py",
    "mld/retrieval/layouts.py",
    "mld/retrieval/json_scan.py",
    "mld/retrieval/pieces.py",
    "mld/retrieval/rawbatch.py",
    "mld/retrieval/rawbody.py",
    "mld/retrieval/rawpage.py",
    "mld/core/steps.py",
    "mld/consumer/bisecting.py",
    "mld/consumer/checkpoint_range.py",
    "mld/consumer/failure_words.py",
    "mld/consumer/lifecycle.py",
    "mld/consumer/short_line.py",
    "mld/aws/wire/answers.py",
    "mld/aws/wire/chunks.py",
    "mld/aws/wire/frame_stream.py",
    "mld/aws/wire/json_bodies.py",
    "mld/quickstart/lineage.py",
    "mld/local/kinesis.py",
    "mld/local/json_api.py",
    "mld/local/records.py",
    "mld/local/accounts.py",
    "mld/local/encodings.py",
    "mld/local/kinesis_errors.py",
    "mld/local/legacy_conditions.py",
    "mld/local/shard_filter.py",
    "mld/local/shard_limits.py",
    "mld/local/shard_log.py",
    "mld/local/shard_reading.py",
    "mld/local/shard_subscription.py",
    "mld/local/tokens.py",
    "mld/local/stream_state.py",
    "mld/local/dynamo_streams.py",
    "mld/local/routing.py",
    "mld/local/event_frames.py",
    "mld/local/item_changes.py",
    "mld/local/operation_request.py",
    "mld/local/change_stream.py",
    "mld/local/table_streams.py",
    "protocol/messages.py",
    "protocol/child_lines.py",
    "protocol/codec.py",
    "protocol/conversation.py",
    "protocol/framed_records.py",
    "protocol/json_fields.py",
    "protocol/line_splitter.py",
    "properties/lines.py",
    "properties/references.py",
    "properties/remarks.py",
    "properties/keys.py",
    "properties/conversion.py",
    "properties/value_parsers.py",
    "properties/checked_lines.py",
    "properties/credentials_syntax.py",
    "properties/live_changes.py",
    "properties/stream_list.py",
    "properties/redaction.py",
    "properties/exposure.py",
    "properties/printable.py",
    "properties/scrubber.py",
    "properties/shown_of_spark.py",
    "properties/spark_catalogs.py",
    "properties/spark_places.py",
    "processors/spark/high_water_marks.py",
    "processors/spark/batch/micro_batch.py",
    "processors/spark/batch/outcome.py",
    "processors/spark/batch/record_columns.py",
    "processors/spark/batch/thrift.py",
    "processors/spark/commit/admission.py",
    "processors/spark/commit/ended_shards.py",
    "processors/spark/commit/ledger.py",
    "processors/spark/commit/ledger_files.py",
    "processors/spark/letters.py",
    "processors/spark/positions.py",
    "processors/spark/sinks/jdbc_errors.py",
    "processors/spark/sinks/postgres_sql.py",
    "processors/spark/writer_identity.py",
)
IMPURE_MODULES = {
    "asyncio",
    "logging",
    "socket",
    "subprocess",
    "threading",
    "time",
    "os",
    "boto3",
    "botocore",
    "secrets",
}


def modules() -> list[Path]:
    return [path for top in TOP for path in sorted((ROOT / top).rglob("*.py"))]


def name_of(path: Path) -> str:
    """How a module is imported: the folders beside `mld` are packages within it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "mld" else ("mld", *parts)).removesuffix(".__init__")


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> list[str]:
    """Every module named in an import statement of the file, wherever it stands."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.append(node.module)
            for alias in node.names:
                if (ROOT / Path(*node.module.split(".")) / f"{alias.name}.py").exists():
                    found.append(f"{node.module}.{alias.name}")
    return found


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_nothing_lies_in_the_root_but_what_is_meant_to():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    directories = {name.split("/")[0] for name in listed.split("\0") if "/" in name and not name.startswith(".")}
    assert directories == {"bin", "deploy", "docs", "locks", "mld", "processors", "properties", "protocol", "tests"}


def test_every_room_of_mld_is_on_the_map():
    assert {room_of(name_of(path)) for path in modules()} - {"mld"} == set(ROOMS)


def test_arrows_point_down():
    for path in modules():
        module = name_of(path)
        room = room_of(module)
        for imported in imports(path):
            target = room_of(imported)
            if imported.partition(".")[0] not in TOP or target in ("mld", room):
                continue
            if room == "mld.processors" and module.startswith("mld.processors.spark"):
                may_use = REPLAY_MAY_USE if module == "mld.processors.spark.replay" else SPARK_MAY_USE
                assert imported.startswith(may_use), f"{module} imports {imported}"
            else:
                assert target in ROOMS[room] | EVERYONE_MAY - MAY_NOT.get(room, set()), f"{module} imports {imported}"


def test_arrows_between_the_rooms_of_spark():
    for path in sorted((ROOT / "processors/spark").rglob("*.py")):
        room = spark_room_of(name_of(path))
        assert room in SPARK_LEAVES or room in SPARK_ROOMS or room == "", f"{room} is not on the map"
        ours = [imported for imported in imports(path) if imported.startswith("mld.processors.spark.")]
        targets = set(map(spark_room_of, ours))
        assert targets <= SPARK_LEAVES | SPARK_ROOMS.get(room, set()) | {room}, f"no arrow from {room} to {targets}"


def spark_room_of(module: str) -> str:
    return module.removeprefix("mld.processors.spark").removeprefix(".").partition(".")[0]


def test_every_sub_room_of_the_fleet_is_on_the_map_after_those_it_may_import():
    there = {path.stem for path in (ROOT / "mld/fleet").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__init__", "__pycache__"} == {*SUBROOMS, *FLEET_TOP}
    known: set[str] = set()
    for room, allowed in SUBROOMS.items():
        assert allowed <= known, f"{room} comes before {allowed - known}"
        known.add(room)


def test_arrows_point_down_within_the_fleet():
    for path in sorted((ROOT / "mld/fleet").rglob("*.py")):
        room = [*name_of(path).split("."), "fleet"][2]
        allowed = SUBROOMS.get(room, {*SUBROOMS, *FLEET_TOP[: FLEET_TOP.index(room)]} if room in FLEET_TOP else set())
        for imported in imports(path):
            target = imported.removeprefix("mld.fleet.").split(".")[0]
            if imported.startswith("mld.fleet.") and target != room:
                assert target in allowed, f"{name_of(path)} imports {imported}: no arrow from {room} to {target}"


def test_only_aws_imports_the_sdk():
    for path in modules():
        sdk = {imported for imported in imports(path) if imported.split(".")[0] in {"boto3", "botocore", "aiohttp"}}
        assert not sdk or name_of(path).startswith(("mld.aws", "mld.processors.samples")), f"{path} imports {sdk}"


def test_decisions_do_no_io():
    for file in PURE:
        impure = {imported for imported in imports(ROOT / file) if imported.split(".")[0] in IMPURE_MODULES}
        assert not impure, f"{file} imports {impure}"
        awaits = [node for node in nodes_of(ROOT / file) if isinstance(node, ast.Await | ast.AsyncFunctionDef)]
        assert not awaits, f"{file} awaits"


def test_importing_mld_imports_nothing_heavy():
    code = "import mld, mld.cli, sys; print(sorted({m.split('.')[0] for m in sys.modules} & set(sys.argv[1:])))"
    heavy = ["boto3", "botocore", "pyspark", "moto", "flask", "rich", "jsonschema", "asyncio.subprocess"]
    printed = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


def test_modules_stay_readable():
    too_long = {name_of(path): n for path in modules() if (n := len(path.read_text().splitlines())) > 700}
    assert too_long == {}, "is each still one idea?"


def test_constants_and_loggers_stand_above_the_first_definition():
    assert {name_of(path): names for path in modules() if (names := late_constants(path))} == {}


def late_constants(path: Path) -> list[str]:
    """The names that are assigned below the first class or function, but for those made from what is defined here."""
    late, defined, seen = [], set(), False
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            seen = True
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            needed = {one.id for one in ast.walk(node.value or node) if isinstance(one, ast.Name)}
            if needed & defined:
                defined.update(names)
            elif seen:
                late += names
    return late


# --- one word for one thing -------------------------------------------------------------------------------------------


def test_no_class_name_is_defined_twice():
    names = Counter(node.name for path in modules() for node in nodes_of(path) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_modules_differ_by_an_ending_only():
    by_stem: dict[str, set[str]] = {}
    for path in modules():
        by_stem.setdefault(stem_of(path.stem), set()).add(path.stem)
    assert {stem for stem, names in by_stem.items() if len(names) > 1} == set()


def stem_of(name: str) -> str:
    """A name without a final -ing, -s or -e."""
    return name.removesuffix("ing").removesuffix("s").removesuffix("e")
