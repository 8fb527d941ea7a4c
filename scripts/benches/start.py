"""How long a run takes to begin: from the return key to the first output and to the prompt, and from the plan to the
first task. Two checkouts alternate, so that a commit is measured beside the one before it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import orjson

from .common import SCRIPT, Report, adopting, once, tree_cpu_s, wait_until_ready

LOOK_S = 0.004
"""How often it is looked whether there is an output."""
BEGIN_S = {"local": 0.5, "ray": 1.0}
"""Targets: from the end of planning to the first task."""
RATIO = {"local": 0.5, "inline": 0.5, "ray": 1.0}
"""Targets: of what the checkout takes that is measured beside this one."""
FIRST, PROMPT, NOTHING, BEGIN = "first output", "prompt", "prompt, nothing to do", "planned to first task"
PLAIN = ", imports nothing"
"""Of a job that needs no library of its own: the other one, of jobs/toxicity.py, imports scikit-learn for a second."""
CORPUS = ("--comments", "2000", "--files", "8")
_CLUSTER = """
import ray, sys
ray.init(include_dashboard=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address)
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class Times:
    """The measurements of one checkout on one backend, one a round, by what was measured."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    """Of all processes, user and system."""

    def add(self, what: str, seconds: float, cpu_s: float | None = None) -> None:
        """Adds a measurement."""
        self.seconds.setdefault(what, []).append(seconds)
        if cpu_s is not None:
            self.cpu_s.setdefault(what, []).append(cpu_s)

    def median_s(self, what: str) -> float:
        """Returns the median of what was measured."""
        return statistics.median(self.seconds[what])


def measure_start(
    report: Report, scratch: Path, against: Path | None, backends: Sequence[str], rounds: int, *, as_json: bool
) -> None:
    """Measures this checkout, beside another one if there is one, on each backend."""
    tree, scratch = SCRIPT.parents[1], scratch.resolve()
    corpus = scratch / "start-corpus"

    def make() -> None:
        corpus.rmdir()
        program = [sys.executable, str(SCRIPT.with_name("corpus")), "--output", str(corpus), *CORPUS]
        subprocess.run(program, check=True, capture_output=True)

    once(corpus, make)
    trees = {"before": against.resolve(), "here": tree} if against else {"here": tree}
    found: dict[str, dict[str, Times]] = {}
    for backend in backends:
        with _clusters(trees, backend, scratch) as variables:
            times = found[backend] = {name: Times() for name in trees}
            # The first round finds no bytecode, and the disk's cache cold.
            for number in range(-1, rounds):
                for name, one in trees.items():
                    into = times[name] if number >= 0 else Times()
                    _measure(into, one, backend, corpus, scratch / "start-output", variables[name])
        _tell(report, backend, times)
    if as_json:
        said = {
            backend: {name: {"seconds": one.seconds, "cpu_s": one.cpu_s} for name, one in times.items()}
            for backend, times in found.items()
        }
        click.echo(orjson.dumps(said).decode())


def _measure(times: Times, tree: Path, backend: str, corpus: Path, output: Path, variables: Mapping[str, str]) -> None:
    environ = {**os.environ, "PYTHONPATH": str(tree), **variables}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    arguments = ["--input", str(corpus), "--text-column", "body", "--output", str(output), "--backend", backend]
    said = output.with_name("start-moments")
    environ["START_MOMENTS"] = str(said)
    for kind, script in {"": tree / "jobs" / "toxicity.py", PLAIN: Path(__file__).with_name("start_run.py")}.items():
        shutil.rmtree(output, ignore_errors=True)
        said.unlink(missing_ok=True)
        job = [sys.executable, str(script), *arguments]
        first_s, prompt_s, cpu_s = _run(job, environ, output, tree)
        times.add(FIRST + kind, first_s)
        times.add(PROMPT + kind, prompt_s, cpu_s)
        moments = said.read_text().splitlines() if said.exists() else []
        _, nothing_s, cpu_s = _run(job, environ, None, tree)
        times.add(NOTHING + kind, nothing_s, cpu_s)
        if moments and backend != "inline":
            first = {name: float(at) for name, at in (line.split() for line in reversed(moments))}
            times.add(BEGIN, first["task"] - first["planned"])


def _run(
    command: Sequence[str], environ: Mapping[str, str], output: Path | None, tree: Path
) -> tuple[float, float, float]:
    """Runs a program in the folder of its checkout, from which workers of Ray import. Returns the seconds until its
    first output and until its end, and the CPU that it took."""
    before = sum(tree_cpu_s())
    began_s = time.perf_counter()
    first_s = 0.0
    with (
        adopting(),
        subprocess.Popen(command, env=environ, cwd=tree, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child,
    ):
        while output is not None and child.poll() is None:
            if output.is_dir() and any(one.suffix == ".parquet" for one in output.iterdir()):
                first_s = time.perf_counter() - began_s
                break
            time.sleep(LOOK_S)
        _, said = child.communicate()
        prompt_s = time.perf_counter() - began_s
    if child.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {child.returncode}:\n{said.decode()[-4000:]}")
    return first_s or prompt_s, prompt_s, sum(tree_cpu_s()) - before


@contextlib.contextmanager
def _clusters(trees: Mapping[str, Path], backend: str, scratch: Path) -> Iterator[dict[str, dict[str, str]]]:
    """Yields the variables by which each checkout finds its Ray, whose workers have its code."""
    with contextlib.ExitStack() as stack:
        # Who joins a cluster shows the token that it was started with.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        found: dict[str, dict[str, str]] = {name: dict(token) for name in trees}
        for name, tree in trees.items() if backend == "ray" else ():
            errors = stack.enter_context((scratch / f"start-ray-{name}.log").open("w"))
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _CLUSTER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=tree,
                    env={**os.environ, "PYTHONPATH": str(tree), "RAY_ADDRESS": "local", **token},
                )
            )
            assert child.stdout is not None
            found[name]["RAY_ADDRESS"] = child.stdout.readline().strip()
            wait_until_ready(child)
        yield found


def _tell(report: Report, backend: str, times: Mapping[str, Times]) -> None:
    here, before = times["here"], times.get("before")
    click.echo(f"start on {backend}")
    for what, seconds in here.seconds.items():
        figures = f"{here.median_s(what):.2f} s ({' '.join(f'{one:.2f}' for one in seconds)})"
        if what in here.cpu_s:
            figures += f", CPU {statistics.median(here.cpu_s[what]):.2f} s"
        if before is not None:
            ratio = here.median_s(what) / before.median_s(what)
            figures += f"; before {before.median_s(what):.2f} s"
            if what in before.cpu_s:
                figures += f", CPU {statistics.median(before.cpu_s[what]):.2f} s"
            figures += f"; ratio {ratio:.2f}"
        if what == BEGIN:
            limit_s = BEGIN_S[backend]
            report.target(what, figures, f"{limit_s} s", here.median_s(what) <= limit_s)
        elif before is not None and what.removesuffix(PLAIN) != PROMPT:
            report.target(what, figures, f"{RATIO[backend]} of before", ratio <= RATIO[backend])
        else:
            click.echo(f"          {what}: {figures}")
