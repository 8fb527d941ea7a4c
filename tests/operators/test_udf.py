"""What a function of the user's is called with, and where it runs: options that all methods take alike."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest

import curate


@pytest.mark.parametrize("method", ["map_batches", "map", "flat_map", "filter"])
def test_an_option_that_there_is_not_is_refused(method: str) -> None:
    """As Python refuses it, and with the one that was meant."""
    given: dict[str, Any] = {"num_gpu": 1}
    with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected keyword argument 'num_gpu'; did you mean"):
        getattr(curate.range(2), method)(lambda row: row, **given)
    with pytest.raises(TypeError, match=r"map_groups\(\) got an unexpected keyword argument 'num_gpu'"):
        curate.range(2).groupby("id").map_groups(lambda group: group, **given)


def test_it_is_refused_beside_an_expression_too() -> None:
    """Which runs nowhere."""
    with pytest.raises(TypeError, match=r"filter\(\) got an unexpected keyword argument 'fn_arg'"):
        curate.range(2).filter(pc.field("id") > 0, **{"fn_arg": [1]})
