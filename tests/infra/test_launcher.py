"""`ray up` takes the cluster files: Ray's own code prepares them, and asks a stand-in for Google for what they say."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.clusters.render import INFRA
from tests.infra.google import Cloud, google

FILES = ("cluster.yaml", "cluster-cpu.yaml")


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Google, and a home in which Ray keeps its ssh key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_UP_enable_autoscaler_v2", "1")
    (tmp_path / ".ray/clusters/curate").mkdir(parents=True)
    (tmp_path / ".ray/clusters/curate/auth_token").write_text("x")
    made = Cloud()
    with google(made):
        yield made


def prepared(name: str) -> dict[str, Any]:
    """Returns a cluster file as `ray up` prepares and validates it."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config: dict[str, Any] = prepare_config(yaml.safe_load((INFRA / name).read_text()))
    validate_config(config)
    return config


def bootstrapped(name: str) -> dict[str, Any]:
    """Returns a cluster file as `ray up` completes it."""
    from ray.autoscaler._private.gcp.config import bootstrap_gcp
    from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider

    config = GCPNodeProvider.fillout_available_node_types_resources(prepared(name))
    found: dict[str, Any] = bootstrap_gcp(config)
    return found


@pytest.mark.parametrize("name", FILES)
def test_ray_validates_it(name: str) -> None:
    """With Ray's own schema and rules, after its defaults were filled in."""
    config = prepared(name)
    assert config["cluster_name"] == "curate"
    assert set(config["available_node_types"]) == {"head", name.removesuffix(".yaml").partition("-")[2] or "tpu"}


@pytest.mark.parametrize("name", FILES)
def test_what_is_said_of_nodes_stays_so(cloud: Cloud, name: str) -> None:
    """Ray completes what is left out: it finds nothing to add to addresses and accounts, and looks up no subnet."""
    said = yaml.safe_load((INFRA / name).read_text())["available_node_types"]
    config = bootstrapped(name)
    for kind, given in said.items():
        assert config["available_node_types"][kind]["node_config"] == given["node_config"]
    assert not any("subnetworks" in call for call in cloud.names())
    assert not any("create" in call.lower() for call in cloud.names())


def test_a_tpu_worker(cloud: Cloud) -> None:
    """What Google is asked for: a preemptible v4-8, no public address, the account of workers."""
    from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider

    config = bootstrapped("cluster.yaml")
    kind = config["available_node_types"]["tpu"]
    assert kind["resources"] == {"CPU": 120, "TPU": 4, "TPU-v4-8-head": 1}
    assert (kind["min_workers"], kind["max_workers"], config["max_workers"]) == (4, 64, 64)
    provider = GCPNodeProvider(config["provider"], "curate")
    provider.create_node(copy.deepcopy(kind["node_config"]), {"ray-node-name": "ray-curate-worker"}, 1)
    ((_, given),) = [one for one in cloud.asked if one[0].endswith("nodes.create")]
    assert given["parent"] == "projects/my-project/locations/us-central2-b"
    body = given["body"]
    assert (body["acceleratorType"], body["runtimeVersion"]) == ("v4-8", "tpu-ubuntu2204-base")
    assert body["schedulingConfig"] == {"preemptible": True}
    assert body["networkConfig"]["enableExternalIps"] is False
    assert body["serviceAccount"]["email"] == "curate-worker@my-project.iam.gserviceaccount.com"
    assert "networkInterfaces" not in body


