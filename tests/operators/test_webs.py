"""Objects that know each other are told in the time that a look at each of them takes, whatever ways lead to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate.code.closures import value_text
from curate.code.compared import compared, is_data
from curate.code.function import callable_text
from curate.code.sources import Sources
from tests.job.modules import Modules

LABEL = (
    "class Label:\n    def __init__(self, name): self.name, self.near = name, []\n"
    "    def __hash__(self): return 0\n"  # a set has them in the order in which they are put in
)
ALL = f"{LABEL}NODES = [Label(n) for n in range(30)]\nfor a in NODES: a.near += [b for b in NODES if b is not a]\n"
CHAIN = f"{LABEL}NODES = [Label(n) for n in range(60)]\nfor a, b in zip(NODES, NODES[1:]): a.near += [b, b]\n"
USE = "def f(row): return NODES[0].near[-1].name\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path / "modules", monkeypatch)


@pytest.mark.parametrize("web", [ALL, CHAIN], ids=["each knows all", "two ways to each next one"])
@pytest.mark.parametrize("last", [0, 29])
def test_each_object_counts_and_is_looked_at_once(web: str, last: int, modules: Modules) -> None:
    """Eight that all knew each other took minutes."""
    texts = []
    for name in ("a", "b", "b"):
        module = modules.load(web + USE, "of_user")
        module.NODES[last].name = name
        texts.append(callable_text("f", module.f))
    assert texts[0] != texts[1] == texts[2]


def test_one_object_twice_is_told_as_two_that_are_equal(modules: Modules) -> None:
    module = modules.load(LABEL, "of_user")
    for name in ("a", "a" * 1000):
        one, two = module.Label(name), module.Label(name)
        assert _text([one, one]) == _text([one, two]) != _text([one, module.Label("b")])


def test_a_set_of_objects_that_know_each_other_is_told_alike_in_every_order(modules: Modules) -> None:
    module = modules.load(LABEL, "of_user")
    nodes = [module.Label(name * 150) for name in "abc"]
    for one, two in itertools.pairwise([*nodes, nodes[0]]):
        one.near.append(two)
    assert len({_text(set(order)) for order in itertools.permutations(nodes)}) == 1


@pytest.mark.parametrize("kind", [list, tuple, lambda one: dict(enumerate(one)), lambda one: [[*one]]])
def test_lists_that_share_others_are_told_in_no_time(kind: Callable[[list[Any]], Any]) -> None:
    """Of forty, each of which has the next one twice, the text had a million million parts."""
    texts = []
    for leaf in (1, 1, 2):
        shared: Any = [[leaf]]
        for _ in range(40):
            shared = kind([shared, shared])
        texts.append(value_text("", shared))
        assert is_data(shared)
    assert texts[0] == texts[1] != texts[2]


def _text(value: object) -> str:
    return value_text("", compared(value, Sources()))
