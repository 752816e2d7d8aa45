"""The chart of deploy/helm, rendered by Helm: what kustomize makes of deploy/kubernetes, and what its values change.

Needs Helm and kustomize, which `make test-chart` builds, and of `make test-deploy-tools` the schemas of Kubernetes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.locked import environment_of
from tests.support.make_chart_tools import HELM, KUSTOMIZE
from tests.unit.test_deploy import CHART, KUBERNETES, OF_OTHERS, PROPERTIES, manifest

pytestmark = pytest.mark.skipif(not os.environ.get("MLD_CHART"), reason="make test-chart")
TIMEOUT_S = 120
OF_HELM = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart")
"""Labels that only a release of Helm has."""
IN_A_CLUSTER_OF_OTHERS = {"ScaledObject", "TriggerAuthentication", "PodMonitor"}

Rendered = dict[str, Any]


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [HELM, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def rendered(*values: str, name: str = "mld") -> Rendered:
    """The objects of a release by their kinds."""
    done = helm("template", name, CHART, *values)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}


def without_helm(value: Any) -> Any:
    """The same without the labels of a release, and with Kubernetes' own way to write an empty one."""
    if isinstance(value, dict):
        return {key: without_helm(one) for key, one in value.items() if key not in OF_HELM}
    return [without_helm(one) for one in value] if isinstance(value, list) else value


def of_kustomize(directory: Path = KUBERNETES) -> Rendered:
    """The objects that kustomize makes, by their kinds."""
    done = subprocess.run(
        [KUSTOMIZE, "build", directory], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


def configured_by(deployment: Any) -> list[str]:
    """The names of the ConfigMaps that a Deployment mounts."""
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    return [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]


def test_the_chart_makes_what_the_manifests_make() -> None:
    made = without_helm(rendered())
    annotations = made["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert re.fullmatch(r"[0-9a-f]{64}", annotations.pop("checksum/properties"))
    wanted = of_kustomize()
    name = wanted["ConfigMap"]["metadata"]["name"]
    assert re.fullmatch(r"mld-[0-9a-z]{10}", name)
    assert configured_by(wanted["Deployment"]) == [name]
    assert made == json.loads(json.dumps(wanted).replace(name, "mld"))


def test_kustomize_rolls_the_pods_when_the_file_changes(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(KUBERNETES, tmp_path / "kubernetes"))
    before = of_kustomize(directory)
    with (directory / PROPERTIES.name).open("a") as file:
        file.write("maxRecords = 100\n")
    after = of_kustomize(directory)
    assert configured_by(before["Deployment"]) != configured_by(after["Deployment"])
    assert configured_by(after["Deployment"]) == [after["ConfigMap"]["metadata"]["name"]]


@pytest.mark.parametrize("trigger", ["prometheus", "cloudwatch"])
def test_the_optional_objects_are_those_beside_the_manifests(trigger: str) -> None:
    file = "keda.yaml" if trigger == "prometheus" else "keda-cloudwatch.yaml"
    made = without_helm(
        rendered("--set", f"podMonitor.enabled=true,keda.enabled=true,keda.trigger={trigger}"),
    )
    expected = {one["kind"]: one for one in yaml.safe_load_all((KUBERNETES / file).read_text())}
    expected["PodMonitor"] = manifest("podmonitor.yaml")
    assert {kind: one for kind, one in made.items() if kind in IN_A_CLUSTER_OF_OTHERS} == expected
    assert "replicas" not in made["Deployment"]["spec"]  # KEDA's
    assert "prometheus.io/scrape" not in made["Deployment"]["spec"]["template"]["metadata"]["annotations"]


def test_a_changed_file_rolls_the_pods(tmp_path: Path) -> None:
    file = tmp_path / "app.properties"

    def template() -> Any:
        return rendered("--set-file", f"properties={file}")["Deployment"]["spec"]["template"]

    texts = ["streamName = a\n", 'streamName = b: "c" {{ d }}\n']
    first, second = [file.write_text(text) and template() for text in texts]
    assert first != second
    assert rendered("--set-file", f"properties={file}")["ConfigMap"]["data"]["app.properties"] == texts[1]


def test_two_releases_in_one_namespace_share_nothing() -> None:
    one, other = rendered(name="clicks"), rendered(name="orders")
    assert {made["metadata"]["name"] for made in one.values()} == {"clicks"}
    assert one["Deployment"]["spec"]["selector"] != other["Deployment"]["spec"]["selector"]
    labels = one["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        one["Deployment"]["spec"]["selector"]["matchLabels"],
        one["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        one["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= other["Deployment"]["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("value", ["replica=3", "keda.trigger=sqs", "image.tags=1", "properties="])
def test_a_misspelled_value_is_refused(value: str) -> None:
    done = helm("template", "mld", CHART, "--set", value)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_helm_finds_nothing_to_say() -> None:
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_knows_every_field_of_the_chart(version: str, tmp_path: Path) -> None:
    validate = environment_of("deploy") / "bin" / "kubernetes-validate"
    assert validate.is_file(), "make test-deploy-tools"
    files = []
    for kind, one in rendered("--set", "env[0].name=STREAM,env[0].value=clicks").items():
        files.append(tmp_path / f"{kind}.json")
        files[-1].write_text(json.dumps(one))
    command = [str(validate), "--strict", "--kubernetes-version", version, *map(str, files)]
    looked = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert len(files) == 4 + 1 == len(list(KUBERNETES.glob("*.yaml"))) - len(OF_OTHERS) + 1
    assert looked.returncode == 0, looked.stdout + looked.stderr
