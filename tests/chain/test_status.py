"""`curate status pipeline.toml`: how far each step is, what is out of date, what would run; from buckets alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.chain.chain import Chain
from curate.chain.parameters import declared
from curate.chain.steps import Step
from curate.job.locate import named_job, packaged_names
from tests.chain.chains import CHAIN, FILES, STEPS, add_input, place, ran, seen
from tests.cli.running import Curate, curate
from tests.job.inline import write_jsonl
from tests.pins.test_imports import HEAVY

__all__ = ["curate", "place"]

MADE = f"""\
clean   complete  {FILES}/{FILES}  48 rows  up to date
scored  complete  {FILES}/{FILES}  48 rows  up to date
odd     complete  {FILES}/{FILES}  24 rows  up to date
kept    complete  {FILES}/{FILES}  46 rows  up to date
last    complete  {FILES}/{FILES}  46 rows  up to date
"""


@pytest.fixture
def made(place: Path) -> Path:
    """The folder of a chain that was run."""
    assert Chain.read("pipeline.toml").run(backend="inline").state == "complete"
    return place


def test_before_the_first_run(place: Path, curate: Curate) -> None:
    """Each step says what it waits for; nothing is written."""
    before = seen(place)
    assert curate("status", "pipeline.toml").out == (
        "pipeline.toml: 5 steps, 0 up to date\n"
        "clean   not begun  0/0    runs: 24 inputs, nothing is done yet\n"
        "scored  not begun  0/0    runs: once clean is done\n"
        "odd     not begun  0/0    runs: once scored is done\n"
        "kept    not begun  0/0    runs: once scored is done\n"
        "last    not begun  0/0    runs: once kept is done\n"
    )
    assert seen(place) == before


@pytest.mark.parametrize("option", ["--watch", "--quick"])
@pytest.mark.usefixtures("place")
def test_options_that_a_chain_does_not_have_are_refused(option: str, curate: Curate) -> None:
    """Rather than left out; a step has them."""
    told = curate("status", "pipeline.toml", option)
    assert (told.code, told.out) == (2, "")
    assert f"{option} is for one job" in told.err


def test_each_step_has_a_line_and_what_is_out_of_date_another(made: Path, curate: Curate) -> None:
    """An output that is gone is what would run, and no step after it; what changed is kept until that is asked for."""
    assert curate("status", "pipeline.toml").out == f"pipeline.toml: 5 steps, 5 up to date\n{MADE}"
    (made / "out" / "scored" / "07.parquet").unlink()
    write_jsonl(made / "in" / "03.jsonl", [{"n": 6}, {"n": 7}, {"n": 8}])
    (made / "in" / "05.jsonl").unlink()
    lines = curate("status", "pipeline.toml").out.splitlines()
    assert lines[:4] == [
        "pipeline.toml: 5 steps, 4 up to date",
        "clean   complete  24/24  48 rows  up to date",
        "        1 input changed, outputs kept (--redo-stale replaces them)",
        "        1 input removed, outputs kept (--drop-removed removes them)",
    ]
    assert lines[4:] == [
        "scored  pending   23/24  46 rows  runs: 1 of 24 shards",
        "odd     complete  24/24  24 rows  up to date",
        "kept    complete  24/24  46 rows  up to date",
        "        1 input gone, which an earlier step makes again",
        "last    complete  24/24  46 rows  up to date",
    ]


def test_a_dry_run_says_what_its_options_change(made: Path, curate: Curate) -> None:
    """In the lines of a status; nothing is written."""
    write_jsonl(made / "in" / "03.jsonl", [{"n": 6}, {"n": 7}, {"n": 8}])
    before = seen(made)
    lines = curate("run", "pipeline.toml", "--dry-run", "--redo-stale").out.splitlines()
    assert lines[1] == "clean   complete  24/24  48 rows  runs: 1 changed input"
    assert lines[2:4] == [
        "scored  complete  24/24  48 rows  runs: what clean will change",
        "odd     complete  24/24  24 rows  runs: what scored will change",
    ]
    shown = curate("run", "pipeline.toml", "--dry-run", "--overwrite", "kept", "--json").json
    assert [one["action"] for one in shown["steps"]] == ["up to date"] * 3 + ["runs"] * 2
    assert seen(made) == before


def test_as_json(made: Path, curate: Curate) -> None:
    """One object, with a value for each step."""
    add_input(made, FILES)
    shown = curate("status", "pipeline.toml", "--json").json
    assert [one["step"] for one in shown["steps"]] == list(STEPS)
    first = shown["steps"][0]
    assert (first["state"], first["action"], first["why"], first["kept"]) == ("complete", "runs", ["1 new input"], [])
    assert first["inputs"] == {"new": 1, "changed": 0, "removed": 0, "lost": 0}
    assert first["shards"] == {"total": FILES, "done": FILES, "failed": 0}


@pytest.mark.slow
def test_no_job_is_imported(made: Path, curate: Curate) -> None:
    """Nor anything that takes long: a chain whose jobs are not here can be looked at."""
    (made / "steps_of_test.py").unlink()
    assert curate("status", "pipeline.toml").out == f"pipeline.toml: 5 steps, 5 up to date\n{MADE}"
    program = (
        "import sys, json\nsys.argv = ['curate', 'status', 'pipeline.toml']\n"
        "from curate.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=made, capture_output=True, text=True, check=True)
    # Inputs are listed, by patterns that fsspec understands; what talks to buckets is not imported for it.
    assert orjson.loads(found.stderr)
    assert not (HEAVY - {"fsspec"}).intersection(orjson.loads(found.stderr))


@pytest.mark.slow
@pytest.mark.usefixtures("no_backoff")
def test_the_commands_of_jobs_work_on_each_step(place: Path, curate: Curate) -> None:
    """`status`, `replay` and `retry`; and the chain goes on from there."""
    (place / "poison").write_text("6")
    ended = curate("run", "pipeline.toml", "--backend", "inline", "--json")
    assert (ended.code, ended.json["state"]) == (1, "failed")
    assert [one["state"] for one in ended.json["steps"]] == ["failed", *["not run"] * 4]
    assert curate("status", "out/clean", "--json").json["shards"]["failed"] == 1
    (place / "poison").unlink()
    assert curate("replay", "out/clean", "--shard", "03", "--json").code == 0
    assert curate("retry", "out/clean", "--backend", "inline").code == 0
    assert ran(Chain.read("pipeline.toml").run(backend="inline")) == dict.fromkeys(STEPS[1:], FILES)


def test_one_step_alone(made: Path, curate: Curate) -> None:
    """The steps before it are not run."""
    add_input(made, FILES)
    ended = curate("run", "pipeline.toml", "--step", "clean", "--backend", "inline", "--json")
    assert [(one["step"], one["summary"]["tasks"]["attempts"]) for one in ended.json["steps"]] == [("clean", 1)]
    ended = curate("run", "pipeline.toml", "--step", "kept", "--backend", "inline", "--json")
    assert ended.json["steps"][0]["summary"]["tasks"]["attempts"] == 0


@pytest.mark.slow
def test_what_an_interrupt_leaves(place: Path) -> None:
    """Exit code 130; no step after it runs, and the next run goes on."""
    (place / "kill").write_text(f"{FILES} {signal.SIGINT.value}")
    command = [sys.executable, "-m", "curate", "run", "pipeline.toml", "--backend", "inline"]
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert "step scored: not run, for clean did not complete" in ended.stderr
    (place / "kill").unlink()
    assert Chain.read("pipeline.toml").run(backend="inline").state == "complete"


@pytest.mark.slow
def test_an_interrupt_while_the_last_shard_of_a_step_runs(place: Path) -> None:
    """The step is complete, and the chain is not: it stops there all the same."""
    last = json.loads((place / "in" / f"{FILES - 1:02d}.jsonl").read_text().splitlines()[0])["n"]
    (place / "kill").write_text(f"{last} {signal.SIGINT.value}")
    command = [sys.executable, "-m", "curate", "run", "pipeline.toml", "--backend", "inline", "--json"]
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert (ended.returncode, json.loads(ended.stdout)["state"]) == (130, "interrupted")
    assert [one["state"] for one in json.loads(ended.stdout)["steps"]] == ["complete", *["not run"] * 4]
    assert "step scored: not run, for the chain was interrupted" in ended.stderr
    (place / "kill").unlink()
    assert Chain.read("pipeline.toml").run(backend="inline").state == "complete"


def test_the_file_is_the_value(place: Path) -> None:
    """The chain of a file is the one that Python makes of the same steps, with absolute paths."""
    read = Chain.read("pipeline.toml").steps
    assert [one.name for one in read] == list(STEPS)
    assert read[3] == Step(
        "kept",
        "steps_of_test.py:Kept",
        output=str(place / "out" / "kept"),
        input_from=("scored",),
        options={"least": 4},
    )
    assert CHAIN.count("[steps.") == len(read)


@pytest.mark.parametrize(
    ("job", "given", "problem"),
    [
        (
            "steps_of_test.py:Kept",
            {"leats": 2},
            "steps_of_test.py:Kept has no parameter 'leats'; did you mean 'least'?",
        ),
        ("steps_of_test.py:Kept", {"least": "two"}, "least is 'two' (str), expected int"),
        ("steps_of_test.py:Kept", {"overwrite": True}, "overwrite is for one run; take it out of the step"),
        ("steps_of_test.py:Kept", {"least": True}, "least is True (bool), expected int"),
        ("steps_of_test.py:Kept", {"least": 2, "batch_size": 7, "max_failed_shards": "1"}, ""),
        ("quality", {"min_word": 3}, "quality has no parameter 'min_word'; did you mean"),
        ("quality", {"text_column": "body", "shard_bytes": "64MiB"}, ""),
        ("quality", {"text_column": 1}, "text_column is 1 (int), expected str"),
        # What its text does not say, only a run finds.
        ("elsewhere.py:Any", {"whatever": 1}, ""),
        ("derived.py", {"whatever": 1}, ""),
        ("broken.py", {"whatever": 1}, ""),
    ],
)
def test_parameters_are_checked_without_importing_a_job(
    place: Path, curate: Curate, job: str, given: dict[str, object], problem: str
) -> None:
    """A status says what a run would refuse, with the same words where both see it."""
    (place / "derived.py").write_text("import other\nclass Mine(other.Base):\n    least: int = 1\n")
    (place / "broken.py").write_text("class (")
    options = "".join(f"{name} = {orjson.dumps(value).decode()}\n" for name, value in given.items())
    text = f'[steps.a]\njob = "{job}"\ninput = "in"\noutput = "out/new"\n{options}'
    (place / "one.toml").write_text(text)
    shown = curate("status", "one.toml").out
    assert ("refused: " in shown) is bool(problem)
    assert problem in shown
    if problem and "quality" not in job:
        refused = curate("run", "one.toml", "--backend", "inline", "--dry-run")
        assert refused.code == 2
        assert problem.partition(",")[0].partition(";")[0].rpartition("is ")[2] in refused.err


EVERY_KIND = """
import curate
from curate import Asset, param
from typing import Literal

