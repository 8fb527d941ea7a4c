"""Checks a file for `ray up` against Ray's schema, the existing machine types, and the lock file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from curate.errors import did_you_mean

from . import kuberay, yamls
from .lock import Lock
from .parameters import Parameters
from .problems import Problem, shown
from .render import INFRA, NAMES, container, render_file, stale
from .shapes import Shape, machine, tpu

COMPUTE_FIELDS = frozenset(
    str.split(
        """advancedMachineFeatures canIpForward confidentialInstanceConfig deletionProtection description disks
        displayDevice guestAccelerators hostname instanceEncryptionKey keyRevocationActionType labels machineType
        metadata minCpuPlatform name networkInterfaces networkPerformanceConfig params privateIpv6GoogleAccess
        reservationAffinity resourcePolicies scheduling serviceAccounts shieldedInstanceConfig
        sourceInstanceTemplate sourceMachineImage tags"""
    )
)
"""What may be said of a machine: the fields of `instances.insert` of the Compute Engine API v1, and Ray's
`sourceInstanceTemplate`."""
TPU_FIELDS = frozenset(
    str.split(
        """acceleratorConfig acceleratorType autocheckpointEnabled bootDiskConfig cidrBlock dataDisks description
        labels metadata multisliceNode networkConfig networkConfigs queuedResource runtimeVersion schedulingConfig
        serviceAccount serviceAccounts shieldedInstanceConfig tags upcomingMaintenance"""
    )
)
"""What may be said of a TPU: the fields of a node of the Cloud TPU API v2alpha1, and Ray's `serviceAccounts`."""
TYPE_FIELDS = frozenset(
    str.split(
        """node_config min_workers max_workers idle_timeout_s priority resources labels initialization_commands
        worker_setup_commands docker"""
    )
)
"""What Ray's schema says of a type of nodes; it lets pass what it does not know."""
_TOKEN = re.compile(r"RAY_AUTH_TOKEN=|\b[0-9a-f]{64}\b(?!\s+/)")
"""A token, or what sets one. The digest of a file, before its path, is none."""
_TOKEN_MODE = re.compile(r"""\bRAY_AUTH_MODE=(["']?)token\1(?=["']|\s|$)""")


@dataclass(frozen=True)
class Expected:
    """What a file is checked against."""

    parameters: Parameters
    lock: Lock


def check_file(path: Path, expected: Expected) -> list[Problem]:
    """Returns what is wrong with a cluster file, for `ray up` or for KubeRay, by line. Asks nobody."""
    documents, problems = yamls.read(path)
    if problems:
        return problems
    if not documents or not isinstance(documents[0].data, dict):
        return [Problem(shown(path), 1, "expected a cluster: a mapping with `cluster_name`, or a RayCluster")]
    image = container(expected.parameters, expected.lock)
    if "apiVersion" in documents[0].data:
        found = kuberay.check(documents, image, expected.lock.ray)
    else:
        found = [problem for document in documents[:1] for problem in _ray(document, image)]
    if not found and path.resolve().parent == INFRA and path.name in NAMES:
        found = stale(path, render_file(path.name, expected.parameters, expected.lock))
    return sorted(set(found))


def _ray(found: yamls.Document, image: str) -> Iterator[Problem]:
    """Yields what is wrong with a file for `ray up`."""
    broken = list(_against_schema(found))
    yield from broken
    if broken:
        return
    yield from _images(found, image)
    yield from _letting_in(found)
    zone = str(found.get("provider", "availability_zone", default=""))
    region = str(found.get("provider", "region", default=""))
    if zone.rpartition("-")[0] != region:
        text = f"the zone {zone!r} is not in the region {region!r}"
        yield found.problem(("provider", "availability_zone"), text)
    types: Mapping[str, Any] = found.get("available_node_types", default={})
    head = found.get("head_node_type")
    if head not in types:
        text = f"head_node_type is {head!r}{did_you_mean(str(head), types)}, and the types are: {', '.join(types)}"
        yield found.problem(("head_node_type",), text)
    for name in types:
        yield from _type(found, name, zone, head=name == head)
    most = found.get("max_workers", default=0)
    least = sum(kind.get("min_workers", 0) for kind in types.values())
    if least > most:
        yield found.problem(("max_workers",), f"max_workers is {most}, and the types have at least {least} together")


