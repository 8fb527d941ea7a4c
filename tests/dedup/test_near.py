"""Near duplicates, against all pairs of n-gram sets, and against what was made a copy of what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.dedup import buckets
from curate.dedup.alike import Edges, SendSets
from curate.dedup.buckets import Bands, Buckets, Led
from curate.dedup.choice import Choice
from curate.dedup.clusters import Clusters, Members
from curate.dedup.dropped import DropNear
from curate.dedup.near import DROPS, NearDedup, column_and_values
from curate.dedup.pairs import SMALL, distinct_pairs, pairs_of_buckets, similarities
from curate.dedup.shingles import Shingles, distinct
from curate.errors import ConfigError
from curate.exchange.row_ids import ROW_BITS, ROW_ID
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from tests.dedup.corpus import corpus
from tests.dedup.marked import read_again
from tests.exchange.local import exchanged
from tests.support.examples import examples

NEAR = NearDedup("text", "id")


def tally() -> ShardBooks:
    """Books of nothing."""
    return ShardBooks(BadRowBudget("100%"))


class Found:
    """What deduplication makes of shards, and what it had on the way."""

    def __init__(self, near: NearDedup, shards: list[pa.Table], seed: int = 0, most: int = 5) -> None:
        self.bands = exchanged(Buckets(near), shards, seed=seed, batch_rows=most)
        pairs = self.bands.table
        if near.verified:
            schema = Buckets(near).schema([shards[0].schema])
            assert schema is not None
            pairs = exchanged(Led(near), self.bands.tables or [schema.empty_table()], seed=seed, batch_rows=most).table
        self.pairs = pairs
        sent, _, _ = read_again(SendSets(near), pairs, shards, seed, most)
        self.sent = pa.concat_tables(sent)
        edges, _, self.compared = read_again(Edges(near), self.sent, shards, seed, most)
        self.edges = pa.concat_tables(edges)
        if near.verified:
            marks = exchanged(Choice(near), edges, seed=seed, batch_rows=most).table
        else:
            clusters = exchanged(Clusters(near), edges, seed=seed, batch_rows=most)
            marks = exchanged(Members(near), [clusters.table], seed=seed, batch_rows=most).table
        kept, self.told, self.dropped = read_again(DropNear(near), marks, shards, seed, most)
        self.kept = [one for table in kept for one in table["id"].to_pylist()]
        self.shards = kept


def components_of(nodes: Any, edges: Any) -> dict[Any, Any]:
    """The least node that each is connected with."""
    label = {node: node for node in nodes}

    def root(node: Any) -> Any:
        while label[node] != node:
            node = label[node]
        return node

    for u, v in edges:
        a, b = sorted((root(u), root(v)))
        label[b] = a
    return {node: root(node) for node in nodes}


WORDS = st.lists(st.sampled_from("abcdef"), max_size=7).map(" ".join)


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.none() | WORDS, max_size=6), min_size=1, max_size=4),
    st.sampled_from([0.3, 0.5, 1.0]),
    st.integers(0, 9),
)
def test_what_is_found_is_connected_pairs_that_are_alike(
    shards: list[list[str | None]], threshold: float, seed: int
) -> None:
    """With bands of one row each, and many of them, all pairs over the threshold are found, but for a chance below
    10^-6 each; the first row of each cluster is kept, in order, and all others are told, with their best similarity.
    """
    near = NearDedup("text", "id", threshold, ngram=2, bands=60, rows=1, drop="component")
    made, number = [], 0
    for shard in shards:
        ids = pa.array(range(number, number + len(shard)), pa.int64())
        made.append(pa.table({"id": ids, "text": pa.array(shard, pa.string())}))
        number += len(shard)
    texts = [text for shard in shards for text in shard]
    grams = []
    for text in texts:
        tokens = (text or "").split()
        grams.append({tuple(tokens[at : at + 2]) for at in range(max(1, len(tokens) - 1))} if tokens else set())
    alike = {
        (u, v): len(grams[u] & grams[v]) / len(grams[u] | grams[v])
        for u, v in combinations(range(len(texts)), 2)
        if grams[u] & grams[v]
    }
    edges = {pair: one for pair, one in alike.items() if one >= threshold}
    labels = components_of(range(len(texts)), edges)
    found = Found(near, made, seed)
    assert found.kept == [node for node in range(len(texts)) if labels[node] == node]
    best: dict[int, float] = defaultdict(float)
    for pair, one in edges.items():
        for node in pair:
            best[node] = max(best[node], one)
    expected = [(node, labels[node], best[node]) for node in range(len(texts)) if labels[node] != node]
    told = found.told.to_pylist() if found.told.num_columns else []
    assert [(one["id"], one["kept_id"], one["similarity"]) for one in told] == expected
    assert len({(one["cluster"], one["kept_id"]) for one in told}) == len({one["cluster"] for one in told})
    assert found.dropped.get("duplicate", 0) == len(expected)


SOURCES = st.sampled_from(["a", "b", None])


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.tuples(st.none() | WORDS, SOURCES, st.booleans()), max_size=4), min_size=1, max_size=4),
    st.sampled_from([0.3, 0.5, 1.0]),
    st.sampled_from([{}, {"exempt": "safe"}, {"exempt": "source", "exempt_values": ("b",)}]),
    st.sampled_from([(), ("b",), ("b", "a")]),
    st.integers(0, 9),
)
def test_what_is_dropped_is_like_what_is_kept(
    shards: list[list[tuple[str | None, str | None, bool]]],
    threshold: float,
    exempt: dict[str, Any],
    priority: tuple[str, ...],
    seed: int,
) -> None:
    """Against a walk over the rows, in order of exemption, priority and place: each is kept unless it is like one that
    is kept. It is told with the most similar one of these, and the sources of both.
    """
    first = {"priority": "source", "priority_values": priority} if priority else {}
    near = NearDedup("text", "id", threshold, ngram=2, bands=60, rows=1, **exempt, **first, source="source")
    rows = [row for shard in shards for row in shard]
    made, number = [], 0
    for shard in shards:
        columns = [[row[at] for row in shard] for at in range(3)]
        types = (pa.string(), pa.string(), pa.bool_())
        arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
        ids = pa.array(range(number, number + len(shard)), pa.int64())
        made.append(pa.table([ids, *arrays], names=["id", "text", "source", "safe"]))
        number += len(shard)
    grams = []
    for text, _, _ in rows:
        tokens = (text or "").split()
        grams.append({tuple(tokens[at : at + 2]) for at in range(max(1, len(tokens) - 1))} if tokens else set())
    safe = [bool(exempt) and (row[2] if exempt == {"exempt": "safe"} else row[1] == "b") for row in rows]
    place = [0 if safe[n] else [*priority, row[1]].index(row[1]) + 1 for n, row in enumerate(rows)]
    place = [len(priority) + 1 if one and rows[n][1] not in priority else one for n, one in enumerate(place)]
    kept: list[int] = []
    expected = {}
    for row in sorted(range(len(rows)), key=lambda row: (place[row], row)):
        like = {one: len(grams[row] & grams[one]) / max(1, len(grams[row] | grams[one])) for one in kept}
        like = {one: alike for one, alike in like.items() if alike >= threshold}
        if like and not safe[row]:
            best = max(like.values())
            expected[row] = (next(one for one in kept if like.get(one) == best), best)
        else:
            kept.append(row)
    found = Found(near, made, seed)
    assert found.kept == sorted(kept)
    told = {one["id"]: one for one in found.told.to_pylist()}
    assert {row: (one["kept_id"], one["similarity"]) for row, one in told.items()} == expected
    for row, one in told.items():
        assert (one["source"], one["kept_source"]) == (rows[row][1], rows[one["kept_id"]][1])
    assert found.dropped.get("duplicate", 0) == len(expected)


@pytest.mark.parametrize("heavy", [1024, 40])
@pytest.mark.parametrize("first", [None, 250])
def test_of_many_copies_in_many_shards_the_first_alone_is_kept(
    heavy: int, first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand copies, exact and near ones, of two texts in six shards: where a bucket is not sent as it is, its rows
    are compared with the first of all nevertheless, also where that one comes first by its source.
    """
    monkeypatch.setattr(buckets, "HEAVY", heavy)
    words = [[f"{name}{n}" for n in range(200)] for name in "ab"]
    texts = []
    for n in range(1_000):
        tokens = list(words[n % 2])
        if n % 3 == 0:
            tokens[n % 200] = f"other{n}"
        texts.append(" ".join(tokens))
    source = ["gold" if n in (first, (first or 0) + 1) and first else "web" for n in range(1_000)]
    table = pa.table({"id": range(1_000), "text": texts, "source": source})
    how = NearDedup("text", "id", priority="source", priority_values=("gold",), source="source")
    found = Found(how, [table.slice(at, 170) for at in range(0, 1_000, 170)], most=60)
    at = first or 0
    assert found.kept == [at, at + 1]
    assert {one["kept_id"] % 2 == one["id"] % 2 for one in found.told.to_pylist()} == {True}


