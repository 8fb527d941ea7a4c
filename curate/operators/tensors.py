"""Columns as tensors of torch, on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from curate.arrow.expressions import refuse_unknown


def to_torch(columns: Mapping[str, np.ndarray[Any, Any]], dtypes: Any = None) -> dict[str, Any]:
    """Returns columns as tensors, lists of one length as further dimensions. Raises TypeError for what is no number, or
    none of its type, and ConfigError for a type of a column that is not there."""
    import torch

    if isinstance(dtypes, Mapping):
        refuse_unknown("iter_torch_batches(dtypes=...)", dtypes, list(columns))
    made: dict[str, Any] = {}
    for name, values in columns.items():
        dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
        numbers = numeric(name, values)
        if isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
            info = torch.iinfo(dtype)
            check_whole(name, numbers, dtype, info.min, info.max)
        made[name] = torch.as_tensor(numbers, dtype=dtype)
    return made


def check_whole(name: str, numbers: np.ndarray[Any, Any], dtype: Any, least: int, most: int) -> None:
    """Raises TypeError for numbers that a type of whole numbers would make others of: NaN, and so null, and those that
    are out of its range. A fraction is cut, as torch does.

    >>> check_whole("n", np.array([1.5, 127]), "int8", -128, 127)
    >>> check_whole("n", np.array([1, np.nan]), "int8", -128, 127)
    Traceback (most recent call last):
    TypeError: column 'n' has null or NaN, which int8 does not hold; fill or filter it before, or leave its dtype out
    """
    if not numbers.size:
        return
    low, high = numbers.min().item(), numbers.max().item()
    found = "null or NaN" if low != low else repr(low) if low <= least - 1 else repr(high) if high >= most + 1 else ""
    if found:
        raise TypeError(
            f"column {name!r} has {found}, which {dtype} does not hold; fill or filter it before, or leave its dtype "
            "out"
        )


def numeric(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a column as an array of numbers, lists of one length as further dimensions. Raises TypeError.

    >>> lists = np.empty(2, object)
    >>> lists[:] = [np.array([1, 2]), np.array([3, 4])]
    >>> numeric("pairs", lists).tolist()
    [[1, 2], [3, 4]]
    """
    try:
        found = np.array(_nested(values)) if values.dtype == object else values
    except ValueError:
        found = values
    if found.dtype.kind not in "biufc":
        kinds = sorted({type(value).__name__ for value in values}) if values.dtype == object else [str(values.dtype)]
        raise TypeError(
            f"column {name!r} cannot become a tensor: it has {' and '.join(kinds)}; a tensor needs numbers, or lists "
            "of numbers of equal length: remove the column with drop_columns, or make the tensors with collate_fn"
        )
    return found


def _nested(values: np.ndarray[Any, Any]) -> list[Any]:
    return [_nested(one) if isinstance(one, np.ndarray) and one.dtype == object else one for one in values]


def moved(made: Any, device: Any, pin_memory: bool) -> Any:
    """Returns tensors, or lists, tuples or dictionaries of them, on a device; anything else as it is."""
    import torch

    if isinstance(made, torch.Tensor):
        made = made.pin_memory() if pin_memory else made
        return made.to(device, non_blocking=pin_memory)
    if isinstance(made, Mapping):
        return {name: moved(one, device, pin_memory) for name, one in made.items()}
    if isinstance(made, list | tuple) and type(made) in (list, tuple):
        return type(made)(moved(one, device, pin_memory) for one in made)
    return made
