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
    """In parts, each beside the others, that have every test once between them; other arguments hold for all."""
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test --slow -x")
    assert code == 0
    parts = ["not slow", "slow and e2e", "slow and not e2e"]
    assert sorted(checkout.calls()[len(CHECKS) :]) == [f"python -m pytest -m {part} -x" for part in parts]
    assert [out.index(f"output of python -m pytest -m {part} -x") for part in parts] == sorted(
        out.index(f"output of python -m pytest -m {part} -x") for part in parts
    )


def test_a_part_that_fails_is_named(checkout: Checkout) -> None:
    checkout.fail("slow and e2e")
    code, out, _ = checkout.run(f"{checkout.root}/scripts/test --slow")
    assert code == 1
    assert out.endswith("Failed: tests: slow and e2e\n")


def test_a_part_without_tests_is_as_well(checkout: Checkout) -> None:
    """Pytest says 5: the arguments have chosen none of them."""
    checkout.fail("slow and not e2e", 5)
    assert checkout.run(f"{checkout.root}/scripts/test --slow -k one")[0] == 0


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
