"""What is in deploy/: one truth in the Dockerfile, the manifests, the chart, the task definition, the properties and
the table of metrics.
"""

from __future__ import annotations

import json
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore.validate import ParamValidator
from jsonschema import Draft7Validator

from mld import __version__
from mld.operating.alert_rules import cloudformation_alarms
from mld.operating.service_unit import STOP_MARGIN_S
from mld.properties.loader import LoadedConfiguration, load
from tests.support.locked import LOCKS, environment_of
from tests.support.metrics_page import CATALOGUE
from tests.support.servers import require

ROOT = LOCKS.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm"
PROPERTIES = KUBERNETES / "app.properties"
OF_OTHERS = {"kustomization.yaml", "keda.yaml", "keda-cloudwatch.yaml", "podmonitor.yaml"}
"""What is not of Kubernetes itself."""


def dockerfile() -> list[tuple[str, str]]:
    """Its instructions: word and rest, without comments and with continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (DEPLOY / "Dockerfile").read_text()).replace("\\\n", " ")
    pairs = (line.partition(" ") for line in text.splitlines() if line.strip())
    return [(word, " ".join(rest.split())) for word, _, rest in pairs]


def manifest(name: str) -> Any:
    return yaml.safe_load((KUBERNETES / name).read_text())


@pytest.fixture
def pod() -> Any:
    return manifest("deployment.yaml")["spec"]["template"]["spec"]


@pytest.fixture
def container(pod: Any) -> Any:
    (container,) = pod["containers"]
    return container


@pytest.fixture
def loaded() -> LoadedConfiguration:
    return load(PROPERTIES, (), {"POD_NAME": "mld-7d9f-abcde"})


# --- the image --------------------------------------------------------------------------------------------------------


def is_sent(path: Path) -> bool:
    """Whether the build gets the file, by .dockerignore: the last line that fits it, or a folder above it, decides."""
    sent = True
    names = [str(part) for part in (path, *path.parents)][:-1]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#"):
            hit = any(fnmatch(name, pattern) or fnmatch(f"/{name}", pattern.replace("**", "*")) for name in names)
            sent = line.startswith("!") if hit else sent
    return sent


def copied() -> list[Path]:
    """What the build takes from the checkout."""
    rests = [rest for word, rest in dockerfile() if word == "COPY" and not rest.startswith("--from")]
    return [Path(name) for rest in rests for name in rest.split()[:-1]]


def test_the_build_is_sent_what_it_copies_and_nothing_that_may_be_secret() -> None:
    assert copied()
    for path in copied():
        assert (ROOT / path).exists()
        files = [path] if (ROOT / path).is_file() else [f.relative_to(ROOT) for f in (ROOT / path).rglob("*.py")]
        for file in files:
            assert is_sent(file), file
    for name in (
        ".git/config",
        ".venv/bin/python",
        "app.properties",
        ".env",
        "mld/__pycache__/x.pyc",
        "tests/conftest.py",
    ):
        assert not is_sent(Path(name)), name


def test_the_image_runs_the_daemon_for_a_user_without_rights_below_an_init() -> None:
    found = dockerfile()
    assert [rest for word, rest in found if word == "USER"] == ["10001:10001"] * 2
    said = dict(found)
    assert json.loads(said["ENTRYPOINT"]) == ["/usr/bin/tini", "--", "mld"]
    assert json.loads(said["CMD"])[0] == "run"
    assert said["HEALTHCHECK"].endswith('CMD ["mld", "status", "--live"]')
    assert found[-1] == ("USER", "10001:10001")


def test_the_image_names_its_version_and_its_origin() -> None:
    (labels,) = (rest for word, rest in dockerfile() if word == "LABEL")
    said = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', labels))
    assert said["version"] == __version__
    assert (said["source"], said["revision"]) == ("${URL}", "${REVISION}")
    assert set(said) == {"title", "description", "licenses", "version", "source", "revision"}


def test_the_release_builds_every_image_for_both_architectures_with_its_attestations() -> None:
    jobs: Any = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    targets = {rest.partition(" AS ")[2] for word, rest in dockerfile() if word == "FROM" and "base AS" in rest}
    made = {(one["target"], one["platform"]) for one in jobs["image"]["strategy"]["matrix"]["include"]}
    assert made == {(target, platform) for target in targets for platform in ("amd64", "arm64")}
    assert set(jobs["manifest"]["strategy"]["matrix"]["target"]) == targets
    (build,) = (step["run"] for step in jobs["image"]["steps"] if "buildx build" in step.get("run", ""))
    for option in (
        "--sbom=true",
        "--provenance=mode=max",
        '--build-arg URL="$URL"',
        '--build-arg REVISION="$REVISION"',
    ):
        assert option in build
    arguments = {rest.partition("=")[0] for word, rest in dockerfile() if word == "ARG"}
    assert {"URL", "REVISION"} <= arguments


@pytest.mark.full
def test_hadolint_finds_nothing() -> None:
    hadolint = environment_of("deploy") / "bin" / "hadolint"
    require(hadolint.is_file(), "hadolint")
    looked = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert (looked.returncode, looked.stdout) == (0, "")


# --- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("version", ["1.30", "1.33", "1.37"])
def test_kubernetes_knows_every_field(version: str, tmp_path: Path) -> None:
    validate = environment_of("deploy") / "bin" / "kubernetes-validate"
    require(validate.is_file(), "kubernetes-validate")
    files = [path for path in sorted(KUBERNETES.glob("*.yaml")) if path.name not in OF_OTHERS]
    assert len(files) == 4

    def judge(*paths: Path) -> subprocess.CompletedProcess[str]:
        command = [str(validate), "--strict", "--kubernetes-version", version, *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    looked = judge(*files)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    wrong = tmp_path / "deployment.yaml"
    wrong.write_text((KUBERNETES / "deployment.yaml").read_text().replace("readOnlyRootFilesystem", "readOnlyRoot"))
    assert judge(wrong).returncode != 0


@pytest.mark.full
def test_the_scaling_of_keda_is_that_of_an_autoscaler() -> None:
    """KEDA hands `behavior` on as it is, so the schema of Kubernetes judges it."""
    from jsonschema import Draft202012Validator

    folders = list(
        environment_of("deploy").glob(
            "lib/*/site-packages/kubernetes_validate/kubernetes-json-schema/v1.33.0-local-strict"
        )
    )
    require(len(folders) == 1, "kubernetes-validate")
    definitions = json.loads((folders[0] / "_definitions.json").read_text().replace("/api/_definitions.json#", "#"))
    behavior = manifest("keda.yaml")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    schema = {"$ref": "#/$defs/io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior", **definitions}
    Draft202012Validator(schema).validate(behavior)
    assert not Draft202012Validator(schema).is_valid({"scaleDown": {"policies": [{"type": "Pods"}]}})


def test_every_manifest_is_applied_or_named() -> None:
    kustomization = manifest("kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    assert sorted([*kustomization["resources"], *generated["files"], *OF_OTHERS]) == sorted(
        path.name for path in KUBERNETES.iterdir()
    )
    (image,) = kustomization["images"]
    assert image["name"] == manifest("deployment.yaml")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image["newTag"] == __version__
    about_podmonitor = (KUBERNETES / "podmonitor.yaml").read_text()
    assert "prometheus.io/" in about_podmonitor  # whoever applies it takes the annotations away


def test_the_properties_are_good_and_the_pod_gives_a_stop_more_time_than_it_takes(
    loaded: LoadedConfiguration, pod: Any
) -> None:
    warned = [remark.key for remark in loaded.remarks if remark.level.value != "info"]
    assert warned in ([], ["mld.http"])  # not loopback: the network policy says who may call
    settings = loaded.settings
    assert settings.worker_id == "mld-7d9f-abcde"
    longest_s = settings.shutdown_grace_s + 2 * settings.child.stop_timeout_s + STOP_MARGIN_S
    assert pod["terminationGracePeriodSeconds"] > longest_s


def test_probes_ask_what_the_daemon_serves(loaded: LoadedConfiguration, container: Any) -> None:
    assert loaded.settings.serving.http is not None
    (port,) = container["ports"]
    annotations = manifest("deployment.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert {port["containerPort"], int(annotations["prometheus.io/port"])} == {loaded.settings.serving.http.port}
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert {word: container[word]["httpGet"]["path"] for word in probes} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert "lifecycle" not in container  # no preStop


def test_the_pod_has_no_more_rights_than_the_image_needs(pod: Any, container: Any) -> None:
    (user,) = {rest.partition(":")[0] for word, rest in dockerfile() if word == "USER"}
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/tmp"]
    assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]  # those never change


def test_names_and_labels_agree(pod: Any) -> None:
    deployment = manifest("deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert manifest("poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    policy = manifest("networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [
        port["name"] for port in pod["containers"][0]["ports"]
    ]
    assert pod["serviceAccountName"] == manifest("serviceaccount.yaml")["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (generated,) = manifest("kustomization.yaml")["configMapGenerator"]
    assert volumes["configuration"]["configMap"]["name"] == generated["name"]
    (scraped,) = manifest("podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    assert scraped["port"] == pod["containers"][0]["ports"][0]["name"]
    assert manifest("podmonitor.yaml")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    directory = next(m["mountPath"] for m in pod["containers"][0]["volumeMounts"] if m["name"] == "configuration")
    assert pod["containers"][0]["args"][-1] == f"{directory}/app.properties"


def test_keda_scales_the_deployment_by_a_metric_that_exists(loaded: LoadedConfiguration) -> None:
    spec = manifest("keda.yaml")["spec"]
    assert spec["scaleTargetRef"]["name"] == manifest("deployment.yaml")["metadata"]["name"]
    assert spec["minReplicaCount"] > 0
    (trigger,) = spec["triggers"]
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    query = re.fullmatch(r'max\((\w+)\{application="([\w-]+)"\}\)', trigger["metadata"]["query"])
    assert query is not None
    assert query[1] in {metric.name for metric in CATALOGUE}
    assert query[2] == loaded.settings.application_name


def test_keda_asks_cloudwatch_for_a_metric_that_is_sent_under_these_dimensions(loaded: LoadedConfiguration) -> None:
    authentication, scaled = yaml.safe_load_all((KUBERNETES / "keda-cloudwatch.yaml").read_text())
    spec, by_prometheus = scaled["spec"], manifest("keda.yaml")["spec"]
    (trigger,) = spec["triggers"]
    asked = trigger["metadata"]
    assert all(isinstance(value, str) for value in asked.values())
    alarm = json.loads(cloudformation_alarms(loaded.settings, 86_400))["Resources"]["Behind"]["Properties"]
    names, values = asked["dimensionName"].split(";"), asked["dimensionValue"].split(";")
    assert [{"Name": name, "Value": value} for name, value in zip(names, values, strict=True)] == alarm["Dimensions"]
    assert (asked["namespace"], asked["metricName"], asked["metricStat"]) == (
        alarm["Namespace"],
        alarm["MetricName"],
        alarm["Statistic"],
    )
    assert int(asked["targetMetricValue"]) == 1000 * int(by_prometheus["triggers"][0]["metadata"]["threshold"])
    assert f"\nregionName = {asked['awsRegion']}\n" in PROPERTIES.read_text()
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert {key: spec[key] for key in spec if key not in ("triggers", "pollingInterval")} == {
        key: by_prometheus[key] for key in by_prometheus if key not in ("triggers", "pollingInterval")
    }


# --- the chart, as far as it can be judged without helm: tests/acceptance/test_chart.py renders it ------------------


def test_the_chart_has_the_version_of_mld_and_the_properties_of_the_manifests() -> None:
    chart, values = (
        yaml.safe_load((CHART / "Chart.yaml").read_text()),
        yaml.safe_load((CHART / "values.yaml").read_text()),
    )
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert values["properties"] == PROPERTIES.read_text()


def test_every_value_of_the_chart_is_in_its_schema_and_used() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    Draft7Validator(schema).validate(values)
    assert not Draft7Validator(schema).is_valid({"replica": 3})
    assert set(values) == set(schema["properties"]) - {"global"}
    used = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    assert [name for name in values if f".Values.{name}" not in used] == []
    assert set(re.findall(r"\.Values\.(\w+)", used)) == set(values)


# --- ECS --------------------------------------------------------------------------------------------------------------


def task_definition() -> Any:
    return json.loads((DEPLOY / "ecs" / "task-definition.json").read_text())


def faults_of_task(task: Any) -> str:
    """What boto3 would refuse of a call of RegisterTaskDefinition."""
    service = botocore.session.get_session().get_service_model("ecs")
    shape = service.operation_model("RegisterTaskDefinition").input_shape
    return str(ParamValidator().validate(task, shape).generate_report())


def test_the_task_definition_is_what_ecs_takes() -> None:
    task = task_definition()
    assert faults_of_task(task) == ""
    task["containerDefinitions"][0]["stopTimout"] = 60
    assert 'Unknown parameter in containerDefinitions[0]: "stopTimout"' in faults_of_task(task)


def as_template(task: Any) -> Any:
    """The task as a template of CloudFormation has it: the names of its fields in capitals."""
    if isinstance(task, list):
        return [as_template(one) for one in task]
    if not isinstance(task, dict):
        return task
    return {name if "-" in name else name[0].upper() + name[1:]: as_template(one) for name, one in task.items()}


@pytest.mark.full
def test_cfn_lint_takes_the_task_definition(tmp_path: Path) -> None:
    tool = environment_of("checkers") / "bin" / "cfn-lint"
    require(tool.is_file(), "cfn-lint (`make test-checkers`)")

    def said(task: Any) -> str:
        template = {"Resources": {"Task": {"Type": "AWS::ECS::TaskDefinition", "Properties": as_template(task)}}}
        (tmp_path / "template.json").write_text(json.dumps(template))
        command = [str(tool), "--regions", "eu-west-1", "--", str(tmp_path / "template.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    assert said(task_definition()) == ""
    assert "memory" in said(task_definition() | {"memory": "9000"}).lower()  # no size of Fargate


def test_the_task_writes_only_where_the_image_does() -> None:
    [container] = task_definition()["containerDefinitions"]
    assert container["readonlyRootFilesystem"] is True
    assert [mount["containerPath"] for mount in container["linuxParameters"]["tmpfs"]] == ["/tmp"]
    assert container["linuxParameters"]["capabilities"] == {"drop": ["ALL"]}


def test_the_task_of_ecs_gives_a_stop_its_time_and_asks_as_the_image_does(loaded: LoadedConfiguration) -> None:
    page = (ROOT / "docs" / "use" / "ecs.md").read_text("utf-8")
    [container] = task_definition()["containerDefinitions"]
    settings = loaded.settings
    longest_s = settings.shutdown_grace_s + 2 * settings.child.stop_timeout_s + STOP_MARGIN_S
    assert f"{longest_s:g} s." in page
    assert longest_s < container["stopTimeout"] <= 120
    assert f"up to a grace of {120 - longest_s + settings.shutdown_grace_s:g} s" in page
    health = container["healthCheck"]
    [image] = (rest for word, rest in dockerfile() if word == "HEALTHCHECK")
    assert json.loads(image.partition(" CMD ")[2]) == health["command"][1:]
    for option, key in (("interval", "interval"), ("timeout", "timeout"), ("start-period", "startPeriod")):
        assert f"--{option}={health[key]}s" in image
    assert f"--retries={health['retries']}" in image
