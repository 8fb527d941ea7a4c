"""Where a job comes from: written down as JSON, and the same job made again from that."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.job.asset import Asset
from curate.job.job import Job
from curate.job.locate import imported, locate, named_job
from curate.job.origin import job_origin
from curate.job.params import as_recorded, param, recorded_scalar
from curate.runtime import shipping
from tests.job.inline import refusing

SCRIPT = '''
from typing import Literal

import beside
from curate import Asset, Job, param


class Base(Job):
    """Has what the others share."""

    word: str = param("a", help="a word")


class Mine(Base):
    """A job with a parameter of every kind."""

    share: float = param(float("inf"))
    large: int = 2**70
    many: list[float] = param([1.0, float("-inf")])
    kind: Literal["x", "y"] = "x"
    nothing: str | None = None
    flag: bool = False
    key: str | None = param(None, secret=True)
    model: Asset | None = None

    def process(self, batch):
        return beside.helped(batch)

    class Inner(Job):
        """A job within a class."""

        version = "1"

        def process(self, batch):
            return batch


if __name__ == "__main__":
    Mine.main()
'''


class Here(Job):
    """A job of this module."""

    version = "1"
    most: int = param(3, help="a number")

    def process(self, batch: Any) -> Any:
        return batch


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported in a test is forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.setattr(shipping, "BY_VALUE", [])
    monkeypatch.setattr(shipping, "FOLDERS", [])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A job's file, beside a module that it imports."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "beside.py").write_text("def helped(batch):\n    return batch\n")
    path = folder / "a-job.py"
    path.write_text(SCRIPT)
    return path


def origin(path: Path, **changes: Any) -> dict[str, Any]:
    return {"script": str(path), "module": "", "class": "Mine", "parameters": {}, "settings": {}} | changes


def test_there_and_back(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of every kind, settings that were given, secrets by variable: through JSON, to an equal job."""
    monkeypatch.setenv("API_KEY", "hush")
    (tmp_path / "model").write_text("m")
    parameters = {"word": "b", "kind": "y", "flag": True, "key": "API_KEY", "model": str(tmp_path / "model")}
    job = locate(origin(script, parameters=parameters, settings={"batch_size": 7, "max_bad_rows": "1%"}))
    recorded = json.loads(orjson.dumps(job_origin(job)))
    assert "hush" not in str(recorded)
    assert recorded["class"] == "Mine"
    assert recorded["parameters"]["key"] == "API_KEY"
    assert recorded["parameters"]["share"] == "inf"
    assert recorded["settings"] == {"batch_size": 7, "max_bad_rows": "1%"}
    again: Any = locate(recorded)
    assert type(again) is type(job)
    assert (again.share, again.large, again.many) == (math.inf, 2**70, [1.0, -math.inf])
    assert (again.word, again.kind, again.flag, again.nothing, again.key) == ("b", "y", True, None, "hush")
    assert isinstance(again.model, Asset)
    assert (again.batch_size, again.max_bad_rows) == (7, "1%")
    assert again.spec().record.fingerprint == job.spec().record.fingerprint


def test_what_was_set_after_the_job_was_made_counts() -> None:
    """As it does for the run."""
    job = Here()
    job.most, job.num_cpus = 9, 2
    again: Any = locate(json.loads(orjson.dumps(job_origin(job))))
    assert (again.most, again.num_cpus) == (9, 2)


def test_a_job_of_a_module_is_that_modules() -> None:
    """Found by the name it was imported by, relative imports and all; it is the very class."""
    found = job_origin(Here())
    assert (found["module"], found["class"]) == ("tests.job.test_locate", "Here")
    assert type(locate(found)) is Here
    assert type(locate(found, script=found["script"])) is Here


@pytest.mark.slow
def test_the_program_itself_and_its_file_are_one_job(script: Path) -> None:
    """A job without a version, whose code is its identity, is the same as `__main__` and imported under its name."""
    run = "print(json.dumps(Mine().spec().record.origin)); print(Mine().spec().record.fingerprint)"
    text = script.read_text().replace("    Mine.main()", f"    import json\n    {run}")
    script.write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    recorded, fingerprint = done.stdout.splitlines()
    found = json.loads(recorded)
    assert (found["script"], found["module"], found["class"]) == (str(script), "", "Mine")
    job = locate(found)
    assert job.spec().record.fingerprint == fingerprint
    assert type(job).__module__ == "a-job"


