"""What may be given as a path."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import curate
from curate.errors import ConfigError
from curate.operators.arguments import path_texts


def test_paths_are_texts() -> None:
    """One, or several in the order in which they are given."""
    assert path_texts("b", "input") == path_texts(Path("b"), "input") == ["b"]
    assert path_texts(("b", Path("a")), "input") == path_texts((one for one in "ba"), "input") == ["b", "a"]


@pytest.mark.parametrize("given", [None, 5, b"a", [b"a"], [["a"]]])
def test_what_is_no_path_is_refused(given: Any) -> None:
    """By each that takes one, by the name that it is given under."""
    ds = curate.range(1)
    calls = {
        "read_text": lambda: curate.read_text(given),
        "checkpoint": lambda: ds.checkpoint(given),
        "with_attributes": lambda: ds.with_attributes(given),
        "output": lambda: ds.write_parquet(given, backend="inline"),
    }
    for name, call in calls.items():
        with pytest.raises(ConfigError, match=f"^{name}: .* is .*, expected a path as text$"):
            call()


@pytest.mark.parametrize("given", [{"b", "a"}, frozenset("a")])
def test_a_set_of_paths_is_refused(given: Any) -> None:
    """Rows would have another order in each process."""
    with pytest.raises(ConfigError, match=r"^read_text: .* is a set, and rows have the order of the paths"):
        curate.read_text(given)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda ds: ds.repartition(2, seed=1), "repartition(seed=1) has no effect"),
        (lambda ds: ds.train_test_split(0.5, seed=1), "train_test_split(seed=1) has no effect"),
        (
            lambda ds: ds.streaming_train_test_split(0.5, split_type="hash", hash_column="id", seed=1),
            "streaming_train_test_split(seed=1) has no effect: the value in hash_column alone decides",
        ),
        (lambda ds: ds.filter(curate.col("id") > 1, fn_args=[1]), "filter(fn_args=[1]) has no effect"),
        (lambda ds: ds.filter(expr=curate.col("id") > 1, concurrency=2), "filter(concurrency=2) has no effect"),
        (lambda ds: ds.join(ds, on="id", how="semi", left_suffix="_l"), "join(left_suffix='_l') has no effect"),
        (lambda ds: ds.join(ds, on="id", how="anti", right_suffix="_r"), "join(right_suffix='_r') has no effect"),
        (lambda ds: ds.with_column("n", curate.col("id"), num_cpus=2), "with_column(num_cpus=2) has no effect"),
    ],
)
def test_an_argument_without_effect_is_refused(call: Callable[[Any], Any], told: str) -> None:
    """Where it was ignored, two seeds gave the same rows; what is at its default may be given, and says nothing."""
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        call(curate.range(4))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ds: ds.split(2, equal="x"), "split(equal='x'): expected True or False"),
        (lambda ds: ds.iter_batches(drop_last="False"), "iter_batches(drop_last='False'): expected True or False"),
        (lambda ds: ds.repartition(2, shuffle=1), "repartition(shuffle=1): expected True or False"),
        (lambda ds: ds.filter(len, fn_args={1, 2}), "filter(fn_args={1, 2}): expected a list or a tuple"),
    ],
)
def test_what_would_count_as_true_whatever_it_says_is_refused(call: Any, says: str) -> None:
    """By the name of the argument; and a set of arguments, which has another order in each process."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        call(curate.range(4))


def test_what_has_an_effect_is_none_of_these() -> None:
    """Beside what makes it count; and nothing, which is as if it were not given."""
    ds = curate.range(4)
    assert ds.repartition(2, shuffle=True, seed=1).count() == 4
    assert ds.filter(curate.col("id") > 1, fn_args=None, num_cpus=None).count() == 2
    for given in ([1], (1,), np.array([1])):
        assert ds.filter(lambda row, least: row["id"] > least, fn_args=given).count() == 2
    assert ds.filter(lambda row, *bounds: row["id"] > max(bounds), fn_args=np.array([0, 1])).count() == 2
    assert ds.join(ds, on="id", how="semi", left_suffix="", right_suffix="_right").count() == 4


@pytest.mark.parametrize("codec", ["", 0, False])
def test_a_codec_that_is_empty_is_not_the_default(codec: Any, tmp_path: Path) -> None:
    """Only None is."""
    for write in ("write_parquet", "write_json", "write_csv", "write_webdataset"):
        with pytest.raises(ConfigError, match="is not written with codec"):
            getattr(curate.range(4), write)(tmp_path / "out", codec=codec, backend="inline")


def test_a_source_column_that_is_empty_is_not_that_of_the_priority() -> None:
    """Only None is."""
    ds = curate.from_items([{"id": 1, "text": "a", "from": "b"}])
    with pytest.raises(ConfigError, match="there is no column ''"):
        ds.dedup_minhash("text", id_column="id", priority={"from": ["b"]}, source_column="").take_all()
