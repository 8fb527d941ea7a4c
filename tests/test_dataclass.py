"""Classes that `curate.dataclass` makes do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import pytest

from curate.dataclass import dataclass

NAN = float("nan")


class Plain:
    """Of each kind of field one."""

    a: int
    b: Any = None
    c: list[int] = field(default_factory=list, compare=False)
    d: int = field(default=4, repr=False, hash=False)
    e: dict[str, int] = field(default_factory=dict, init=False, compare=False)
    f: str = field(default="f", kw_only=True)
    seen: Any = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", (self.a, self.f))


class One:
    """Of a single field."""

    a: Any


class Names:
    """Of names that an `__init__` could use itself."""

    a: int
    set: Any = 2
    list: Any = field(default_factory=dict)
    MISSING: int = 3
    make_list: int = 4


class Empty:
    """Of none."""


class OwnMethods:
    """With methods that are kept."""

    a: int
    b: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


class OwnEquality:
    """With a comparison, and no hash."""

    a: int

    def __eq__(self, other: object) -> bool:
        return True


CLASSES: tuple[type, ...] = (Plain, One, Names, Empty, OwnMethods, OwnEquality)
HOW = [
    {"frozen": frozen, "slots": slots, "eq": eq, "repr": repr, "order": order, "kw_only": kw_only}
    for frozen, slots, eq, repr, order, kw_only in product([False, True], repeat=6)
    if eq or not order
]


def copied(cls: type) -> type:
    """Returns a class of the same body: a decorator changes the one that it is given."""
    kept = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    return type(cls.__name__, (), {name: copy.copy(value) for name, value in kept.items()})


def tried(do: Callable[[], Any]) -> Any:
    """Returns what is returned, or the error that is raised: those of calls name the class as Python does."""
    try:
        return do()
    except Exception as error:  # noqa: BLE001 - compared
        return type(error), str(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_method_does_what_that_of_the_standard_library_does(cls: type) -> None:
    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((), {}),
        ((1,), {}),
        ((), {"a": 1}),
        ((1, 2), {}),
        ((1, 2, [3], 4), {"f": "g"}),
        ((), {"a": 1, "b": 2, "c": [3], "d": 5, "f": "g"}),
        ((1, 2, 3, 4, 5), {}),
        ((NAN,), {}),
        ((1,), {"seen": 2}),
        (([],), {}),
    )
    for how in HOW:
        ours, theirs = (make(**how)(copied(cls)) for make in (dataclass, dataclasses.dataclass))
        for one in (ours, theirs):
            one.__qualname__ = one.__name__
        assert is_dataclass(ours)
        assert ours.__match_args__ == theirs.__match_args__
        assert [(one.name, one.type, one.default, one.kw_only) for one in fields(ours)] == [
            (one.name, one.type, one.default, one.kw_only) for one in fields(theirs)
        ]
        assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
        assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
        made: list[tuple[Any, Any]] = []
        for args, named in calls:
            mine, its = (tried(partial(made_class, *args, **named)) for made_class in (ours, theirs))
            assert (type(mine) is tuple) is (type(its) is tuple), (how, args, named, mine, its)
            if type(mine) is tuple:
                assert mine == its
            else:
                made.append((mine, its))
        for pair in made:
            compare_alone(how, cls, *pair)
        for (mine, its), (other, its_other) in product(made, repeat=2):
            assert (mine == other) is equal(its, its_other)
            for compare in (operator.lt, operator.le, operator.gt, operator.ge):
                said, expected = tried(partial(compare, mine, other)), tried(partial(compare, its, its_other))
                assert said == expected, (how, compare)


def equal(one: Any, other: Any) -> bool:
    """As the standard library compares before Python 3.13, which finds that one with a NaN is not its own copy."""
    made = getattr(type(one).__eq__, "__code__", None)
    if made is not None and made.co_filename != __file__ and type(one) is type(other):
        compared = [field.name for field in fields(one) if field.compare]
        return tuple(getattr(one, name) for name in compared) == tuple(getattr(other, name) for name in compared)
    return bool(one == other)


def compare_alone(how: dict[str, bool], cls: type, mine: Any, its: Any) -> None:
    if how["repr"] or cls is OwnMethods:
        assert repr(mine) == repr(its)
    if how["eq"] or cls in (OwnMethods, OwnEquality):
        assert tried(partial(hash, mine)) == tried(partial(hash, its))
    assert repr(asdict(mine)) == repr(asdict(its))
    assert (mine == 1) is (its == 1)
    assert (mine == copy.copy(mine)) is equal(its, copy.copy(its))
    mine, its = copy.deepcopy((mine, its))
    names = [one.name for one in fields(mine)]
    # There is none of the last name: with slots, the standard library's then takes its class for another one.
    for name in names if how["frozen"] and how["slots"] else (*names, "other"):
        assert tried(partial(setattr, mine, name, 9)) == tried(partial(setattr, its, name, 9))
        assert repr(getattr(mine, name, "-")) == repr(getattr(its, name, "-"))
    for name in names:
        assert tried(partial(delattr, mine, name)) == tried(partial(delattr, its, name))


@dataclass(frozen=True, slots=True)
class Base:
    """One that others derive from, and pickles know."""

    a: int
    b: tuple[int, ...] = ()
    shared: ClassVar[list[int]] = []


@dataclass(frozen=True, slots=True)
class Derived(Base):
    """One with a field more, and a reference to itself."""

    c: Any = None


@dataclass(slots=True, weakref_slot=True)
class Changing:
    """One that changes."""

    a: int


def test_those_that_are_derived_have_the_fields_of_both_and_are_other_ones() -> None:
    assert repr(Derived(1, (2,), 3)) == "Derived(a=1, b=(2,), c=3)"
    assert Derived(1) != Base(1)
    assert Base(1) != Derived(1)
    assert replace(Derived(1), c=2) == Derived(1, (), 2)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        Derived(1).a = 2  # type: ignore[misc]
    one = Derived(1, c=[])
    one.c.append(one)
    assert repr(one) == "Derived(a=1, b=(), c=[...])"


def test_one_may_be_derived_from_one_of_the_standard_library_and_the_other_way_round() -> None:
    """Frozen ones of frozen ones, as there."""

    @dataclasses.dataclass(frozen=True)
    class Theirs(Derived):
        d: int = 0

    @dataclass(frozen=True)
    class Ours(Theirs):
        e: int = 1

    assert Ours(1, d=5) == Ours(1, (), None, 5, 1)
    for one in (Theirs(1), Ours(1)):
        for name in ("a", "d", "other"):
            with pytest.raises(FrozenInstanceError):
                setattr(one, name, 2)
        assert replace(one, a=2).a == 2
    for make in (dataclass, dataclasses.dataclass):
        with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):

            @make
            class Wrong(Derived):  # type: ignore[misc]
                d: int = 0


@pytest.mark.parametrize("one", [Base(1), Derived(1, (2,), [3]), Changing(5)])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_and_copies_are_equal(one: Any, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(one, protocol)) == one
    assert copy.copy(one) == copy.deepcopy(one) == one


def test_a_class_that_takes_no_default_after_one_is_refused() -> None:
    """In the words of the standard library."""
    with pytest.raises(TypeError, match="non-default argument 'b' follows default argument"):

        @dataclass
        class Wrong:
            a: int = 0
            b: int  # type: ignore[misc]
