"""Google's client libraries as Ray's launcher uses them, with a cloud that notes what is asked for.

They are not among the locked dependencies, and no test reaches Google.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Refusal(Exception):
    """Stands for googleapiclient.errors.HttpError."""


class Request:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def execute(self, **_: Any) -> Any:
        return self._answer


class Calls:
    """A client in which every method of every collection is a call to the cloud."""

    def __init__(self, cloud: Cloud, path: tuple[str, ...]) -> None:
        self._cloud = cloud
        self._path = path
        self._http = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(**given: Any) -> Any:
            path = (*self._path, name)
            if not given and self._cloud.is_collection(path):
                return Calls(self._cloud, path)
            return Request(self._cloud.answer(".".join(path), given))

        return call


class Cloud:
    """A project with nothing in it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.machines: dict[str, dict[str, Any]] = {}
        self.tpus: dict[str, dict[str, Any]] = {}

    def client(self, name: str) -> Calls:
        return Calls(self, (name,))

    def clients(self, provider: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns what Ray makes of the provider's configuration: four clients."""
        tpu = self.client("tpu") if provider.get("_has_tpus") else None
        return self.client("crm"), self.client("iam"), self.client("compute"), tpu

    def names(self) -> list[str]:
        """Returns the calls in order."""
        return [name for name, _ in self.asked]

    @staticmethod
    def is_collection(path: tuple[str, ...]) -> bool:
        return path[-1] in {
            "projects", "locations", "nodes", "operations", "instances", "zoneOperations", "serviceAccounts",
            "subnetworks", "globalOperations",
        }  # fmt: skip

    def answer(self, name: str, given: dict[str, Any]) -> Any:
        self.asked.append((name, copy.deepcopy(given)))
        match name:
            case "crm.projects.get":
                return {"projectId": given["projectId"], "lifecycleState": "ACTIVE"}
            case "iam.projects.serviceAccounts.get":
                email = given["name"].rpartition("/")[2]
                return {"email": email, "projectId": given["name"].split("/")[1]}
            case "crm.projects.getIamPolicy":
                return {"bindings": []}
            case "crm.projects.setIamPolicy":
                return {}
            case "compute.projects.get":
                return {"name": given["project"], "commonInstanceMetadata": {"items": []}}
            case "compute.projects.setCommonInstanceMetadata":
                return {"name": "operation"}
            case "compute.globalOperations.get" | "compute.zoneOperations.get":
                return {"status": "DONE"}
            case "compute.instances.list":
                return {"items": [one for one in self.machines.values() if _matches(one, given["filter"])]}
            case "compute.instances.get":
                return self.machines[given["instance"]]
            case "compute.instances.insert":
                body = given["body"]
                made = {"status": "RUNNING", "networkInterfaces": [{"networkIP": f"10.0.0.{len(self.machines) + 2}"}]}
                self.machines[body["name"]] = body | made | {"labelFingerprint": "1"}
                return {"name": "operation"}
            case "compute.instances.setLabels":
                self.machines[given["instance"]]["labels"] = given["body"]["labels"]
                return {"name": "operation"}
            case "tpu.projects.locations.nodes.list":
                return {"nodes": list(self.tpus.values())}
            case "tpu.projects.locations.nodes.create":
                self.tpus[given["nodeId"]] = given["body"] | {"state": "READY", "name": given["nodeId"]}
                return {"name": "operation"}
            case "tpu.projects.locations.operations.get":
                return {"response": {}}
        raise AssertionError(f"unexpected: {name} {given}")


def _matches(machine: Mapping[str, Any], asked: str) -> bool:
    labels = machine.get("labels", {})
    pairs = (word.strip("() ").removeprefix("labels.").split(" = ") for word in asked.split(" AND "))
    return all(labels.get(pair[0]) == pair[1] for pair in pairs if len(pair) == 2 and pair[0].startswith("ray-"))


@contextmanager
def google(cloud: Cloud) -> Iterator[None]:
    """Puts the cloud in the place of Google's libraries, for Ray's launcher only, while the block lasts."""
    before = {name: module for name, module in sys.modules.items() if _is_launcher(name)}
    for name in before:
        del sys.modules[name]
    fakes = {name: ModuleType(name) for name in _FAKED}
    for name, module in fakes.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(fakes[parent], child, module)
    fakes["googleapiclient.errors"].HttpError = Refusal  # type: ignore[attr-defined]
    fakes["googleapiclient.discovery"].Resource = object  # type: ignore[attr-defined]
    fakes["google_auth_httplib2"].AuthorizedHttp = lambda *_, **__: None  # type: ignore[attr-defined]
    fakes["httplib2"].Http = object  # type: ignore[attr-defined]
    sys.modules.update(fakes)
    try:
        from ray.autoscaler._private.gcp import config, node, node_provider

        config.construct_clients_from_provider_config = cloud.clients
        node_provider.construct_clients_from_provider_config = cloud.clients
        for kind in (node.GCPCompute, node.GCPTPU):
            kind.get_new_authorized_http = lambda *_: None
        yield
    finally:
        for name in [name for name in sys.modules if _is_launcher(name) or name in _FAKED]:
            del sys.modules[name]
        sys.modules.update(before)


_FAKED = (
    "googleapiclient",
    "googleapiclient.discovery",
    "googleapiclient.errors",
    "googleapiclient.http",
    "google_auth_httplib2",
    "httplib2",
)


def _is_launcher(name: str) -> bool:
    return name.startswith("ray.autoscaler._private.gcp")
