"""The same bytes and rows, whatever runs a job and wherever it is stored, and whatever was killed on the way.

Each way to run, each job and each kind of storage meet in pairs; all of them meet at night. All are compared with what
one process makes on a disk, undisturbed; `test_kill_random` kills that, too.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dedup.corpus import corpus as texts
from tests.support.harness import Driver, Ended, Place, Zygote, job_summary, outputs, wait_until

JOBS: dict[str, tuple[str, ...]] = {
    "toxicity": ("jobs/toxicity.py",),
    "pool and sort": ("tests/e2e/jobs/pooled.py", "--ordered", "--actor-cpus", "0.1"),
    "dedup_minhash": ("jobs/dedup_minhash.py",),
    "paragraphs": ("jobs/paragraphs.py", "--min-words", "20"),
    "decontaminate": (
        "jobs/decontaminate.py",
        *("--sets", "tests/e2e/jobs/evaluation.jsonl", "--set-columns", "question,answer"),
        *("--n", "6", "--max-documents", "2"),
    ),
    "mix": ("jobs/mix.py", "--mixture", "tests/e2e/jobs/mixture.toml", "--source-column", "file"),
}
HOW = ("four parts", "local", "ray", "inline")
PLACES = ("local", "gcs", "s3")
Expected = tuple[dict[str, str], dict[str, Any]]


def cases() -> Iterator[Any]:
    """Yields a Latin square of the first three ways for each change, and all others for the night."""
    for row, how in enumerate(HOW):
        for column, job in enumerate(JOBS):
            for number, place in enumerate(PLACES):
                square = (row + column) % len(PLACES) == number and how != "inline"
                # Nothing else is done for these than for a deduplication; on Ray, than for a pool and a sort.
                square = square and job not in ("paragraphs", "decontaminate")
                square = square and not (how == "ray" and job in ("dedup_minhash", "toxicity"))
                # One pair: it has nothing of its own but a step, and an exchange that is made in one go.
                square = square and not (how != "local" and job == "mix")
                marks = [] if square else [pytest.mark.nightly]
                yield pytest.param(how, job, place, marks=[*marks, *([pytest.mark.ray_lane] if how == "ray" else [])])


def made(place: Place, job: str) -> str:
    """Writes the inputs of a job, some of whose texts are nearly equal; returns their URI."""
    kind = int if job == "pool and sort" else str
    files = {}
    for number, table in enumerate(texts(240, 12, seed=5, words=30).shards):
        rows = [{"file": f"{number}", "id": kind(n), "text": row["text"]} for n, row in enumerate(table.to_pylist())]
        files[f"{number:02}.jsonl"] = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    return place.write("in", files)


def result(place: Place, name: str) -> Expected:
    found = place.objects(name)
    assert not [one for one in found if one.startswith("_curate/stages/")]
    return outputs(found), job_summary(found)["rows"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    """What a job makes in one process, on a disk, when nothing happens."""
    known: dict[str, Expected] = {}

    def of(job: str) -> Expected:
        if job not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            place = Place(str(folder / "data"))
            argv = (*JOBS[job], "--backend", "inline", "--input", made(place, job), "--output", f"{place.root}/out")
            with Zygote(folder / "zygote") as zygote:
                ended = zygote.run(*argv)
            assert ended.code == 0, ended.err
            known[job] = result(place, "out")
        return known[job]

    return of


@pytest.mark.slow
@pytest.mark.parametrize(("how", "job", "place"), list(cases()), indirect=["place"])
def test_the_same_bytes(
    how: str,
    job: str,
    place: Place,
    tmp_path: Path,
    undisturbed: Callable[[str], Expected],
    request: pytest.FixtureRequest,
) -> None:
    if how == "ray":
        request.getfixturevalue("on_ray")
    expected, rng = undisturbed(job), random.Random(f"{how} {job}")
    backend = how if how in ("local", "ray") else "inline"
    argv = (*JOBS[job], "--backend", backend, "--input", made(place, job), "--output", f"{place.root}/out")
    run = _on_workers if backend == how != "inline" else _in_forks
    ended = run(argv, how, place, tmp_path, rng)
    assert [one.code for one in ended] == [0] * len(ended), "\n".join(one.err for one in ended)
    assert result(place, "out") == expected


def _in_forks(argv: tuple[str, ...], how: str, place: Place, tmp_path: Path, rng: random.Random) -> list[Ended]:
    """Kills each driver before a random one of its operations, if it gets there; then all run to the end."""
    parts = [("--part", f"{number}/4") for number in range(4)] if how == "four parts" else [()]
    with Zygote(tmp_path / "zygote", place.env) as zygote:
        some = [
            {"argv": (*argv, *part), "kill_operation": rng.randrange(5, 60), "kill_when": "before"} for part in parts
        ]
        assert -signal.SIGKILL in [one.code for one in zygote.together(some)]
        return zygote.together([{"argv": (*argv, *part)} for part in parts])


def _on_workers(argv: tuple[str, ...], how: str, place: Place, tmp_path: Path, rng: random.Random) -> list[Ended]:
    """Kills the driver when there is a random number of objects; then it runs to the end."""
    del how, tmp_path
    most = rng.randrange(1, 20)
    with Driver(list(argv), place.env) as driver:
        wait_until(lambda: len(place.objects("out")) >= most or not driver.running(), f"there are {most} objects")
        driver.signal(signal.SIGKILL)
        driver.end()
    with Driver(list(argv), place.env) as driver:
        return [driver.end()]