def test_nothing_under_the_main_guard_runs(script: Path) -> None:
    """The file is imported and not run; what lies beside it is found, as when it was run."""
    job: Any = locate(origin(script))
    assert job.process(5) == 5
    assert str(script.parent) in sys.path
    assert [str(script.parent)] == shipping.FOLDERS
    assert [module.__name__ for module in shipping.BY_VALUE] == ["a-job"]


def test_a_class_within_a_class(script: Path) -> None:
    """By its qualified name."""
    job = locate(origin(script, **{"class": "Mine.Inner"}))
    assert type(job).__qualname__ == "Mine.Inner"
    assert type(locate(job_origin(job))) is type(job)


def test_a_file_called_like_a_module_that_is_there(script: Path) -> None:
    """`json.py` is a bad name for a job, but it is that job which is found, and `json` stays what it was."""
    path = script.with_name("json.py")
    path.write_text(SCRIPT)
    job = locate(origin(path))
    assert type(job).__module__ == "json_job"
    assert sys.modules["json"] is json
    assert type(locate(job_origin(job))) is type(job)


@pytest.mark.parametrize("name", ["json", "wave", "curate", "pyarrow", "pip"])
def test_who_imports_a_module_does_not_get_a_job_called_like_it(script: Path, name: str) -> None:
    """Neither here nor in a worker, which looks where this process does: whether it is imported already or later."""
    path = script.with_name(f"{name}.py")
    path.write_text(SCRIPT)
    job = locate(origin(path))
    assert type(job).__module__ == f"{name}_job"
    found = PathFinder.find_spec(name, shipping.folders())
    assert found is not None
    assert found.origin != str(path)
    assert type(job).process.__globals__["beside"].__file__ == str(script.with_name("beside.py"))


@pytest.mark.parametrize("module", ["", "link"])
def test_a_link_has_what_lies_beside_what_it_leads_to(script: Path, tmp_path: Path, module: str) -> None:
    """As `python link.py` finds it. It stays the link that was given."""
    link = tmp_path / "bin" / "link.py"
    link.parent.mkdir()
    link.symlink_to(script)
    job = locate(origin(link, module=module))
    assert job_origin(job)["script"] == str(link)
    assert type(locate(job_origin(job))) is type(job)
    assert str(script.parent) in shipping.FOLDERS


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"share": "abc"}, "Mine.share is 'abc' (str), expected float"),
        ({"share": "0.5"}, "Mine.share is '0.5' (str), expected float"),
        ({"large": "inf"}, "Mine.large is 'inf' (str), expected int"),
        ({"large": "7"}, "Mine.large is '7' (str), expected int"),
        ({"many": ["1", "inf"]}, "Mine.many is '1' (str), expected float"),
    ],
)
def test_a_parameter_of_another_type(script: Path, parameters: dict[str, Any], message: str) -> None:
    """Only what was a number is one: a code that has changed says what it expects."""
    with refusing(message):
        locate(origin(script, parameters=parameters))


@given(st.one_of(st.floats(allow_nan=False), st.integers()))
def test_each_number_is_itself_again(value: float) -> None:
    again = as_recorded(json.loads(orjson.dumps(recorded_scalar(value))), type(value))
    assert (again, type(again)) == (value, type(value))


def test_a_file_that_moved(script: Path, tmp_path: Path) -> None:
    """Where the file is now is said with --job; the error says so."""
    moved = tmp_path / "elsewhere" / "renamed.py"
    moved.parent.mkdir()
    recorded = origin(script)
    script.rename(moved)
    (script.parent / "beside.py").rename(moved.parent / "beside.py")
    with refusing(f"was in {script}, which does not exist now (under `ray job submit`"):
        locate(recorded)
    with refusing("pass its file: curate retry OUTPUT --job PATH"):
        locate(recorded)
    assert type(locate(recorded, script=str(moved))).__name__ == "Mine"
    with refusing("the file 'nothing.py' does not exist"):
        locate(recorded, script="nothing.py")


