"""The READMEs say what is so: their snippets run, consoles show what is printed, and what they name exists."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).parents[1]
MAIN = "README.md"
JOBS = "jobs/README.md"
TESTS = "tests/README.md"
SCRIPTS = "scripts/README.md"
PAGES = [MAIN, "curate/README.md", "infra/README.md", JOBS, SCRIPTS, TESTS]
TEXT = {page: (ROOT / page).read_text() for page in PAGES}
MAIN_LINES = 250
VARIES = re.compile(r"complete in|run +20|output |^toxicity +complete|█")
"""Lines of the console that hold times, paths, or a bar as wide as the terminal."""
SECONDS = re.compile(r"\bin \d+(?:\.\d+)? s\b")

NO_VARIABLES_OF_USERS = {
    *("CURATE_FRESH_WORKER", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "RAY_JOB_CONFIG_JSON_ENV_VAR"),
    *("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT"),
    *("JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE", "PYTHONUTF8"),
}
"""Variables that curate itself sets, or Ray, or what starts a process as one of many."""

READS = r'environ(?:\.get\(|\.setdefault\(|\[)"(\w+)"|"(\w+)" in (?:os\.)?environ'
"""How code looks at a variable that it names."""

PARAMETERS = """
import importlib, json, pathlib, sys
from curate.chain.recipe import Recipe
from curate.job.job import Job
sys.path.insert(0, "jobs")
found = {}
for path in sorted(pathlib.Path("jobs").glob("*.py")):
    values = vars(importlib.import_module(path.stem)).values()
    (job,) = (
        one
        for one in values
        if isinstance(one, type) and issubclass(one, (Job, Recipe)) and one.__module__ == path.stem
    )
    inherited = {} if issubclass(job, Recipe) else job.__mro__[1]._params
    own = [one for name, one in job._params.items() if one != inherited.get(name)]
    found[path.stem] = {one.option: "required" if one.required else one.default for one in own}
from curate import TextJob
found["TextJob"] = {one.option: one.default for one in TextJob._params.values()}
json.dump(found, sys.stdout)
"""
"""Prints the parameters of each job with their defaults, but for those that its base has, too; of recipes all."""


def blocks(language: str, page: str = MAIN) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT[page], re.DOTALL)


def section(page: str, title: str) -> str:
    """Returns what a page has under a heading, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", TEXT[page], re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no heading {title!r}"
    return found[1]


def table_rows(text: str) -> list[list[str]]:
    """Returns the cells of all tables, without their heads."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    lines = [at for at, row in enumerate(cells) if set("".join(row)) <= {"-"}]
    return [row for at, row in enumerate(cells) if at not in lines and at + 1 not in lines]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the README's commands can be typed, with the demo's corpus."""
    home = tmp_path_factory.mktemp("readme")
    (home / "jobs").symlink_to(ROOT / "jobs")
    run(home, sys.executable, str(ROOT / "scripts/corpus"), "--output", "demo/reddit")
    return home


def run(home: Path, *command: str) -> str:
    """Runs a command and returns what it printed: results, then logs and summaries."""
    environ = {**os.environ, "CURATE_HOME": str(home / "home"), "COLUMNS": "100"}
    found = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout + found.stderr


def test_the_main_page_is_short() -> None:
    """What is for one kind of reader has a page of its own."""
    assert len(TEXT[MAIN].splitlines()) <= MAIN_LINES


@pytest.mark.slow
def test_the_job_and_its_three_line_test_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of the main page, saved as a module, passes its own tests; and all other snippets of all pages run."""
    job, *checks = blocks("python")
    others = [block for page in PAGES if page != MAIN for block in blocks("python", page)]
    assert (len(checks), len(others)) == (3, 5)
    (home / "shouting.py").write_text(job)
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    import shouting  # type: ignore[import-not-found]

    for check in (*checks, *others):
        exec(check, {"Shouting": shouting.Shouting})


@pytest.mark.slow
def test_the_job_of_several_steps_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its books say what each step dropped."""
    (job,) = (block for block in blocks("python", JOBS) if "class Words" in block)
    (home / "words.py").write_text(job)
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    import words  # type: ignore[import-not-found]

    books = words.Words().run(input="demo/reddit", output="out/words", backend="inline").books
    assert books.rows_out
    assert books.dropped.keys() == {"short", "few words"}


