"""scripts/venv.sh: one whole .venv per lock file, whatever was interrupted, and however many ask for it at once."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.checkout import SCRIPTS, Checkout
from tests.support.fakes import NEVER_S

LOCKS = ("requirements.lock", "scripts/requirements-extras.lock")


def source(checkout: Checkout) -> str:
    return f"set -euo pipefail; source {checkout.root}/scripts/venv.sh; echo root is $root"


def test_made_once_and_then_left_alone(checkout: Checkout) -> None:
    """The first call says what it does; the next ones say nothing."""
    code, out, err = checkout.run(source(checkout))
    assert (code, out) == (0, f"root is {checkout.root}\n")
    assert "Making .venv with Python 3.11.0" in err
    assert "output of" not in err
    assert checkout.run(source(checkout)) == (0, f"root is {checkout.root}\n", "")
    assert checkout.venvs_made() == 1


@pytest.mark.slow
def test_a_changed_lock_makes_it_anew(checkout: Checkout) -> None:
    """From nothing, so that a package which left the lock is gone from the .venv too."""
    checkout.run(source(checkout))
    (checkout.root / ".venv" / "left-over").touch()
    (checkout.root / "requirements.lock").write_text("one==2\n")
    checkout.run(source(checkout))
    assert checkout.venvs_made() == 2
    assert not (checkout.root / ".venv" / "left-over").exists()


@pytest.mark.slow
def test_a_moved_checkout_makes_it_anew(checkout: Checkout) -> None:
    """The programs in a .venv name their Python by its full path."""
    checkout.run(source(checkout))
    moved = Checkout(checkout.root.parent / "moved")
    shutil.copytree(checkout.root / ".venv", moved.root / ".venv")
    moved.run(source(moved))
    assert moved.venvs_made() == 1


@pytest.mark.slow
def test_one_for_extras(checkout: Checkout) -> None:
    """Made when it is asked for, from a lock of its own. Torch comes first, of one version, so that nothing brings
    another; all else is what the lock names, by hash."""
    asked = f"{source(checkout)}; ensure_venv .venv-extras"
    code, _, err = checkout.run(asked)
    assert code == 0, err
    assert "Making .venv-extras with Python 3.11.0" in err
    root = checkout.root
    assert checkout.installed() == [
        f"--require-hashes -r {root}/requirements.lock",
        f"--no-deps --no-build-isolation -e {root}",
        "--no-deps torch==2.13.0",
        f"--no-deps --require-hashes -r {root}/scripts/requirements-extras.lock",
        f"--no-deps --no-build-isolation -e {root}",
    ]
    assert checkout.run(asked)[2] == ""
    (root / "scripts" / "requirements-extras.lock").write_text("one==2\n")
    assert "Making .venv-extras" in checkout.run(asked)[2]
    assert checkout.venvs_made() == 1


def test_no_lock_brings_torch() -> None:
    """Its other builds are gigabytes."""
    for name in LOCKS:
        lock = (SCRIPTS.parent / name).read_text()
        assert not re.search(r"^(torch|nvidia|triton)", lock, re.MULTILINE)
        assert "://" not in lock


def test_both_locks_agree() -> None:
    """What is in both is of one version: tests of extras run with what all other tests run with."""
    versions = [
        dict(re.findall(r"^([a-z0-9-]+(?:\[.*\])?)==(\S+)", (SCRIPTS.parent / name).read_text(), re.MULTILINE))
        for name in LOCKS
    ]
    shared = versions[0].keys() & versions[1].keys()
    assert len(shared) > 50
    assert {name: versions[0][name] for name in shared} == {name: versions[1][name] for name in shared}


def test_a_failed_installation_shows_what_pip_said_and_is_redone(checkout: Checkout) -> None:
    """So is one that was interrupted: without the stamp, which is written last, a .venv counts for nothing."""
    checkout.fail("pip")
    code, out, err = checkout.run(source(checkout))
    assert (code, out) == (1, "")
    assert "output of python -m pip install" in err
    assert "Making .venv failed" in err
    (checkout.root / "fail-pip").unlink()
    assert checkout.run(source(checkout))[0] == 0
    assert checkout.venvs_made() == 2


def test_concurrent_calls_make_it_once(checkout: Checkout) -> None:
    """The others wait, then find it made."""
    processes = [checkout.start(source(checkout)) for _ in range(5)]
    for process in processes:
        out, _ = process.communicate(timeout=NEVER_S)
        assert (process.returncode, out) == (0, f"root is {checkout.root}\n")
    assert checkout.venvs_made() == 1


def test_no_python_that_will_do(checkout: Checkout) -> None:
    """It is said which versions were looked for."""
    (checkout.root / "too-old").touch()
    code, out, err = checkout.run(source(checkout))
    assert (code, out) == (1, "")
    assert "curate needs Python 3.11 or newer" in err
