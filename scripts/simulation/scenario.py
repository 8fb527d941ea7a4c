"""The scenario of a simulation: the options of `scripts/simulate`, and the shards that follow from them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np

from curate.units import MIB

BYTES_PER_S = MIB
"""What a slot does of a shard in a second."""


class Share(click.ParamType[float]):
    """A share: `5%` or `0.05`; 0 to 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not a share; write one from 0% to 100%", param, ctx)
        return share


SHARE = Share()
COUNT = click.IntRange(min=0)
SOME = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0, min_open=True)


def knob(default: Any, kind: Any, help: str) -> Any:
    """Returns a field of Scenario that is an option of the command, too."""
    return field(default=default, metadata={"kind": kind, "help": help})


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, all of it. Times are in virtual seconds."""

    tasks: int = knob(1_000_000, SOME, "Shards to do. Most tasks are one shard while --target-task-seconds is small.")
    slots: int = knob(10_000, SOME, "Slots of all nodes together.")
    slots_per_node: int = knob(8, SOME, "Slots of a node; they live and die together.")
    seed: int = knob(5, int, "Everything random follows from it.")
    duration: str = knob(
        "lognormal",
        click.Choice(["lognormal", "pareto", "uniform", "constant"]),
        "How the seconds of shards are distributed.",
    )
    mean_seconds: float = knob(120.0, SECONDS, "Mean seconds of a shard.")
    longest_seconds: float = knob(1800.0, SECONDS, "No shard takes longer.")
    noise: float = knob(0.2, click.FloatRange(min=0), "Spread of a shard's seconds around what its bytes say (sigma).")
    target_task_seconds: float = knob(1.0, SECONDS, "Seconds of shards that the scheduler bundles into a task.")
    task_timeout: float = knob(0.0, click.FloatRange(min=0), "Seconds after which a shard is cancelled; 0: never.")
    ramp: float = knob(300.0, click.FloatRange(min=0), "Seconds over which the nodes join at first.")
    preempt_per_hour: float = knob(0.05, SHARE, "Share of the slots that is preempted in an hour.")
    rejoin: float = knob(600.0, SECONDS, "Mean seconds after which a preempted node is replaced.")
    dips: int = knob(1, COUNT, "Times that many nodes are preempted at once.")
    dip_share: float = knob(0.2, SHARE, "Share of the nodes that a dip takes.")
    zombies: float = knob(0.2, SHARE, "Share of the killed tasks that go on, and may publish.")
    zombie_seconds: float = knob(20.0, SECONDS, "How long a zombie goes on, at most.")
    straggler_rate: float = knob(0.002, SHARE, "Share of the attempts that are slow.")
    slow_nodes: float = knob(0.002, SHARE, "Share of the nodes that are slow.")
    straggler_slowdown: float = knob(10.0, click.FloatRange(min=1), "How slow, at most; at least three times.")
    storms: int = knob(1, COUNT, "Times that the store throttles.")
    storm_seconds: float = knob(300.0, SECONDS, "How long it does.")
    storm_failing: float = knob(0.05, SHARE, "Share of the shards ending meanwhile that fail; as many again end late.")
    head_deaths: int = knob(1, COUNT, "Times that the driver dies.")
    head_downtime: float = knob(60.0, SECONDS, "Seconds until another one has resumed.")
    faults: float = knob(0.001, SHARE, "Share of the attempts at a shard with a fault that passes.")
    poison: int = knob(3, COUNT, "Shards that fail whenever they run.")
    hogs: int = knob(10, COUNT, "Shards that need more memory than a task has at first.")
    hangs: float = knob(0.0, SHARE, "Share of the attempts that never end by themselves.")
    announced: float = knob(0.0, SHARE, "Share of the first attempts whose start is told, too, as it is of later ones.")
    tick: float = knob(2.0, SECONDS, "How often the scheduler is told that time has passed.")

    def work_s(self) -> array[float]:
        """Returns the seconds that each shard takes on a slot that is not slow."""
        rng = np.random.default_rng([self.seed, 1])
        mean, n = self.mean_seconds, self.tasks
        if self.duration == "lognormal":
            sigma = 0.8
            draws = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, n)
        elif self.duration == "pareto":
            draws = (rng.pareto(2.0, n) + 1) * mean / 2
        elif self.duration == "uniform":
            draws = rng.uniform(0, 2 * mean, n)
        else:
            draws = np.full(n, mean)
        return array("d", np.clip(draws, 0.01, self.longest_seconds).tolist())

    def sizes(self, work_s: Sequence[float]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the bytes of each shard, from which the scheduler has to guess the seconds."""
        noise = np.random.default_rng([self.seed, 2]).lognormal(0, self.noise, self.tasks)
        return np.maximum(1, np.asarray(work_s) * noise * BYTES_PER_S).astype(np.int64)

    @property
    def horizon_s(self) -> float:
        """About how long it takes: dips, storms and deaths are spread over that."""
        return self.ramp / 2 + self.tasks * self.mean_seconds / self.slots
