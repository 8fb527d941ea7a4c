"""Sixty plans over fixed inputs, which between them meet every operator, source, exchange and way to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import curate
from curate.dataset.dataset import Dataset
from curate.pipeline.step import ActorPool
from curate.stores.open import open_store

INPUTS = "memory://pinned/in"
PEOPLE = 40

Make = Callable[[], Dataset]


def write_inputs() -> None:
    """Writes what the plans read: three Parquet files and two of JSON lines, with texts, numbers, nulls and lists."""
    store = open_store(INPUTS)
    for number, (start, stop) in enumerate([(0, 15), (15, 16), (16, PEOPLE)]):
        sink = pa.BufferOutputStream()
        pq.write_table(people(start, stop), sink, row_group_size=8)
        store.publish(f"{INPUTS}/people/{number}.parquet", sink.getvalue().to_pybytes())
    for number, rows in enumerate([range(0, 9), range(9, 12)]):
        lines = b"".join(orjson.dumps({"id": k, "body": f"text {k % 5}", "score": k / 2}) + b"\n" for k in rows)
        store.publish(f"{INPUTS}/comments/{number}.jsonl", lines)
    store.publish(f"{INPUTS}/table.csv", b"id,word\n1,one\n2,two\n3,\n")
    store.publish(f"{INPUTS}/text.txt", b"first\nsecond\n\nlast\n")


def people(start: int, stop: int) -> pa.Table:
    """Returns rows of people; who they are repeats, so that groups and joins have something to do."""
    rows = range(start, stop)
    columns = {
        "id": pa.array(rows, pa.int64()),
        "name": pa.array([None if k % 7 == 3 else f"name {k % 6}" for k in rows], pa.string()),
        "age": pa.array([k * 37 % 90 for k in rows], pa.int32()),
        "weight": pa.array([None if k % 5 == 0 else k / 4 for k in rows], pa.float64()),
        "tags": pa.array([["a"] * (k % 3) for k in rows], pa.list_(pa.string())),
        "text": pa.array([" ".join(f"word{(k // 2 + j) % 11}" for j in range(12)) for k in rows], pa.string()),
    }
    return pa.table(columns)


def from_people() -> Dataset:
    return curate.read_parquet(f"{INPUTS}/people")


def from_comments() -> Dataset:
    return curate.read_json(f"{INPUTS}/comments")


def words() -> Dataset:
    return curate.from_arrow(pa.table({"id": [2, 1, 2, 50], "word": ["two", "one", "zwei", "fifty"]}))


def older(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "age": row["age"] + 1}


def each_tag(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": row["id"], "tag": tag} for tag in row["tags"]]


def is_adult(row: dict[str, Any]) -> bool:
    return bool(row["age"] >= 18)


def add_length(batch: pa.Table) -> pa.Table:
    return batch.append_column("length", pc.utf8_length(batch["text"]))


def halves(batch: pa.Table) -> Iterator[pa.Table]:
    yield batch.slice(0, 1)
    yield batch.slice(1)


def doubled(batch: dict[str, Any], by: int) -> dict[str, Any]:
    return {**batch, "age": batch["age"] * by}


def biggest(group: pa.Table) -> pa.Table:
    return group.sort_by([("age", "descending"), ("id", "ascending")]).slice(0, 1)


class Longer:
    """Made once in each actor."""

    def __init__(self, than: int) -> None:
        self.than = than

    def __call__(self, batch: pa.Table) -> pa.Table:
        return batch.filter(pc.greater(pc.utf8_length(batch["text"]), self.than))


def checkpointed() -> Dataset:
    return from_people().filter(pc.field("age") > 10).checkpoint("memory://pinned/checkpoint")


PLANS: dict[str, Make] = {
    # Sources
    "range": lambda: curate.range(25),
    "items": lambda: curate.from_items([{"a": 1, "b": "x"}, {"a": None, "b": "y"}]),
    "table": words,
    "parquet": from_people,
    "parquet, columns and filter": lambda: curate.read_parquet(
        f"{INPUTS}/people", columns=["id", "age"], filter=pc.field("age") > 30
    ),
    "json lines": from_comments,
    "csv": lambda: curate.read_csv(f"{INPUTS}/table.csv"),
    "text": lambda: curate.read_text(f"{INPUTS}/text.txt"),
    "binary": lambda: curate.read_binary_files(f"{INPUTS}/text.txt"),
    # Rows
    "map": lambda: from_people().map(older),
    "flat_map": lambda: from_people().flat_map(each_tag),
    "filter by a function": lambda: from_people().filter(is_adult, reason="minor"),
    "filter by an expression": lambda: from_people().filter(pc.field("age") >= 18, reason="minor"),
    "filters that are pushed down": lambda: (
        from_people().filter(pc.field("age") > 20).filter(pc.field("id") < 30).select_columns(["id"])
    ),
    "map_batches": lambda: from_people().map_batches(add_length, batch_size=4),
    "map_batches, an iterator": lambda: from_people().map_batches(halves, batch_size=5),
    "map_batches, numpy": lambda: (
        from_people()
        .select_columns(["id", "age"])
        .map_batches(doubled, batch_format="numpy", fn_kwargs={"by": 2}, batch_size=7)
    ),
    "a pool": lambda: from_people().map_batches(
        Longer, fn_constructor_args=[60], compute=ActorPool(size=1), batch_size=8
    ),
    "a pool between steps": lambda: (
        from_people()
        .filter(is_adult, reason="minor")
        .map_batches(Longer, fn_constructor_args=[60], compute=ActorPool(min_size=1, max_size=2))
        .map(older)
    ),
    "with_column": lambda: from_people().with_column("age", pc.add(pc.field("age"), 1)),
    "with_column, a new one": lambda: from_people().with_column("double", pc.multiply(pc.field("weight"), 2.0)),
    "select, drop and rename": lambda: (
        from_people().select_columns(["name", "id", "age"]).drop_columns("age").rename_columns({"name": "who"})
    ),
    "random_sample": lambda: from_people().random_sample(0.4, seed=3),
    "limit": lambda: from_people().limit(17),
    "limit behind a filter": lambda: from_people().filter(is_adult, reason="minor").limit(9).map(older),
    "limit of a limit": lambda: from_people().limit(20).map(older).limit(3),
    "union": lambda: from_people().union(from_people()),
    "union of what is not alike": lambda: from_people().select_columns(["id", "name"]).union(words()),
    "union of parts with steps": lambda: from_people().filter(pc.field("age") > 40).union(from_people().map(older)),
    "zip": lambda: curate.range(12).zip(from_comments().select_columns(["body"])),
    "limit of a zip": lambda: curate.range(12).zip(from_comments().select_columns(["body"])).limit(5),
    # Exchanges
    "sort": lambda: from_people().sort("age"),
    "sort by several keys": lambda: from_people().sort(["name", "age"], descending=[False, True]),
    "sort and limit": lambda: from_people().sort("age", descending=True).limit(6),
    "sort of a map": lambda: from_people().map(older).sort("age"),
    "map of a sort": lambda: from_people().sort("age").map(older).filter(pc.field("age") > 30),
    "sort of a sort": lambda: from_people().sort("age").select_columns(["id", "name"]).sort("name"),
    "random_shuffle": lambda: from_people().random_shuffle(seed=5, num_shards=3),
    "random_shuffle and limit": lambda: from_people().random_shuffle(seed=5).limit(4),
    "repartition": lambda: from_people().repartition(4),
    "repartition, shuffled": lambda: from_people().repartition(2, shuffle=True, seed=1),
    "group and count": lambda: from_people().groupby("name").count(),
    "group and aggregate": lambda: (
        from_people().groupby(["name"]).aggregate([("age", "mean"), ("weight", "max"), ("id", "count")])
    ),
    "group and quantile": lambda: from_people().groupby("name").quantile("age", q=0.5),
    "group and list": lambda: from_people().groupby("name").list("id"),
    "map_groups": lambda: from_people().groupby("name").map_groups(biggest),
    "distinct": lambda: from_people().distinct(["name"]),
    "distinct, all columns": lambda: from_people().select_columns(["name"]).distinct(),
    "join": lambda: from_people().select_columns(["id", "age"]).join(words(), on="id", broadcast=False),
    "left join": lambda: from_people().select_columns(["id", "age"]).join(words(), on="id", how="left"),
    "broadcast join": lambda: from_people().select_columns(["id", "age"]).join(words(), on="id", broadcast=True),
    "join of a group": lambda: words().join(
        from_people().groupby("age").count(), on="id", right_on="age", broadcast=False
    ),
    "dedup_exact": lambda: from_people().dedup_exact("text", id_column="id"),
    "dedup_minhash": lambda: from_people().dedup_minhash("text", id_column="id", threshold=0.7),
    "shuffle of a deduplication": lambda: (
        from_people().dedup_exact("text", id_column="id").random_shuffle(seed=2, num_shards=2)
    ),
    "sort of a union": lambda: from_people().select_columns(["id"]).union(curate.range(5)).sort("id"),
    "group of a pool": lambda: (
        from_people().map_batches(Longer, fn_constructor_args=[60], compute=ActorPool(size=1)).groupby("name").count()
    ),
    # Checkpoints
    "checkpoint": lambda: checkpointed().map(older),
    "sort of a checkpoint": lambda: checkpointed().sort("age"),
    "dedup of a checkpoint": lambda: checkpointed().dedup_exact("text", id_column="id"),
}

WRITES = {"json": ("parquet", "union", "sort"), "csv": ("csv", "select, drop and rename", "group and count")}
"""Plans that are written in another format too."""
