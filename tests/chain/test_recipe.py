"""Recipes: a chain by its name, of which every key is checked; ledgers have its digest, and a sample says the cost."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.chain.cost import sample_cost
from curate.chain.recipe import Part, Recipe
from curate.chain.run import digest_of
from curate.chain.steps import Step
from curate.cli.chain import recipe_command
from curate.errors import ConfigError
from curate.job.params import param
from jobs.dolma import Dolma
from jobs.fineweb import FineWeb
from tests.cli.running import Curate, curate
from tests.job.inline import everything
from tests.jobs.test_quality import PROSE

__all__ = ["curate"]

ROOT = Path(__file__).parents[2]
KEPT = [
    f"The people of {place} have always said that the river there is deep, and that nobody of the older ones would "
    f"ever swim in it. {PROSE} It was told to me by a man with a boat, who had seen {place} in each of its years."
    for place in ("Ely", "Bath", "Wells", "York", "Ripon")
]
ROWS = [
    *KEPT,
    "Too short.",
    "Die Leute in der Stadt haben immer gewusst, dass der Fluss tief ist und dass niemand darin schwimmen will.",
    f"{KEPT[0]}",
    KEPT[1].replace("a man with a boat", "a man (mail a@example.com, 8.8.8.8)").replace("Bath", "Lincoln"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with rows in two files."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        part = list(enumerate(ROWS))[number::2]
        pq.write_table(
            pa.table({"id": [f"r{k}" for k, _ in part], "text": [text for _, text in part]}),
            tmp_path / "in" / f"{number}.parquet",
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


OPTIONS = {"dolma": [], "fineweb": ["--words", "whitespace", "--set", "unique.threshold=0.95"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dolma", "fineweb"])
def test_from_rows_to_shards(name: str, place: Path, curate: Curate) -> None:
    """By one command, which does nothing when it is run again; each row is in one place of each step."""
    command = ["run", name, "--from", "rows", "--input", "in", "--output", "out", "--shards", "2"]
    command += ["--backend", "inline", *OPTIONS[name]]
    assert curate(*command, "--json").code == 0
    shards = sorted(path.name for path in (place / "out" / "shards").glob("*.parquet"))
    assert len(shards) == 2
    rows = pa.concat_tables([pq.read_table(place / "out" / "shards" / one) for one in shards]).to_pylist()
    texts = {row["id"]: row["text"] for row in rows}
    assert {"r2", "r3", "r4"} <= texts.keys() <= {"r0", "r1", "r2", "r3", "r4", "r7", "r8"}
    assert len({"r0", "r7"} & texts.keys()) == 1
    mail, address = {"dolma": (" |||EMAIL_ADDRESS||| ", " |||IP_ADDRESS||| "), "fineweb": ("[email]", "[ip]")}[name]
    assert f"(mail {mail}, {address})" in texts["r8"]
    steps = orjson.loads(curate(*command, "--json").out)["steps"]
    assert [one["summary"]["shards"]["skipped"] for one in steps] == [
        one["summary"]["shards"]["total"] for one in steps
    ]
    # The output of each step is the input of the next one.
    made = [one["summary"]["rows"]["out"] for one in steps]
    assert [one["summary"]["rows"]["in"] for one in steps] == [len(ROWS), *made[:-1]]


@pytest.mark.slow
def test_its_file_is_a_program(place: Path) -> None:
    argv = ["--from", "rows", "--input", "in", "--output", "out", "--shards", "1"]
    argv += ["--step", "languages", "--backend", "inline"]
    subprocess.run([sys.executable, str(ROOT / "jobs/dolma.py"), *argv], check=True, cwd=place, capture_output=True)
    assert [path.name for path in (place / "out").iterdir()] == ["languages"]


def test_a_recipe_of_ones_own(place: Path, curate: Curate) -> None:
    (place / "mine.py").write_text(MINE)
    ran = curate("run", "mine.py", "-i", "in", "-o", "out", "--least", "1", "--backend", "inline", "--json")
    assert ran.code == 0
    assert [one["step"] for one in orjson.loads(ran.out)["steps"]] == ["good"]


MINE = """
from curate.chain.recipe import Part, Recipe
from curate.job.params import param


