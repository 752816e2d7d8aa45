"""What `mld` generates, as a user generates it, judged by the tools that will read it.

The tools come with `make test-checkers`, which `make test-all` runs first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.integration.world import MakeWorld
from tests.support import fetch_checkers
from tests.support.daemon import Daemon
from tests.support.locked import environment_of
from tests.support.servers import ROOT, require
from tests.unit.metrics.test_catalogue import NOW, busy_worker
from tests.unit.serving.test_prometheus import ME

pytestmark = pytest.mark.full
TIMEOUT_S = 120
FILES = {
    "plain": {},
    "everything": {
        "workerId": 'w"1',
        "streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks",
        "mld.leaseTableTags": "team=a b,cost=${x}",
        "mld.leaseTableBillingMode": "PROVISIONED",
        "leaseTablePitrEnabled": "true",
        "leaseTableDeletionProtectionEnabled": "true",
        "mld.deadLetter": "s3://letters/app",
        "mld.poisonAttempts": "3",
        "retrievalMode": "FANOUT",
    },
}
EVERY_FILE = pytest.mark.parametrize("which", sorted(FILES))
GRAFANA = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
print(JSONEncoder().encode(Dashboard.from_json(json.load(sys.stdin))))
"""
HCL = "import hcl2, json, sys; print(json.dumps(hcl2.load(sys.stdin)))"


def generated(directory: Path, which: str, *command: str) -> str:
    """What the command prints for that file."""
    keys = {
        "executableName": "child",
        "applicationName": "clicks-app",
        "streamName": "clicks",
        "regionName": "eu-west-1",
        "AwsCredentialsProvider": "DefaultCredentialsProvider",
        "retrievalMode": "POLLING",
        "mld.http": "127.0.0.1:9404",
        **FILES[which],
    }
    file = directory / "app.properties"
    file.write_text("".join(f"{key} = {value.replace('$', '$$')}\n" for key, value in keys.items()))
    made = subprocess.run(
        [sys.executable, "-m", "mld", *command, str(file)], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def promtool(*arguments: str, text: str = "") -> str:
    """What it says of a good file. Raises AssertionError with what it says of a bad one."""
    tool = fetch_checkers.promtool()
    require(tool is not None, "promtool (`make test-checkers`)")
    said = subprocess.run([str(tool), *arguments], input=text, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout + said.stderr


def by_checker(code: str, text: str) -> str:
    """What a program in the checkers' environment prints when it reads the text."""
    python = fetch_checkers.python()
    require(python is not None, "the checkers (`make test-checkers`)")
    said = subprocess.run([str(python), "-c", code], input=text, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_promtool_finds_nothing_in_the_metrics() -> None:
    """Its lint of names, units and help is silent too."""
    from mld.core.steps import finish
    from mld.serving.prometheus import exposition_steps, process_collector

    _, pieces = finish(exposition_steps(busy_worker(), ME, NOW, "", process_collector()))
    assert promtool("check", "metrics", text=b"".join(pieces).decode()) == ""


def test_promtool_finds_what_is_wrong() -> None:
    with pytest.raises(AssertionError, match="total"):
        promtool("check", "metrics", text="# HELP records A.\n# TYPE records counter\nrecords 1\n")


@EVERY_FILE
def test_promtool_takes_the_rules(tmp_path: Path, which: str) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(generated(tmp_path, which, "alerts"))
    assert f"{rules.read_text().count('alert:')} rules found" in promtool("check", "rules", str(rules))


@EVERY_FILE
@pytest.mark.parametrize("command", [("alerts", "--cloudwatch"), ("table", "--cloudformation")], ids=lambda c: c[0])
def test_cfn_lint_takes_the_templates(tmp_path: Path, which: str, command: tuple[str, ...]) -> None:
    python = fetch_checkers.python()
    require(python is not None, "cfn-lint (`make test-checkers`)")
    template = tmp_path / "template.json"
    template.write_text(generated(tmp_path, which, *command))
    assert cfn_lint(template) == ""
    broken = json.loads(template.read_text())
    next(iter(broken["Resources"].values()))["Properties"]["Oops"] = 1
    template.write_text(json.dumps(broken))
    assert "Oops" in cfn_lint(template)


def cfn_lint(template: Path) -> str:
    tool = environment_of("checkers") / "bin" / "cfn-lint"
    command = [str(tool), "--regions", "eu-west-1", "--", str(template)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    return said.stdout + said.stderr


@EVERY_FILE
def test_terraform_s_language_has_the_table_as_it_is_made(tmp_path: Path, which: str) -> None:
    parsed = json.loads(by_checker(HCL, generated(tmp_path, which, "table", "--terraform")))
    (resource,) = parsed["resource"]
    ((kind, named),) = resource.items()
    ((_, table),) = named.items()
    assert kind.strip('"') == "aws_dynamodb_table"
    assert table["hash_key"].strip('"') == "leaseKey"
    assert [one["name"].strip('"') for one in table["attribute"]] == ["leaseKey", "leaseOwner"]
    assert table["global_secondary_index"][0]["projection_type"].strip('"') == "KEYS_ONLY"
    if which == "everything":
        assert table["tags"]['"cost"'] == '"$${x}"'


def test_grafana_s_own_model_reads_the_dashboard_and_drops_nothing(tmp_path: Path) -> None:
    text = generated(tmp_path, "plain", "dashboard")
    ours = json.loads(text)
    assert list(lost(ours, json.loads(by_checker(GRAFANA, text)))) == []
    ours["panels"][0]["fieldConfg"] = {}
    assert list(lost(ours, json.loads(by_checker(GRAFANA, json.dumps(ours))))) == ["/panels/0/fieldConfg"]


def lost(ours: object, theirs: object, place: str = "") -> list[str]:
    """Where a value of ours is missing or different."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [where for key in ours for where in lost(ours[key], theirs.get(key), f"{place}/{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = zip(ours, theirs, strict=True)
        return [where for number, (one, other) in enumerate(pairs) for where in lost(one, other, f"{place}/{number}")]
    return [] if ours == theirs else [place]


def test_promtool_finds_nothing_in_the_metrics_of_a_daemon_at_work(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(100)
    daemon = world.daemon(mld__http="127.0.0.1:0")
    world.until_delivered()
    text = page(daemon, "/metrics")
    assert 'mld_records_total{application="' in text
    assert promtool("check", "metrics", text=text) == ""


def page(daemon: Daemon, path: str) -> str:
    address = daemon.wait_for_event("http_serving")["address"]
    with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read()
    return body.decode()