@pytest.mark.parametrize("drop", DROPS)
def test_recall_and_precision_on_a_corpus_with_known_truth(drop: str) -> None:
    """14 bands of 8 rows over word 5-grams: of 20 % exact and 10 % near copies in 3,000 texts at least 99 % are
    dropped, and at least 99 % of what is dropped is a copy; what is told is what is known.
    """
    made = corpus(3_000, 7, seed=1, words=100)
    found = Found(replace(NEAR, drop=drop), made.shards, most=500)
    copies = {row for row, origin in made.origin.items() if row != origin}
    dropped = set(range(3_000)) - set(found.kept)
    assert 0.27 < len(copies) / 3_000 < 0.33
    assert len(dropped & copies) / len(copies) >= 0.99
    assert len(dropped & copies) / len(dropped) >= 0.99
    right = [made.origin[one["id"]] == made.origin[one["kept_id"]] for one in found.told.to_pylist()]
    assert np.mean(right) >= 0.99
    assert found.dropped == {"duplicate": len(dropped)}
    assert found.told.num_rows == len(dropped)


def test_exact_copies_are_all_found() -> None:
    """A copy shares all bands with its original, and cannot be missed."""
    texts = [f"{n % 40} is the number of this text, and nothing else is said in it" for n in range(400)]
    shards = [pa.table({"id": range(at, at + 100), "text": texts[at : at + 100]}) for at in range(0, 400, 100)]
    found = Found(NearDedup("text", "id", threshold=1.0), shards, most=30)
    assert found.kept == list(range(40))
    assert set(found.told["similarity"].to_pylist()) == {1.0}


