"""`dataclass`, as of the standard library, in a quarter of its time: half of what an import took was classes made.

The standard library compiles each method of each class from text of its own (Python 3.11, 3.12), 0.2 ms a method. Here
`__init__` alone is compiled, when it is called; the others do the same by the names of the fields. `fields`, `replace`,
`asdict`, `is_dataclass`, pickles and `match` know these classes, and `tests/test_dataclass.py` holds each method to
what the standard library's does. Either may be derived from the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING as MISSING
from dataclasses import asdict as asdict
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import replace as replace
from operator import attrgetter, eq, ge, gt, le, lt
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        repr: bool = True,
        eq: bool = True,
        order: bool = False,
        frozen: bool = False,
        kw_only: bool = False,
        slots: bool = False,
        weakref_slot: bool = False,
    ) -> Any:
        """Makes a class a dataclass: what `dataclasses.dataclass` does, with these of its arguments."""
        if cls is None:
            how = {"repr": repr, "eq": eq, "order": order, "frozen": frozen, "kw_only": kw_only}
            return lambda made: dataclass(made, **how, slots=slots, weakref_slot=weakref_slot)
        own = set(cls.__dict__)
        explicit_hash = cls.__dict__.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
        if "__doc__" not in own or cls.__doc__ is None:
            cls.__doc__ = cls.__name__  # else a signature is looked for, which there is none of yet
        # Where it is not frozen, nothing is compiled, and a base that is frozen wants those that are derived to be so.
        how = {"frozen": frozen and is_frozen(cls), "slots": slots, "kw_only": kw_only, "weakref_slot": weakref_slot}
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, **how)(cls)
        cls.__dataclass_params__.frozen = frozen
        _refuse_order(cls)
        if "__init__" not in own:
            cls.__init__ = _Init(cls, frozen)
        methods: dict[str, Any] = {}
        if repr:
            methods["__repr__"] = _repr(cls)
        if eq:
            methods |= _compared(cls, order)
            if not explicit_hash:
                methods["__hash__"] = _hash(cls) if frozen else None
        if frozen:
            methods |= _frozen(cls)
        for name, method in methods.items():
            if name not in own or name == "__hash__":
                setattr(cls, name, None if method is None else _named(method, name, cls))
        return cls


def is_frozen(cls: Any) -> bool:
    """Returns whether a class, or one that it is derived from, is a dataclass whose fields are never set again."""
    return any(
        one.__dict__["__dataclass_params__"].frozen for one in cls.__mro__ if "__dataclass_params__" in one.__dict__
    )


def _named(method: Any, name: str, cls: type) -> Any:
    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    return method


class _Init:
    """In place of the `__init__` of a class until somebody asks for it: a run makes objects of a third of the classes
    that it imports, and to compile one takes 0.07 ms."""

    def __init__(self, cls: type, frozen: bool) -> None:
        self._cls, self._frozen = cls, frozen

    def __get__(self, instance: object, owner: type) -> Any:
        init = _named(_init(self._cls, self._frozen), "__init__", self._cls)
        if self._cls.__dict__.get("__init__") is self:
            self._cls.__init__ = init
        return init.__get__(instance, owner)


def _refuse_order(cls: type) -> None:
    """Raises TypeError for a field without a default behind one that has one."""
    has_default = False
    for one in fields(cls):
        if one.init and not one.kw_only:
            if has_default and one.default is MISSING and one.default_factory is MISSING:
                raise TypeError(f"non-default argument {one.name!r} follows default argument")
            has_default = has_default or one.default is not MISSING or one.default_factory is not MISSING


def _init(cls: type, frozen: bool) -> Callable[..., None]:
    """Returns an `__init__` that takes the fields, in order, those by name alone last."""
    names: dict[str, Any] = {"_set_": object.__setattr__, "_missing_": MISSING}
    by_place: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    hints: dict[str, Any] = {}
    for one in fields(cls):
        name, value = one.name, one.name
        made = one.default_factory is not MISSING
        if one.init:
            hints[name] = one.type
            taken = name
            if made:
                names[f"_make_{name}_"] = one.default_factory
                taken, value = f"{name}=_missing_", f"_make_{name}_() if {name} is _missing_ else {name}"
            elif one.default is not MISSING:
                names[f"_default_{name}_"] = one.default
                taken = f"{name}=_default_{name}_"
            (by_name if one.kw_only else by_place).append(taken)
        elif made:
            names[f"_make_{name}_"], value = one.default_factory, f"_make_{name}_()"
        elif one.default is not MISSING and "__slots__" in cls.__dict__:
            names[f"_default_{name}_"], value = one.default, f"_default_{name}_"
        else:
            continue
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif (slot := _slot(cls, name)) is not None:
            names[f"_set_{name}_"] = slot.__set__
            body.append(f"_set_{name}_(self, {value})")
        else:
            body.append(f"_set_(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    taken = ", ".join(["self", *by_place, *(["*", *by_name] if by_name else [])])
    made_here: dict[str, Any] = {}
    exec(f"def __init__({taken}):\n " + "\n ".join(body or ["pass"]), names, made_here)
    init: Callable[..., None] = made_here["__init__"]
    init.__annotations__ = {**hints, "return": None}
    return init


def _slot(cls: type, name: str) -> Any:
    """Returns what sets and gets a field that has a slot, two times as fast as by its name; None: it has none."""
    found = getattr(cls, name, None)
    return found if isinstance(found, MemberDescriptorType) else None


def _repr(cls: type) -> Callable[[Any], str]:
    shown = [one.name for one in fields(cls) if one.repr]

    @recursive_repr()
    def text(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    return text


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns what takes the values of these fields from an object."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    (name,) = names
    return lambda self: (getattr(self, name),)


def _compared(cls: type, order: bool) -> dict[str, Any]:
    values = _values([one.name for one in fields(cls) if one.compare])

    def by(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
        def compared(self: Any, other: Any) -> Any:
            return compare(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

        return compared

    return {f"__{one.__name__}__": by(one) for one in ((eq, lt, le, gt, ge) if order else (eq,))}


def _hash(cls: type) -> Callable[[Any], int]:
    hashed = [one.name for one in fields(cls) if (one.compare if one.hash is None else one.hash)]
    values = _values(hashed)
    return lambda self: hash(values(self))


def _frozen(cls: type) -> dict[str, Any]:
    names = frozenset(one.name for one in fields(cls))

    def set_one(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def delete_one(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return {"__setattr__": set_one, "__delattr__": delete_one, **(_pickled(cls) if "__slots__" in cls.__dict__ else {})}


def _pickled(cls: type) -> dict[str, Any]:
    in_order = [one.name for one in fields(cls)]
    values, slots = _values(in_order), [_slot(cls, name) for name in in_order]
    setters = None if None in slots else [slot.__set__ for slot in slots]

    def state_of(self: Any) -> list[Any]:
        return list(values(self)) if type(self) is cls else [getattr(self, one.name) for one in fields(self)]

    def take(self: Any, state: list[Any]) -> None:
        if type(self) is cls and setters is not None:
            for set_one, value in zip(setters, state, strict=True):
                set_one(self, value)
            return
        for one, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, one.name, value)

    return {"__getstate__": state_of, "__setstate__": take}
