"""scripts/test: every check runs, a failed one is named and shown, and any failure fails the whole."""

from __future__ import annotations

from tests.scripts.checkout import Checkout

CHECKS = ["ruff check --quiet .", "ruff format --check .", "mypy ", "lint-imports "]


def test_all_checks_then_the_tests(checkout: Checkout) -> None:
    """What a passing check prints is not shown; what pytest prints is."""
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test -k 'one or two' -x")
    assert code == 0
    assert checkout.calls() == [*CHECKS, "python -m pytest -k one or two -x"]
    assert "output of mypy" not in out
    assert "output of python -m pytest" in out


def test_slow_takes_all_tests(checkout: Checkout) -> None:
    """An empty -m overrides the one in pyproject.toml, which leaves the slow ones out."""
    checkout.run(f"{checkout.root}/scripts/test --slow -x")
    assert checkout.calls()[-1] == "python -m pytest -m  -x"


def test_a_failed_check_stops_nothing_and_fails_in_the_end(checkout: Checkout) -> None:
    checkout.fail("ruff")
    checkout.fail("mypy", 2)
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test")
    assert code == 1
    assert checkout.calls() == [*CHECKS, "python -m pytest"]
    assert "FAILED  mypy\noutput of mypy" in out
    assert "ok      import-linter" in out
    assert out.endswith("Failed: ruff check, ruff format, mypy\n")


def test_failed_tests_fail(checkout: Checkout) -> None:
    checkout.fail("pytest")
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test")
    assert code == 1
    assert out.endswith("Failed: pytest\n")
