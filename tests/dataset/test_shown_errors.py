"""What a program sees of an error in a function of a dataset: its own lines, one message, and where that was."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest

import curate
from curate.errors import ConfigError, SchemaMismatch, WriteFailed
from tests.support.errors import UNTOUCHABLE

CURATE = str(Path(curate.__file__).parent)
IMAGES = pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 2, 2), np.float32))})


def wrong(row: dict[str, Any]) -> dict[str, Any]:
    """Raises."""
    return {"x": 1 // (row["id"] - row["id"])}


def frames(error: BaseException) -> list[str]:
    """Returns the functions of an error's frames behind those of the test and of what it calls."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.quick
@pytest.mark.parametrize(
    "consume",
    [
        lambda ds: ds.take_all(),
        lambda ds: ds.limit(1).map(wrong).schema(),
        lambda ds: ds.count(),
        lambda ds: list(ds.iter_batches(prefetch_batches=0)),
        lambda ds: ds.zip(curate.range(3)).take_all(),
    ],
)
def test_what_curate_did_before_is_not_shown(consume: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of curate's frames those alone that the program called, unless they are asked for."""
    with pytest.raises(ZeroDivisionError) as caught:
        consume(curate.range(3).map(wrong))
    told = traceback.extract_tb(caught.value.__traceback__)
    assert told[-1].name == "wrong"
    assert len([one for one in told if one.filename.startswith(CURATE)]) <= 8
    monkeypatch.setenv("CURATE_TRACEBACK", "full")
    with pytest.raises(ZeroDivisionError) as caught:
        consume(curate.range(3).map(wrong))
    assert {"stream_blocks", "_streamed", "_rows_of"} & set(frames(caught.value))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("make", "kind", "last"),
    [
        (lambda: curate.range(3).map(lambda _: None).take_all(), TypeError, "_row"),  # type: ignore[arg-type,return-value]
        (lambda: curate.range(3).add_column("x", lambda _: 5).take_all(), SchemaMismatch, "from_columns"),
        (lambda: curate.range(3).with_column("n", curate.col("id") / 0).take_all(), pa.ArrowInvalid, ""),
        (lambda: curate.from_items([1, "a"]), ConfigError, "from_items"),
        (lambda: curate.from_pandas(pandas.DataFrame({"a": [1, "b"]})), ConfigError, "from_pandas"),
    ],
)
def test_what_curate_refuses_is_said_once(make: Callable[[], Any], kind: type[Exception], last: str) -> None:
    """By the line that refuses it, and without the errors by which that was found."""
    with pytest.raises(kind) as caught:
        make()
    assert frames(caught.value)[-1] == last or not last
    assert (
        len([one for one in traceback.extract_tb(caught.value.__traceback__) if one.filename.startswith(CURATE)]) <= 8
    )
    assert "The above exception" not in "".join(traceback.format_exception(caught.value))


def test_of_a_worker_too() -> None:
    """Its traceback begins where user code does."""
    with pytest.raises(ZeroDivisionError) as caught:
        curate.range(3).map(wrong).using(backend="local").take_all()
    (note,) = [one for one in caught.value.__notes__ if one.startswith("In process")]
    assert note.count('  File "') == 1
    assert ", in wrong\n" in note


def in_place(batch: dict[str, Any]) -> dict[str, Any]:
    """Changes an array of a batch, or a row."""
    name = next(iter(batch))
    batch[name] += 1
    return batch


def later(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Changes an array of a batch once it is asked for more."""
    yield batch
    yield in_place(batch)


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.quick
@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: curate.range(3).map_batches(in_place, batch_format="numpy"), "array = array.copy()"),
        (lambda: curate.range(3).map_batches(later, batch_format="numpy"), "array = array.copy()"),
        (lambda: curate.from_arrow(IMAGES).map(in_place), "array = array.copy()"),
        (lambda: curate.range(3).map_batches(lambda b: b[b["id"] % 2 == 0], batch_format="pandas"), "astype('int64')"),
        (lambda: curate.range(3).add_column("n", lambda b: b["id"] % 2), "write batch_format='numpy'"),
    ],
)
def test_what_a_batch_is_made_of_is_said_where_that_may_be_the_reason(
    make: Callable[[], Any], hint: str, tmp_path: Path
) -> None:
    """Read-only arrays, columns of Arrow in a data frame, tables: each with what to write. Also where a run ends, and
    not only in the traceback that the ledger has."""
    with pytest.raises((ValueError, NotImplementedError, TypeError)) as caught:
        make().take_all()
    assert len([note for note in caught.value.__notes__ if hint in note]) == 1
    with pytest.raises(WriteFailed, match=re.escape(hint)):
        make().write_parquet(tmp_path, backend="inline")


@pytest.mark.quick
@pytest.mark.parametrize("make", UNTOUCHABLE)
def test_an_error_that_takes_no_attributes_is_raised_as_itself(make: Callable[[], Exception]) -> None:
    """It is no failure of the machine, which is tried again."""
    given: list[Exception] = []

    def raises(_: dict[str, Any]) -> dict[str, Any]:
        given.append(make())
        raise given[-1]

    with pytest.raises(type(make())) as caught:
        curate.range(3).map(raises).take_all()
    assert [caught.value] == given
    assert frames(caught.value)[-1] == "raises"
