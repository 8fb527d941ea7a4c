"""Shares of `streaming_split` that go on where a state was read, exact to the row."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import curate
from curate.dataset.split import DataIterator
from curate.errors import ConfigError
from tests.support.examples import examples

PATIENCE_S = 60.0
Iterate = Callable[[DataIterator], Iterator[Any]]


def of(cuts: list[int]) -> curate.Dataset:
    """A dataset of tables of so many rows, numbered from 0 on; each row is a block."""
    starts = [sum(cuts[:number]) for number in range(len(cuts))]
    schema = pa.schema([("n", pa.int64())])
    tables = [
        pa.table({"n": list(range(start, start + rows))}, schema=schema)
        for start, rows in zip(starts, cuts, strict=True)
    ]
    return curate.from_arrow(tables or schema.empty_table()).using(block_bytes=1)


def rows_of(item: Any) -> list[int]:
    return [item["n"]] if isinstance(item, dict) else item["n"].to_pylist()


def by_row(share: DataIterator) -> Iterator[Any]:
    return share.iter_rows()


def by_batch(share: DataIterator) -> Iterator[Any]:
    return share.iter_batches(batch_size=3, prefetch_batches=2)


def by_block(share: DataIterator) -> Iterator[Any]:
    return share.iter_batches(batch_size=None)


def shuffled(share: DataIterator) -> Iterator[Any]:
    return share.iter_batches(batch_size=3, local_shuffle_buffer_size=5)


def some(share: DataIterator, iterate: Iterate, most: int) -> tuple[list[int], str]:
    """Returns the rows of the first items of a pass, and the state behind them."""
    found: list[int] = []
    items = iterate(share)
    for _, item in zip(range(most), items, strict=False):
        found += rows_of(item)
    state = json.dumps(share.state_dict())
    items.close()  # type: ignore[attr-defined]
    return found, state


def at_once(shares: list[DataIterator], call: Callable[[int, DataIterator], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(call, range(len(shares)), shares, timeout=PATIENCE_S))


@pytest.mark.parametrize("iterate", [by_row, by_batch, by_block, shuffled])
@given(
    cuts=st.lists(st.integers(0, 9), max_size=8),
    n=st.integers(1, 3),
    equal=st.booleans(),
    lives=st.lists(st.integers(1, 4), min_size=3, max_size=9),
)
@settings(max_examples=examples(12))
def test_every_row_once(cuts: list[int], n: int, equal: bool, lives: list[int], iterate: Iterate) -> None:
    """However shares are stopped, each by itself, and resumed from their states: together the lives of a share have the
    rows of a pass without a stop, in its order; with a local shuffle, too, whose seed the state has."""
    whole: list[list[int]] = [[] for _ in range(n)]
    states: list[str | None] = [None] * n
    # At last to the end: more items than there are.
    for counts in [*(lives[at : at + n] for at in range(0, len(lives), n)), [100] * n]:
        shares = of(cuts).streaming_split(n, equal=equal)
        for share, state in zip(shares, states, strict=True):
            if state is not None:
                share.load_state_dict(json.loads(state))
        # Who has ended the pass would begin the next one, in which the others would have to take part.
        begun = [number for number, state in enumerate(states) if state is None or not json.loads(state)["epoch"]]

        def live(number: int, share: DataIterator, counts: list[int] = counts) -> tuple[list[int], str]:
            return some(share, iterate, counts[number] if number < len(counts) else 1)

        with ThreadPoolExecutor(n) as pool:
            ran = list(pool.map(live, begun, [shares[number] for number in begun], timeout=PATIENCE_S))
        for number, (rows, state) in zip(begun, ran, strict=True):
            whole[number] += rows
            states[number] = state
    undisturbed = at_once(
        of(cuts).streaming_split(n, equal=equal), lambda _, share: [row["n"] for row in share.iter_rows()]
    )
    assert [sorted(rows) for rows in whole] == undisturbed
    assert iterate is shuffled or whole == undisturbed


def test_a_shuffled_pass_goes_on_in_its_order() -> None:
    """With the seed given, it is the order of a pass that was not stopped."""

    def batches(share: DataIterator) -> Iterator[Any]:
        return share.iter_batches(batch_size=3, local_shuffle_buffer_size=7, local_shuffle_seed=1)

    (share,) = of([9] * 4).streaming_split(1)
    whole = [row for item in batches(share) for row in rows_of(item)]
    (first,) = of([9] * 4).streaming_split(1)
    rows, state = some(first, batches, 4)
    (second,) = of([9] * 4).streaming_split(1)
    second.load_state_dict(json.loads(state))
    assert rows + [row for item in batches(second) for row in rows_of(item)] == whole


def test_one_share_was_further() -> None:
    """It ended its pass, and another did not: it gets its next pass once the other has ended that one."""
    shares = of([2] * 6).streaming_split(2)
    half = threading.Event()

    def first_life(number: int, share: DataIterator) -> str:
        if number == 0:
            assert [row["n"] for row in share.iter_rows()] == [0, 2, 4, 6, 8, 10]
            half.set()
            return json.dumps(share.state_dict())
        rows = share.iter_rows()
        found = [next(rows)["n"] for _ in range(5)]
        assert found == [1, 3, 5, 7, 9]
        assert half.wait(PATIENCE_S)
        state = json.dumps(share.state_dict())
        rows.close()
        return state

    states = at_once(shares, first_life)
    assert [(json.loads(one)["epoch"], json.loads(one)["rows"]) for one in states] == [(1, 0), (0, 5)]
    again = of([2] * 6).streaming_split(2)
    for share, state in zip(again, states, strict=True):
        share.load_state_dict(json.loads(state))

    def second_life(number: int, share: DataIterator) -> list[list[int]]:
        return [[row["n"] for row in share.iter_rows()] for _ in range(2 - (number == 0))]

    assert at_once(again, second_life) == [[[0, 2, 4, 6, 8, 10]], [[11], [1, 3, 5, 7, 9, 11]]]


def test_a_pass_that_was_left_early() -> None:
    """Its state says where; in this process, the next iteration is the next pass."""
    (share,) = of([5]).streaming_split(1)
    for _ in range(2):
        rows = share.iter_rows()
        next(rows)
        rows.close()
    assert (share.state_dict()["epoch"], share.state_dict()["rows"]) == (1, 1)


def test_a_state_is_small() -> None:
    """Of numbers and a digest, also with a shuffle."""
    (share,) = of([5]).streaming_split(1)
    next(shuffled(share))
    assert len(json.dumps(share.state_dict())) <= 250


def plus_one(batch: pa.Table) -> pa.Table:
    return batch.set_column(0, "n", pc.add(batch["n"], 1))


class TestRefused:
    @pytest.mark.parametrize(
        ("other", "told"),
        [
            (lambda: of([5, 5]).streaming_split(3)[1], "shares: 2 in the state, 3 here"),
            (lambda: of([5, 5]).streaming_split(2)[0], "share: 1 in the state, 0 here"),
            (lambda: of([5, 5]).streaming_split(2, equal=True)[1], "equal: False in the state, True here"),
            (lambda: of([5, 5]).using(block_bytes=9).streaming_split(2)[1], "block_bytes: 1 in the state, 9 here"),
            (lambda: of([5, 6]).streaming_split(2)[1], "dataset: '[0-9a-f]{16}' in the state, '[0-9a-f]{16}' here"),
            (lambda: of([5, 5]).map_batches(plus_one).streaming_split(2)[1], "dataset: "),
            (lambda: of([5, 5]).limit(9).streaming_split(2)[1], "dataset: "),
        ],
    )
    def test_a_state_of_another_split(self, other: Callable[[], DataIterator], told: str) -> None:
        """Both sides are named."""
        state = of([5, 5]).streaming_split(2)[1].state_dict()
        with pytest.raises(ConfigError, match=told):
            other().load_state_dict(state)

    def test_a_shuffle_without_a_seed(self) -> None:
        """No state can say what its order was; with a seed, or consumed without states, all is well."""
        (share,) = of([5]).random_shuffle().streaming_split(1)
        with pytest.raises(ConfigError, match=r"random_shuffle\(\) without a seed.*pass seed="):
            share.state_dict()
        assert of([5]).random_shuffle(seed=1).streaming_split(1)[0].state_dict()["rows"] == 0

    def test_another_local_shuffle(self) -> None:
        """The rest of the rows would be others."""
        (share,) = of([9]).streaming_split(1)
        next(shuffled(share))
        state = share.state_dict()
        for iterate in (by_row, by_batch):
            (again,) = of([9]).streaming_split(1)
            again.load_state_dict(state)
            with pytest.raises(ConfigError, match=r"batch_size=3.*this one is without a local shuffle"):
                next(iterate(again))

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"rows": -1}, "the state's rows is -1"),
            ({"epoch": "1"}, "the state's epoch is '1'"),
            ({"a": 1}, "found epoch"),
        ],
    )
    def test_what_is_no_state(self, change: dict[str, Any], told: str) -> None:
        """One that was edited."""
        (share,) = of([5]).streaming_split(1)
        with pytest.raises(ConfigError, match=told):
            share.load_state_dict({**share.state_dict(), **change})

    def test_while_a_pass_runs(self) -> None:
        """It would be of two minds."""
        (share,) = of([5]).streaming_split(1)
        rows = share.iter_rows()
        next(rows)
        with pytest.raises(RuntimeError, match="before any of them is iterated"):
            share.load_state_dict(share.state_dict())


def test_files_are_known_by_names_and_sizes(tmp_path: Any) -> None:
    """In another folder, they are the same dataset; with one more, another."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / folder / "one.parquet")
    first, second = (curate.read_parquet(str(tmp_path / folder)).streaming_split(1)[0] for folder in ("a", "b"))
    assert first.state_dict() == second.state_dict()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "b" / "two.parquet")
    (third,) = curate.read_parquet(str(tmp_path / "b")).streaming_split(1)
    assert third.state_dict()["dataset"] != first.state_dict()["dataset"]
