"""scripts/cluster check: the repository's files are right, and whatever is wrong is found, with its line."""

from __future__ import annotations

import copy
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.clusters import check, kuberay, render, yamls
from scripts.clusters.check import check_file
from scripts.clusters.lock import Lock
from scripts.clusters.parameters import read_parameters
from scripts.clusters.problems import ROOT, Refused
from scripts.clusters.render import INFRA, NAMES
from scripts.clusters.shapes import Shape, tpu
from tests.infra.edits import edited, expected, problems_of

DOCUMENTED = "image: us-docker.pkg.dev/my-project/curate/node:"


@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_the_repository_are_right(name: str) -> None:
    """And they are what the templates and parameters give, with the image of this lock file."""
    assert check_file(INFRA / name, expected()) == []


@pytest.mark.ci(13)
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("max_workers: 64\nupscaling", "max_wokers: 64\nupscaling", "unknown field 'max_wokers'; did you"),
        ("  availability_zone:", "  availabilty_zone:", "unknown field 'availabilty_zone'; did you"),
        ("  ssh_user: ubuntu", "  ssh_usr: ubuntu", "unknown field 'ssh_usr'; did you mean 'ssh_user'"),
        ("  pull_before_run: true", "  pull_befor_run: true", "unknown field 'pull_befor_run'; did you mean"),
        ("    min_workers: 4", "    min_worker: 4", "unknown field 'min_worker'; did you mean 'min_workers'"),
        ("      runtimeVersion:", "      runtimeVersoin:", "unknown field 'runtimeVersoin'; did you mean"),
        ("      machineType: n2", "      machinetype: n2", "a machine needs machineType"),
        ("    min_workers: 4", "    min_workers: four", "'four' is not of type 'integer'"),
        ("cluster_name: curate", "cluster_name: [curate]", "is not of type 'string'"),
        ("cluster_name: curate", "cluster_name: curate\ncluster_name: other", "'cluster_name' is given twice"),
        ("cluster_name: curate", "cluster_name: [curate", "no YAML: "),
        ("head_node_type: head", "head_node_type: haed", "head_node_type is 'haed'; did you mean 'head'"),
        ("  type: gcp", "  type: aws", "the provider is 'aws'; this checks gcp"),
        ("      acceleratorType: v4-8", "      acceleratorType: v4-16", "v4-16 is more than one host"),
        ("      acceleratorType: v4-8", "      acceleratorType: v4-9", "v4-9 is more than one host"),
        ("      acceleratorType: v4-8", "      acceleratorType: v4-4", "'v4-4' is not a size of v4; one host is v4-8"),
        ("      acceleratorType: v4-8", "      acceleratorType: v9-8", "'v9-8' is not a TPU type"),
        (
            "      acceleratorType: v4-8",
            "      acceleratorType: v6e-8",
            "there is no v6e in us-central2-b",
        ),
        ("      machineType: n2-standard-8", "      machineType: n2-standard-9", "n2 machines have 2, 4, 8, 16,"),
        ("      machineType: n2-standard-8", "      machineType: n2-standrad-8", "is not a machine type"),
        ("{CPU: 120, TPU: 4}", "{CPU: 280, TPU: 4}", "announces CPU: 280, and v4-8 has 240"),
        ("{CPU: 120, TPU: 4}", "{CPU: 120, TPU: 8}", "announces TPU: 8, and v4-8 has 4"),
        ("{CPU: 120, TPU: 4}", "{CPU: 120}", "announces no TPU, and v4-8 has 4"),
        ("{CPU: 0}", "{CPU: 8}", "the head must have CPU: 0"),
        ("    min_workers: 4", "    min_workers: 65", "min_workers is 65, more than max_workers, 64"),
        (
            "    min_workers: 4\n    max_workers: 64",
            "    min_workers: 65",
            "min_workers is 65, more than max_workers, 64",
        ),
        ("max_workers: 64\nup", "max_workers: 2\nup", "max_workers is 2, and the types have at least 4"),
        ("zone: us-central2-b", "zone: us-central1-b", "the zone 'us-central1-b' is not in the region 'us-central2'"),
        ("use_internal_ips: true", "use_internal_ips: false", "use_internal_ips must be true"),
        ("enableExternalIps: false", "enableExternalIps: true", "enableExternalIps: false, or Ray asks for public"),
        ("RAY_AUTH_MODE=token\n", "RAY_AUTH_MODE=tokenless\n", "run_options must hold `--env RAY_AUTH_MODE=token`"),
        ("    - --env RAY_AUTH_MODE=token\n", "", "run_options must hold `--env RAY_AUTH_MODE=token`"),
        ("    - --env RAY_USAGE", "    - --env RAY_AUTH_TOKEN=x\n    - --env RAY_USAGE", "this looks like a token"),
        ("  ssh_user: ubuntu", f"  ssh_user: {'a1' * 32}", "this looks like a token"),
        ("  " + DOCUMENTED, "  image: rayproject/ray:latest #", "all nodes need the same image"),
        ("  pull_before_run", "  worker_image: rayproject/ray:2.59.0-py311\n  pull_before_run", "worker_image is"),
        ("  pull_before_run", "  head_image: rayproject/ray:2.60.0-py312\n  pull_before_run", "head_image is"),
        ("[--privileged]", "[--privileged], worker_image: other", "worker_image is 'other'"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_said_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    """One line for it, at the line that was changed, or at what lies around it if the line went."""
    if "[--privileged]," in new:
        old, new = "worker_run_options: [--privileged]", "worker_run_options: [--privileged]\n      worker_image: other"
    found, line = problems_of(tmp_path, "cluster.yaml", old, new)
    assert any(said in problem.text for problem in found), "\n".join(map(str, found))
    nearest = min(abs(problem.line - line) for problem in found if said in problem.text)
    assert nearest <= (3 if not new or said.startswith(("a machine", "no YAML")) else 1)


def test_a_line_is_that_of_the_mistake(tmp_path: Path) -> None:
    """To the number."""
    found, line = problems_of(tmp_path, "cluster.yaml", "      runtimeVersion:", "      runtimeVersoin:")
    assert [(problem.file, problem.line) for problem in found] == [(str(tmp_path / "cluster.yaml"), line)]
    assert str(found[0]).startswith(f"{tmp_path}/cluster.yaml:{line}: unknown field")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("      networkInterfaces:", "      networkInterface:", "unknown field 'networkInterface'; did you mean"),
        (
            "subnetworks/default\n      serv",
            "subnetworks/default\n          accessConfigs: [{name: NAT}]\n      serv",
            "accessConfigs give the node a public",
        ),
        ("networkInterfaces:\n", "networkInterfaces: []\n      old:\n", "networkInterfaces must name a subnetwork"),
        (
            "        - subnetwork: projects",
            "        -\n        - subnetwork: projects",
            "is None; expected an interface",
        ),
        ("CPU: 16", "CPU: 33", "announces CPU: 33, and n2-standard-32 has 32"),
        ("provisioningModel: SPOT", "provisioningModel: SPOT", ""),
    ],
)
def test_machines_without_chips_are_checked_too(tmp_path: Path, old: str, new: str, said: str) -> None:
    """The CPU cluster, and the head of both."""
    found, line = problems_of(tmp_path, "cluster-cpu.yaml", old, new)
    if not said:
        assert found == []
        return
    assert any(said in one.text and abs(one.line - line) <= 1 for one in found), "\n".join(map(str, found))


