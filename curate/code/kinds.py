"""What a value is, and has, without a word of its own: a proxy may load what it stands for when it is asked, or raise.

`isinstance` asks a value for its `__class__` where its type is another one, and `getattr` for whatever is not there.
"""

from __future__ import annotations

import types
from typing import Any

_HAS_DICT = (types.GetSetDescriptorType, types.MemberDescriptorType)
Kinds = type | types.UnionType | tuple[Any, ...]


def is_a(value: Any, kinds: Kinds) -> bool:
    """Returns whether a value is of one of some types, whatever it says itself.

    >>> from unittest import mock
    >>> is_a({}, dict | list), is_a(mock.Mock(spec=dict), dict)
    (True, False)
    """
    return issubclass(type(value), kinds)


def own_dict(value: Any) -> dict[str, Any]:
    """Returns the dictionary that a value has its attributes in; an empty one of a value without."""
    found = (vars(base).get("__dict__") for base in type(value).__mro__)
    known = next((one for one in found if type(one) in _HAS_DICT), None)
    return {} if known is None else known.__get__(value)
