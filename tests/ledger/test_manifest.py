"""The plan: ranks never change, later rows replace earlier ones of the same id, and the difference to a listing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.ledger.manifest import ShardPlan, ShardsAhead, diff_inputs, removal, shards_table
from curate.ledger.packed import PackedTable
from curate.tasks.events import Launch, SlotsChanged
from curate.tasks.scheduler import Scheduler
from curate.tasks.shard import Shard, SliceKind
from tests.support.examples import examples
from tests.support.ledgers import make_shard

ODD_NAMES = ["a", "a b", "ä/ö", "100%", "%2F", "日本/語", "a.part-00000-of-00002", "x" * 300, "'\"", "a\\b", "🦊"]
NAMES = st.sampled_from(ODD_NAMES) | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


def ranges() -> st.SearchStrategy[Shard]:
    return st.builds(
        Shard,
        id=NAMES,
        uri=NAMES.map(lambda name: f"gs://b/{name}"),
        kind=st.sampled_from(list(SliceKind)),
        start=st.integers(0, 2**40),
        stop=st.integers(0, 2**40),
        size_bytes=st.integers(0, 2**40),
        object_bytes=st.integers(0, 2**40),
        generation=st.sampled_from(["1", "2", "1700000000000000-12"]),
    )


def inputs(found: dict[str, str]) -> PackedTable:
    """A listing of inputs, from URI to generation."""
    return PackedTable.of(
        pa.table({"uri": pa.array(list(found), pa.string()), "generation": pa.array(list(found.values()), pa.string())})
    )


@given(st.lists(ranges(), max_size=20, unique_by=lambda shard: shard.id))
def test_shards_come_back_as_they_were(shards: list[Shard]) -> None:
    """Every field of every shard, whatever its name, by its rank."""
    plan = ShardPlan.of([shards_table(shards)])
    assert len(plan) == len(shards)
    assert [plan.shard(rank) for rank in range(len(plan))] == shards
    assert [plan.shard_id(rank) for rank in range(len(plan))] == [shard.id for shard in shards]
    assert plan.ids.to_pylist() == [shard.id for shard in shards]
    assert plan.sizes.tolist() == [shard.size_bytes for shard in shards]
    assert plan.total_bytes == sum(shard.size_bytes for shard in shards)


@given(st.lists(ranges(), max_size=20, unique_by=lambda shard: shard.id), st.data())
def test_blocks_of_a_plan_do_not_show(shards: list[Shard], data: st.DataObject) -> None:
    """Some of the shards, in any order, and some columns of some of them: as of a plan in one piece."""
    table = shards_table(shards)
    cut = data.draw(st.integers(0, len(shards)))
    chunked = shards_table(shards[:cut]).plus(shards_table(shards[cut:]))
    ranks = data.draw(st.lists(st.integers(0, len(shards) - 1))) if shards else []
    for plan in (ShardPlan(table), ShardPlan(chunked)):
        assert plan.shards(ranks) == [shards[rank] for rank in ranks]
        blocks = list(plan.blocks(np.array(sorted(set(ranks)), dtype=np.int64), "uri", "size_bytes"))
        rows = [row for block in blocks for row in block.to_pylist()]
        assert rows == [{"uri": shards[n].uri, "size_bytes": shards[n].size_bytes} for n in sorted(set(ranks))]


def test_a_bundle_costs_what_its_shards_do() -> None:
    """Not what the plan does: of each block that has one, its rows, one block at a time."""
    shards = [Shard(f"{n:08d}", f"gs://b/{n:08d}", SliceKind.WHOLE, 0, 0, 1, 1, "1") for n in range(10_000)]
    plan = ShardPlan(
        shards_table([]).plus(*(shards_table(shards[at : at + 1000]) for at in range(0, len(shards), 1000)))
    )
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert plan.shards([17, 4711, 9999]) == [shards[17], shards[4711], shards[9999]]
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 10_000


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.booleans(), st.lists(ranges(), max_size=4)), max_size=5), st.data())
def test_what_is_taken_out_leaves_its_number_behind(parts: list[tuple[bool, list[Shard]]], data: st.DataObject) -> None:
    """As in a dictionary of which some keys do not count: a shard keeps its number whatever others are taken out, also
    one that comes back; ranks are those among the shards that count. Events of what was taken out are nobody's."""
    expected: dict[str, Shard | None] = {}
    plan, tables = ShardPlan.of([]), []
    once_out: set[str] = set()
    for out, shards in parts:
        known = [shard for shard in expected.values() if shard is not None]
        if out and known:
            some = data.draw(st.lists(st.sampled_from(known), unique_by=lambda shard: shard.id))
            tables.append(removal(shards_table(some)))
            expected.update(dict.fromkeys((shard.id for shard in some), None))
            once_out |= {shard.id for shard in some}
        else:
            tables.append(shards_table(shards))
            expected.update({shard.id: shard for shard in shards})
        plan = plan.plus(tables[-1])
    for found in (plan, ShardPlan.of(tables)):
        there = [(number, shard) for number, shard in enumerate(expected.values()) if shard is not None]
        assert [found.shard(rank) for rank in range(len(found))] == [shard for _, shard in there]
        assert [found.number(rank) for rank in range(len(found))] == [number for number, _ in there]
        assert found.came_back.tolist() == [shard.id in once_out for _, shard in there]
        assert set(found.removed.to_pylist()) == {name for name, shard in expected.items() if shard is None}
        events = [{"index": number, "shard": name} for number, name in enumerate(expected)]
        assert list(found.ranked(events)) == [
            {"index": rank, "shard": shard.id} for rank, (_, shard) in enumerate(there)
        ]