def test_a_node_without_an_account_of_its_own_is_refused(tmp_path: Path) -> None:
    """Ray's own account may delete whatever there is in the project."""
    text = (INFRA / "cluster.yaml").read_text()
    at = text.index("      serviceAccount:\n")
    path = tmp_path / "cluster.yaml"
    path.write_text(text[:at] + text[text.index("      tags: [curate]") :])
    assert ["no service account is named" in one.text for one in check_file(path, expected())] == [True]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "  enableInTreeAutoscaling:",
            "  enableInTreeAutoscalling:",
            "RayClusterSpec has no field 'enableIn",
        ),
        ("      minReplicas:", "      minReplica:", "WorkerGroupSpec has no field 'minReplica'; did you mean"),
        ('num-cpus: "0"', "num-cpus: 0", "num-cpus is 0; expected text: put it in quotes"),
        ('num-cpus: "0"', 'num-cpus: "8"', 'the head must have num-cpus: "0"'),
        ('num-cpus: "120"', 'num-cpus: "240"', "num-cpus is 240, and the pod asks for 120 CPUs"),
        ("maxReplicas: 64", "maxReplicas: 2", "replicas is 4, and minReplicas to maxReplicas is 4 to 2"),
        ("maxReplicas: 64", "maxReplicas: '64'", "maxReplicas is '64'; expected int"),
        ('rayVersion: "2.60.0"', 'rayVersion: "2.59.0"', "rayVersion is '2.59.0', and the lock file has 2.60.0"),
        ("serviceType: ClusterIP", "serviceType: LoadBalancer", "in the cluster's own network only"),
        ("serviceType: ClusterIP", "serviceType: Cluster", "expected one of ClusterIP, NodePort, LoadBalancer"),
        ("authOptions: {mode: token}", "authOptions: {mode: disabled}", "authOptions must say mode: token"),
        ("            " + DOCUMENTED, "            image: rayproject/ray:2.60.0 #", "all nodes need the same image"),
        (
            "              " + DOCUMENTED,
            "              image: rayproject/ray:2.60.0 #",
            "all nodes need the same image",
        ),
        ('num-cpus: "120"', 'num-cpus: "many"', "num-cpus is 'many'; expected a whole number"),
        ('cpu: "120"', "cpu: lots", "cpu is 'lots'; expected a number of CPUs"),
        ("restartPolicy: Never", "restartPolicy: Always", "restartPolicy is Always; with version v2"),
        ("accelerator: tpu-v4-podslice", "accelerator: tpu-v4", "'tpu-v4' is not a TPU of GKE; known are: tpu-v4-pod"),
        ("topology: 2x2x1", "topology: 2x2x2", "tpu-v4-podslice has no 2x2x2 of one host; it has 2x2x1"),
        ("accelerator: tpu-v4-podslice", "acelerator: tpu-v4-podslice", "'None' is not a TPU of GKE"),
        (
            '300Gi, google.com/tpu: "4"}\n                l',
            "300Gi}\n                l",
            "is None in requests and '4' in limits",
        ),
        (
            'limits: {memory: 300Gi, google.com/tpu: "4"}',
            'limits: {google.com/tpu: "8"}',
            "'4' in requests and '8' in l",
        ),
        ("cluster: curate}", "cluster: curat}", "selects the cluster 'curat'; did you mean 'curate'"),
        ("kind: RayJob", "kind: RayJobs", "expected a RayCluster or a RayJob of ray.io/v1"),
        ("  entrypoint: >-", "  entryPoint: >-", "RayJobSpec has no field 'entryPoint'; did you mean 'entrypoint'"),
    ],
)
def test_what_is_wrong_on_kubernetes_is_said_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Against the recorded fields of KubeRay's resources, and against the lock file."""
    found, line = problems_of(tmp_path, "kuberay.yaml", old, new)
    assert any(said in one.text and abs(one.line - line) <= 1 for one in found), "\n".join(map(str, found))


