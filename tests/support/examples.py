"""How many examples a property is tried with: few in the quick tests, more in CI, many at night. A property names the
number of a thorough trial, of which CI takes a third. Those of CI are always the same ones, so that what fails there
fails on any machine, and again; nights look for new ones."""

from __future__ import annotations

import hypothesis

from tests.support.sweeps import Mode

_FACTORS: dict[str, float] = {Mode.QUICK: 0.1, Mode.CI: 0.33, Mode.NIGHTLY: 5.0}
_FEWEST = 4


def use_profile(mode: Mode) -> None:
    """Has properties that are imported from now on tried as often as tests that are run so try them."""
    # How long an example takes says something about the machine's load, and nothing about a rule.
    most = int(100 * _FACTORS[mode])
    hypothesis.settings.register_profile(
        mode,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        max_examples=most,
        derandomize=mode is not Mode.NIGHTLY,
    )
    hypothesis.settings.load_profile(mode)


def examples(thorough: int) -> int:
    """Returns how many examples are tried now of a property for which so many are a thorough trial."""
    # A worker of Ray's that imports a test's module is told nothing, and tries nothing.
    factor = _FACTORS.get(hypothesis.settings.get_current_profile_name(), 1.0)
    return max(min(_FEWEST, thorough), int(thorough * factor))