@given(st.lists(st.lists(ranges(), max_size=6), max_size=5))
def test_a_later_row_takes_the_place_of_an_earlier_one(parts: list[list[Shard]]) -> None:
    """As in a dictionary: the rank is that of the first row of an id, the value that of the last."""
    expected: dict[str, Shard] = {}
    for part in parts:
        for shard in part:
            expected[shard.id] = shard
    plan = ShardPlan.of([shards_table(part) for part in parts])
    assert [plan.shard(rank) for rank in range(len(plan))] == list(expected.values())


@given(st.lists(st.lists(ranges(), max_size=6), max_size=4), st.lists(ranges(), max_size=6))
def test_ranks_are_stable_as_the_plan_grows(parts: list[list[Shard]], more: list[Shard]) -> None:
    """Events name shards by rank: a part that is appended moves none of those before it."""
    tables = [shards_table(part) for part in parts]
    before, after = ShardPlan.of(tables), ShardPlan.of([*tables, shards_table(more)])
    assert after.ids.to_pylist()[: len(before)] == before.ids.to_pylist()
    assert ShardPlan.of([before.table, shards_table(more)]).table.table().equals(after.table.table())


@pytest.mark.parametrize("parts", [[], [shards_table([])], [shards_table([])] * 3])
def test_no_parts_make_an_empty_plan(parts: list[PackedTable]) -> None:
    """It has no shards, and every question about it has an answer."""
    plan = ShardPlan.of(parts)
    assert (len(plan), plan.total_bytes, plan.sizes.tolist(), plan.ids.to_pylist()) == (0, 0, [], [])


@given(
    st.lists(ranges(), max_size=12), st.dictionaries(NAMES.map(lambda n: f"gs://b/{n}"), st.sampled_from(["1", "2"]))
)
def test_the_difference_to_a_listing(shards: list[Shard], found: dict[str, str]) -> None:
    """New inputs, and for each shard whether its input changed or is missing, as a loop over both would say."""
    plan = ShardPlan.of([shards_table(shards)])
    rows = [plan.shard(rank) for rank in range(len(plan))]
    growth = diff_inputs(plan, inputs(found))
    uris = list(found)
    assert growth.new.tolist() == [uri not in {row.uri for row in rows} for uri in uris]
    assert growth.missing.tolist() == [row.uri not in found for row in rows]
    assert growth.changed.tolist() == [row.uri in found and found[row.uri] != row.generation for row in rows]
    assert growth.position.tolist() == [uris.index(row.uri) if row.uri in found else -1 for row in rows]
    assert growth.changed.dtype == growth.missing.dtype == bool


