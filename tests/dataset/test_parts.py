"""A Dataset is put together from parts, and is one frozen value all the same."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import FrozenInstanceError, fields
from inspect import signature

import pytest

import curate

PARTS = curate.Dataset.__mro__[1:-1]


def test_a_method_is_in_one_part() -> None:
    """So that the order of the parts means nothing."""
    named = Counter(name for part in PARTS for name in vars(part) if not name.startswith("__"))
    assert [name for name, count in named.items() if count > 1] == []
    own = {name for name in vars(curate.Dataset) if not name.startswith("_")}
    assert own == set()


def test_no_part_has_state_of_its_own() -> None:
    """What a dataset is, its first part says: the plan, and how it runs."""
    ds = curate.range(3)
    assert [one.name for one in fields(ds)] == ["_plan", "_how", "_ran"]
    assert list(signature(curate.Dataset).parameters) == ["_plan", "_how"]
    assert not hasattr(ds, "__dict__")
    with pytest.raises(FrozenInstanceError):
        ds._plan = ds.limit(1)._plan  # type: ignore[misc]


def test_what_a_method_returns_is_a_dataset() -> None:
    """Whichever part it is of; equal by plan and options, and whole after pickling."""
    ds = curate.range(3)
    for made in (ds.limit(2), ds.sort("id"), ds.groupby("id").count(), ds.using(), ds.materialize()):
        assert type(made) is curate.Dataset
        assert type(pickle.loads(pickle.dumps(made))) is curate.Dataset
    assert ds.limit(2) == curate.range(3).limit(2) != ds.limit(1)
    assert repr(ds).startswith("Dataset(")
    assert pickle.loads(pickle.dumps(ds.limit(2))).take_all() == [{"id": 0}, {"id": 1}]
