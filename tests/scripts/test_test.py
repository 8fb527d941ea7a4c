"""scripts/test: every check runs, a failed one is named and shown, and any failure fails the whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.checkout import Checkout
from tests.support.fakes import NEVER_S

ROOT = Path(__file__).parents[2]

CHECKS = ["ruff check --quiet .", "ruff format --check .", "mypy ", "lint-imports "]
LANE = "python -m pytest --durations=25 --durations-min=0.5"
MANY = f"{LANE} -n {len(os.sched_getaffinity(0)) + 2} --maxprocesses 4 --dist worksteal"


def test_all_checks_then_the_tests(checkout: Checkout) -> None:
    """What a passing check prints is not shown; what pytest prints is."""
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test -k 'one or two' -x")
    assert code == 0
    assert checkout.calls() == [*CHECKS, f"{MANY} -k one or two -x"]
    assert "output of mypy" not in out
    assert "output of python -m pytest" in out


@pytest.mark.parametrize("flag", ["", "--slow"])
def test_tests_are_compiled_once_before_they_run(checkout: Checkout, flag: str) -> None:
    """Where they were not yet: each process that runs them would compile them all. What that says is said again."""
    checkout.compiled.unlink()
    checkout.fail("--collect-only")
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test {flag}")
    assert code == 0
    calls = [call for call in checkout.calls() if " -m pytest " in call]
    assert calls[0] == "python -m pytest --collect-only -q -m ray_lane"
    assert sum("--collect-only" in call for call in calls) == 1
    assert "--collect-only" not in out


@pytest.mark.quick(1)
@pytest.mark.parametrize(("flag", "given"), [("--slow", ""), ("--nightly", "--nightly ")])
def test_slow_takes_all_tests_in_two_lanes(checkout: Checkout, flag: str, given: str) -> None:
    """Each is in one of them: those that run two at a time run beside the others."""
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test {flag} -x")
    assert code == 0
    lanes = [f"{LANE} -n 2 --dist loadfile -v -m ray_lane {given}-x", f"{MANY} -m not ray_lane {given}-x"]
    assert sorted(checkout.calls()) == sorted([*CHECKS, *lanes])
    assert all(f"output of {one}" in out for one in lanes)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("given", "files"), [("", "tests/e2e/test_one.py tests/test_two.py"), ("-x", "-x"), ("--nightly", "--nightly")]
)
def test_the_smaller_lane_looks_through_files_that_have_some(checkout: Checkout, given: str, files: str) -> None:
    """As they were found when all were compiled; of other tests, which may be in others, it looks through all."""
    checkout.compiled.unlink()
    checkout.says(
        "--collect-only",
        "tests/test_two.py::test_it\ntests/e2e/test_one.py::A::test_it[a::b]\n2 tests collected in 1 s\n",
    )
    code, _, err = checkout.run(f"{checkout.root}/scripts/test --slow {given}")
    assert code == 0, err
    assert f"{LANE} -n 2 --dist loadfile -v -m ray_lane {files}" in checkout.calls()


@pytest.mark.quick(1)
@pytest.mark.parametrize("code", [1, 137])
@pytest.mark.parametrize(
    "failing",
    [["not ray_lane"], ["ray_lane"], ["extras"], ["ray_lane", "extras"], ["not ray_lane", "ray_lane", "extras"]],
)
def test_a_lane_that_fails_fails_the_whole(checkout: Checkout, failing: list[str], code: int) -> None:
    """Each that did is named, whatever it ended with; the others are run."""
    with_extras(checkout)
    for lane in failing:
        checkout.fail(lane, code)
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test --slow --extras")
    assert code == 1
    names = {"not ray_lane": "pytest", "ray_lane": "pytest -m ray_lane", "extras": "pytest --extras"}
    assert out.endswith(f"Failed: {', '.join(names[lane] for lane in failing)}\n")
    assert sum(" -m pytest " in call for call in checkout.calls()) == len(names)


def with_extras(checkout: Checkout) -> None:
    """Two files of tests, one of them of the extras."""
    (checkout.root / "tests" / "jobs").mkdir(parents=True)
    (checkout.root / "tests" / "jobs" / "test_one.py").write_text("@pytest.mark.extras\n")
    (checkout.root / "tests" / "test_two.py").write_text("@pytest.mark.slow\n")


@pytest.mark.slow
def test_what_runs_the_lanes_beside_is_killed(checkout: Checkout) -> None:
    """Nobody says then what passed."""
    checkout.hold("ray_lane")
    process = checkout.start(f"exec {checkout.root}/scripts/test --slow")
    while not (begun := list(checkout.root.glob("hold.*"))):
        assert process.poll() is None
        time.sleep(0.02)
    lane = int(begun[0].suffix[1:])
    runs_it = int(Path(f"/proc/{lane}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(runs_it, signal.SIGKILL)
    os.kill(lane, signal.SIGKILL)
    out, _ = process.communicate(timeout=NEVER_S)
    assert (process.returncode, out.splitlines()[-1]) == (1, "Failed: pytest -m ray_lane")


@pytest.mark.slow
def test_no_test_that_matches_in_one_lane_is_no_failure(checkout: Checkout) -> None:
    """In none it is."""
    checkout.fail("ray_lane", 5)
    assert checkout.run(f"{checkout.root}/scripts/test --slow -k one")[0] == 0
    checkout.fail("not ray_lane", 5)
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test --slow -k one")
    assert (code, out.endswith("Failed: pytest found no test\n")) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_no_lane_goes_on(checkout: Checkout, number: signal.Signals) -> None:
    """Ctrl-C reaches what both have started; another signal, which only the script gets, ends them too, before it."""
    with_extras(checkout)
    checkout.hold()
    process = checkout.start(f"exec {checkout.root}/scripts/test --slow --extras")
    while not (begun := list(checkout.root.glob("hold.*"))) or len(begun) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=NEVER_S)
    for one in begun:
        while Path(f"/proc/{one.suffix[1:]}").exists():
            time.sleep(0.02)
    assert sum(" -m pytest " in call for call in checkout.calls()) == len(begun)


@pytest.mark.parametrize("flag", ["", "--slow"])
def test_extras_are_tested_where_they_are_installed(checkout: Checkout, flag: str) -> None:
    """In an environment of their own; of all tests only those files that have some. Of the slow ones behind those that
    start Ray."""
    with_extras(checkout)
    code, out, err = checkout.run(f"{checkout.root}/scripts/test {flag} --extras -x")
    assert code == 0, err
    own = "python -m pytest --extras -m extras tests/jobs/test_one.py -x"
    before = f"{LANE} -n 2 --dist loadfile -v -m ray_lane -x" if flag else f"{MANY} -x"
    calls = checkout.calls()
    assert calls.index(own) > calls.index(before)
    assert f"output of {own}" in out
    assert (checkout.root / ".venv-extras" / "bin" / "python").exists()


@pytest.mark.slow
def test_extras_that_nobody_tests_fail(checkout: Checkout) -> None:
    """All tests would run in their place."""
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test --extras")
    assert code == 1
    assert out.endswith("Failed: pytest --extras\n")
    assert checkout.calls()[-1] == MANY


@pytest.mark.slow
def test_extras_are_skipped_only_where_they_are_missing(tmp_path: Path) -> None:
    """A test that is skipped where it must run has failed: nobody reads what CI skips."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.extras\ndef test_it():\n    pytest.skip('not here')\n"
    )
    base = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", "-m", "extras"]
    for given, code, says in (([], 0, "1 skipped"), (["--extras"], 1, "skipped, though all is there")):
        ended = subprocess.run([*base, *given, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (ended.returncode, says in ended.stdout) == (code, True), ended.stdout


def test_what_continuous_integration_runs() -> None:
    """Everything that there is, and what tests/README.md says."""
    assert "exec scripts/test --slow --extras </dev/null" in (ROOT / ".ci" / "run").read_text()
    assert "scripts/test --slow --extras" in (ROOT / "tests" / "README.md").read_text()


def test_a_failed_check_stops_nothing_and_fails_in_the_end(checkout: Checkout) -> None:
    checkout.fail("ruff")
    checkout.fail("mypy", 2)
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test")
    assert code == 1
    assert checkout.calls() == [*CHECKS, MANY]
    assert "FAILED  mypy\noutput of mypy" in out
    assert "ok      import-linter" in out
    assert out.endswith("Failed: ruff check, ruff format, mypy\n")


def test_failed_tests_fail(checkout: Checkout) -> None:
    checkout.fail("pytest")
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test")
    assert code == 1
    assert out.endswith("Failed: pytest\n")