@pytest.mark.parametrize("marked", [True, False], ids=["with __init__.py", "without"])
def test_the_path_of_a_part_of_a_package(tmp_path: Path, marked: bool) -> None:
    """Named as a job is on a command line. Python refuses its relative import to a module that is in no package."""
    package = tmp_path / "a place" / f"pack_{marked}" / "sub"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        if marked:
            (folder / "__init__.py").touch()
    (package.parent / "helper.py").write_text("WORD = 'from a relative import'\n")
    job = "from curate import Job\nfrom ..helper import WORD\nclass Mine(Job):\n    version = WORD\n"
    (package / "jobs.py").write_text(job)
    found = named_job(str(package / "jobs.py"))
    assert (found.__module__, found.version) == (f"pack_{marked}.sub.jobs", "from a relative import")


def test_a_package_that_moved(tmp_path: Path) -> None:
    """With relative imports: the module's own name says where its package begins."""
    package = tmp_path / "now" / "pack" / "sub"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "helper.py").write_text("WORD = 'from a relative import'\n")
    (package / "jobs.py").write_text(
        textwrap.dedent(
            """
            from curate import Job
            from ..helper import WORD

            class Mine(Job):
                version = WORD
                def process(self, batch):
                    return batch
            """
        )
    )
    recorded = origin(tmp_path / "then" / "pack" / "sub" / "jobs.py", module="pack.sub.jobs")
    job = locate(recorded, script=str(package / "jobs.py"))
    assert (type(job).__module__, job.version) == ("pack.sub.jobs", "from a relative import")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No module named"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("def f(:", "cannot be imported: SyntaxError"),
        ("import sys; sys.exit(0)", 'put the code that runs the job under if __name__ == "__main__":'),
        (
            "import curate\nclass Made(curate.Job):\n  version = '1'\n  process = lambda self, b: b\nMade.main()",
            'broken.py runs a job when it is imported; put the code that runs the job under if __name__ == "__main__":',
        ),
        ("from curate import Job\nclass Mime(Job):\n  version = '1'", "has no job 'Mine'; did you mean 'Mime'?"),
        ("class Mine: pass", "has no job 'Mine'"),
    ],
)
def test_what_cannot_be_imported_is_said(tmp_path: Path, text: str, message: str) -> None:
    """With the file's name; and what was half imported is forgotten, so that a mended file is read."""
    path = tmp_path / "broken.py"
    path.write_text(text)
    with refusing(message):
        locate(origin(path))
    if "Mi" not in text:
        path.write_text(SCRIPT.replace("import beside\n", ""))
        assert type(locate(origin(path))).__name__ == "Mine"


def test_a_parameter_that_is_no_more(script: Path) -> None:
    """The class changed: its own error says what it takes."""
    with refusing("Mine has no parameter 'wrd'; did you mean 'word'?"):
        locate(origin(script, parameters={"wrd": "x"}))


def test_a_class_made_in_a_function_is_refused() -> None:
    """It cannot be found by name; running the job as before still can retry it."""

    class Local(Job):
        version = "1"

        def process(self, batch: Any) -> Any:
            return batch

    with refusing("was defined inside a function"):
        locate(job_origin(Local()))


@pytest.mark.slow
def test_a_class_without_a_file_is_refused() -> None:
    """A notebook, or a program from standard input."""
    program = (
        "import json\nfrom curate import Job\nclass Mine(Job):\n  version = '1'\n  def process(self, batch): pass\n"
        "print(json.dumps(Mine().spec().record.origin))"
    )
    done = subprocess.run([sys.executable], input=program, capture_output=True, text=True, check=True)
    recorded = json.loads(done.stdout)
    assert recorded["script"] == ""
    with refusing("was not defined in a file (but in a notebook"):
        locate(recorded)


@pytest.mark.parametrize("used", [True, False])
def test_two_jobs_with_a_module_of_one_name_beside_them(used: bool, tmp_path: Path) -> None:
    """A process knows one of them: refused, if the second job uses its own; else nothing has to do with it."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same_helper.py").write_text(f"MARK = {name!r}\n")
        body = "import same_helper\n" if used or name == "a" else ""
        (tmp_path / name / f"job_{name}.py").write_text(f"{body}{SCRIPT.replace('import beside', '')}")
    try:
        imported(str(tmp_path / "a" / "job_a.py"))
        assert sys.modules["same_helper"].MARK == "a"
        if used:
            with refusing("imports 'same_helper' from beside it, and another job imported a module of that name"):
                imported(str(tmp_path / "b" / "job_b.py"))
        else:
            imported(str(tmp_path / "b" / "job_b.py"))
        assert sys.modules["same_helper"].MARK == "a"
    finally:
        sys.modules.pop("same_helper", None)
