"""scripts/browser.sh: what tests in a browser need is installed where it is missing and where it may be, once; else it
is said, and the other tests run."""

from __future__ import annotations

import shutil

import orjson
import pytest

from tests.support.checkout import SCRIPTS, Checkout

TOOLS = ("bash", "cat", "cmp", "cp", "dirname", "mkdir", "mktemp", "rm", "tail")
"""What it calls of a system without any browser, beside those that install."""


@pytest.fixture
def bare(checkout: Checkout) -> Checkout:
    """A checkout on a system with the tools alone, whose user is root."""
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (checkout.root / "bin" / name).symlink_to(found)
    (checkout.root / "bin" / "chromium").unlink()
    checkout.stand_in("id", "echo 0")
    return checkout


def ensured(checkout: Checkout) -> tuple[int, str]:
    """Returns exit code and what it said."""
    code, out, err = checkout.run(f"PATH={checkout.root}/bin {shutil.which('bash')} {checkout.root}/scripts/browser.sh")
    assert out == ""
    return code, err


def asked(checkout: Checkout) -> list[str]:
    return [one for one in checkout.installs() if not one.startswith("id ")]


def npm(checkout: Checkout) -> str:
    return f"npm ci --prefix {checkout.root}/.browser --ignore-scripts --no-audit --no-fund"


APT = ["apt-get update", "apt-get install -y --no-install-recommends chromium"]


def test_both_are_installed_once(bare: Checkout) -> None:
    assert ensured(bare)[0] == 0
    assert asked(bare) == [*APT, npm(bare)]
    bare.stand_in("chromium")
    assert ensured(bare) == (0, "")
    assert asked(bare) == []


def test_another_version_is_installed_anew(bare: Checkout) -> None:
    bare.stand_in("chromium")
    assert ensured(bare)[0] == 0
    (bare.root / "scripts" / "browser" / "package-lock.json").write_text("{}")
    asked(bare)
    assert ensured(bare)[0] == 0
    assert asked(bare) == [npm(bare)]


@pytest.mark.parametrize("lacks", ["root", "apt-get"])
def test_who_may_not_is_told(bare: Checkout, lacks: str) -> None:
    """And has what can be had."""
    if lacks == "root":
        bare.stand_in("id", "echo 1000")
    else:
        (bare.root / "bin" / "apt-get").unlink()
    code, err = ensured(bare)
    assert (code, "There is no Chromium" in err, asked(bare)) == (1, True, [npm(bare)])


def test_without_npm(bare: Checkout) -> None:
    (bare.root / "bin" / "npm").unlink()
    code, err = ensured(bare)
    assert (code, "There is no npm" in err, asked(bare)) == (1, True, APT)


def test_what_fails_is_shown_and_tried_again(bare: Checkout) -> None:
    bare.stand_in("npm", "echo no way; exit 1")
    code, err = ensured(bare)
    assert (code, "no way\nInstalling axe-core failed" in err) == (1, True)
    bare.stand_in("npm")
    asked(bare)
    assert ensured(bare)[0] == 0
    assert npm(bare) in asked(bare)


@pytest.mark.slow
def test_other_tests_run_without_it(checkout: Checkout) -> None:
    """Only where all is asked for is anything installed at all."""
    checkout.stand_in("npm", "exit 1")
    (checkout.root / "tests" / "test_one.py").write_text("@pytest.mark.extras\n")
    assert checkout.run(f"{checkout.root}/scripts/test")[0] == 0
    assert checkout.installs() == []
    assert checkout.run(f"{checkout.root}/scripts/test --extras")[0] == 0
    assert checkout.installs() == [npm(checkout)]


def test_the_version_is_pinned_with_its_checksum() -> None:
    """And where it comes from is npm's to know."""
    lock = orjson.loads((SCRIPTS / "browser" / "package-lock.json").read_bytes())
    axe = lock["packages"]["node_modules/axe-core"]
    asked_for = orjson.loads((SCRIPTS / "browser" / "package.json").read_bytes())["dependencies"]
    assert asked_for == {"axe-core": axe["version"]}
    assert axe["integrity"].startswith("sha512-")
    assert "resolved" not in axe
