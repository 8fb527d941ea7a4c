"""What is left out as tests are made is what is left out of all that were made, and only where none is asked for by
name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_TESTS = """
import pytest

def slow(value): return pytest.param(value, marks=pytest.mark.slow)

def on_ray(value): return pytest.param(value, marks=pytest.mark.ray_lane)

@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("a", ["x", slow("y"), on_ray("z")])
def test_many(a, b): ...

@pytest.mark.quick(4)
@pytest.mark.ci(5)
@pytest.mark.parametrize("n", range(9))
def test_some(n): ...

@pytest.mark.ray(2)
@pytest.mark.parametrize("n", range(6))
def test_on(backend, n): ...

@pytest.fixture(params=["inline", on_ray("ray"), pytest.param("all", marks=pytest.mark.nightly)])
def backend(request): ...

@pytest.mark.parametrize("n", [slow(n) for n in range(3)])
def test_all_slow(n): ...

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.nightly
def test_night(): ...

@pytest.mark.slow
class TestSlow:
    def test_one(self): ...

class TestMixed:
    @pytest.mark.ci(1)
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_two(self, n): ...

    @pytest.mark.ray_lane
    def test_three(self): ...

def test_plain(): ...
"""

_RUN = """
import json, sys
import pytest
from tests.support.sweeps import mode_of, of_mode
from tests.support.thinning import Thinning

class Run:
    def __init__(self, thin):
        self.thin, self.made, self.ids = thin, 0, []

    def pytest_addoption(self, parser):
        parser.addoption("--nightly", action="store_true")

    def pytest_configure(self, config):
        self.thinned = self.thin and Thinning.fits(config)
        if self.thinned:
            config.pluginmanager.register(Thinning(config))

    def pytest_itemcollected(self, item):
        self.made += 1

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        items[:] = of_mode(items, mode_of(config))

    def pytest_collection_finish(self, session):
        self.ids = [item.name for item in session.items]

found = []
for arguments in json.loads(sys.argv[1]):
    runs = [Run(False), Run(True)]
    for run in runs:
        assert pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *arguments], plugins=[run]) == 0
    found.append([runs[0].ids, runs[1].ids, runs[0].made, runs[1].made, runs[1].thinned])
print(json.dumps(found))
"""


Found = dict[str, tuple[list[str], list[str], int, int, bool]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What is run without and with it, how many tests are made, and whether any is left out as it is made."""
    folder = tmp_path_factory.mktemp("thin")
    marks = ["quick", "ci", "ray", "ray_lane", "slow", "nightly"]
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n" + "".join(f"    {mark}: a mark\n" for mark in marks))
    (folder / "test_it.py").write_text(_TESTS)
    ways = {
        "quick": ["-m", "not slow"],
        "ci": ["-m", ""],
        "ray": ["-m", "ray_lane"],
        "others": ["-m", "not ray_lane"],
        "both": ["-m", "slow and not ray_lane"],
        "night": ["-m", "", "--nightly"],
        "named": ["-m", "not slow", "-k", "some"],
        "one": ["-m", "not slow", "test_it.py::test_some[3]"],
    }
    command = [sys.executable, "-c", _RUN, json.dumps(list(ways.values()))]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(ways, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.quick
@pytest.mark.parametrize("way", ["quick", "ci", "ray", "others", "both", "night", "named", "one"])
def test_the_same_tests_are_run(found: Found, way: str) -> None:
    whole, thinned, made, left, thins = found[way]
    assert thinned == whole
    assert whole
    assert thins == (way not in ("named", "one"))
    assert left < made if thins and way != "night" else left == made


def test_of_quick_tests_few_more_are_made_than_are_run(found: Found) -> None:
    """One for each test of which all cases are left out."""
    whole, _, made, left, _ = found["quick"]
    assert (len(whole), left, made) == (12, 13, 47)


def test_a_case_can_be_asked_for(found: Found) -> None:
    assert found["one"][1] == ["test_some[3]"]
