"""curate as pip installs it: from a wheel, into an environment of its own, in a folder that is no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job.inline import bytes_of, write_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROWS = [{"id": "1", "body": "what a lovely day it is for a walk"}, {"id": "2", "body": "quel beau jour pour marcher"}]

MINE = '''
import helper
from curate.jobs.toxicity import Toxicity


class Mine(Toxicity):
    """Score texts as they are read aloud: in capitals."""

    def process(self, batch):
        at = batch.column_names.index(self.text_column)
        return super().process(batch.set_column(at, self.text_column, helper.loud(batch[self.text_column])))


if __name__ == "__main__":
    Mine.main()
'''
HELPER = "import pyarrow.compute as pc\n\n\ndef loud(texts):\n    return pc.utf8_upper(texts)\n"


DIGESTS = """
from curate.job.definition import job_digest
from curate.job.locate import jobs_of, packaged, packaged_names
for name in packaged_names():
    for job in jobs_of(packaged(f"curate.jobs.{name}")).values():
        print(name, job_digest(job))
"""


def run(*words: str, cwd: Path) -> str:
    """Returns what a command prints."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # As those of the user, the packages of this process are installed ones for the new environment too.
    environ["PYTHONUSERBASE"] = sys.prefix
    ended = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


class Installed:
    """A virtual environment with the wheel, which finds the other packages where this process has them."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        wheels = folder / "wheels"
        build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", *build, cwd=folder)
        (wheel,) = wheels.glob("curate-*.whl")
        make = ["--system-site-packages", "--without-pip", str(self.bin.parent)]
        run(sys.executable, "-m", "venv", *make, cwd=folder)
        install = ["--python", str(self.bin / "python"), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", *install, cwd=folder)

    def curate(self, *words: str, cwd: Path) -> str:
        """Returns what the command prints."""
        return run(str(self.bin / "curate"), *words, cwd=cwd)

    def python(self, *words: str, cwd: Path) -> str:
        """Returns what Python prints."""
        return run(str(self.bin / "python"), *words, cwd=cwd)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with rows, and a job of the user's in a folder beside them."""
    write_jsonl(tmp_path / "in" / "a.jsonl", ROWS)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(MINE)
    (tmp_path / "own" / "helper.py").write_text(HELPER)
    return tmp_path


def test_it_is_the_wheel_that_runs(installed: Installed, place: Path) -> None:
    """And it has the jobs."""
    program = "import curate, curate.jobs.toxicity as t; print(curate.__file__); print(t.__file__)"
    for file in installed.python("-c", program, cwd=place).splitlines():
        assert Path(file).is_relative_to(installed.bin.parent)
    listed = [line.split()[0] for line in installed.python("-m", "curate", "jobs", cwd=place).splitlines()]
    assert listed == sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))


def test_type_checkers_read_its_hints(installed: Installed, place: Path) -> None:
    """They take the hints of an installed package for none, unless it has a file of this name (PEP 561)."""
    program = "import curate, pathlib; print((pathlib.Path(curate.__file__).parent / 'py.typed').is_file())"
    assert installed.python("-c", program, cwd=place) == "True\n"


def test_its_jobs_are_those_of_the_checkout(installed: Installed, place: Path) -> None:
    """By the digests of their code, down to what they import from one another."""
    assert installed.python("-c", DIGESTS, cwd=place) == run(sys.executable, "-c", DIGESTS, cwd=place)


def test_an_output_of_a_script_is_gone_on_with(installed: Installed, place: Path) -> None:
    """The same bytes and identity; what was run by name is replayed by name."""
    options = ("--input", "in", "--text-column", "body", "--backend", "inline", "--output")
    installed.curate("run", "toxicity", *options, "out", cwd=place)
    assert "a  done" in installed.curate("replay", "out", "--shard", "a", cwd=place)
    script = (sys.executable, str(ROOT / "jobs" / "toxicity.py"), *options)
    run(*script, "script", cwd=place)
    assert bytes_of(place / "out") == bytes_of(place / "script")
    assert json.loads(run(*script, "out", "--json", cwd=place))["shards"]["skipped"] == 1


@pytest.mark.ray_lane
@pytest.mark.ray(0)
@pytest.mark.parametrize("job", ["own/mine.py", "langid"])
def test_on_ray(installed: Installed, place: Path, job: str) -> None:
    """A job that comes with curate, in a pool of actors; and one of the user's that derives from one of those. Its
    file is nowhere that Python looks, and imports one beside it. The bytes are those of the inline backend."""
    for backend in ("ray", "inline"):
        words = ("run", job, "--input", "in", "--text-column", "body", "--backend", backend, "--output", backend)
        installed.curate(*words, cwd=place)
    assert bytes_of(place / "ray") == bytes_of(place / "inline")