class Mine(Recipe):
    least: int = param(help="words")

    def parts(self, begin):
        yield Part("good", "quality", {"rules": ["gopher"], "min_words": self.least, "min_stop_words": 0})
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "qualty.min_words=5"], "there is no step 'qualty'; did you mean 'quality'?"),
        (["--set", "quality.min_word=5"], "quality has no parameter 'min_word'; did you mean 'min_words'?"),
        (["--set", "quality.min_words=many"], "min_words is 'many' (str), expected int"),
        (
            ["--set", "quality"],
            "'quality' names no option of a step; write it like pages.OPTION=VALUE",
        ),
        (["--set", "quality.=3"], "'quality.=3' names no option"),
        (["--from", "rovs"], "'rovs' is not one of 'warc', 'rows'"),
        (["--set", "urls.max_soft_words=2"], "step 'urls' is left out: no list of domains or URLs is given"),
        (
            ["--text-column", "body"],
            "--text-column body is for a recipe that begins with rows; the rows of pages have 'text'",
        ),
        (["--from", "rows", "--block-urls", "in/0.parquet"], "lists of domains and URLs need --url-column"),
        (["--block-urls", "nowhere.txt"], "does not exist"),
        (["--url-colum", "u"], "No such option"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    words: list[str], message: str, place: Path, curate: Curate
) -> None:
    refused = curate("run", "dolma", "--input", "in", "--output", "out", "--shards", "1", *words)
    assert refused.code == 2
    assert message in re.sub(r"\s+", " ", refused.err)
    assert not (place / "out").exists()


class Short(Recipe):
    """Keep short texts."""

    begins = ("rows", "pages")
    most: int = param(help="words")
    name: str = param("a", help="a word")

    def parts(self, begin: str) -> Iterable[Part]:
        """Yields the steps."""
        if begin == "pages":
            yield Part("cut", "quality", {"rules": ["c4"]})
        yield Part("good", "quality", {"max_words": self.most})


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        ("in", "", "the path is empty, as where a variable is not set"),
        ("in", "/", "all files lie there; choose a folder for the outputs"),
        ("in", "file:///", "all files lie there; choose a folder for the outputs"),
        ("in", "gs://", "names the bucket ''"),
        ("", "/out", "the path is empty, as where a variable is not set"),
        (["in", ""], "/out", "the path is empty, as where a variable is not set"),
        ([], "/out", "no input was given"),
    ],
)
def test_paths_are_those_that_a_job_takes(inputs: Any, output: str, message: str) -> None:
    """No step goes into a folder of all: those of an empty output were `/good` and others like it."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        Short(most=1).chain(inputs, output)


@pytest.mark.parametrize("output", ["/out", "gs://bucket", "gs://bucket/out", "s3://bucket/out", "file:///out"])
def test_a_slash_at_the_end_of_an_output_changes_nothing(output: str) -> None:
    """Of a bucket the steps went to other objects, and all was done again."""
    one, other = (Short(most=1).chain("in", f"{output}{end}").steps for end in ("", "/"))
    assert [step.output for step in one] == [step.output for step in other]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Short(moost=3), "Short has no parameter 'moost'; did you mean 'most'?"),
        (lambda: Short(), "Short needs 'most': words"),
        (lambda: Short(most="x"), "Short.most is 'x' (str), expected int"),
        (
            lambda: Short(most=1).chain("in", "/out", begin="page"),
            "did you mean 'pages'?; Short begins with: rows, pages",
        ),
    ],
)
def test_parameters_are_checked(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()  # type: ignore[operator]


def test_a_parameter_without_a_type_is_refused_as_in_a_job() -> None:
    """Its default was the declaration of it, and a step was told of that."""
    message = "Untyped.most = param(...) has no type; annotate it: most: int = param(...)"
    with pytest.raises(ConfigError, match=re.escape(message)):
        type("Untyped", (Recipe,), {"most": param(9, help="words"), "__module__": __name__})


def test_where_it_begins_is_a_step_more() -> None:
    chain = Short(most=9).chain("in", "/out", begin="pages", folder="/there")
    assert [(one.name, one.input, one.input_from) for one in chain.steps] == [
        ("cut", ("/there/in",), ()),
        ("good", (), ("cut",)),
    ]


@pytest.mark.parametrize(
    ("recipe", "begin", "left_out"),
    [
        (FineWeb(shards=1), "warc", {"urls"}),
        (FineWeb(shards=1, soft_words="words.txt"), "rows", set()),
        (Dolma(shards=1), "warc", {"urls", "decontaminate"}),
        (Dolma(shards=1), "rows", {"urls", "addresses", "decontaminate"}),
        (Dolma(shards=1, url_column="u", block_urls="urls.txt", eval_sets=["a.jsonl"]), "rows", set()),
    ],
)
def test_steps_for_what_is_not_given_are_left_out(recipe: Recipe, begin: str, left_out: set[str]) -> None:
    """And it is said why; all others are there, in the order of the docstring of the recipe's file."""
    assert recipe.left_out(begin).keys() == left_out
    told = sys.modules[type(recipe).__module__].__doc__ or ""
    order = [line.split()[0] for line in told.splitlines() if line.endswith(".py")]
    expected = [name for name in order if name not in left_out and (name != "pages" or begin == "warc")]
    assert [one.name for one in recipe.chain("in", "out", begin=begin).steps] == expected