class Mine(curate.Job):
    version = "1"
    file: Asset
    files: list[Asset] = param([])
    maybe: Asset | None = None
    whole: int = 1
    number: float = 1.0
    numbers: list[float] = param([])
    weights: dict[str, float] = param({})
    words: list[str] = param([])
    kind: Literal["a", "b"] = "a"
    on: bool = False

    def process(self, batch):
        return batch
"""
GIVEN = {
    "file": "a.txt",
    "files": ["a.txt", "b.txt"],
    "maybe": "b.txt",
    "whole": 7,
    "number": 2,
    "numbers": [1, 2.5],
    "weights": {"a": 1, "b": 2.5},
    "words": ["x", "y"],
    "kind": "b",
    "on": True,
    "batch_size": 5,
}


def test_a_status_and_a_dry_run_agree_whatever_a_step_is_given(place: Path, curate: Curate) -> None:
    """Some values are recorded in another form than they are given in: a file with its generation."""
    for name in ("a", "b"):
        (place / f"{name}.txt").write_text(name)
    (place / "mine.py").write_text(EVERY_KIND)
    options: dict[str, object] = {**GIVEN}
    table = options.pop("weights")
    assert isinstance(table, dict)
    lines = [f"{name} = {orjson.dumps(value).decode()}" for name, value in options.items()]
    lines.append(f"weights = {{{', '.join(f'{name} = {value}' for name, value in table.items())}}}")
    step = '[steps.a]\njob = "mine.py:Mine"\ninput = "in"\noutput = "out/new"\n'
    (place / "one.toml").write_text(step + "\n".join(lines) + "\n")
    assert curate("run", "one.toml", "--backend", "inline").code == 0
    for command in (["status", "one.toml"], ["run", "one.toml", "--dry-run"]):
        told = curate(*command)
        assert (told.code, "1 up to date" in told.out + told.err) == (0, True), told


def test_every_job_that_curate_brings_can_be_read() -> None:
    """Its parameters are those that its class has; not of one that derives from the class of another file."""
    found = {name: declared(name) for name in packaged_names()}
    assert found.pop("corpus") is None
    for name in ("quality", "toxicity", "langid"):
        known = found[name]
        assert known is not None
        assert set(known) == set(named_job(name)._params), name


INT, STR, FLOAT, NONE = "    x: int = 1", "    x: str = 'q'", "    x: float = 2", "    pass"
HIERARCHIES = {
    "two mixins": ("class A:", INT, "class B:", STR, "class Mine(A, B, TextJob):", NONE),
    "mixins and its own": ("class A:", INT, "class B:", STR, "class Mine(A, B, Job):", FLOAT),
    "one above another": ("class A(Job):", INT, "class B(A):", STR, "class Mine(B):", NONE),
    "a diamond": ("class A(Job):", INT, "class B(A):", NONE, "class C(A):", STR, "class Mine(C, B):", NONE),
    "a diamond of one type": ("class A(Job):", INT, "class B(A):", INT, "class C(A):", NONE, "class Mine(B, C):", NONE),
}


@pytest.mark.quick
@pytest.mark.parametrize("classes", HIERARCHIES.values(), ids=HIERARCHIES)
def test_a_type_is_told_as_the_class_has_it_or_not_at_all(classes: tuple[str, ...], tmp_path: Path) -> None:
    """Python decides which base a parameter is of: a value that the job takes is not refused by its text."""
    text = "from curate import Job, TextJob\n" + "\n".join(classes) + "\n    def process(self, batch): ...\n"
    (tmp_path / "mine.py").write_text(text)
    space: dict[str, Any] = {"__name__": "mine"}
    exec(compile(text, "mine.py", "exec"), space)
    known = declared(f"{tmp_path}/mine.py:Mine")
    assert known is not None
    types = {name: one.type.__name__ for name, one in space["Mine"]._params.items()}
    assert known.keys() == types.keys()
    assert known["x"] in (types["x"], "?")