@pytest.mark.slow
def test_the_job_is_a_program(home: Path) -> None:
    """The same module runs from the command line, with its parameter as an option."""
    (home / "shouting.py").write_text(blocks("python")[0])
    options = ["--text-column", "body", "--threshold", "0.9", "--backend", "inline"]
    printed = run(home, sys.executable, "shouting.py", "-i", "demo/reddit", "-o", "out/program", *options)
    assert "24 of 24 done" in printed


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(("page", "programs"), [(MAIN, ["python", "curate"]), (JOBS, ["curate", "curate"])])
def test_the_console_shows_what_is_printed(home: Path, page: str, programs: list[str]) -> None:
    """Every line under a command is printed by that command, but for what differs from run to run."""
    (console,) = blocks("console", page)
    for block in blocks("toml", page):
        (home / "pipeline.toml").write_text(block)
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    assert [command.split()[0] for command, _ in commands] == programs
    for command, shown in commands:
        words = shlex.split(command)
        words[0] = sys.executable if words[0] == "python" else str(Path(sys.executable).parent / "curate")
        printed = [SECONDS.sub("", line.rstrip()) for line in run(home, *words).splitlines()]
        for line in shown.splitlines():
            shortened = SECONDS.sub("", line.rstrip())
            assert VARIES.search(line) or shortened in printed, f"{command} does not print {line!r}"


def test_no_other_page_has_a_console() -> None:
    """One that is not run above."""
    assert [page for page in PAGES if blocks("console", page)] == [MAIN, JOBS]


def test_every_promise_names_a_test_that_exists() -> None:
    """Each `path::name` on any page is a test function, or a class of tests, in that file."""
    named = [found for page in PAGES for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT[page])]
    assert len(named) >= 50
    for path, name in named:
        functions = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}
        assert name in functions, f"{path} has no {name}"


def test_every_promise_and_every_failure_has_its_test() -> None:
    """The last cell of each row of both tables names a file or a folder of tests."""
    for title, fewest in (("Promises", 15), ("When something goes wrong", 45)):
        rows = table_rows(section(TESTS, title))
        assert len(rows) >= fewest
        assert [row for row in rows if not re.search(r"`tests/\w+", row[-1])] == []


def test_the_promises_of_the_main_page_are_those_with_tests() -> None:
    """In the same words and the same order."""
    promised = re.findall(r"^- \*\*(.+?)\*\*", section(MAIN, "What you can rely on"), re.MULTILINE)
    held = re.findall(r"^\| \*\*(.+?)\*\*", section(TESTS, "Promises"), re.MULTILINE)
    assert promised == held


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    """Each path below the root, such as `tests/safety/`, and each link, down to its heading."""
    named = re.findall(r"`((?:tests|scripts|jobs|infra|curate)/[\w./-]*)[^`]*`", TEXT[page])
    assert [path for path in named if not (ROOT / path).exists()] == []
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXT[page]):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            text = (target / "README.md" if target.is_dir() else target).read_text()
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings], link


@pytest.mark.slow
def test_the_parameters_of_jobs_are_those_of_their_classes() -> None:
    """Each job of jobs/ has a section with its parameters, in order, and their defaults."""
    jobs = orjson.loads(run(ROOT, sys.executable, "-c", PARAMETERS))
    shared = table_rows(section(JOBS, "The jobs"))
    sections = re.findall(r"^### (\w+)$", TEXT[JOBS], re.MULTILINE)
    assert sorted(sections) == sorted(jobs.keys() - {"TextJob"})
    assert [row[0] for row in shared[: len(sections)]] == [f"[{name}](#{name})" for name in sections]
    tables = {"TextJob": shared[len(sections) :]} | {name: table_rows(section(JOBS, name)) for name in sections}
    for job, rows in tables.items():
        wanted = [[f"`{option}`", shown(default)] for option, default in jobs[job].items()]
        assert [row[:2] for row in rows] == wanted, job