OTHERS: tuple[object, ...] = (None, True, -1, "many", [], [None], {}, {"a": None})


@pytest.mark.parametrize("name", NAMES)
def test_no_value_of_another_kind_ends_in_a_traceback(tmp_path: Path, name: str) -> None:
    """Each value and each part of a file, replaced by nothing, a number, a text, a list, a mapping, or taken out."""
    documents = list(yaml.safe_load_all((INFRA / name).read_text()))
    path, against, dice = tmp_path / name, expected(), random.Random(name)
    tried = [(where, other) for where in places(documents) for other in (*OTHERS, OUT)]
    for where, other in dice.sample(tried, 40):
        changed = copy.deepcopy(documents)
        part = changed
        for key in where[:-1]:
            part = part[key]
        if other is OUT:
            del part[where[-1]]
        else:
            part[where[-1]] = other
        path.write_text(json.dumps(changed[0]) if len(changed) == 1 else yaml.safe_dump_all(changed))
        assert all(one.line for one in check_file(path, against)), (where, other)


OUT = object()
"""Takes a value out."""


def places(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the keys and positions of all values within one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inner for place in ((*where, key), *places(one, (*where, key)))]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (b"a: 1\nb: caf\xe9\n", 2, "no YAML: not UTF-8"),
        (b"a: 1\nb: \x01\n", 2, "no YAML: the character 0x1"),
        (b"a: 1\n? [b]\n: 2\n", 2, "no YAML: found unhashable key"),
        (b"a: 2024-99-99\n", 1, "no YAML: month must be in 1..12"),
        (b"a: " + b"[" * 800, 1, "no YAML: maximum recursion depth"),
        (b"a: !!python/none\n", 1, "no YAML: could not determine a constructor"),
    ],
)
def test_what_is_no_yaml_is_said(tmp_path: Path, text: bytes, line: int, said: str) -> None:
    """With its line, as far as that is known."""
    path = tmp_path / "x.yaml"
    path.write_bytes(text)
    documents, (problem,) = yamls.read(path)
    assert documents == []
    assert problem.line == line
    assert problem.text.startswith(said)


