"""Numbers that are given to jobs: any is refused before it runs, by the name of its option, or the job does its work
with it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.errors import ConfigError
from curate.job.job import Job
from tests.job.inline import run_job, write_parquet
from tests.jobs.test_classify import model  # noqa: F401 - a fixture
from tests.jobs.test_extract import page
from tests.support.tiny_tokenizers import byte_level

ROOT = Path(__file__).parents[2]
NUMBERS: dict[type, list[Any]] = {
    int: [0, -1, 1, 10**11, 2**63, -(2**70)],
    float: [0.0, -1.0, 1e-11, 1e11, float("inf"), float("nan")],
}
MOST = 6
KEYS = [*[""] * MOST, "0", "-1", "05", "100000000000", "9" * 30]
"""Of dicts whose keys are numbers of words, behind the numbers."""
TEXTS = [
    "The quick brown fox and all of the others have to be with that dog at the end of the day.",
    "A line of a few words.\nA line of a few words.\n\nAnother one, # with - marks...",
    "",
]
KINDS = {"extract": "archives"}
NEEDS_MORE = {"embed"}
"""Jobs that need what is not installed where tests run."""


def jobs() -> Iterator[str]:
    for file in sorted((ROOT / "jobs").glob("*.py")):
        if file.stem not in NEEDS_MORE and of(file.stem):
            yield file.stem


def of(name: str) -> list[type[Job]]:
    """Returns the job of a file of this name; none of a recipe."""
    module = importlib.import_module(f"jobs.{name}")
    made = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Job)]
    return [one for one in made if one.__module__ == module.__name__]


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory, model: str) -> dict[str, dict[str, Any]]:  # noqa: F811
    """Returns what jobs have to be given."""
    folder = tmp_path_factory.mktemp("needed")
    (folder / "evaluation.jsonl").write_bytes(orjson.dumps({"text": TEXTS[0]}))
    (folder / "mixture.toml").write_text("budget = 3\n[sources.web]\nweight = 1.0\n")
    (folder / "words.txt").write_text("example\n")
    return {
        "classify": {"model": model},
        "corpus": {"shards": 2, "work": str(folder / "work")},
        "decontaminate": {"sets": [str(folder / "evaluation.jsonl")]},
        "filter": {"where": ["n > 0"]},
        "mix": {"mixture": str(folder / "mixture.toml")},
        "quality": {"rules": ["gopher", "gopher-repetition", "c4", "fineweb", "dolma"], "annotate": True},
        "shuffle": {"shards": 2},
        "tokens": {"tokenizer": str(byte_level(folder / "tokenizer.json")), "end_token": "<|endoftext|>"},
        "urls": {"soft_words": str(folder / "words.txt")},
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    comment = {"link_id": "t3_a", "parent_id": "t3_a", "subreddit": "s", "author": "x", "created_utc": 1, "score": 1}
    url = {"url": "http://example.org/example", "source": "web", "n": 1}
    rows = [{"id": str(k), "text": text, "body": text, **comment, **url} for k, text in enumerate(TEXTS * 2)]
    write_parquet(folder / "rows" / "a.parquet", rows)
    (folder / "archives").mkdir()
    (folder / "archives" / "a.warc").write_bytes(page(0))
    return folder


def rounds(job: type[Job]) -> Iterator[dict[str, Any]]:
    """Yields numbers for the parameters of a job that are its own: each time one for each."""
    inherited = {name for base in job.__mro__[1:] for name in getattr(base, "_params", {})}
    own = [one for name, one in job._params.items() if name not in inherited and one.type in NUMBERS]
    for number in range(0 if not own else len(KEYS) if any(one.named for one in own) else MOST):
        chosen = {}
        for param in own:
            value = NUMBERS[param.type][number % MOST]
            if param.named:
                first = next(iter(param.default))
                chosen[param.name] = {first: value} if number < MOST or not first.isdecimal() else {KEYS[number]: 0.5}
            else:
                chosen[param.name] = value
        yield chosen


class Refused(Exception):
    """A job was refused before it wrote anything."""


def run(name: str, options: Mapping[str, Any], source: Path, output: Path) -> None:
    """Runs a job. Raises Refused."""
    if name == "corpus":
        options = {**options, "work": f"{output}-work"}
    try:
        summary = run_job(*[one(**options) for one in of(name)], source / KINDS.get(name, "rows"), output)
    except ConfigError as error:
        if "\n" in str(error) or output.exists():
            raise AssertionError(f"{options}: {error}") from error
        raise Refused from error
    assert summary.state == "complete", options


@pytest.mark.ci(9)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*jobs()])
def test_a_number_is_refused_or_the_job_is_done(
    name: str, needed: dict[str, dict[str, Any]], source: Path, tmp_path: Path
) -> None:
    """What no check refuses is given together, then one by one if that is refused."""
    (job,) = of(name)
    needs = needed.get(name, {})
    for number, chosen in enumerate(rounds(job)):
        taken = {param: value for param, value in chosen.items() if not is_refused(job, {**needs, param: value})}
        try:
            run(name, {**needs, **taken}, source, tmp_path / str(number))
        except Refused:
            for param, value in taken.items():
                with suppress(Refused):
                    run(name, {**needs, param: value}, source, tmp_path / f"{number}-{param}")


@pytest.mark.ci(9)
@pytest.mark.parametrize("name", [*jobs()])
def test_a_number_that_is_refused_is_named_as_its_option(name: str, needed: dict[str, dict[str, Any]]) -> None:
    """Also where an operator refuses it, of which the user of a command knows nothing."""
    (job,) = of(name)
    for chosen in rounds(job):
        for param, value in chosen.items():
            if message := refusal(job, {**needed.get(name, {}), param: value}):
                assert option_of(param) in message or message.endswith("is nan; pass a number")


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("dedup_exact", {"keep": "frist"}, "^--keep='frist'; did you mean 'first'"),
        ("dedup_exact", {"by": ["id", "txt"]}, "no column 'txt'; .*. Another one is chosen with by=...$"),
        ("dedup_minhash", {"unit": "line"}, "^--unit='line'; there are word and character$"),
        ("paragraphs", {"text_column": "x", "id_column": "x"}, "chosen with text_column=... and id_column=...$"),
        ("mix", {"source_column": "sauce"}, "no column 'sauce'; .*. Another one is chosen with source_column=...$"),
    ],
    ids=str,
)
def test_so_is_a_word_or_a_column(
    name: str, options: dict[str, Any], told: str, needed: dict[str, dict[str, Any]], source: Path, tmp_path: Path
) -> None:
    with pytest.raises(Refused) as refused:
        run(name, {**needed.get(name, {}), **options}, source, tmp_path / "out")
    assert re.search(told, str(refused.value.__cause__))


def refusal(job: type[Job], options: Mapping[str, Any]) -> str:
    """Returns why a job is refused; empty if it is not."""
    try:
        job(**options).spec()
    except ConfigError as error:
        return str(error)
    return ""


def option_of(param: str) -> str:
    return "--" + param.replace("_", "-")


def is_refused(job: type[Job], options: Mapping[str, Any]) -> bool:
    try:
        job(**options).check()
    except ConfigError:
        return True
    return False
