"""scripts/in_venv.py: each Python script runs in .venv, whichever Python and folder it was started from."""

from __future__ import annotations

import json
import os
import sys
import venv
from pathlib import Path

import pytest

from tests.support.checkout import SCRIPTS, Checkout

PYTHON = "#!/usr/bin/env python3\n"
NAMES = sorted(path.name for path in SCRIPTS.iterdir() if path.is_file() and path.read_text().startswith(PYTHON))
PROBE = f"{PYTHON}import in_venv\nimport sys\nprint(sys.prefix)\n"


@pytest.fixture
def probe(checkout: Checkout) -> Path:
    """A script that prints which environment it runs in, beside the real in_venv.py."""
    path = checkout.root / "scripts" / "probe"
    path.write_text(PROBE)
    return path


def test_no_script_is_left_out() -> None:
    """All that can be run are Python's or the shell's: those have venv.sh."""
    runnable = {
        path.name: path.read_text() for path in SCRIPTS.iterdir() if os.access(path, os.X_OK) and path.is_file()
    }
    others = {name: text for name, text in runnable.items() if name not in NAMES}
    assert NAMES == ["bench", "chaos", "cluster", "compare", "corpus", "docs", "simulate"]
    assert all(text.startswith("#!/usr/bin/env bash\n") and "venv.sh" in text for text in others.values())


@pytest.mark.ci(3)
@pytest.mark.quick(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_script_goes_on_in_a_venv_that_is_made(checkout: Checkout, name: str) -> None:
    """With its arguments as they were given, and before it imports anything that only .venv has."""
    script = checkout.root / "scripts" / name
    script.write_text((SCRIPTS / name).read_text())
    code, _, err = checkout.run(f"{sys.executable} -S {script} one --two 'three four'")
    assert code == 0, err
    assert "Making .venv" in err
    assert checkout.calls() == [f"python {script} one --two three four"]


def test_in_the_venv_it_stays(checkout: Checkout, probe: Path) -> None:
    """No matter whether that was made from the newest lock file: who names a Python gets it."""
    venv.create(checkout.root / ".venv", symlinks=True, with_pip=False)
    code, out, err = checkout.run(f"{checkout.root}/.venv/bin/python {probe}")
    assert (code, out) == (0, f"{checkout.root}/.venv\n"), err
    assert checkout.venvs_made() == 0


@pytest.mark.parametrize("here", [True, False])
def test_where_this_checkout_is_installed_it_stays(checkout: Checkout, probe: Path, tmp_path: Path, here: bool) -> None:
    """Such as in an image; another checkout's curate is not enough."""
    other = tmp_path / "other"
    venv.create(other, symlinks=True, with_pip=False)
    installed = next(other.glob("lib/python*/site-packages")) / "curate-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: curate\nVersion: 0\n")
    folder = checkout.root if here else tmp_path
    (installed / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}))
    code, out, err = checkout.run(f"{other}/bin/python {probe}")
    assert code == 0, err
    if here:
        assert (out, checkout.calls()) == (f"{other}\n", [])
    else:
        assert checkout.calls() == [f"python {probe}"]


def test_who_imports_a_script_runs_on(checkout: Checkout, probe: Path) -> None:
    """As tests of scripts do."""
    code, out, err = checkout.run(
        f"{sys.executable} -S -c 'import sys; sys.path[0] = \"{probe.parent}\"; import in_venv'"
    )
    assert (code, out, err) == (0, "", "")
    assert checkout.calls() == []