@pytest.mark.slow
def test_the_same_whatever_the_batches_folds_and_cuts() -> None:
    """Batches, folds and cuts change nothing, where no bucket is large."""
    made = corpus(300, 4, seed=2, words=40)
    ways = [Found(NEAR, made.shards, seed, most) for seed, most in ((0, 7), (1, 50), (2, 300))]
    assert all(pa.concat_tables(one.shards).equals(pa.concat_tables(ways[0].shards)) for one in ways)
    assert all(one.told.equals(ways[0].told) for one in ways)


def boilerplate(copies: int, groups: int) -> list[pa.Table]:
    """Texts of a long notice that all have in common, and a short text of their own, of which there are groups."""
    notice = " ".join(f"n{n}" for n in range(70))
    own = [" ".join(f"g{group}w{word}" for word in range(12)) for group in range(groups)]
    texts = [f"{own[n % groups]} {notice}" for n in range(copies * groups)]
    edges = range(0, len(texts) + 1, len(texts) // 4)
    return [pa.table({"id": range(a, b), "text": texts[a:b]}) for a, b in pairwise(edges)]


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("heavy", [1024, 40])
def test_boilerplate_makes_no_explosion_and_hides_no_copies(
    heavy: int, drop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 texts of which six sevenths are one notice: no more pairs than rows of bands are looked at, of 2,000,000,
    and all copies are found, though those of other groups are in their buckets; none is dropped for the notice. So it
    is where buckets of over forty rows are not sent as they are.
    """
    monkeypatch.setattr(buckets, "HEAVY", heavy)
    shards = boilerplate(copies=20, groups=100)
    found = Found(replace(NEAR, drop=drop), shards, most=250)
    bands = pa.concat_tables(
        [
            one
            for rank, shard in enumerate(shards)
            for one in Bands(NEAR).apply(shard, tally(), BatchPosition("", 0, rank))
        ]
    )
    sizes = np.unique(bands["__band"].to_numpy(), return_counts=True)[1]
    assert sizes.max() > 200
    # Of large buckets each row meets the first of its twin, and where it matters that of the bucket.
    assert found.pairs.num_rows <= bands.num_rows
    assert found.kept == list(range(100))


def test_a_heavy_bucket_is_light_after_folding() -> None:
    """Of a bucket of 5,000 rows 16 stay, and pairs that connect them have bands of their own."""
    rows = 5_000
    columns = [
        np.full(rows, 9, np.uint64),
        np.arange(rows),
        np.arange(rows, dtype=np.uint32) % 64 << 16,
        np.full(rows, -1),
    ]
    names = ["__band", "__place", "__twin", "__other", "__class"]
    columns.append(np.ones(rows, np.int32))
    how = Buckets(replace(NEAR, drop="component"))
    folded = how.fold(pa.table([pa.array(one) for one in columns], names=names))
    assert np.count_nonzero(folded["__band"].to_numpy() == 9) == SMALL
    pairs = folded.filter(pa.compute.not_equal(folded["__other"], -1))
    assert len(set(pairs["__band"].to_pylist())) == pairs.num_rows == rows - 1
    assert how.fold(folded).equals(folded)
    labels = components_of(range(rows), zip(pairs["__place"].to_pylist(), pairs["__other"].to_pylist(), strict=True))
    assert set(labels.values()) == {0}


BUCKETS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=60)
"""Bucket, twin and text."""


@given(BUCKETS, st.randoms())
def test_small_buckets_give_all_pairs_and_large_ones_connect_their_rows(
    rows: list[tuple[int, int, int]], random: Any
) -> None:
    """All pairs of up to 16 rows; of more, one fewer than rows, which connect the bucket, the rows of a twin by two
    steps, and those of one text by one.
    """
    rows = sorted(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    places = np.array(order, np.int64)
    buckets = np.array([row[0] for row in rows], np.int64)
    twins = np.array([row[1] << 16 | row[2] for row in rows], np.int64)
    u, v = pairs_of_buckets(buckets, places, twins)
    found = set(zip(u.tolist(), v.tolist(), strict=True))
    assert len(found) == len(u)
    assert list(zip(u.tolist(), v.tolist(), strict=True)) == sorted(found)
    for bucket in set(buckets.tolist()):
        members = sorted(places[buckets == bucket].tolist())
        inside = {pair for pair in found if set(pair) <= set(members)}
        if len(members) <= SMALL:
            assert inside == set(combinations(members, 2))
        else:
            assert len(inside) == len(members) - 1
            assert set(components_of(members, inside).values()) == {members[0]}
            for twin in set(twins[buckets == bucket].tolist()):
                own = sorted(places[(buckets == bucket) & (twins == twin)].tolist())
                assert {(own[0], other) for other in own[1:]} <= inside
            for twin in {row[1] for row in rows if row[0] == bucket}:
                of = places[(buckets == bucket) & (twins >> 16 == twin)].tolist()
                among = {pair for pair in inside if set(pair) <= set(of)}
                assert len(among) == len(of) - 1
                assert len(set(components_of(of, among).values())) == 1
        found -= inside
    assert not found


SETS = st.lists(st.tuples(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12))), max_size=30)


@given(SETS)
def test_similarities_are_those_of_sets(pairs: list[tuple[set[int], set[int]]]) -> None:
    """As by Python's sets; of two empty ones 0."""
    sides = []
    for at in (0, 1):
        flat = [number << 40 for pair in pairs for number in pair[at]]
        offsets = np.cumsum([0, *(len(pair[at]) for pair in pairs)], dtype=np.int64)
        sides.append(distinct(Shingles(np.array(flat, np.uint64), offsets)))
    expected = [len(a & b) / max(1, len(a | b)) for a, b in pairs]
    assert similarities(*sides).tolist() == expected


def test_similarities_of_many_pairs() -> None:
    """More pairs than are compared at a time."""
    hashes = np.arange(30_000, dtype=np.uint64) << np.uint64(20)
    sets = Shingles(hashes, np.arange(0, 30_001, 3, dtype=np.int64))
    other = Shingles(np.roll(hashes, 1), sets.offsets)
    assert set(similarities(sets, distinct(other)).tolist()) == {0.5}


def test_texts_without_words_are_nobodys_duplicates() -> None:
    """Nulls and texts of punctuation are kept, all of them, and a short text is a duplicate of the same alone."""
    texts = [None, "", "!!", None, "...", "one two", "One, two.", "one two three"]
    found = Found(NEAR, [pa.table({"id": range(8), "text": texts})])
    assert found.kept == [0, 1, 2, 3, 4, 5, 7]


def test_every_id_type_and_text_type_goes() -> None:
    """Ids are of any type; texts plain, large, views or dictionaries."""
    texts = pa.array(["a b c d e f", "x", "a b c d e f"])
    for column in (texts.cast(pa.large_string()), texts.dictionary_encode(), texts.cast(pa.string_view())):
        for ids in (["p", "q", "r"], [{"n": 1}, {"n": 2}, None], [1.5, None, 2.5]):
            shards = [pa.table({"id": ids, "text": column}).slice(0, 2), pa.table({"id": ids, "text": column}).slice(2)]
            found = Found(NEAR, shards)
            assert found.kept == ids[:2]
            assert found.told.select(["id", "kept_id"]).to_pylist() == [{"id": ids[2], "kept_id": ids[0]}]


def test_pairs_are_sent_once() -> None:
    """A pair that shares many bands is looked at once."""
    shards = [pa.table({"id": [0, 1], "text": ["one two three four five six"] * 2})] * 2
    found = Found(NEAR, shards)
    assert found.sent.num_rows == 6
    assert found.edges.num_rows == 6
    u, v = distinct_pairs(found.sent["__other"].to_numpy(), found.sent[ROW_ID].to_numpy())
    assert (u < v).all()
    assert set((u >> ROW_BITS).tolist()) == {0, 1}


def test_what_cannot_be_is_refused() -> None:
    """Parameters and columns are looked at when it is planned."""
    for given_, said in (
        ({"threshold": 0}, "threshold is 0, expected more than 0, at most 1"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"ngram": 0}, "ngram is 0, expected a whole number, at least 1"),
        ({"bands": True}, "bands is True"),
        ({"unit": "charakter"}, "unit='charakter'; did you mean 'character'"),
        ({"seed": -1}, "seed is -1"),
        ({"drop": "verify"}, "drop='verify'; did you mean 'verified'"),
        ({"exempt": "source", "exempt_values": ()}, "exempt has no value of 'source'"),
        ({"priority": "source"}, "the priority of 'source' has no value; list them, in order"),
        ({"priority": "source", "priority_values": ("a", "b", "a")}, "the priority of 'source' has 'a' twice"),
    ):
        with pytest.raises(ConfigError, match=said):
            NearDedup("text", "id", **given_)  # type: ignore[arg-type]
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    with pytest.raises(ConfigError, match=r"no column 'text'; there are 'id', 'n'"):
        Buckets(NEAR).schema([schema])
    with pytest.raises(ConfigError, match="column 'n' is int64, expected texts"):
        Buckets(NearDedup("n", "id")).schema([schema])
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
    for given_, said in (
        ({"exempt": "m"}, "no column 'm'"),
        ({"exempt": "n"}, "exempt column 'n' is int64, expected booleans; or name its values"),
        ({"exempt": "n", "exempt_values": ("x",)}, r"exempt has \['x'\], and column 'n' is int64"),
        ({"priority": "tags", "priority_values": ("x",)}, r"priority has \['x'\], and column 'tags' is list"),
        ({"source": "m"}, "no column 'm'"),
    ):
        with pytest.raises(ConfigError, match=said):
            NearDedup("text", "id", **given_).check(schema)  # type: ignore[arg-type]
    for wrong in ({"a": ["x"], "b": ["y"]}, {}, {"a": "x"}, ["a"], 3):
        with pytest.raises(ConfigError, match=r"exempt=.*, expected one column and its values"):
            column_and_values("exempt", wrong)  # type: ignore[arg-type]
    # As a command line has them.
    assert NearDedup("text", "id", exempt="n", exempt_values=("7",)).classes(pa.table({"n": [7, 8]})).tolist() == [0, 1]


def test_schemas_are_known_from_no_rows() -> None:
    """Each step says of no rows what it gives of rows."""
    shards = corpus(40, 2, words=10).shards
    found = Found(NearDedup("text", "id", 0.3), shards)
    schema = shards[0].schema
    assert found.bands.table.schema == Buckets(NEAR).schema([schema])
    assert found.pairs.schema == Led(NEAR).schema([found.bands.table.schema])
    assert found.sent.schema == SendSets(NEAR).schema(schema)
    assert found.edges.schema == Edges(NEAR).schema(schema)
    for step in (Bands(NEAR), SendSets(NEAR), Edges(NEAR)):
        [none] = step.apply(schema.empty_table(), tally(), BatchPosition("", 0))
        assert none.schema == step.schema(schema)
    rows, side = DropNear(NEAR).apply(schema.empty_table(), tally(), BatchPosition("", 0))
    assert rows.schema == schema
    assert side.schema == found.told.schema
