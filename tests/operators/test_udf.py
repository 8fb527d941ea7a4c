"""What a function of the user's is called with, and where it runs: options that all methods take alike."""

from __future__ import annotations

import re
from inspect import signature
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import curate
from curate.errors import ConfigError, SchemaMismatch
from curate.operators.udf import UdfOptions


@pytest.mark.parametrize("method", ["map_batches", "map", "flat_map", "filter"])
def test_an_option_that_there_is_not_is_refused(method: str) -> None:
    """As Python refuses it, and with the one that was meant."""
    given: dict[str, Any] = {"num_gpu": 1}
    with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected keyword argument 'num_gpu'; did you mean"):
        getattr(curate.range(2), method)(lambda row: row, **given)
    missing = (TypeError, rf"^{method}\(\) missing 1 required positional argument: '")
    raised, says = (ConfigError, "filter takes a function") if method == "filter" else missing
    with pytest.raises(raised, match=says):
        getattr(curate.range(2), method)()
    with pytest.raises(TypeError, match=r"map_groups\(\) got an unexpected keyword argument 'num_gpu'"):
        curate.range(2).groupby("id").map_groups(lambda group: group, **given)


def test_it_is_refused_beside_an_expression_too() -> None:
    """Which runs nowhere."""
    with pytest.raises(TypeError, match=r"filter\(\) got an unexpected keyword argument 'fn_arg'"):
        curate.range(2).filter(pc.field("id") > 0, **{"fn_arg": [1]})


class Same:
    """Gives rows, and batches, as they are."""

    def __call__(self, given: Any) -> Any:
        return given


METHODS = ["map_batches", "map", "flat_map", "filter"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("concurrency", "pool"),
    [(2, curate.ActorPool(size=2)), ((1, 3), curate.ActorPool(min_size=1, max_size=3))],
)
def test_concurrency_is_the_size_of_the_pool_of_a_class(method: str, concurrency: Any, pool: curate.ActorPool) -> None:
    """As in ray.data: a number of actors, or the least and the most. The plan is that of the pool."""
    ds = curate.range(2)
    assert getattr(ds, method)(Same, concurrency=concurrency) == getattr(ds, method)(Same, compute=pool)
    gpu = ds.map_batches(len, num_gpus=1, concurrency=concurrency)
    assert gpu == ds.map_batches(len, num_gpus=1, compute=pool)


def test_a_class_with_concurrency_runs() -> None:
    """In this process with the same rows."""
    assert curate.range(3).map_batches(Same, concurrency=2).count() == 3