def test_all_that_is_yaml_is_read(tmp_path: Path) -> None:
    """Documents of nothing are none; what is merged is there; an anchor may be within what it names."""
    path = tmp_path / "x.yaml"
    path.write_text("---\n# nothing\n---\na: &a {x: 1}\nb:\n  <<: *a\n  y: 2\n---\n&c c: &d [*d]\n---\n")
    documents, problems = yamls.read(path)
    assert problems == []
    assert [list(one.data) for one in documents] == [["a", "b"], ["c"]]
    assert documents[0].data["b"] == {"x": 1, "y": 2}
    assert documents[0].problem(("b", "x"), "").line == 5
    assert documents[0].problem(("b", "y"), "").line == 7


@pytest.mark.parametrize(
    ("type_", "zone", "accelerator", "topology", "chips", "cpus"),
    [
        ("v4-8", "us-central2-b", "tpu-v4-podslice", "2x2x1", 4, 240),
        ("v5p-8", "us-east5-a", "tpu-v5p-slice", "2x2x1", 4, 208),
        ("v5litepod-1", "us-west4-a", "tpu-v5-lite-podslice", "1x1", 1, 24),
        ("v5litepod-4", "us-west4-a", "tpu-v5-lite-podslice", "2x2", 4, 112),
        ("v5litepod-8", "us-west4-a", "tpu-v5-lite-podslice", "2x4", 8, 224),
        ("v6e-1", "us-east5-b", "tpu-v6e-slice", "1x1", 1, 44),
        ("v6e-4", "us-east5-b", "tpu-v6e-slice", "2x2", 4, 180),
        ("v6e-8", "us-east5-b", "tpu-v6e-slice", "2x4", 8, 180),
    ],
)
def test_a_tpu_type_decides_all_of_its_workers(
    tmp_path: Path, type_: str, zone: str, accelerator: str, topology: str, chips: int, cpus: int
) -> None:
    """Accelerator, topology and chips of the rendered file are those of GKE's tables; more CPUs are refused."""
    known = expected()
    assert tpu(type_, zone) == Shape(cpus, chips, topology, tpu(type_, zone).pod_gib)
    against = check.Expected(replace(known.parameters, tpu_type=type_, zone=zone, tpu_cpus=20), known.lock)
    path = tmp_path / "kuberay.yaml"
    path.write_text(render.render_file("kuberay.yaml", against.parameters, against.lock))
    assert check_file(path, against) == []
    (group,) = yaml.safe_load(path.read_text().partition("\n---\n")[0])["spec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == accelerator
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    for asked in pod["containers"][0]["resources"].values():
        assert asked["google.com/tpu"] == str(chips)
    text = (ROOT / "infra/parameters.yaml").read_text()
    text = text.replace("tpu_type: v4-8", f"tpu_type: {type_}").replace("zone: us-central2-b", f"zone: {zone}")
    (tmp_path / "p.yaml").write_text(text.replace("tpu_cpus: 120", f"tpu_cpus: {cpus + 1}"))
    _, (problem,) = read_parameters(tmp_path / "p.yaml")
    assert problem.text == f"tpu_cpus is {cpus + 1}, and a host of {type_} has {cpus} CPUs"


def test_a_changed_lock_is_another_image() -> None:
    """Whatever changed in it: nodes are rebuilt from it, or refused."""
    now = expected()
    other = check.Expected(now.parameters, Lock(now.lock.ray, "0" * 64))
    for name in NAMES:
        assert any("image" in problem.text for problem in check_file(INFRA / name, other)), name


def test_a_file_that_was_edited_by_hand_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is valid in itself, but would be gone with the next rendering: with its line and what to do."""
    monkeypatch.setattr(check, "INFRA", tmp_path)
    path, line = edited(tmp_path, "cluster.yaml", "upscaling_speed: 4", "upscaling_speed: 9")
    (found,) = check_file(path, expected())
    assert found.line == line
    assert "'upscaling_speed: 9', and the template with the parameters gives 'upscaling_speed: 4'" in found.text


def test_a_lock_without_ray_is_refused(tmp_path: Path) -> None:
    """It is no lock of this project."""
    (tmp_path / "requirements.lock").write_text("one==1\n")
    from scripts.clusters.lock import read_lock

    with pytest.raises(Refused, match="pins no version of Ray"):
        read_lock(tmp_path / "requirements.lock")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """Instead of a traceback."""
    (found,) = check_file(tmp_path / "none.yaml", expected())
    assert "cannot be read: No such file or directory" in found.text


def test_templates_need_nothing_that_is_not_given(tmp_path: Path) -> None:
    """A template that names what there is not fails where it is rendered, and every template is used."""
    templates = tmp_path / "templates"
    shutil.copytree(render.TEMPLATES, templates)
    now = expected()
    for name in NAMES:
        assert render.render_file(name, now.parameters, now.lock, templates) == (INFRA / name).read_text()
    with (templates / "kuberay.yaml").open("a") as file:
        file.write("# @nothing\n")
    with pytest.raises(KeyError, match="nothing"):
        render.render_file("kuberay.yaml", now.parameters, now.lock, templates)
    assert {path.name for path in render.TEMPLATES.iterdir()} == {"ray.yaml", "tpu.yaml", "cpu.yaml", "kuberay.yaml"}


def test_recorded_types_refer_to_recorded_types() -> None:
    """A type that is not recorded would let anything pass."""
    plain = {"str", "int", "bool", "number", "any", "map of strings"}
    named = {one[0] if isinstance(one, tuple) else one for fields in kuberay.FIELDS.values() for one in fields.values()}
    assert named - plain <= kuberay.FIELDS.keys()


def test_no_token_is_in_any_file() -> None:
    """Neither in what is made, nor in what it is made from."""
    for path in INFRA.rglob("*"):
        if path.is_file() and path.suffix in (".yaml", ""):
            assert "RAY_AUTH_TOKEN" not in path.read_text(), path
    assert (ROOT / "infra/Dockerfile").is_file()