@pytest.mark.slow
def test_lists_are_options_that_may_be_repeated(place: Path, curate: Curate) -> None:
    """What is left out is said on standard error, and the rest runs."""
    lines = b"Four painters need nine hours for the fence of the old school, and seven of them need more."
    (place / "evals.jsonl").write_bytes(orjson.dumps({"question": lines.decode()}))
    command = ["run", "dolma", "--from", "rows", "-i", "in", "-o", "out", "--shards", "1", "--dry-run", "--json"]
    said = curate(*command, "--eval-sets", "evals.jsonl", "--eval-columns", "question", "--keep-columns", "id")
    assert "decontaminate" in [one["step"] for one in orjson.loads(said.out)["steps"]]
    assert said.err.startswith("step urls: left out: no list of domains or URLs is given (--block-domains, --block-url")
    assert "step addresses: left out: rows have no URL without --url-column" in said.err
    assert "decontaminate: left out" not in said.err
    assert "step decontaminate: left out" in curate(*command).err
    told = "no evaluation set is given (--eval-sets), so --eval-columns ... has no effect"
    assert told in curate(*command, "--eval-columns", "question").err


def test_parameters_of_a_step_that_is_left_out_are_said_to_have_no_effect() -> None:
    assert Dolma(shards=1, eval_columns=["q"]).left_out("rows")["decontaminate"] == (
        "no evaluation set is given (--eval-sets), so eval_columns=... has no effect"
    )
    assert (
        FineWeb(shards=1, url_column="address")
        .left_out("rows")["urls"]
        .endswith("--block-parts), so url_column=... has no effect")
    )
    assert not any("effect" in why for one in (Dolma, FineWeb) for why in one(shards=1).left_out("rows").values())