def shown(default: object) -> str:
    """Returns a default as the page writes it."""
    match default:
        case None | "" | []:
            return "none"
        case True:
            return "on"
        case False:
            return "off"
        case dict():
            return ", ".join(f"{name}: {value:g}" for name, value in default.items())
        case "required":
            return default
        case str():
            return f"`{default!r}`".replace("'", "")
        case list():
            return f"`{','.join(default)}`"
        case _:
            return str(default)


def test_every_environment_variable_has_a_line() -> None:
    """One table lists those that curate reads: no code looks at another one."""
    text = "\n".join(path.read_text() for path in (ROOT / "curate").rglob("*.py"))
    found = set(re.findall(r'"((?:CURATE|RAY|STORAGE)_[A-Z_]+)"', text))
    read = {one for pair in re.findall(READS, text) for one in pair if one}
    listed = [row[0].strip("`") for row in table_rows(section("infra/README.md", "Environment variables"))]
    assert len(listed) == len(set(listed))
    assert set(listed) == (found | read) - NO_VARIABLES_OF_USERS


def test_what_the_page_says_of_ray_data_is_there() -> None:
    """Those whose documentation runs as it is by their names, and all others as they are to be written."""
    import ray.data

    import curate
    from tests.dataset.test_ray_snippets import ANSWERED, AS_WRITTEN

    tables = [row for row in table_rows(section(MAIN, "A dataset")) if len(row) == 2]
    start = next(at for at, row in enumerate(tables) if row[0].startswith("`map`"))
    same, *others = tables[start:]
    assert re.findall(r"`(\w+)`", same[0]) == AS_WRITTEN
    asked, written = ({*re.findall(r"\b(\w+)\(", "".join(row[at] for row in others))} for at in (0, 1))
    assert ANSWERED.keys() <= asked <= {*dir(ray.data.Dataset), "Sum", "sum", "f", "col", "RandomSeedConfig"}
    for name in written - {"col"}:
        assert hasattr(curate.Dataset, name) or hasattr(ray.data.grouped_data.GroupedData, name), name


def test_every_script_has_a_line() -> None:
    """The first table lists the files of scripts/."""
    listed = [row[0] for row in table_rows(TEXT[SCRIPTS].partition("\n## ")[0])]
    there = {path.name for path in (ROOT / "scripts").iterdir() if path.is_file()} - {"README.md"}
    assert sorted(listed) == sorted(f"`scripts/{name}`" for name in there)


@pytest.mark.slow
def test_the_commands_of_figures_exist() -> None:
    """Each command under "Measured" takes the options that are named with it, and those of its rows."""
    commands: dict[str, set[str]] = {}
    for line in TEXT[SCRIPTS].partition("\n## Measured\n")[2].splitlines():
        if found := re.search(r"`scripts/(bench \w+|simulate)((?: [^`]+)?)`", line):
            command = found[1]
            commands.setdefault(command, set()).update(re.findall(r"--[a-z]+", found[2]))
        if found := re.match(r"\| `--only (\w+)`", line):
            commands[command].update(("--only", found[1]))
    assert len(commands) == 18
    # Of all commands of a script in one process: to start takes a second, mostly.
    asked: dict[str, list[str]] = {}
    for command in commands:
        script, *words = command.split()
        asked.setdefault(script, []).append(" ".join([*words, "--help"]))
    program = (
        "import sys\n"
        "from importlib.machinery import SourceFileLoader\n"
        "from importlib.util import module_from_spec, spec_from_loader\n"
        "sys.path.insert(0, 'scripts')\n"
        "loader = SourceFileLoader(sys.argv[1], f'scripts/{sys.argv[1]}')\n"
        "script = module_from_spec(spec_from_loader(loader.name, loader))\n"
        "loader.exec_module(script)\n"
        "for words in sys.argv[2:]:\n"
        "    print('\\0', end='')\n"
        "    script.main.main(words.split(), standalone_mode=False)\n"
    )
    told: dict[str, str] = {}
    for script, each in asked.items():
        texts = run(ROOT, sys.executable, "-c", program, script, *each).split("\0")[1:]
        names = [f"{script} {words}".removesuffix(" --help") for words in each]
        told |= zip(names, texts, strict=True)
    assert told.keys() == commands.keys()
    for command, wanted in commands.items():
        assert [word for word in wanted if not re.search(rf"(?<![\w-]){word}\b", told[command])] == [], command
