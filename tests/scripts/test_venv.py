"""scripts/venv.sh: one whole .venv per lock file, whatever was interrupted, and however many ask for it at once."""

from __future__ import annotations

import shutil

from tests.scripts.checkout import Checkout


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


def test_a_changed_lock_makes_it_anew(checkout: Checkout) -> None:
    """From nothing, so that a package which left the lock is gone from the .venv too."""
    checkout.run(source(checkout))
    (checkout.root / ".venv" / "left-over").touch()
    (checkout.root / "requirements.lock").write_text("one==2\n")
    checkout.run(source(checkout))
    assert checkout.venvs_made() == 2
    assert not (checkout.root / ".venv" / "left-over").exists()


def test_a_moved_checkout_makes_it_anew(checkout: Checkout) -> None:
    """The programs in a .venv name their Python by its full path."""
    checkout.run(source(checkout))
    moved = Checkout(checkout.root.parent / "moved")
    shutil.copytree(checkout.root / ".venv", moved.root / ".venv")
    moved.run(source(moved))
    assert moved.venvs_made() == 1


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
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, f"root is {checkout.root}\n")
    assert checkout.venvs_made() == 1


def test_no_python_that_will_do(checkout: Checkout) -> None:
    """It is said which versions were looked for."""
    (checkout.root / "too-old").touch()
    code, out, err = checkout.run(source(checkout))
    assert (code, out) == (1, "")
    assert "curate needs Python 3.11 or newer" in err
