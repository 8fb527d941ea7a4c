"""Makes the cluster files of infra/ from their templates and the parameters."""

from __future__ import annotations

import string
from dataclasses import asdict
from pathlib import Path

from .lock import Lock
from .parameters import Parameters
from .problems import ROOT, Problem, Refused, shown
from .shapes import accelerator, tpu

INFRA = ROOT / "infra"
TEMPLATES = INFRA / "templates"
NAMES = ("cluster.yaml", "cluster-cpu.yaml", "kuberay.yaml")
_RAY = {
    "cluster.yaml": (
        "tpu",
        "A cluster of preemptible TPU hosts: `ray up infra/cluster.yaml`, or `scripts/cluster up`.",
    ),
    "cluster-cpu.yaml": (
        "cpu",
        "A cluster of preemptible CPU machines: `scripts/cluster --file infra/cluster-cpu.yaml up`.",
    ),
}
"""The workers of the files for `ray up`, which are all else alike, and their first lines."""


class _Template(string.Template):
    # Shell commands in the files are full of $.
    delimiter = "@"


def values(parameters: Parameters, lock: Lock) -> dict[str, str]:
    """Returns the values that templates may name, as text."""
    host = tpu(parameters.tpu_type, parameters.zone)
    if isinstance(host, str):
        raise Refused(f"tpu_type: {host}")
    derived = {
        "region": parameters.region,
        "container": container(parameters, lock),
        "ray": lock.ray,
        "lock_sha256": lock.sha256,
        "registry": parameters.image.partition("/")[0],
        "idle_seconds": parameters.idle_minutes * 60,
        "tpu_chips": host.chips,
        "tpu_host_cpus": host.cpus,
        "tpu_accelerator": accelerator(parameters.tpu_type),
        "tpu_topology": host.topology,
        "tpu_pod_gib": host.pod_gib,
    }
    return {name: str(value) for name, value in (asdict(parameters) | derived).items()}


def container(parameters: Parameters, lock: Lock) -> str:
    """Returns the image of all nodes, with its tag."""
    return f"{parameters.image}:{lock.tag(parameters.python)}"


def render_file(name: str, parameters: Parameters, lock: Lock, templates: Path = TEMPLATES) -> str:
    """Returns the text of one cluster file."""
    known = values(parameters, lock)
    if name in _RAY:
        kind, title = _RAY[name]
        workers = _Template((templates / f"{kind}.yaml").read_text()).substitute(known)
        known |= {"title": title, "workers": workers, "max_workers": known[f"{kind}_max"]}
        name = "ray.yaml"
    return _Template((templates / name).read_text()).substitute(known)


def stale(path: Path, expected: str) -> list[Problem]:
    """Returns the first line in which a file is not what its template and the parameters give."""
    here, there = path.read_text().splitlines(), expected.splitlines()
    for number, (line, wanted) in enumerate(zip([*here, ""], [*there, ""], strict=False), 1):
        if line != wanted:
            text = (
                f"is {line.strip()!r}, and the template with the parameters gives {wanted.strip()!r}: "
                "change those, and run scripts/cluster render"
            )
            return [Problem(shown(path), number, text)]
    return []