@pytest.mark.parametrize(
    ("fn", "given", "told"),
    [
        (
            len,
            {"concurrency": 4},
            r"concurrency=4\) sets the size of a pool, but the function len runs in the reading",
        ),
        (Same, {"concurrency": 0}, r"concurrency=0\): ActorPool: size is 0, expected a whole number, at least 1"),
        (Same, {"concurrency": (3, 1)}, r"concurrency=\(3, 1\)\): ActorPool: min_size 3 is above max_size 1"),
        (Same, {"concurrency": (1, 4, 2)}, r"expected a number of actors, or \(minimum, maximum\) such as \(1, 8\)"),
        (
            Same,
            {"concurrency": 2, "compute": curate.ActorPool(size=2)},
            "both set the size of the pool; pass one of them",
        ),
        (Same, {"compute": "actors"}, r"not a curate.ActorPool; write compute=curate.ActorPool\(size=2\)"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_pool_that_cannot_be_is_refused(method: str, fn: Any, given: dict[str, Any], told: str) -> None:
    """In one line that says what to write."""
    with pytest.raises(ConfigError, match=told):
        getattr(curate.range(2), method)(fn, **given)


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_of_ray_data_is_taken_or_answered(method: str) -> None:
    """None is a bare TypeError: curate has it, or says what to write instead."""
    ray_data = pytest.importorskip("ray.data")
    theirs = [*signature(getattr(ray_data.Dataset, method)).parameters.values()][1:]
    ours = {*signature(getattr(curate.Dataset, method)).parameters, *UdfOptions.__annotations__}
    missing = [one.name for one in theirs if one.name not in ours]
    assert len(missing) > 3
    for name in missing:
        given: dict[str, Any] = {name: 1}
        with pytest.raises(ConfigError, match=rf"{method}\(\) has no {name} in curate: \w"):
            getattr(curate.range(2), method)(len, **given)


def test_the_strategies_of_ray_data_are_answered_with_pools() -> None:
    """Of the same sizes."""
    ray_data = pytest.importorskip("ray.data")
    told = {
        "compute=curate.ActorPool(size=2)": ray_data.ActorPoolStrategy(size=2),
        "compute=curate.ActorPool(min_size=1)": ray_data.ActorPoolStrategy(min_size=1),
        "compute=curate.ActorPool(min_size=1, max_size=4)": ray_data.ActorPoolStrategy(min_size=1, max_size=4),
        "leave it out": ray_data.TaskPoolStrategy(2),
    }
    for text, strategy in told.items():
        with pytest.raises(ConfigError, match=re.escape(text)):
            curate.range(2).map(Same, compute=strategy)


def test_a_filter_is_a_function_or_an_expression() -> None:
    """By place or by name; one of ray.data is taken as that of pyarrow.compute that it stands for."""
    ds = curate.range(4)
    expected = ds.filter(pc.field("id") > 2)
    assert ds.filter(expr=curate.col("id") > curate.lit(2)).take_all() == expected.take_all() == [{"id": 3}]
    for given, told in (
        ({}, "pass one of them"),
        ({"fn": len, "expr": pc.field("id") > 2}, "pass one of them"),
        ({"expr": "id > 2"}, r"text is not an expression: 'id > 2'; name a column with curate.col\('n'\)"),
        ({"expr": 3}, "filter takes a pyarrow.compute expression"),
    ):
        with pytest.raises(ConfigError, match=told):
            ds.filter(**given)
    expressions = pytest.importorskip("ray.data.expressions")
    wanted = expressions.col("id") > 2
    assert ds.filter(expr=wanted).explain() == ds.filter(wanted).explain() == expected.explain()
    assert ds.with_column("n", expressions.col("id") * 2).take(2)[1] == {"id": 1, "n": 2}
    with pytest.raises(ConfigError, match=r"has no equivalent in pyarrow\.compute"):
        ds.with_column("n", expressions.random())


async def later(value: Any) -> Any:
    return value


class Later:
    async def __call__(self, value: Any) -> Any:
        return value


async def several(value: Any) -> Any:
    yield value


@pytest.mark.parametrize("fn", [later, Later, several])
@pytest.mark.parametrize("method", METHODS)
def test_an_async_function_is_refused(method: str, fn: Any) -> None:
    """A filter kept all rows: what is waited for is true, whatever it gives."""
    with pytest.raises(ConfigError, match=rf"{method}\({fn.__name__}\) is an async function.*asyncio\.run"):
        getattr(curate.range(2), method)(fn)


@pytest.mark.parametrize("answer", [later, lambda _: iter([False]), lambda _: (x for x in [False])])
def test_a_filter_refuses_what_is_true_whatever_it_would_give(answer: Any) -> None:
    with pytest.raises(TypeError, match=r"filter\(<lambda>\) returned a .*, expected True or False"):
        curate.range(2).filter(lambda row: answer(row)).count()


@pytest.mark.parametrize(
    "nothing",
    [lambda _: {}, lambda batch: batch.select([]), lambda batch: batch.to_pandas()[[]]],
    ids=["dict", "table", "frame"],
)
def test_a_batch_without_columns_is_refused(nothing: Any) -> None:
    """Its rows were gone, and nothing was said; a batch without rows says itself that there are none."""
    with pytest.raises(SchemaMismatch, match=r"returned no columns; for no rows, return .*batch\[:0\]"):
        curate.range(2).map_batches(nothing).count()
    assert curate.range(2).map_batches(lambda batch: batch[:0]).count() == 0


def test_arrays_of_another_order_of_bytes_and_matrices_are_values() -> None:
    """The one was refused in a batch, and the other a RecursionError."""

    def made(batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        n = batch["id"]
        return {"id": n.astype(">i8"), "f": n.astype(">f4"), "m": np.matrix(n).T, "p": n.astype(">i2").reshape(-1, 1)}

    table = curate.range(2).map_batches(made).to_arrow()
    assert table.to_pylist() == [{"id": n, "f": n, "m": [n], "p": [n]} for n in range(2)]
    assert [str(one) for one in table.schema.types] == ["int64", "float", "list<item: int64>", "list<item: int16>"]


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), "1", True])
@pytest.mark.parametrize("name", ["num_cpus", "num_gpus"])
def test_what_is_no_amount_is_refused(name: str, amount: Any) -> None:
    """When it is given: no machine has as much, and one that runs in this process does not look."""
    given: dict[str, Any] = {name: amount}
    with pytest.raises(ConfigError, match=f"map_batches: {name} is .*, expected a finite number, at least 0"):
        curate.range(2).map_batches(lambda batch: batch, **given)


@pytest.mark.parametrize("name", ["fn_args", "fn_constructor_args"])
@pytest.mark.parametrize("arguments", [5, "ab", b"ab", {"a": 1}])
def test_what_is_no_list_of_arguments_is_refused(name: str, arguments: Any) -> None:
    """A text would be as many arguments as it has characters."""
    given: dict[str, Any] = {name: arguments}
    with pytest.raises(ConfigError, match=rf"^map\({name}=.*: expected a list or a tuple of arguments"):
        curate.range(2).map(lambda row, *_: row, **given)


@pytest.mark.parametrize("name", ["fn_kwargs", "fn_constructor_kwargs"])
@pytest.mark.parametrize("arguments", [5, [], ["a"], {1: 2}])
def test_what_has_no_names_is_refused(name: str, arguments: Any) -> None:
    """Whatever Python would say of it later."""
    given: dict[str, Any] = {name: arguments}
    with pytest.raises(ConfigError, match=rf"^map\({name}=.*: expected arguments by name"):
        curate.range(2).map(lambda row, **_: row, **given)


@pytest.mark.parametrize("name", ["fn_args", "fn_kwargs", "fn_constructor_args", "fn_constructor_kwargs"])
def test_arguments_that_hold_themselves_are_refused(name: str) -> None:
    """It was a RecursionError, in hundreds of lines."""

    class Given:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.given = args, kwargs

        def __call__(self, row: Any, *args: Any, **kwargs: Any) -> Any:
            return row, args, kwargs

    endless: list[Any] = []
    endless.append(endless)
    given: dict[str, Any] = {name: {"a": endless} if name.endswith("kwargs") else [endless]}
    ds = curate.range(2).map(Given, **given)
    with pytest.raises(ConfigError, match=r"^map\(Given\): cannot compare .*: it holds itself, .*; pass plain values"):
        ds.write_parquet("memory://udf/endless", backend="inline")


@pytest.mark.parametrize("method", METHODS)
def test_what_a_class_made_is_called_whether_it_is_empty_or_not(method: str) -> None:
    """One that counts what it saw as its length, of which there is nothing yet, was made anew of the first row."""

    class Seen(Same):
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def __len__(self) -> int:
            return len(self.rows)

        def __call__(self, given: Any) -> Any:
            return [given] if method == "flat_map" else given

    rows = getattr(curate.range(2), method)(Seen).take_all()
    assert rows == [{"id": 0}, {"id": 1}]
