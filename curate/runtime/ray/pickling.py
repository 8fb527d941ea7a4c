"""Pickled code, as it is sent to workers, for processes that a worker starts itself."""

from __future__ import annotations

from typing import Any

from ray import cloudpickle

from curate.runtime import shipping


def pickle_value(value: Any) -> bytes:
    """Returns bytes of which `pickle.loads` makes `value` in another process; functions of the program included.

    Whatever a module has that can be imported there is referred to by name. Raises what pickling raises.
    """
    for module in shipping.shipped():
        cloudpickle.register_pickle_by_value(module)
    data: bytes = cloudpickle.dumps(value)
    return data
