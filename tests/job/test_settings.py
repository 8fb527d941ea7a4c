"""The settings of jobs, as `help()` explains them."""

from __future__ import annotations

import inspect
import pydoc
import re

import pytest

import curate
from curate.job.settings import OF_ROWS, SETTINGS

BASES = [curate.Job, curate.FileJob, curate.TextJob]


@pytest.mark.parametrize("base", BASES)
def test_help_explains_every_setting_and_says_whether_it_decides_bytes(base: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(base))
    _, _, of_settings = shown.partition("belong to the identity:")
    of_identity, _, of_runs = of_settings.partition("may differ between runs:")
    own = SETTINGS.keys() - OF_ROWS if base is curate.FileJob else SETTINGS.keys()
    assert set(re.findall(r"- `(\w+)`:", of_settings)) == own
    for name in own:
        setting = SETTINGS[name]
        text = f"- `{name}`: {setting.about[:1].upper()}{setting.about[1:]}."
        where, other = (of_identity, of_runs) if setting.changes_bytes else (of_runs, of_identity)
        assert setting.about
        assert text in where
        assert f"- `{name}`:" not in other


def test_no_attribute_of_a_job_is_without() -> None:
    values = {name: one for name, one in vars(curate.Job).items() if not name.startswith("_")}
    assert SETTINGS.keys() == {
        name for name, one in values.items() if not inspect.isroutine(one) and not isinstance(one, property)
    }


def test_those_that_decide_bytes_are_the_identity() -> None:
    class Parted(curate.Job):
        sides = ("odd",)

        def process(self, batch: object) -> object:
            return {"main": batch, "odd": batch}

    identity = {
        "name" if key == "job" else key for key in Parted(attributes=True, keep_positions=True).spec().record.identity
    }
    assert identity - {"parameters"} == {name for name, one in SETTINGS.items() if one.changes_bytes}


def test_what_a_subclass_says_of_itself_is_its_own() -> None:
    class Mine(curate.TextJob):
        """Counts words."""

    assert Mine.__doc__ == "Counts words."
