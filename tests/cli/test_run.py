"""`curate run` and `curate jobs`: a job by its name or its file is the job that its script is."""

from __future__ import annotations

import ast
import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from curate import jobs
from curate.chain.recipe import recipes_of
from curate.cli.run import listed
from curate.job.locate import jobs_of, packaged, packaged_names
from curate.runtime import shipping
from tests.cli.running import Curate, curate
from tests.job.inline import bytes_of, write_jsonl

__all__ = ["curate"]

ROOT = Path(__file__).parents[2]
TERMINAL = 80
ROWS = [{"id": "1", "text": "one two"}, {"id": "2", "text": "three"}]

MINE = '''
import helper
from curate import TextJob, param


class Base(TextJob):
    """What both share."""

    def process(self, batch):
        return helper.checked(batch)


class Mine(Base):
    """Keep all."""

    word: str = param("a", help="a word")


if __name__ == "__main__":
    Mine.main()
'''
HELPER = """
import os


def checked(batch):
    if os.path.exists("broken"):
        raise ValueError("broken")
    return batch
"""


def forget() -> None:
    """Makes what jobs were imported from be imported again."""
    for name in [one for one in sys.modules if one in ("mine", "helper", "two") or jobs.is_job(one)]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is imported in a test is forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(shipping, "BY_VALUE", [])
    monkeypatch.setattr(shipping, "FOLDERS", [])
    yield
    forget()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in: rows, and a job's file, in a folder of its own beside a module that it imports."""
    write_jsonl(tmp_path / "in" / "a.jsonl", ROWS)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(MINE)
    (tmp_path / "own" / "helper.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_script(script: str | Path, *options: str) -> None:
    subprocess.run([sys.executable, script, *options, "--backend", "inline"], check=True, capture_output=True)


class TestListing:
    def test_each_job_has_a_line(self, curate: Curate) -> None:
        """Its name and what it does, as its class says: a terminal of 80 columns has room for it."""
        printed = curate("jobs")
        lines = printed.out.splitlines()
        assert (printed.code, [line.split()[0] for line in lines]) == (0, packaged_names())
        assert len(lines) == len(list((ROOT / "jobs").glob("*.py"))) == 21
        assert [line for line in lines if len(line) > TERMINAL - 4] == []

    def test_what_is_listed_is_what_is_run(self) -> None:
        """The list reads files and imports none; each file has one job or one recipe, which is its last class."""
        for name, does in listed():
            module = packaged(f"{jobs.__name__}.{name}")
            (one,) = [*jobs_of(module).values(), *recipes_of(module)]
            assert (one.__doc__ or "").partition("\n")[0] == f"{does}."

    def test_the_help_fits_a_terminal(self, curate: Curate, monkeypatch: pytest.MonkeyPatch) -> None:
        """It lists the jobs too, and says how one of your own is named."""
        monkeypatch.setenv("COLUMNS", str(TERMINAL))
        printed = curate("run", "--help")
        assert printed.code == 0
        assert printed.out.partition("\n")[0].endswith("curate run JOB [OPTIONS OF THE JOB]")
        assert [line for line in printed.out.splitlines() if len(line) > TERMINAL] == []
        for words in ("path/to/mine.py:Mine", "\n  toxicity       Score each record's text for toxicity\n"):
            assert words in printed.out
        assert curate("run").err == printed.out

    @pytest.mark.slow
    def test_the_help_of_a_job_is_its_scripts(self, curate: Curate, monkeypatch: pytest.MonkeyPatch) -> None:
        """But for the command in its first line."""
        monkeypatch.setenv("COLUMNS", str(TERMINAL))
        script = subprocess.run(
            [sys.executable, ROOT / "jobs/toxicity.py", "--help"], check=True, capture_output=True, text=True
        )
        usage, *rest = curate("run", "toxicity", "--help").out.splitlines()
        assert usage.endswith("curate run toxicity [OPTIONS]")
        assert rest == script.stdout.splitlines()[1:]


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("toxicty", "curate has no built-in job 'toxicty'; did you mean 'toxicity'? `curate jobs` lists"),
            (
                "xyz",
                "curate has no built-in job 'xyz'; `curate jobs` lists them; name your own job by its file",
            ),
            ("nothing.py", "there is no file PLACE/nothing.py; pass the Python file of a job"),
            ("own/mime.py", "there is no file PLACE/own/mime.py; did you mean 'mine.py'?"),
            ("own/", "PLACE/own is a folder; pass the Python file of a job"),
            ("own/helper.py", "own/helper.py has no job: it defines no subclass of curate.Job"),
            ("own/mine.py:Mime", "own/mine.py has no job 'Mime'; did you mean 'Mine'?; it has: Mine"),
            ("own/two.py", "own/two.py has 2 jobs: One, Two; name the one to run: curate run own/two.py:One"),
            ("own/cut.py", "PLACE/own/cut.py cannot be imported: SyntaxError"),
        ],
    )
    def test_what_is_no_job(self, curate: Curate, place: Path, name: str, message: str) -> None:
        """In one line, with what was found and what to do; exit code 2."""
        two = "from curate import TextJob\nclass One(TextJob): version = '1'\nclass Two(TextJob): version = '1'\n"
        (place / "own" / "two.py").write_text(two)
        (place / "own" / "cut.py").write_text("def f(:")
        printed = curate("run", name, "--input", "in", "--output", "out")
        assert (printed.code, printed.out) == (2, "")
        assert printed.err.startswith(f"error: {message.replace('PLACE', str(place))}")
        assert printed.err.count("\n") == 1

    def test_a_file_that_was_meant(self, curate: Curate, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(place / "own")
        assert "curate has no built-in job 'mine'; did you mean 'mine.py'?" in curate("run", "mine").err

    def test_an_option_before_the_job(self, curate: Curate) -> None:
        printed = curate("run", "--input", "in")
        assert (printed.code, "No such option" in printed.err) == (2, True)


class TestRun:
    @pytest.mark.slow
    def test_a_file_is_the_job_that_its_script_is(self, curate: Curate, place: Path) -> None:
        """The same bytes and the same identity, without a version too: each goes on where the other has stopped."""
        run_script("own/mine.py", "--input", "in", "--output", "script", "--word", "b")
        options = ("--input", "in", "--backend", "inline", "--word", "b")
        assert curate("run", "own/mine.py", *options, "--output", "out").code == 0
        assert bytes_of(place / "out") == bytes_of(place / "script")
        again = curate("run", "own/mine.py:Mine", *options, "--output", "script", "--json")
        assert (again.code, again.json["shards"]["skipped"]) == (0, 1)

    @pytest.mark.slow
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("name", ["shuffle", "dedup_exact"])
    def test_a_job_by_name_is_its_script(self, curate: Curate, place: Path, name: str) -> None:
        """Version, digest of the code and all."""
        options = ["--input", "in", "--shards", "1"] if name == "shuffle" else ["--input", "in"]
        run_script(ROOT / "jobs" / f"{name}.py", *options, "--output", "script")
        assert curate("run", name, *options, "--output", "out", "--backend", "inline").code == 0
        assert bytes_of(place / "out") == bytes_of(place / "script")
        assert orjson.loads((place / "out/_curate/job.json").read_bytes())["code_digest"]

    @pytest.mark.usefixtures("no_backoff")
    def test_a_failed_shard_is_replayed_and_retried(self, curate: Curate, place: Path) -> None:
        """The ledger says which file the job is in; what was imported for the run is not needed."""
        (place / "broken").touch()
        assert curate("run", "own/mine.py", "-i", "in", "-o", "out", "--backend", "inline").code == 1
        forget()
        replayed = curate("replay", "out", "--shard", "a")
        assert (replayed.code, "ValueError: broken" in replayed.out + replayed.err) == (1, True)
        (place / "broken").unlink()
        forget()
        assert curate("retry", "out").code == 0

    @pytest.mark.slow
    @pytest.mark.usefixtures("no_backoff")
    def test_a_job_by_name_is_retried_by_name(self, curate: Curate, place: Path) -> None:
        """Wherever curate is installed then: not by the path of its file."""
        whole = (place / "in" / "a.jsonl").read_bytes()
        cut = place / "in" / "b.jsonl.gz"
        cut.write_bytes(gzip.compress(whole)[:-9])
        assert curate("run", "toxicity", "-i", "in", "-o", "out", "--backend", "inline").code == 1
        (run,) = (place / "out/_curate/runs").glob("*/run.json")
        recorded = orjson.loads(run.read_bytes())
        assert recorded["origin"]["module"] == "curate.jobs.toxicity"
        recorded["origin"]["script"] = "/another/place/curate/jobs/toxicity.py"
        run.write_bytes(orjson.dumps(recorded))
        forget()
        assert curate("replay", "out", "--shard", "a").code == 0
        cut.write_bytes(gzip.compress(whole))
        forget()
        retried = curate("retry", "out", "--json")
        assert (retried.code, retried.json["state"]) == (0, "complete"), retried


def test_python_m_curate() -> None:
    """Is the command line."""
    ran = subprocess.run([sys.executable, "-m", "curate", "jobs"], check=True, capture_output=True, text=True)
    assert "toxicity" in ran.stdout


def test_the_list_imports_no_job() -> None:
    """Nor what jobs need, which takes a second."""
    program = "import sys; from curate.cli.run import listed; listed(); print([*sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = ast.literal_eval(ran.stdout)
    assert "curate.jobs" in loaded
    assert [name for name in loaded if name in ("numpy", "pyarrow", "ray") or jobs.is_job(name)] == []


def test_ctrl_c_while_it_imports() -> None:
    """Ends it as Ctrl-C does at any other time; there was a traceback of whatever was being imported."""
    program = """
import sys


class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "click":
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupted())
from curate.__main__ import main

main()
"""
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize(("ends", "says"), [("signal.SIGINT", ""), ("signal.SIGUSR1", "Exception ignored in atexit")])
def test_ctrl_c_while_it_leaves(ends: str, says: str) -> None:
    """All is said by then: there was a traceback of whatever the interpreter was tidying up. Of other errors it is
    told, and the exit code is that of the command."""
    program = f"""
import atexit, signal, sys


def fail(*_):
    raise ValueError


signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGUSR1, fail)
atexit.register(lambda: signal.raise_signal({ends}))
sys.argv = ["curate", "--version"]
from curate.__main__ import main

main()
"""
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout[:6] != "", ran.stderr[: len(says) or None]) == (0, True, says)
