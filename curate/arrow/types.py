"""Tests of types that ignore how values are stored, in one place, so that all operators agree.

Text is text and bytes are bytes in any offsets, as views, and bytes also of one size; lists are lists of any offsets,
as views, and of one size. Code that cannot work on one of these ways of storing says so where it asks.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

_ROOMY = pa.int32()
"""What numbers the values of dictionaries that may be more than those of one batch."""


# By their ids: one look for each column of each batch, however small, where Arrow's own tests are a call each.
_TEXT = frozenset(one.id for one in (pa.string(), pa.large_string(), pa.string_view()))
_BINARY = frozenset(one.id for one in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)))
_LIST_VIEW = frozenset(one.id for one in (pa.list_view(_ROOMY), pa.large_list_view(_ROOMY)))
_LIST = _LIST_VIEW | {one.id for one in (pa.list_(_ROOMY), pa.large_list(_ROOMY), pa.list_(_ROOMY, 1))}


def is_text(type: pa.DataType) -> bool:
    """Returns whether values are text."""
    return type.id in _TEXT


def is_binary(type: pa.DataType) -> bool:
    """Returns whether values are bytes."""
    return type.id in _BINARY


def is_text_or_binary(type: pa.DataType) -> bool:
    """Returns whether values are text or bytes."""
    return type.id in _TEXT or type.id in _BINARY


def is_list_view(type: pa.DataType) -> bool:
    """Returns whether values are lists, stored as views: Arrow casts those that have nulls to broken lists."""
    return type.id in _LIST_VIEW


def is_list(type: pa.DataType) -> bool:
    """Returns whether values are lists."""
    return type.id in _LIST


def is_list_of_none(type: pa.DataType) -> bool:
    """Returns whether values are lists that have no elements, all of them."""
    return bool(pt.is_fixed_size_list(type) and not type.list_size)


def is_encoded(type: pa.DataType) -> bool:
    """Returns whether values are stored once for many rows, in a dictionary or as runs."""
    return bool(pt.is_dictionary(type) or pt.is_run_end_encoded(type))


def contains(type: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Returns whether it, or a type in it, is one of those: in an encoding its values, in an extension its storage.

    >>> contains(pa.list_(pa.dictionary(pa.int8(), pa.string())), is_text)
    True
    """
    if isinstance(type, pa.BaseExtensionType):
        return contains(type.storage_type, is_wanted)
    if is_encoded(type):
        return contains(type.value_type, is_wanted)
    return is_wanted(type) or any(contains(type.field(at).type, is_wanted) for at in range(type.num_fields))


def with_children(type: pa.DataType, make: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns a list, struct or map with other types in it; any other type as it is.

    >>> with_children(pa.list_(pa.int8()), lambda _: pa.string())
    ListType(list<item: string>)
    """

    def field(one: pa.Field) -> pa.Field:
        return one.with_type(make(one.type))

    if pt.is_struct(type):
        return pa.struct([field(one) for one in type.fields])
    if pt.is_map(type):
        return pa.map_(field(type.key_field), field(type.item_field), keys_sorted=type.keys_sorted)
    if pt.is_fixed_size_list(type):
        return pa.list_(field(type.value_field), type.list_size)
    makers = (
        (pt.is_list, pa.list_),
        (pt.is_large_list, pa.large_list),
        (pt.is_list_view, pa.list_view),
        (pt.is_large_list_view, pa.large_list_view),
    )
    return next((made(field(type.value_field)) for is_one, made in makers if is_one(type)), type)


def value_type(type: pa.DataType) -> pa.DataType:
    """Returns the type of the values: without a dictionary, runs, or views of text and bytes."""
    if is_encoded(type):
        return value_type(type.value_type)
    if pt.is_string_view(type):
        return pa.string()
    return pa.binary() if pt.is_binary_view(type) else type


def is_view(type: pa.DataType) -> bool:
    """Returns whether values are views of texts, bytes or lists."""
    return bool(is_list_view(type) or pt.is_string_view(type) or pt.is_binary_view(type))


def viewless_type(type: pa.DataType) -> pa.DataType:
    """Returns the type with plain texts, bytes and lists instead of views of them, at any depth.

    >>> viewless_type(pa.list_view(pa.string_view()))
    ListType(list<item: string>)
    """
    if is_list_view(type):
        type = (pa.list_ if pt.is_list_view(type) else pa.large_list)(type.value_field)
    return with_children(value_type(type) if is_view(type) else type, viewless_type)


def roomy_type(type: pa.DataType) -> pa.DataType:
    """Returns the type with dictionaries whose indexes have 32 bits at least, at any depth; but not in views of lists,
    which Arrow does not cast.

    >>> roomy_type(pa.list_(pa.dictionary(pa.int8(), pa.string()))).value_type.index_type
    DataType(int32)
    """
    if pt.is_dictionary(type):
        wide = type.index_type.bit_width >= _ROOMY.bit_width
        return type if wide else pa.dictionary(_ROOMY, type.value_type, type.ordered)
    return type if not type.num_fields or is_list_view(type) else with_children(type, roomy_type)


def plain_type(type: pa.DataType) -> pa.DataType:
    """Returns the type without dictionaries, runs, and views of text and bytes, at any depth."""
    return with_children(value_type(type), plain_type)


def type_to_read(type: pa.DataType) -> pa.DataType:
    """Returns the type as which a file's column is read: the plain one, as Arrow cannot choose rows of views of text.

    One with views of lists keeps what is in these, of which Arrow casts nothing.

    >>> type_to_read(pa.dictionary(pa.int8(), pa.string_view()))
    DataType(string)
    """
    return value_type(type) if contains(type, is_list_view) else plain_type(type)
