"""Says what a run waits for while the cluster has no room: after ten seconds, then every minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from curate.dataclass import dataclass, field
from curate.log import get_logger
from curate.runtime.scaling import fits
from curate.units import format_bytes

FIRST_S = 10.0
"""How long something waits before that is said."""
AGAIN_S = 60.0
"""How often it is said again."""
SHOWN_KINDS = 8
"""Kinds of nodes that a message lists."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Something of which there is none now."""

    who: str
    """What is said to wait: "tasks", "the pool NAME"."""
    needs: Mapping[str, float]
    """What one task, or one actor, holds."""


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why something waits, and what to do about it."""

    why: str
    todo: str


def explain_wait(
    want: Demand, nodes: Sequence[Mapping[str, float]], kinds: Sequence[Mapping[str, float]]
) -> WaitReason:
    """Returns why something waits. `nodes` is what each node has that stays; `kinds`, each that can be started, too.

    >>> explain_wait(Demand("the pool embed", {"GPU": 1.0}), [{}, {"CPU": 4.0}, {"CPU": 4.0}], []).why
    'the pool embed waits: no node has 1 GPU; there are 2 nodes with 4 CPU, 1 with nothing'
    >>> explain_wait(Demand("tasks", {"CPU": 1.0}), [{}], [{"CPU": 120.0, "TPU": 4.0}]).todo
    'the autoscaler can start such a node; `ray status` shows its progress'
    """
    asked = amounts(want.needs) or "a CPU"
    verb = "wait" if want.who.endswith("s") and not want.who.startswith("the ") else "waits"
    if any(fits(node, want.needs) for node in nodes):
        return WaitReason(
            f"{want.who} {verb}: a node with {asked} exists, but other actors or tasks use it",
            "wait for them, or use a larger cluster; `ray status` shows free resources",
        )
    if any(fits(kind, want.needs) for kind in kinds):
        todo = "the autoscaler can start such a node; `ray status` shows its progress"
    elif kinds:
        todo = "the autoscaler has no such node type: add one to the cluster, or request less in the job"
    else:
        todo = "add such a node (ray start --address=...), or request less in the job"
    return WaitReason(f"{want.who} {verb}: no node has {asked}; {_listed(nodes)}", todo)


def amounts(resources: Mapping[str, float]) -> str:
    """Returns resources as people read them; what Ray names after single nodes is left out.

    >>> amounts({"CPU": 1.0, "memory": 1 << 30, "node:10.0.0.1": 1.0})
    '1 CPU, 1.00 GiB of memory'
    """
    named = {name: n for name, n in sorted(resources.items()) if ":" not in name and n}
    return ", ".join(
        f"{format_bytes(int(n))} of {name}" if _in_bytes(name) else f"{n:g} {name}" for name, n in named.items()
    )


def _in_bytes(name: str) -> bool:
    return name in ("memory", "object_store_memory")


def _listed(nodes: Sequence[Mapping[str, float]]) -> str:
    """Returns the kinds of nodes, and how many there are of each."""
    kinds: dict[str, int] = {}
    for node in nodes:
        kind = amounts({name: n for name, n in node.items() if not _in_bytes(name)}) or "nothing"
        kinds[kind] = kinds.get(kind, 0) + 1
    if not kinds:
        return "no node is alive"
    counted = sorted(((n, kind) for kind, n in kinds.items()), key=lambda one: (-one[0], one[1]))
    first, *rest = [f"{n} with {kind}" for n, kind in counted[:SHOWN_KINDS]]
    number, _, what = first.partition(" ")
    more = [f"{len(counted) - SHOWN_KINDS} other kinds"] if len(counted) > SHOWN_KINDS else []
    be, noun = ("is", "node") if number == "1" else ("are", "nodes")
    return f"there {be} {', '.join([f'{number} {noun} {what}', *rest, *more])}"


@dataclass(slots=True)
class DemandWatch:
    """Sees for how long things have waited, says it, and keeps what it said for a display."""

    text: str = ""
    """What is waited for, by now; empty while nothing has waited for long."""
    _since_s: dict[str, float] = field(default_factory=dict)
    _told_s: dict[str, float] = field(default_factory=dict)

    def look(
        self,
        now_s: float,
        wants: Sequence[Demand],
        nodes: Sequence[Mapping[str, float]],
        kinds: Sequence[Mapping[str, float]],
    ) -> None:
        """Takes what there is none of now, and logs what is due to be said."""
        names = [one.who for one in wants]
        self._since_s = {who: self._since_s.get(who, now_s) for who in names}
        self._told_s = {who: at_s for who, at_s in self._told_s.items() if who in self._since_s}
        said = []
        for one in wants:
            waited_s = now_s - self._since_s[one.who]
            if waited_s < FIRST_S:
                continue
            found = explain_wait(one, nodes, kinds)
            said.append(found.why)
            if one.who not in self._told_s or now_s - self._told_s[one.who] >= AGAIN_S:
                self._told_s[one.who] = now_s
                get_logger().warning(found.why, waited_s=round(waited_s), next=found.todo)
        self.text = "; ".join(said)
