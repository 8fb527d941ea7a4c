"""Workers run the curate that the driver runs, or nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import curate
from curate.backends.ray.versions import check_of_workers, digest_of, refuse_other_code
from curate.errors import ConfigError
from curate.runtime.shipping import pickle_value
from tests.support.fakes import NEVER_S

HERE = Path(curate.__file__).parent
DRIVER = """
import sys
from pathlib import Path
from curate.errors import ConfigError
from curate.runtime.protocol import PoolSpec, Resources
from curate.backends.ray.backend import RayBackend
from tests.backends.calling import Calling
from tests.backends.pooling import Conducting, Serving

backend = RayBackend()
backend.start(Resources())
try:
    if sys.argv[1] == "pool":
        backend.load(Conducting(), [PoolSpec("echo", Serving(Path("")), Resources(num_cpus=0.5))])
    else:
        backend.load(Calling())
        backend.launch(1, [(abs, -7)], int(sys.argv[1]))
        while True:
            print(backend.poll(30.0))
except ConfigError as error:
    print("refused:", error)
"""


def asked(folder: Path) -> str:
    """Returns what the check says in a process that finds curate in a folder, empty if nothing is wrong."""
    code = "import pickle, sys\ntry: pickle.load(sys.stdin.buffer)()\nexcept ImportError as e: print(e)"
    return subprocess.run(
        [sys.executable, "-c", code],
        input=pickle_value(check_of_workers()),
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        check=True,
    ).stdout.decode()


def copied(folder: Path) -> Path:
    """Returns the copy of curate below a folder."""
    return Path(shutil.copytree(HERE, folder / "curate", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.slow
def test_the_same_code_elsewhere_will_do(tmp_path: Path) -> None:
    """Installed here and unpacked there, it is the same."""
    copied(tmp_path)
    assert asked(tmp_path) == ""
    assert asked(HERE.parent) == ""


def test_other_code_is_told_in_one_line(tmp_path: Path) -> None:
    """Of the same version too, with one file changed; both sides are named."""
    stale = copied(tmp_path)
    with (stale / "units.py").open("a") as out:
        out.write("# older\n")
    said = asked(tmp_path)
    assert said.count("\n") == 1
    assert f"import curate {curate.__version__} (code {digest_of(stale)}) from {stale}, and the driver runs" in said
    assert f"(code {digest_of(HERE)}) from {HERE} on " in said
    with pytest.raises(ConfigError, match=r"workers on .*; install the same curate on all nodes, or ship it") as caught:
        refuse_other_code(RuntimeError(f"Traceback\n  File\nImportError: {said}\nmore of it"))
    assert "more of it" not in str(caught.value)


def test_what_cannot_be_asked_need_not_be(tmp_path: Path) -> None:
    """A curate with nothing in it but its version, or none, answers too; other errors are not taken for an answer."""
    (tmp_path / "curate").mkdir()
    (tmp_path / "curate/__init__.py").write_text('__version__ = "0.0.1"')
    assert "import curate 0.0.1 (code " in asked(tmp_path)
    (tmp_path / "curate/__init__.py").write_text("raise ImportError('no pyarrow')")
    assert "cannot import curate: no pyarrow" in asked(tmp_path)
    refuse_other_code(RuntimeError("ImportError: no module named torch"))


@pytest.mark.slow
@pytest.mark.ray_lane
def test_stale_workers_are_refused(tmp_path: Path) -> None:
    """By the first task that gets there, alone or bundled, and by the first actor."""
    from ray.cluster_utils import Cluster

    stale = copied(tmp_path)
    shutil.copytree(HERE.parent / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (stale / "units.py").write_text((stale / "units.py").read_text() + "# older\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            elsewhere = tmp_path / "elsewhere"
            elsewhere.mkdir()
            for what in ("1", "2", "pool"):
                ended = subprocess.run(
                    [sys.executable, "-c", DRIVER, what],
                    env=os.environ | {"PYTHONPATH": str(HERE.parent), "RAY_ADDRESS": cluster.address},
                    cwd=elsewhere,
                    capture_output=True,
                    text=True,
                    timeout=NEVER_S,
                    check=True,
                )
                assert f"from {stale}, and the driver runs" in ended.stdout, what + ended.stdout + ended.stderr
                assert ended.stdout.startswith("refused: workers on "), what
        finally:
            cluster.shutdown()