def test_all_slices_of_a_changed_object_changed() -> None:
    """Shards of one object share its generation."""
    shards = [make_shard(f"big.part-{k}", "/in/big") for k in range(3)] + [make_shard("small", "/in/small")]
    growth = diff_inputs(
        ShardPlan.of([shards_table(shards)]), inputs({"/in/small": "1", "/in/big": "2", "/in/new": "1"})
    )
    assert growth.changed.tolist() == [True, True, True, False]
    assert growth.new.tolist() == [False, False, True]


def test_a_listing_in_chunks_is_the_same_listing() -> None:
    """Listings are put together from pages."""
    shards = [make_shard(name, f"/in/{name}") for name in "abc"]
    pages = inputs({"/in/c": "2"}).plus(inputs({}), inputs({"/in/a": "1", "/in/d": "1"}))
    growth = diff_inputs(ShardPlan.of([shards_table(shards)]), pages)
    assert growth.new.tolist() == [False, False, True]
    assert growth.missing.tolist() == [False, True, False]
    assert growth.changed.tolist() == [False, False, True]


@settings(max_examples=examples(60))
@given(
    shards=st.lists(ranges(), min_size=1, max_size=20, unique_by=lambda shard: shard.id),
    bundles=st.lists(st.integers(1, 4)),
    again=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=3)),
    least=st.integers(1, 8),
    data=st.data(),
)
def test_what_is_launched_is_what_the_plan_has(
    shards: list[Shard], bundles: list[int], again: list[list[int]], least: int, data: st.DataObject
) -> None:
    """In any order, with shards that run once more in between; their ids are known before and after they are over."""
    order = data.draw(st.permutations(range(len(shards))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curate.ledger.manifest.LEAST_AHEAD", least)
        cursor = 0
        before = 0

        def from_here(rank: int, most: int) -> Any:
            if rank not in order[before:cursor]:
                return np.zeros(0, dtype=np.int64)
            return np.array(order[order.index(rank) :][:most], dtype=np.int64)

        ahead = ShardsAhead(ShardPlan.of([shards_table(shards)]), from_here)
        for size in [*bundles, *[1] * len(shards)]:
            ranks = order[cursor : cursor + size]
            before, cursor = cursor, cursor + size
            for some in [tuple(ranks), *(tuple(rank % len(shards) for rank in one) for one in again)]:
                if some:
                    assert ahead.launched(some) == [shards[rank] for rank in some]
                    assert [ahead.id(rank) for rank in some] == [shards[rank].id for rank in some]
            for rank in ranks[::2]:
                ahead.over(rank)
                assert ahead.id(rank) == shards[rank].id


@pytest.mark.parametrize("launches", [1, 7, 300])
def test_the_shards_ahead_are_unpacked_together(launches: int) -> None:
    """A plan is gone through as often as it has parts of that size, in whatever order its shards are launched, and
    however many launches an event makes before the first is seen to."""
    shards = [make_shard(f"{number:05d}") for number in range(2_000)]
    scheduler = Scheduler(np.random.default_rng(1).permutation(len(shards)).tolist(), [1] * len(shards))
    taken: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curate.ledger.manifest.LEAST_AHEAD", 500)
        plan, take = ShardPlan.of([shards_table(shards)]), PackedTable.take
        patch.setattr(PackedTable, "take", lambda *asked: taken.append(len(asked[1])) or take(*asked))
        ahead = ShardsAhead(plan, scheduler.from_here)
        slots = 0
        while scheduler.launched < len(shards):
            slots += launches
            for launch in scheduler.handle(SlotsChanged(slots), 0.0):
                assert isinstance(launch, Launch)
                assert ahead.launched(launch.shards) == [shards[rank] for rank in launch.shards]
    assert len(taken) == 4
