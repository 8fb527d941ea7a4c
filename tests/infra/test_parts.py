"""The examples of drivers on many machines: what they run is what the job takes, and each process gets its own part."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from curate.job.command import command
from curate.tasks.parts import PARTS, Part
from jobs.toxicity import Toxicity
from scripts.clusters.render import INFRA

SLURM = INFRA / "parts-slurm.sh"
KUBERNETES = INFRA / "parts-kubernetes.yaml"


def given(words: list[str]) -> dict[str, object]:
    """Returns the options that the job takes from a command line. Raises UsageError for one that it does not know."""
    at = words.index("jobs/toxicity.py")
    return command(Toxicity).make_context("toxicity", words[at + 1 :]).params


def test_slurm() -> None:
    """A task of the array is a part, counted from its first number."""
    text = SLURM.read_text()
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    found = re.search(r"^#SBATCH --array=(\d+)-(\d+)$", text, re.MULTILINE)
    assert found is not None
    first, last = map(int, found.groups())
    line = text.partition("\nexec ")[2].replace("\\\n", " ")
    options = given(shlex.split(line))
    assert (options["part"], options["backend"]) == ("auto", "local")
    assert re.search(r"^#SBATCH --cpus-per-task=[2-9]", text, re.MULTILINE)
    environ = {"SLURM_ARRAY_TASK_MIN": str(first), "SLURM_ARRAY_TASK_COUNT": str(last - first + 1)}
    parts = [Part.of_environment(environ | {"SLURM_ARRAY_TASK_ID": str(n)}) for n in range(first, last + 1)]
    assert [one.index for one in parts] == list(range(parts[0].count))


def test_kubernetes() -> None:
    """A completion of the job is a part; as many are told as there are."""
    spec = yaml.safe_load(KUBERNETES.read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    options = given(container["command"])
    assert (options["part"], options["backend"]) == ("auto", "local")
    assert spec["completionMode"] == "Indexed"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    environ = {one["name"]: one["value"] for one in container["env"]}
    assert int(environ[PARTS]) == spec["completions"] == spec["parallelism"]
    # Workers are as many as the limit of CPUs allows: without one, as many as the machine has for all pods.
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    last = Part.of_environment(environ | {"JOB_COMPLETION_INDEX": str(spec["completions"] - 1)})
    assert (last.index, last.count) == (spec["completions"] - 1, spec["completions"])


def test_torchrun() -> None:
    """One driver a machine, since each has a worker for every CPU."""
    (line,) = re.findall(r"^    (torchrun .*)$", (INFRA / "README.md").read_text(), re.MULTILINE)
    words = line.replace("…", "x").split()
    assert "--nproc-per-node=1" in words
    assert given(words)["part"] == "auto"
    assert Part.of_environment({"RANK": "3", "WORLD_SIZE": "32"}).index == 3


@pytest.mark.parametrize("path", [SLURM, KUBERNETES], ids=lambda path: path.name)
def test_the_readme_names_it(path: Path) -> None:
    assert path.name in (INFRA / "README.md").read_text()