@pytest.mark.parametrize(
    ("given", "named", "in_python"),
    [
        ({"url_column": "nope"}, "--url-column ...", "url_column=..."),
        ({"keep_columns": ["nope"]}, "--keep-columns ...", "keep_columns=..."),
        ({"text_column": "nope"}, "--text-column ...", "text_column=..."),
        ({"eval_columns": ["nope"]}, "--eval-columns ...", "eval_columns=..."),
        ({"changes": 'languages.keep_columns=["nope"]'}, "--set languages.keep_columns=...", "changes=['languages.k"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_a_column_that_is_not_there_is_named_by_the_parameter_that_was_given(
    given: dict[str, str | list[str]], named: str, in_python: str, place: Path, curate: Curate
) -> None:
    """And not by the option of the step that it became."""
    (place / "evals.jsonl").write_bytes(orjson.dumps({"text": PROSE}))
    command = ["run", "dolma", "--from", "rows", "-i", "in", "-o", "out", "--shards", "1", "--eval-sets", "evals.jsonl"]
    for name, value in given.items():
        option = {"changes": "--set"}.get(name, f"--{name.replace('_', '-')}")
        command += [option, value if isinstance(value, str) else value[0]]
    said = curate(*command, "--dry-run").err
    assert "no column 'nope'" in said
    assert said.rstrip().endswith(f"Another one is chosen with {named}")
    parameters: dict[str, Any] = {name: value for name, value in given.items() if name != "changes"}
    changes = [str(value) for name, value in given.items() if name == "changes"]
    chain = Dolma(shards=1, eval_sets=["evals.jsonl"], **parameters).chain("in", "o", begin="rows", changes=changes)
    with pytest.raises(ConfigError, match=re.escape(f"Another one is chosen with {in_python}")):
        chain.run(backend="inline")


def test_the_digest_is_of_what_is_done() -> None:
    """Of each option and of the order; not of where it is done."""

    def digest(recipe: Recipe, output: str = "/out", *changes: str) -> str:
        return digest_of(recipe.chain("in", output, changes=changes).steps)

    one = digest(FineWeb(shards=2))
    assert one == digest(FineWeb(shards=2), "/elsewhere") == digest(FineWeb(shards=2), "/out", "shards.shards=2")
    others = [digest(FineWeb(shards=3)), digest(Dolma(shards=2)), digest(FineWeb(shards=2), "/out", "unique.bands=9")]
    assert len({one, *others}) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_each_ledger_has_the_digest() -> None:
    """Of steps with an exchange, too, whose stages are made of the inputs."""
    recipe = Dolma(shards=1)
    chain = recipe.chain("in", "out", begin="rows")
    assert chain.run(backend="inline").complete
    for step in chain.steps:
        (run,) = (Path(step.output) / "_curate" / "runs").glob("*/run.json")
        assert orjson.loads(run.read_bytes())["origin"]["chain"] == {
            "step": step.name,
            "sha256": digest_of(chain.steps),
        }


def written(place: Path) -> dict[str, bytes]:
    """Returns all files but those that Python keeps of the recipe."""
    return {name: data for name, data in everything(place).items() if not name.startswith("__pycache__")}


def test_a_dry_run_says_the_cost_and_writes_nothing(place: Path, curate: Curate) -> None:
    (place / "mine.py").write_text(MINE)
    before = written(place)
    command = ["run", "mine.py", "--input", "in", "--output", "out", "--least", "9", "--dry-run"]
    found = orjson.loads(curate(*command, "--json").out)
    assert [(one["step"], one["action"]) for one in found["steps"]] == [("good", "runs")]
    cost = found["cost"]
    assert cost["sample"] <= cost["whole"] == sum(path.stat().st_size for path in (place / "in").iterdir())
    assert [(one["name"], one["rows_in"]) for one in cost["steps"]] == [("good", len(ROWS))]
    shown = curate(*command).out
    assert "all steps from the start, about, from " in shown
    assert "of a core" in shown
    assert written(place) == before


def test_the_cost_is_of_a_part_of_large_inputs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as much is read as was said, of files that are larger and of many that are small."""
    monkeypatch.setattr("curate.chain.cost.SAMPLE_BYTES", 50_000)
    for number in range(12):
        size = 400 if number == 0 else 20
        rows = [orjson.dumps({"id": f"{number}-{k}", "text": f"{KEPT[0]} {number} {k}"}) for k in range(size)]
        (place / "in" / f"more{number}.jsonl").write_bytes(b"\n".join(rows))
    for pattern, files in (("more0.jsonl", 1), ("more*.jsonl", 12)):
        cost = sample_cost(Short(most=1000).chain(f"in/{pattern}", "out").steps)
        assert 25_000 <= cost.sample <= 125_000 < cost.whole
        assert cost.times == cost.whole / cost.sample
        assert cost.steps[0].rows_in == pytest.approx((380 + 20 * files) / cost.times, rel=0.1)


@pytest.mark.slow
def test_the_cost_is_that_of_processes_beside_the_worker_too(place: Path) -> None:
    """Pages are extracted in one."""
    seconds = []
    for name, slow in (("fast", 0), ("slow", 1_000_000)):
        (place / f"{name}.py").write_text(BESIDE.replace("SLOW", str(slow)))
        step = Step("one", f"{name}.py", str(place / "out"), input=[str(place / "in/0.parquet")])
        seconds.append(sample_cost([step]).steps[0].seconds)
    assert seconds[1] > 2 * seconds[0]


BESIDE = """
import curate
from curate.pipeline.sandbox import Sandboxed


def beside(row):
    return sum(number % 7 for number in range(SLOW * row["times"]))


class Beside(curate.FileJob):
    version = "1"

    def setup(self):
        self._beside = Sandboxed(beside, 60.0)

    def process_file(self, file):
        yield {"found": list(self._beside.results([{"times": 20}]))[0]}
"""


def test_a_step_that_fails_on_the_sample_says_so(place: Path) -> None:
    (place / "in" / "0.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(ConfigError, match="step 'good' fails on a sample of its input"):
        sample_cost(Short(most=99).chain("in/0.parquet", "out").steps)


@pytest.mark.parametrize("name", ["step", "dry", "begin", "changes", "from", "set"])
def test_no_parameter_is_an_option_that_each_recipe_has(name: str) -> None:
    body = {"__annotations__": {name: str}, name: "x", "parts": lambda self, begin: [Part("good", "quality")]}  # noqa: ARG005
    with pytest.raises(ConfigError, match=r"odd has the option --.* twice, for .*; rename the parameter"):
        recipe_command(type("Odd", (Recipe,), {**body, "__module__": "odd"}))
    spare = {**body, "__annotations__": {"other": str}, "other": "x"}
    del spare[name]
    assert recipe_command(type("Odd", (Recipe,), spare))