def test_a_cpu_worker(cloud: Cloud) -> None:
    """What Google is asked for: a machine that is deleted when it is preempted, no public address."""
    from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider

    config = bootstrapped("cluster-cpu.yaml")
    kind = config["available_node_types"]["cpu"]
    provider = GCPNodeProvider(config["provider"], "curate")
    provider.create_node(copy.deepcopy(kind["node_config"]), {"ray-node-name": "ray-curate-worker"}, 1)
    ((_, given),) = [one for one in cloud.asked if one[0] == "compute.instances.insert"]
    body = given["body"]
    assert body["machineType"] == "zones/us-central2-b/machineTypes/n2-standard-32"
    assert body["scheduling"] == {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    assert [sorted(one) for one in body["networkInterfaces"]] == [["subnetwork"]]
    assert body["serviceAccounts"][0]["email"] == "curate-worker@my-project.iam.gserviceaccount.com"


class Ssh:
    """Stands for `subprocess` in Ray's launcher: notes the commands that would go to the head, and answers them."""

    CalledProcessError = subprocess.CalledProcessError

    def __init__(self) -> None:
        self.commands: list[str] = []
        self._lock = threading.Lock()

    def check_call(self, command: list[str], *_: Any, **__: Any) -> int:
        with self._lock:
            self.commands.append(" ".join(command))
        return 0

    def check_output(self, command: list[str], *_: Any, **__: Any) -> bytes:
        self.check_call(command)
        text = self.commands[-1]
        if "State.Running" in text:
            running = any(" run --rm" in one for one in self.commands)
            return b"true" if running else b""
        if "printenv HOME" in text:
            return b"/home/ray"
        if ".Config.Env" in text:
            return b'["HOME=/home/ray"]'
        if ".Config.Image" in text:
            return self.image.encode()
        if ".Mounts" in text:
            return b"[]"
        if "/proc/meminfo" in text or "MemAvailable" in text:
            return b"MemAvailable: 30000000 kB"
        return b"docker"

    image = ""


def test_ray_up(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing to a head: the machine that Google is asked for, and every command that runs on it, in order."""
    from ray.autoscaler._private import commands
    from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider

    monkeypatch.setattr(commands.usage_lib, "show_usage_stats_prompt", lambda **_: None)
    config = bootstrapped("cluster.yaml")
    ssh = Ssh()
    ssh.image = config["docker"]["image"]
    commands.get_or_create_head_node(
        config,
        str(INFRA / "cluster.yaml"),
        no_restart=False,
        restart_only=False,
        yes=True,
        override_cluster_name=None,
        _provider=GCPNodeProvider(config["provider"], "curate"),
        _runner=ssh,
    )
    ((_, given),) = [one for one in cloud.asked if one[0] == "compute.instances.insert"]
    body = given["body"]
    assert body["machineType"] == "zones/us-central2-b/machineTypes/n2-standard-8"
    assert body["disks"][0]["initializeParams"]["diskSizeGb"] == 200
    assert "scheduling" not in body
    assert [sorted(one) for one in body["networkInterfaces"]] == [["subnetwork"]]
    assert [one["email"] for one in body["serviceAccounts"]] == ["curate-head@my-project.iam.gserviceaccount.com"]
    ran = "\n".join(ssh.commands)
    order = [
        r"chgrp .*docker\.sock",
        r"docker pull .*/curate/node:2\.60\.0-py311-",
        r"docker run --rm --name curate .*RAY_AUTH_MODE=token .*--net=host",
        r"requirements\.lock.* sha256sum --check",
        r"sudo install -m 600 .*cluster-token/auth_token",
        r"RAY_enable_autoscaler_v2=1.*ray start --head --num-cpus=0",
    ]
    places = [found.start() if (found := re.search(pattern, ran)) else None for pattern in order]
    assert None not in places, dict(zip(order, places, strict=True))
    assert places == sorted(place for place in places if place is not None)
    # The folder with the token is brought over; the token itself is in no command.
    assert re.search(rf"rsync .*{re.escape(str(tmp_path))}/\.ray/clusters/curate", ran)
    assert os.environ["HOME"] == str(tmp_path)
    assert "ProxyCommand=gcloud compute start-iap-tunnel" in ran
    assert "--privileged" not in ran
    # rsync takes its remote shell apart at blanks and quotes, and knows no escapes.
    assert not any('\\"' in one for one in ssh.commands if one.startswith("rsync"))
