"""The parameters of the clusters: infra/parameters.yaml, each value checked, each mistake with its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from curate.errors import did_you_mean

from . import yamls
from .problems import ROOT, Problem, shown
from .shapes import machine, tpu

PARAMETERS = ROOT / "infra/parameters.yaml"
EXAMPLE_PROJECT = "my-project"
"""The project that the repository's own parameters name: nobody's."""

Check = Callable[[Any], str | None]
"""Returns what was expected of a value that will not do."""


def _text(pattern: str, expected: str) -> Check:
    whole = re.compile(pattern)
    return lambda value: None if isinstance(value, str) and whole.fullmatch(value) else expected


def _number(least: int, most: int) -> Check:
    def check(value: Any) -> str | None:
        fine = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if fine else f"a whole number from {least:,} to {most:,}"

    return check


def _machine(value: Any) -> str | None:
    found = machine(value) if isinstance(value, str) else "a machine type, such as n2-standard-8"
    return found if isinstance(found, str) else None


_CHECKS: dict[str, Check] = {
    # Ray puts it into names of nodes: with what it adds, they may have 63 characters.
    "name": _text(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", "at most 22 lower case letters, digits and dashes"),
    "project": _text(r"[a-z][-a-z0-9]{4,28}[a-z0-9]", "the ID of a Google Cloud project (6 to 30 characters)"),
    "zone": _text(r"[a-z]+-[a-z]+[0-9]+-[a-z]", "a zone, such as us-central2-b"),
    "bucket": _text(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]", "the name of a bucket, without gs://"),
    "subnet": _text(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", "the name of a subnet of the zone's region"),
    "image": _text(
        r"[a-z0-9][-.a-z0-9]*(:[0-9]+)?(/[a-z0-9]+([-._]+[a-z0-9]+)*)+",
        "the name of a container image without a tag: the tag follows from the lock file",
    ),
    "python": _text(r"3\.[0-9]+", "a quoted minor version, such as '3.11'"),
    "head_account": _text(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", "the name of a service account, before its @"),
    "worker_account": _text(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", "the name of a service account, before its @"),
    "head_machine": _machine,
    "head_disk_gb": _number(50, 65_536),
    "idle_minutes": _number(1, 1_440),
    "tpu_type": _text(r"v[0-9]+[a-z]*-[0-9]+", "a TPU type, such as v4-8"),
    "tpu_runtime": _text(r"[a-z0-9][-.a-z0-9]+", "a TPU software version, such as tpu-ubuntu2204-base"),
    "tpu_cpus": _number(1, 1_000),
    "tpu_min": _number(0, 10_000),
    "tpu_max": _number(1, 10_000),
    "cpu_machine": _machine,
    "cpu_cpus": _number(1, 1_000),
    "cpu_disk_gb": _number(50, 65_536),
    "cpu_min": _number(0, 10_000),
    "cpu_max": _number(1, 10_000),
}


@dataclass(frozen=True)
class Parameters:
    """What differs from one cluster to another. What each means is said in infra/parameters.yaml."""

    name: str
    project: str
    zone: str
    bucket: str
    subnet: str
    image: str
    python: str
    head_account: str
    worker_account: str
    head_machine: str
    head_disk_gb: int
    idle_minutes: int
    tpu_type: str
    tpu_runtime: str
    tpu_cpus: int
    tpu_min: int
    tpu_max: int
    cpu_machine: str
    cpu_cpus: int
    cpu_disk_gb: int
    cpu_min: int
    cpu_max: int

    @property
    def region(self) -> str:
        """The region of the zone."""
        return self.zone.rpartition("-")[0]


def read_parameters(path: Path = PARAMETERS) -> tuple[Parameters | None, list[Problem]]:
    """Returns the parameters, or none of them and what is wrong."""
    documents, problems = yamls.read(path)
    if problems:
        return None, problems
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        return None, [Problem(shown(path), 1, "expected one mapping of parameters")]
    found = documents[0]
    names = [one.name for one in fields(Parameters)]
    for name in found.data:
        if name not in names:
            text = f"no parameter {name!r}{did_you_mean(str(name), names)}"
            problems.append(found.problem((name,), text))
    for name in names:
        if name not in found.data:
            problems.append(found.problem((), f"the parameter {name!r} is missing"))
        elif (expected := _CHECKS[name](value := found.data[name])) is not None:
            problems.append(found.problem((name,), f"{name} is {value!r}; expected {expected}"))
    if problems:
        return None, sorted(problems)
    made = Parameters(**found.data)
    problems = [found.problem((name,), text) for name, text in _disagreements(made)]
    return (None, problems) if problems else (made, [])


def _disagreements(made: Parameters) -> list[tuple[str, str]]:
    """Returns what values say against one another."""
    wrong = []
    for kind in ("tpu", "cpu"):
        least, most = getattr(made, f"{kind}_min"), getattr(made, f"{kind}_max")
        if least > most:
            wrong.append((f"{kind}_min", f"{kind}_min is {least}, more than {kind}_max, {most}"))
    host = tpu(made.tpu_type, made.zone)
    if isinstance(host, str):
        wrong.append(("tpu_type", host))
    elif made.tpu_cpus > host.cpus:
        text = f"tpu_cpus is {made.tpu_cpus}, and a host of {made.tpu_type} has {host.cpus} CPUs"
        wrong.append(("tpu_cpus", text))
    worker = machine(made.cpu_machine)
    if not isinstance(worker, str) and made.cpu_cpus > worker.cpus:
        wrong.append(("cpu_cpus", f"cpu_cpus is {made.cpu_cpus}, and {made.cpu_machine} has {worker.cpus} CPUs"))
    return wrong