def schema() -> dict[str, Any]:
    """Returns the schema that `ray up` validates with."""
    import ray.autoscaler

    path = Path(ray.autoscaler.__file__).parent / "ray-schema.json"
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def _against_schema(found: yamls.Document) -> Iterator[Problem]:
    known = schema()
    for error in jsonschema.Draft7Validator(known).iter_errors(found.data):
        where = tuple(error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            names = error.schema.get("properties", {})
            for name in error.instance:
                if name not in names:
                    yield found.problem((*where, name), f"unknown field {name!r}{did_you_mean(str(name), names)}")
        else:
            yield found.problem(where, f"{'.'.join(map(str, where)) or 'the file'}: {error.message}")
    provider = found.get("provider", default={})
    if isinstance(provider, dict):
        names = known["properties"]["provider"]["properties"]
        for name in provider:
            if name not in names:
                text = f"unknown field {name!r}{did_you_mean(str(name), names)}"
                yield found.problem(("provider", name), text)
        if provider.get("type") not in ("gcp", None):
            text = f"the provider is {provider['type']!r}; this checks gcp"
            yield found.problem(("provider", "type"), text)
    for name in ("available_node_types", "head_node_type", "max_workers"):
        if name not in found.data:
            yield found.problem((), f"{name} is missing: Ray would fill in a cluster of its own")


def _images(found: yamls.Document, image: str) -> Iterator[Problem]:
    """Yields images that are not the one of the lock, which is therefore the same on all nodes."""
    docker = ("docker",)
    if found.get("docker", "image") is None:
        yield found.problem(docker, f"docker.image is missing; expected {image}")
    places: list[yamls.Where] = [(*docker, key) for key in ("image", "head_image", "worker_image")]
    places += [("available_node_types", name, *docker, "worker_image") for name in found.data["available_node_types"]]
    for where in places:
        value = found.get(*where)
        if value is not None and value != image:
            text = (
                f"{where[-1]} is {value!r}, and the lock file gives {image!r}: all nodes need the same image; "
                "scripts/cluster image builds it, scripts/cluster render puts it here"
            )
            yield found.problem(where, text)


def _letting_in(found: yamls.Document) -> Iterator[Problem]:
    """Yields what would let others in."""
    if found.get("provider", "use_internal_ips") is not True:
        text = "use_internal_ips must be true: without it nodes are reached by public addresses"
        yield found.problem(("provider", "use_internal_ips"), text)
    options = found.get("docker", "run_options", default=[])
    if not any(_TOKEN_MODE.search(str(option)) for option in options):
        text = "run_options must hold `--env RAY_AUTH_MODE=token`: without it anyone who reaches a port can run code"
        yield found.problem(("docker", "run_options"), text)
    for where, value in _leaves(found.data, ()):
        if isinstance(value, str) and _TOKEN.search(value):
            yield found.problem(where, "this looks like a token: no file may contain it; nodes get it from file_mounts")


def _type(found: yamls.Document, name: str, zone: str, *, head: bool) -> Iterator[Problem]:
    """Yields what is wrong with one type of nodes."""
    where: yamls.Where = ("available_node_types", name)
    kind: Mapping[str, Any] = found.get(*where)
    node: Mapping[str, Any] = kind["node_config"]
    is_tpu = "machineType" not in node and ("acceleratorType" in node or "acceleratorConfig" in node)
    for place, given, names in (
        (where, kind, TYPE_FIELDS),
        ((*where, "node_config"), node, TPU_FIELDS if is_tpu else COMPUTE_FIELDS),
    ):
        for key in given:
            if key not in names:
                yield found.problem((*place, key), f"unknown field {key!r}{did_you_mean(str(key), names)}")
    resources = kind["resources"]
    if head:
        if resources.get("CPU") != 0:
            text = "the head must have CPU: 0: tasks there would take memory from all drivers"
            yield found.problem((*where, "resources"), text)
    elif kind.get("min_workers", 0) > (most := kind.get("max_workers", found.get("max_workers"))):
        text = f"min_workers is {kind['min_workers']}, more than max_workers, {most}"
        yield found.problem((*where, "min_workers"), text)
    yield from _shape(found, where, zone, is_tpu=is_tpu)
    yield from _address(found, where, is_tpu=is_tpu)
    account = node.get("serviceAccount") or node.get("serviceAccounts")
    if not account:
        text = "no service account is named: Ray would give the node one that may delete everything in the project"
        yield found.problem((*where, "node_config"), text)


def _shape(found: yamls.Document, where: yamls.Where, zone: str, *, is_tpu: bool) -> Iterator[Problem]:
    node, resources = found.get(*where, "node_config"), found.get(*where, "resources")
    if is_tpu and "acceleratorType" not in node:
        text = "name the TPU by acceleratorType, such as v4-8: this does not read acceleratorConfig"
        yield found.problem((*where, "node_config"), text)
        return
    key = "acceleratorType" if is_tpu else "machineType"
    if key not in node:
        text = "a machine needs machineType, a TPU acceleratorType"
        yield found.problem((*where, "node_config"), text)
        return
    has: Shape | str = tpu(str(node[key]), zone) if is_tpu else machine(str(node[key]))
    if isinstance(has, str):
        yield found.problem((*where, "node_config", key), has)
        return
    for resource, most in (("CPU", has.cpus), ("TPU", has.chips)):
        asked = resources.get(resource, 0)
        if asked > most:
            text = f"the type announces {resource}: {asked}, and {node[key]} has {most}"
            yield found.problem((*where, "resources", resource), text)
    if has.chips and not resources.get("TPU"):
        text = f"the type announces no TPU, and {node[key]} has {has.chips}: no job could use them"
        yield found.problem((*where, "resources"), text)


def _address(found: yamls.Document, where: yamls.Where, *, is_tpu: bool) -> Iterator[Problem]:
    """Yields what gives a node a public address."""
    node = found.get(*where, "node_config")
    if is_tpu:
        if found.get(*where, "node_config", "networkConfig", "enableExternalIps") is not False:
            text = "networkConfig must say enableExternalIps: false, or Ray asks for public addresses"
            yield found.problem((*where, "node_config", "networkConfig", "enableExternalIps"), text)
        return
    place = (*where, "node_config", "networkInterfaces")
    interfaces = node.get("networkInterfaces")
    if not isinstance(interfaces, list) or not interfaces:
        text = "networkInterfaces must name a subnetwork, or Ray takes one and adds public addresses"
        yield found.problem(place, text)
        return
    for number, interface in enumerate(interfaces):
        if not isinstance(interface, dict):
            text = f"is {interface!r}; expected an interface with its subnetwork"
            yield found.problem((*place, number), text)
        elif "accessConfigs" in interface:
            text = "accessConfigs give the node a public address: take them out"
            yield found.problem((*place, number, "accessConfigs"), text)


def _leaves(value: Any, where: yamls.Where) -> Iterator[tuple[yamls.Where, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*where, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*where, number))
    else:
        yield where, value
