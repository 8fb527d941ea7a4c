"""Checks a file for KubeRay against the recorded fields of its resources and the lock file.

FIELDS was recorded from KubeRay's API reference for ray.io/v1 (docs/reference/api.md in ray-project/kuberay, and
`authOptions` as in KubeRay 1.6), and for what lies inside a pod from the reference of Kubernetes 1.28: all fields of
KubeRay's own types, and of Kubernetes' types those that pods of Ray have a use for. The published definitions cannot be
fetched in tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from curate.errors import did_you_mean

from .problems import Problem
from .shapes import slice_of
from .yamls import Document, Where

_ANY = "any"
_MAP = "map of strings"
Field = str | tuple[str, ...]
"""A type by name; a tuple of one for a list of that type."""

_KUBERNETES: dict[str, dict[str, Field]] = {
    "ObjectMeta": {"name": "str", "namespace": "str", "labels": _MAP, "annotations": _MAP},
    "PodTemplate": {"metadata": "ObjectMeta", "spec": "PodSpec"},
    "PodSpec": {
        "containers": ("Container",),
        "initContainers": ("Container",),
        "volumes": (_ANY,),
        "serviceAccountName": "str",
        "automountServiceAccountToken": "bool",
        "nodeSelector": _MAP,
        "affinity": _ANY,
        "tolerations": (_ANY,),
        "topologySpreadConstraints": (_ANY,),
        "restartPolicy": "str",
        "terminationGracePeriodSeconds": "int",
        "priorityClassName": "str",
        "schedulerName": "str",
        "securityContext": _ANY,
        "imagePullSecrets": (_ANY,),
        "hostNetwork": "bool",
        "dnsPolicy": "str",
        "runtimeClassName": "str",
    },
    "Container": {
        "name": "str",
        "image": "str",
        "imagePullPolicy": "str",
        "command": ("str",),
        "args": ("str",),
        "workingDir": "str",
        "env": ("EnvVar",),
        "envFrom": (_ANY,),
        "ports": ("Port",),
        "resources": "Resources",
        "volumeMounts": (_ANY,),
        "securityContext": _ANY,
        "lifecycle": _ANY,
        "livenessProbe": _ANY,
        "readinessProbe": _ANY,
        "startupProbe": _ANY,
    },
    "EnvVar": {"name": "str", "value": "str", "valueFrom": _ANY},
    "Port": {"name": "str", "containerPort": "int", "protocol": "str", "hostPort": "int", "hostIP": "str"},
    "Resources": {"requests": _ANY, "limits": _ANY, "claims": (_ANY,)},
}
FIELDS: dict[str, dict[str, Field]] = _KUBERNETES | {
    "RayCluster": {"apiVersion": "str", "kind": "str", "metadata": "ObjectMeta", "spec": "RayClusterSpec"},
    "RayClusterSpec": {
        "suspend": "bool",
        "managedBy": "str",
        "authOptions": "AuthOptions",
        "autoscalerOptions": "AutoscalerOptions",
        "headServiceAnnotations": _MAP,
        "enableInTreeAutoscaling": "bool",
        "gcsFaultToleranceOptions": _ANY,
        "headGroupSpec": "HeadGroupSpec",
        "rayVersion": "str",
        "workerGroupSpecs": ("WorkerGroupSpec",),
    },
    "AuthOptions": {"mode": "str", "secretName": "str", "enableK8sTokenAuth": "bool"},
    "AutoscalerOptions": {
        "resources": "Resources",
        "image": "str",
        "imagePullPolicy": "str",
        "securityContext": _ANY,
        "idleTimeoutSeconds": "int",
        "upscalingMode": "str",
        "version": "str",
        "env": ("EnvVar",),
        "envFrom": (_ANY,),
        "volumeMounts": (_ANY,),
    },
    "HeadGroupSpec": {
        "template": "PodTemplate",
        "headService": _ANY,
        "enableIngress": "bool",
        "rayStartParams": _MAP,
        "serviceType": "str",
    },
    "WorkerGroupSpec": {
        "suspend": "bool",
        "groupName": "str",
        "replicas": "int",
        "minReplicas": "int",
        "maxReplicas": "int",
        "idleTimeoutSeconds": "int",
        "rayStartParams": _MAP,
        "template": "PodTemplate",
        "scaleStrategy": _ANY,
        "numOfHosts": "int",
    },
    "RayJob": {"apiVersion": "str", "kind": "str", "metadata": "ObjectMeta", "spec": "RayJobSpec"},
    "RayJobSpec": {
        "activeDeadlineSeconds": "int",
        "backoffLimit": "int",
        "rayClusterSpec": "RayClusterSpec",
        "submitterPodTemplate": "PodTemplate",
        "metadata": _MAP,
        "clusterSelector": _MAP,
        "submitterConfig": "SubmitterConfig",
        "managedBy": "str",
        "deletionStrategy": _ANY,
        "entrypoint": "str",
        "runtimeEnvYAML": "str",
        "jobId": "str",
        "submissionMode": "str",
        "entrypointResources": "str",
        "entrypointNumCpus": "number",
        "entrypointNumGpus": "number",
        "ttlSecondsAfterFinished": "int",
        "shutdownAfterJobFinishes": "bool",
        "suspend": "bool",
        "schedule": "str",
    },
    "SubmitterConfig": {"backoffLimit": "int"},
}
"""The fields of each type, and their types."""
_ENUMS = {
    "serviceType": ("ClusterIP", "NodePort", "LoadBalancer"),
    "upscalingMode": ("Default", "Aggressive", "Conservative"),
    "version": ("v1", "v2"),
    "mode": ("disabled", "token"),
    "submissionMode": ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    "restartPolicy": ("Always", "OnFailure", "Never"),
}
_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_CHIPS = "google.com/tpu"
_SUFFIXES = {
    **{"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3},
    **{suffix: 1e3**power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{f"{suffix}i": 1024.0**power for power, suffix in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(
    rf"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)({'|'.join(filter(None, _SUFFIXES))})?"
)
_SCALARS: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "number": (int, float),
}


def check(documents: Sequence[Document], image: str, ray: str) -> list[Problem]:
    """Returns what is wrong with the resources of a file; `image` and `ray` are what the lock file gives."""
    problems: list[Problem] = []
    clusters = [str(one.get("metadata", "name")) for one in documents if one.get("kind") == "RayCluster"]
    for one in documents:
        kind = one.get("kind")
        if one.get("apiVersion") != "ray.io/v1" or kind not in ("RayCluster", "RayJob"):
            text = f"is {one.get('apiVersion')} {kind}; expected a RayCluster or a RayJob of ray.io/v1"
            problems.append(one.problem(("kind",), text))
            continue
        broken = list(_fields(one, (), str(kind)))
        problems += broken
        if broken:
            continue
        if kind == "RayCluster":
            problems += _cluster(one, ("spec",), image, ray)
        elif one.get("spec", "rayClusterSpec") is not None:
            problems += _cluster(one, ("spec", "rayClusterSpec"), image, ray)
        elif (named := one.get("spec", "clusterSelector", "ray.io/cluster")) not in clusters:
            text = f"selects the cluster {named!r}{did_you_mean(str(named), clusters)}, which is not in this file"
            problems.append(one.problem(("spec", "clusterSelector", "ray.io/cluster"), text))
    return problems


def _fields(found: Document, where: Where, kind: Field) -> Iterator[Problem]:
    """Yields what does not fit the recorded type of a place."""
    value = found.get(*where) if where else found.data
    name = ".".join(map(str, where))
    if isinstance(kind, tuple):
        if not isinstance(value, list):
            yield found.problem(where, f"{name} is {value!r}; expected a list")
            return
        for number in range(len(value)):
            yield from _fields(found, (*where, number), kind[0])
    elif kind in FIELDS or kind == _MAP:
        if not isinstance(value, dict):
            yield found.problem(where, f"{name} is {value!r}; expected a mapping")
            return
        for key, inner in value.items():
            if kind == _MAP:
                if not isinstance(inner, str):
                    text = f"{name}.{key} is {inner!r}; expected text: put it in quotes"
                    yield found.problem((*where, key), text)
            elif key not in FIELDS[kind]:
                text = f"{kind} has no field {key!r}{did_you_mean(str(key), FIELDS[kind])}"
                yield found.problem((*where, key), text)
            else:
                yield from _fields(found, (*where, key), FIELDS[kind][key])
    elif kind in _SCALARS:
        if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            yield found.problem(where, f"{name} is {value!r}; expected {kind}")
        elif (known := _ENUMS.get(str(where[-1]))) and value not in known:
            yield found.problem(where, f"{name} is {value!r}; expected one of {', '.join(known)}")


def _cluster(found: Document, spec: Where, image: str, ray: str) -> Iterator[Problem]:
    """Yields what is wrong with a cluster whose fields are right."""
    if (version := found.get(*spec, "rayVersion")) != ray:
        text = f"rayVersion is {version!r}, and the lock file has {ray}"
        yield found.problem((*spec, "rayVersion"), text)
    if found.get(*spec, "authOptions", "mode") != "token":
        text = "authOptions must say mode: token: without it anyone who reaches a port can run code"
        yield found.problem((*spec, "authOptions"), text)
    head = (*spec, "headGroupSpec")
    if found.get(*head, "rayStartParams", "num-cpus") != "0":
        text = 'the head must have num-cpus: "0": tasks there would take memory from all drivers'
        yield found.problem((*head, "rayStartParams", "num-cpus"), text)
    if found.get(*head, "serviceType", default="ClusterIP") != "ClusterIP" or found.get(*head, "enableIngress"):
        text = "the head must be seen in the cluster's own network only: serviceType: ClusterIP, enableIngress: false"
        yield found.problem((*head, "serviceType"), text)
    groups: list[Mapping[str, Any]] = found.get(*spec, "workerGroupSpecs", default=[])
    for number, group in enumerate(groups):
        where = (*spec, "workerGroupSpecs", number)
        least, now, most = group.get("minReplicas", 0), group.get("replicas", 0), group.get("maxReplicas", 2**31)
        if not least <= now <= most:
            text = f"replicas is {now}, and minReplicas to maxReplicas is {least} to {most}"
            yield found.problem((*where, "maxReplicas" if now > most else "replicas"), text)
        yield from _requests(found, where)
        yield from _chips(found, where)
    pods = [head, *((*spec, "workerGroupSpecs", number) for number in range(len(groups)))]
    for pod in pods:
        yield from _restarts(found, spec, pod)
        containers = (*pod, "template", "spec", "containers")
        for number in range(len(found.get(*containers, default=[]))):
            place = (*containers, number, "image")
            if (value := found.get(*place)) != image:
                text = (
                    f"image is {value!r}, and the lock file gives {image!r}: all nodes need the same image; "
                    "scripts/cluster image builds it, scripts/cluster render puts it here"
                )
                yield found.problem(place, text)


def _requests(found: Document, group: Where) -> Iterator[Problem]:
    """Yields a worker that announces more CPUs than its pod asks for."""
    announced = found.get(*group, "rayStartParams", "num-cpus")
    container = (*group, "template", "spec", "containers", 0, "resources", "requests", "cpu")
    asked = found.get(*container)
    if announced is None or asked is None:
        return
    if not (isinstance(announced, str) and announced.isdecimal()):
        text = f"num-cpus is {announced!r}; expected a whole number"
        yield found.problem((*group, "rayStartParams", "num-cpus"), text)
    elif (cpus := _quantity(asked)) is None:
        yield found.problem(container, f"cpu is {asked!r}; expected a number of CPUs, such as '4' or 500m")
    elif int(announced) > cpus:
        text = f"num-cpus is {announced}, and the pod asks for {asked} CPUs"
        yield found.problem((*group, "rayStartParams", "num-cpus"), text)


def _chips(found: Document, group: Where) -> Iterator[Problem]:
    """Yields a worker of one TPU host whose chips are not those of the nodes that it selects."""
    pod = (*group, "template", "spec")
    selector = (*pod, "nodeSelector")
    resources = (*pod, "containers", 0, "resources")
    asked = [found.get(*resources, kind, _CHIPS) for kind in ("requests", "limits")]
    named, topology = (found.get(*selector, key) for key in (_ACCELERATOR, _TOPOLOGY))
    if all(value is None for value in (*asked, named, topology)):
        return
    if asked[0] != asked[1]:
        text = (
            f"{_CHIPS} is {asked[0]!r} in requests and {asked[1]!r} in limits: Kubernetes takes only the same in both"
        )
        yield found.problem((*resources, "limits", _CHIPS), text)
        return
    # Slices of several hosts have other topologies.
    if found.get(*group, "numOfHosts", default=1) != 1:
        return
    has = slice_of(str(named), str(topology))
    if isinstance(has, str):
        yield found.problem((*selector, _ACCELERATOR if "is not a TPU" in has else _TOPOLOGY), has)
    elif _quantity(asked[0]) != has.chips:
        text = f"{_CHIPS} is {asked[0]!r}, and a host of {named} {topology} has {has.chips}"
        yield found.problem((*resources, "requests", _CHIPS), text)


def _restarts(found: Document, spec: Where, pod: Where) -> Iterator[Problem]:
    """Yields a pod that KubeRay's own validation refuses beside the autoscaler v2."""
    policy = found.get(*pod, "template", "spec", "restartPolicy", default="Never")
    scales = found.get(*spec, "enableInTreeAutoscaling") and found.get(*spec, "autoscalerOptions", "version") == "v2"
    if scales and policy != "Never":
        text = f"restartPolicy is {policy}; with version v2 of the autoscaler KubeRay takes only Never"
        yield found.problem((*pod, "template", "spec", "restartPolicy"), text)


def _quantity(value: Any) -> float | None:
    """Returns the number of a Kubernetes quantity; None for what is none.

    >>> _quantity("500m"), _quantity(2), _quantity("1k"), _quantity("2Ki"), _quantity("1e3"), _quantity("many")
    (0.5, 2.0, 1000.0, 2048.0, 1000.0, None)
    """
    found = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
    return float(found[1]) * _SUFFIXES[found[2] or ""] if found else None
