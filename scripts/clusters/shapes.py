"""Known machine types: the CPUs of a name, the chips of a TPU, zones. Makes no request."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FAMILIES: dict[str, tuple[int, ...]] = {
    "e2": (2, 4, 8, 16, 32),
    "n1": (1, 2, 4, 8, 16, 32, 64, 96),
    "n2": (2, 4, 8, 16, 32, 48, 64, 80, 96, 128),
    "n2d": (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224),
    "c2": (4, 8, 16, 30, 60),
    "c2d": (2, 4, 8, 16, 32, 56, 112),
    "c3": (4, 8, 22, 44, 88, 176),
    "c3d": (4, 8, 16, 30, 60, 90, 180, 360),
    "n4": (2, 4, 8, 16, 32, 48, 64, 80),
    "t2d": (1, 2, 4, 8, 16, 32, 48, 60),
}
"""CPUs of the predefined sizes of each family, from the tables of machine types in Compute Engine's documentation. Not
every class of a family has every size."""
_MACHINE = re.compile(r"([a-z][a-z0-9]*)-(standard|highmem|highcpu)-([0-9]+)")
_TPU = re.compile(r"(v[0-9]+[a-z]*)-([0-9]+)")


@dataclass(frozen=True)
class Shape:
    """What one node has."""

    cpus: int
    chips: int = 0
    topology: str = field(default="", repr=False)
    """How GKE names the arrangement of its chips."""
    pod_gib: int = field(default=0, repr=False)
    """Memory that a pod may ask for there, in GiB: well within what the host has."""


@dataclass(frozen=True)
class _Tpu:
    hosts: dict[int, Shape]
    """Each size that is one host, by the number in its name: versions count cores or chips there."""
    accelerator: str
    """Its name in GKE."""
    zones: tuple[str, ...]


_TPUS = {
    "v4": _Tpu({8: Shape(240, 4, "2x2x1", 300)}, "tpu-v4-podslice", ("us-central2-b",)),
    "v5p": _Tpu({8: Shape(208, 4, "2x2x1", 300)}, "tpu-v5p-slice", ("us-central1-a", "us-east5-a", "europe-west4-b")),
    "v5litepod": _Tpu(
        {1: Shape(24, 1, "1x1", 32), 4: Shape(112, 4, "2x2", 140), 8: Shape(224, 8, "2x4", 300)},
        "tpu-v5-lite-podslice",
        ("us-central1-a", "us-south1-a", "us-west4-a", "europe-west4-b"),
    ),
    "v6e": _Tpu(
        {1: Shape(44, 1, "1x1", 32), 4: Shape(180, 4, "2x2", 300), 8: Shape(180, 8, "2x4", 300)},
        "tpu-v6e-slice",
        ("us-central1-b", "us-east1-d", "us-east5-b", "europe-west4-a"),
    ),
}
"""From the tables of TPU versions, of machine types and of TPU regions in the documentation of Cloud TPU and GKE."""


def machine(name: str) -> Shape | str:
    """Returns what a machine type has, or what is wrong with its name.

    >>> machine("n2-standard-8")
    Shape(cpus=8, chips=0)
    >>> machine("n2-standard-9")
    'n2 machines have 2, 4, 8, 16, 32, 48, 64, 80, 96 or 128 CPUs, not 9'
    """
    found = _MACHINE.fullmatch(name)
    if found is None:
        return f"{name!r} is not a machine type (expected e.g. n2-standard-8)"
    family, cpus = found[1], int(found[3])
    sizes = _FAMILIES.get(family)
    if sizes is None:
        return f"{name!r} is of an unknown family of machines; known are: {', '.join(_FAMILIES)}"
    if cpus not in sizes:
        return f"{family} machines have {', '.join(map(str, sizes[:-1]))} or {sizes[-1]} CPUs, not {cpus}"
    return Shape(cpus)


def tpu(name: str, zone: str) -> Shape | str:
    """Returns what a TPU of one host has, or why there is none such.

    >>> tpu("v4-8", "us-central2-b")
    Shape(cpus=240, chips=4)
    >>> tpu("v4-16", "us-central2-b")
    'v4-16 is more than one host, which is not supported; one host is v4-8'
    >>> tpu("v4-8", "us-east1-d")
    'there is no v4 in us-east1-d; there is in us-central2-b'
    """
    found = _TPU.fullmatch(name)
    kind = _TPUS.get(found[1]) if found else None
    if found is None or kind is None:
        return f"{name!r} is not a TPU type (expected a version, {', '.join(_TPUS)}, and a size: v4-8)"
    size, largest = int(found[2]), max(kind.hosts)
    if size > largest:
        return f"{name} is more than one host, which is not supported; one host is {found[1]}-{largest}"
    if size not in kind.hosts:
        return f"{name!r} is not a size of {found[1]}; one host is {found[1]}-{largest}"
    if zone not in kind.zones:
        return f"there is no {found[1]} in {zone}; there is in {', '.join(kind.zones)}"
    return kind.hosts[size]


def accelerator(name: str) -> str:
    """Returns how GKE names the accelerator of a TPU type that there is.

    >>> accelerator("v6e-8")
    'tpu-v6e-slice'
    """
    return _TPUS[name.partition("-")[0]].accelerator


def slice_of(accelerator: str, topology: str) -> Shape | str:
    """Returns the host that GKE takes for an accelerator and a topology of one host, or why there is none.

    >>> slice_of("tpu-v6e-slice", "2x4")
    Shape(cpus=180, chips=8)
    >>> slice_of("tpu-v6e-slice", "2x2x1")
    'tpu-v6e-slice has no 2x2x1 of one host; it has 1x1, 2x2 and 2x4'
    """
    kinds = {kind.accelerator: kind.hosts for kind in _TPUS.values()}
    if accelerator not in kinds:
        return f"{accelerator!r} is not a TPU of GKE; known are: {', '.join(kinds)}"
    hosts = {host.topology: host for host in kinds[accelerator].values()}
    if topology not in hosts:
        return f"{accelerator} has no {topology} of one host; it has {' and '.join(_in_words(list(hosts)))}"
    return hosts[topology]


def _in_words(names: list[str]) -> list[str]:
    return [", ".join(names[:-1]), names[-1]] if len(names) > 1 else names
