"""Each option of each job, with what it cannot be: the job does its work, or it is refused by the name of the option,
in a line, and no file is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from curate.job.asset import Asset
from curate.job.command import command
from curate.job.job import Job
from curate.job.params import Param
from curate.job.settings import tunable
from tests.job.inline import write_jsonl
from tests.jobs.test_classify import model  # noqa: F401 - a fixture
from tests.jobs.test_numbers import KINDS, jobs, needed, of, option_of, source  # noqa: F401 - fixtures

VALUES: dict[Any, list[str]] = {
    str: ["", "nope", " ", "n", "url", "a/b"],
    int: ["-1", "0", "1000000000000", "9" * 26, "abc", ""],
    float: ["-1", "0", "nan", "inf", "1e300", "abc", ""],
    Asset: ["", "nothing", "x://y", "{file}", "."],
}
DICTS = ["", "{}", "[]", '{"nope": null}', '{"": 1}', '{"train": -1, "test": 2}', '{"a": 1e400}', "x"]
SETTINGS = {
    "batch_size": ["0", "-1", "abc", "9" * 20],
    "shard_bytes": ["0", "-1", "x"],
    "format": ["csv", "memmap", "nope", ""],
    "codec": ["nope", "", "gzip"],
    "max_bad_rows": ["-1", "x", "", "200%", "nan%"],
    "num_cpus": ["-1", "nan", "inf"],
    "num_gpus": ["-1", "nan"],
    "memory": ["-1", "x", "0"],
    "max_tasks": ["0", "x"],
    "task_timeout_s": ["0", "-1", "nan"],
    "attributes": [],
}


def given(one: Param) -> Iterator[list[str]]:
    """Yields what a parameter may be given as on a command line."""
    if one.type is bool:
        yield [one.option]
    elif one.named:
        yield from ([one.option, value] for value in DICTS)
    else:
        yield from ([one.option, value] for value in VALUES.get(one.type, ["nope", ""]))


def cases(job: type[Job]) -> Iterator[list[str]]:
    for one in job._params.values():
        yield from given(one)
    for name in tunable(job):
        yield from ([option_of(name), value] for value in SETTINGS.get(name, []))
    yield ["--attributes"]


def arguments(options: dict[str, Any], leave_out: str) -> Iterator[str]:
    """Yields what a job needs, as a command line has it."""
    for name, value in options.items():
        if option_of(name) == leave_out:
            continue
        for item in value if isinstance(value, list) else [value]:
            yield from [option_of(name)] if value is True else [option_of(name), str(item)]


def refused(job: type[Job], argv: list[str], case: list[str], out: Path) -> str:
    """Runs a command; returns why it was refused, empty if it was not. Raises AssertionError for anything else."""
    ended = CliRunner().invoke(command(job), [*argv, "--output", str(out), "--backend", "inline", *case])
    if ended.exit_code == 0:
        return ""
    # A refusal is one line; those before it are logs, or say how the command is used.
    told = ended.stderr.strip().rsplit("\n", 1)[-1]
    assert ended.exit_code == 2, (case, ended.stderr, ended.exception)
    assert "Traceback" not in ended.stderr, case
    if "wanted" not in told:  # a mixture that cannot be met keeps what it has learnt of the rows
        assert not [path for path in out.rglob("*") if path.is_file()], case
        names = [one.removeprefix("--") for one in case if one.startswith("--")]
        words = [*names, *(one.replace("-", "_") for one in names), *(one for one in case[1:] if "/" in one)]
        assert any(one in told for one in words), (case, told)
    return told


@pytest.mark.ci(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*jobs()])
def test_it_is_done_or_refused_by_the_name_of_the_option(
    name: str,
    needed: dict[str, dict[str, Any]],  # noqa: F811
    source: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (job,) = of(name)
    file = tmp_path / "words.txt"
    file.write_text("example\n")
    refusals = 0
    # Most parameters of `corpus` are those of `quality`, and each run is four stages; what columns its last stage is
    # given, only its first ones tell.
    chosen = [one for one in cases(job) if one[-1] != "memmap"][::5] if name == "corpus" else cases(job)
    for number, case in enumerate(chosen):
        case = [one.format(file=file) if one == "{file}" else one for one in case]
        needs = {**needed.get(name, {})}
        if name == "corpus":
            needs["work"] = str(tmp_path / f"{number}-work")
        argv = ["--input", str(source / KINDS.get(name, "rows")), *arguments(needs, case[0])]
        refusals += bool(refused(job, argv, case, tmp_path / str(number)))
    assert refusals > 10


@pytest.mark.parametrize(
    ("name", "case", "told"),
    [
        ("classify", ["--label", "nope"], "error: --label: the model has no label 'nope'"),
        ("classify", ["--keep", "nope"], "error: --keep: the model has no label 'nope'"),
        ("classify", ["--column", ""], "error: --column is empty"),
        ("toxicity", ["--model", "{model}"], "Name the toxic one with --model-label"),
        ("tokens", ["--format", "csv"], "which CSV cannot store"),
        ("pii", ["--action", "annotate", "--format", "csv"], "which CSV cannot store"),
        ("split", ["--cluster-column", "foo"], "Another one is chosen with --cluster-column ..."),
        ("dedup_exact", ["--priority", "foo"], "Another one is chosen with --priority ..."),
        ("dedup_exact", ["--keep-columns", "n"], "--keep-columns ... leaves out what it does not name"),
        ("filter", ["--where", "foo == 3"], "Another one is chosen with --where ..."),
        ("mix", ["--epoch-column", ""], "error: --epoch-column is empty"),
    ],
    ids=str,
)
def test_the_words(
    name: str,
    case: list[str],
    told: str,
    needed: dict[str, dict[str, Any]],  # noqa: F811
    source: Path,  # noqa: F811
    tmp_path: Path,
    model: str,  # noqa: F811
) -> None:
    (job,) = of(name)
    case = [model if one == "{model}" else one for one in case]
    argv = ["--input", str(source / "rows"), *arguments(needed.get(name, {}), case[0])]
    assert told in refused(job, argv, case, tmp_path / "out")


def test_a_column_that_a_folder_names(tmp_path: Path) -> None:
    """Whoever knows it from a dataset of the same files is told why it is not there."""
    write_jsonl(tmp_path / "in" / "year=2024" / "a.jsonl", [{"id": 1, "text": "a"}])
    (job,) = of("filter")
    told = refused(job, ["--input", str(tmp_path / "in")], ["--where", "year == 2024"], tmp_path / "out")
    assert "the folder year=... is a column for datasets, and not for jobs" in told
