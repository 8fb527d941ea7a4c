"""Dataset: a lazy plan over rows, and the functions that make one. Names and semantics are those of ray.data.

Nothing runs before rows are asked for or written. Rows come in the order of the input, always.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from curate import log
from curate.dataset.exchange.order import Order, SortKey
from curate.dataset.formats import OutputFormat
from curate.dataset.lazy import consuming, convert, grouping, joining, rules
from curate.dataset.lazy import distinct as distincts
from curate.dataset.lazy import operators as ops
from curate.dataset.lazy.base import Base
from curate.dataset.lazy.consuming import check_rows as check_rows
from curate.dataset.lazy.declared import check_declared
from curate.dataset.lazy.durable import through_files
from curate.dataset.lazy.execution import Options, connection, joined
from curate.dataset.lazy.expressions import is_expression
from curate.dataset.lazy.grouping import GroupedData, key_columns, order_by
from curate.dataset.lazy.ordering import Repartitioned, Sorted, check_seed
from curate.dataset.lazy.plan import (
    Checkpoint,
    Limit,
    Scan,
    Union,
    Zip,
    lines,
    may_be_incomplete,
    rows_of,
    schema_of,
)
from curate.dataset.lazy.sampling import RandomSample
from curate.dataset.lazy.shown import terminal_display
from curate.dataset.lazy.sinks import shuffled, stage_of
from curate.dataset.lazy.sources import Tables
from curate.dataset.lazy.splitting import DataIterator, Passes
from curate.dataset.lazy.stats import Ran
from curate.dataset.lazy.unifying import unified
from curate.dataset.pipeline import ActorPool
from curate.dataset.spec import RunOptions
from curate.errors import ConfigError, did_you_mean
from curate.tasks.summary import Summary

Batch = Any
"""A pyarrow.Table, or a dictionary of numpy arrays."""


@dataclass(frozen=True, slots=True)
class Dataset(Base):
    """Rows that come from somewhere and go through operators; every method returns a new one.

    >>> import pyarrow.compute as pc
    >>> curate.range(5).with_column("double", pc.field("id") * 2).filter(pc.field("id") > 2).take_all()
    [{'id': 3, 'double': 6}, {'id': 4, 'double': 8}]
    """

    # Row-wise

    def map_batches(
        self,
        fn: Callable[..., Any],
        *,
        batch_size: int | None = None,
        compute: ActorPool | None = None,
        batch_format: str = "pyarrow",
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        output_schema: pa.Schema | None = None,
    ) -> Dataset:
        """Replaces batches of rows by what `fn(batch, *fn_args, **fn_kwargs)` returns for them.

        A batch has at most `batch_size` rows (None: about 16,384) and never crosses shards; it is a pyarrow.Table, or
        as `batch_format` says a dictionary of arrays ("numpy") or a data frame ("pandas"). `fn` returns any of these,
        whatever it got, or an iterator of them, with any number of rows, and always the same columns.

        A column that comes back as the type that it was given as has the type that it had, whatever that is to numpy or
        pandas. Numbers that are null are NaN in numpy, and null again when they come back, also computed with; whole
        numbers beside nulls are floats, and whole again when all are (objects, where a float would round one).

        `output_schema` declares what comes out. What `fn` returns is cast to it where every value stays what it is;
        else SchemaMismatch names column, types and rows. Without it, types are those of the first rows, and a later
        batch that they do not hold is refused, consumed or written.

        A function runs in the tasks that read. A class runs in a pool of actors: each makes an instance, with
        `fn_constructor_args` and `fn_constructor_kwargs`, keeps it, and calls it with batches. `compute` says how large
        the pool is, and puts a function into one; so do `num_gpus` and `resources` (custom ones of Ray), since Ray
        starts a new process for every task that holds a GPU. These, `num_cpus` (default 1, beside a GPU 0) and `memory`
        in bytes are what one actor holds; of a function in tasks `num_cpus` is what such a task holds.

        Raises ConfigError for what cannot be called, arguments that the constructor does not take, an unknown format,
        or a size below 1. What `fn` raises reaches whoever asks for the rows, with a note that names operator, rows
        and input; BadRow leaves a row out, or sets it aside in a write; a constructor that raises ends all.

        >>> def add(batch, amount):
        ...     return {"id": batch["id"] + amount}
        >>> curate.range(3).map_batches(add, batch_format="numpy", fn_args=[10]).take_all()
        [{'id': 10}, {'id': 11}, {'id': 12}]
        >>> class Scale:
        ...     def __init__(self, factor):
        ...         self.factor = factor
        ...     def __call__(self, batch):
        ...         return {"id": batch["id"] * self.factor}
        >>> scaled = curate.range(3).map_batches(
        ...     Scale, fn_constructor_args=[2], batch_format="numpy", compute=curate.ActorPool(size=1)
        ... )
        >>> scaled.take_all()
        [{'id': 0}, {'id': 2}, {'id': 4}]
        """
        udf = ops.Udf(fn, *_given(fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs))
        ops.check_function("map_batches", udf)
        convert.check_format(batch_format)
        if batch_size is not None:
            check_rows("batch_size", batch_size, 1)
        where = ops.placement("map_batches", udf, compute, num_cpus, num_gpus, memory, resources)
        return self._apply(
            ops.MapBatches(udf, batch_size, batch_format, where, check_declared("map_batches", output_schema))
        )

    def map(
        self,
        fn: Callable[..., Mapping[str, Any]],
        *,
        compute: ActorPool | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        output_schema: pa.Schema | None = None,
        isolate: bool = False,
        timeout_s: float | None = None,
    ) -> Dataset:
        """Replaces every row, a dictionary, by the dictionary that `fn(row)` returns; all must have the same keys.

        A column that the row had keeps its type as long as that holds every value of a batch exactly; types of others
        are inferred, and values that no type holds are refused. Tensors are arrays of their shape, nulls None, and keys
        come in the order of the first row. Where `fn` runs, with which arguments, and its `output_schema` are as for
        `map_batches`; with it, floats become the nearest of the declared type.

        With `isolate`, `fn` runs in a process of its own beside the worker, so that a crash, or a row that takes longer
        than `timeout_s` seconds, costs that row only: it is bad, and set aside in a write.

        Raises ConfigError as `map_batches` does, and for `timeout_s` without `isolate`.

        >>> curate.range(2).map(lambda row: {"text": str(row["id"])}).take_all()
        [{'text': '0'}, {'text': '1'}]
        """
        udf = ops.Udf(fn, *_given(fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs))
        ops.check_function("map", udf)
        where = ops.placement("map", udf, compute, num_cpus, num_gpus, memory, resources)
        if timeout_s is not None and not isolate:
            raise ConfigError(f"map(timeout_s={timeout_s!r}) needs isolate=True: only another process can be ended")
        if isolate and isinstance(fn, type):
            raise ConfigError("map(isolate=True) takes a function, which runs in a process of its own, not a class")
        declared = check_declared("map", output_schema)
        if isolate:
            return self._apply(ops.MapIsolated(udf, timeout_s, where, declared))
        return self._apply(ops.MapRows(udf, False, where, declared))

    def flat_map(
        self,
        fn: Callable[..., Iterable[Mapping[str, Any]]],
        *,
        compute: ActorPool | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        output_schema: pa.Schema | None = None,
    ) -> Dataset:
        """Replaces every row by the rows, dictionaries of the same keys, that `fn(row)` returns: none, or several.

        Where `fn` runs, with which arguments, its `output_schema`, and what is refused are as for `map_batches`.

        >>> curate.range(3).flat_map(lambda row: [row] * row["id"]).take_all()
        [{'id': 1}, {'id': 2}, {'id': 2}]
        """
        udf = ops.Udf(fn, *_given(fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs))
        ops.check_function("flat_map", udf)
        where = ops.placement("flat_map", udf, compute, num_cpus, num_gpus, memory, resources)
        return self._apply(ops.MapRows(udf, True, where, check_declared("flat_map", output_schema)))

    def filter(
        self,
        fn: Any,
        *,
        reason: str = "filter",
        compute: ActorPool | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> Dataset:
        """Keeps the rows for which `fn` is true: a pyarrow.compute expression, or a function of the row.

        Where an expression is null the row is dropped. A write books what is dropped under `reason`. Expressions over
        columns of Parquet files are pushed into the read: row groups that cannot match are not read. Where a function
        runs, and with which arguments, is as for `map_batches`.

        Raises ConfigError for an expression that is not boolean or names an unknown column, and as `map_batches` does.

        >>> import pyarrow.compute as pc
        >>> curate.range(4).filter(pc.field("id") >= 2).filter(lambda row: row["id"] != 3).take_all()
        [{'id': 2}]
        """
        if not reason or not isinstance(reason, str):
            raise ConfigError(f"filter(reason={reason!r}): a reason is some text")
        if is_expression(fn):
            return self._apply(ops.FilterExpression(fn, reason))
        udf = ops.Udf(fn, *_given(fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs))
        ops.check_function("filter", udf)
        where = ops.placement("filter", udf, compute, num_cpus, num_gpus, memory, resources)
        return self._apply(ops.FilterRows(udf, reason, where))

    def with_column(self, column_name: str, expr: Any) -> Dataset:
        """Adds a column made by a pyarrow.compute expression, as the last one; one of that name is replaced in place.

        Raises ConfigError for what is no expression, or one that cannot be made of the columns there are.

        >>> import pyarrow.compute as pc
        >>> curate.range(2).with_column("id", pc.field("id") + 1).take_all()
        [{'id': 1}, {'id': 2}]
        """
        if not is_expression(expr):
            raise ConfigError(
                f"with_column({column_name!r}) takes a pyarrow.compute expression such as pc.field('n') * 2, found "
                f"{expr!r}; use map_batches for a function"
            )
        return self._apply(ops.WithColumn(column_name, expr))

    def select_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Keeps these columns, in this order. Those of Parquet files that nothing needs are not read.

        Raises ConfigError for a column that is not there, or is named twice.

        >>> import pyarrow.compute as pc
        >>> curate.range(1).with_column("a", pc.field("id")).select_columns(["a"]).take_all()
        [{'a': 0}]
        """
        return self._apply(ops.Select(_columns("select_columns", cols)))

    def drop_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Leaves these columns out. Raises ConfigError for a column that is not there, or is named twice.

        >>> import pyarrow.compute as pc
        >>> curate.range(1).with_column("a", pc.field("id")).drop_columns("id").take_all()
        [{'a': 0}]
        """
        return self._apply(ops.Drop(_columns("drop_columns", cols)))

    def rename_columns(self, names: Mapping[str, str]) -> Dataset:
        """Renames columns, from old names to new ones; they keep their places.

        Raises ConfigError for a column that is not there, or two of one name.

        >>> curate.range(1).rename_columns({"id": "n"}).take_all()
        [{'n': 0}]
        """
        return self._apply(ops.Rename(dict(names)))

    def limit(self, limit: int) -> Dataset:
        """Keeps the first `limit` rows. Consumed, what makes more is stopped, and what follows runs in the consumer's
        process.

        A write of files, or of rows in memory, counts once how far it reaches, and keeps to that. Of what an exchange
        gives, of a zip or a checkpoint, all is made, and the first rows are kept; of a `sort`, up to 65,536 rows, every
        map shard keeps no more than these. Raises ConfigError for a negative number.

        >>> curate.range(1_000_000_000).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        check_rows("limit", limit, 0)
        return self._with(Limit(self._plan, limit))

    def union(self, *other: Dataset) -> Dataset:
        """Returns the rows of this dataset, then those of the others.

        A column that some of them lack is null there, and types are widened where another holds all values.

        Written, parts that are read and processed in the same way have an output for each of their inputs; others go
        through an exchange, which keeps them in order.

        Raises ConfigError, with the schemas, for a column of types that do not go together.

        >>> curate.range(1).union(curate.range(2), curate.from_items(["a"])).take_all()
        [{'id': 0, 'item': None}, {'id': 0, 'item': None}, {'id': 1, 'item': None}, {'id': None, 'item': 'a'}]
        """
        return self._with(Union(unified([self._plan, *(one._plan for one in other)])))

    def zip(self, *other: Dataset) -> Dataset:
        """Puts the rows of this dataset and of others side by side, in order; there must be as many in each.

        A column whose name is taken gets the first free of the suffixes _1, _2, … Consumed, the rows are put together
        in the consumer's process, where what follows runs as well; all are made at once, each with its share of the
        memory budget and of the cluster. Written, they go through an exchange. Where lengths differ, a ConfigError that
        names them comes when the first one ends, if rows are asked for up to there; of a write always, before the first
        output is made.

        >>> curate.range(2).zip(curate.from_items(["a", "b"]), curate.range(2)).take_all()
        [{'id': 0, 'item': 'a', 'id_1': 0}, {'id': 1, 'item': 'b', 'id_1': 1}]
        """
        return self._with(Zip((self._plan, *(one._plan for one in other))))

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Dataset:
        """Keeps about `fraction` of the rows (0 to 1), in their order.

        Which ones depends on `seed`, on what is read (a file, a table, a range) and on the place of the row in it:
        with a seed it is the same rows each time, consumed or written, and a larger fraction keeps them all; without
        one, a seed is chosen now. Behind a limit or a zip, rows go through an exchange first, whether they are consumed
        or written: there each has a place of its own. A write books the others as dropped for "random_sample". Raises
        ConfigError for another fraction, or a seed below 0.

        >>> curate.range(1000).random_sample(0.01, seed=3).count()
        12
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ConfigError(f"random_sample(fraction={fraction!r}): expected a number from 0 to 1")
        if seed is None:
            seed = secrets.randbits(64)
        check_rows("seed", seed, 0)
        return self._apply(RandomSample(float(fraction), seed))

    # Exchanges

    def sort(
        self, key: str | Sequence[str], descending: bool | Sequence[bool] = False, *, nulls: str = "at_end"
    ) -> Dataset:
        """Puts the rows in order of one column, or of several; rows of equal keys stay as they came.

        `descending` is for all keys, or one for each. Nulls are at the end, or with `nulls="at_start"` at the start,
        whichever way a key goes; NaN is beside them. Raises ConfigError for a column that is not there, is nested, or
        of a type that has no order.

        >>> curate.from_items([{"n": 2}, {"n": None}, {"n": 1}]).sort("n").take_all()
        [{'n': 1}, {'n': 2}, {'n': None}]
        """
        keys = _columns("sort", key)
        ways = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if not keys or len(ways) != len(keys):
            raise ConfigError(
                f"sort: {len(keys)} keys and {len(ways)} of descending; give one for each, or one for all"
            )
        order = Order(tuple(SortKey(name, bool(way)) for name, way in zip(keys, ways, strict=True)), nulls)
        return self._exchange(Sorted(order))

    def random_shuffle(self, *, seed: int | None = None, num_shards: int | None = None) -> Dataset:
        """Puts the rows in random order: every order is as likely, and the same for the same input and seed.

        Written, there are `num_shards` outputs of as many rows each, to one (None: by their bytes). Without a seed, a
        write chooses one, and keeps it for its reruns; rows that are consumed come in another order each time. Raises
        ConfigError for numbers below 1, or a seed below 0.

        >>> curate.range(5).random_shuffle(seed=1).take_all() == curate.range(5).random_shuffle(seed=1).take_all()
        True
        """
        if seed is not None:
            check_seed(seed)
        if num_shards is not None:
            check_rows("num_shards", num_shards, 1)
        return self._with(shuffled(self._plan, seed, num_shards))

    def repartition(self, num_shards: int, *, shuffle: bool = False, seed: int | None = None) -> Dataset:
        """Makes a write have `num_shards` outputs of as many rows each, to one, in the order that there is; with
        `shuffle` in random order, by `seed`. Raises ConfigError for numbers below 1.

        >>> curate.range(3).repartition(2).count()
        3
        """
        check_rows("num_shards", num_shards, 1)
        if shuffle:
            return self.random_shuffle(seed=seed, num_shards=num_shards)
        return self._exchange(Repartitioned(num_shards))

    def groupby(self, key: str | Sequence[str]) -> GroupedData[Dataset]:
        """Groups rows by one column, or several; the methods of what is returned make a row a group of them.

        Raises ConfigError for a column that is not there, is nested, or of a type that has no order.

        >>> curate.from_items([{"k": "b", "n": 1}, {"k": "a", "n": 2}]).groupby("k").sum("n").take_all()
        [{'k': 'a', 'n_sum': 2}, {'k': 'b', 'n_sum': 1}]
        """
        keys = key_columns("groupby", key)
        found = schema_of(self._plan)
        if found is not None:
            order_by(keys).check("groupby", found)
        return GroupedData(self, keys)

    def dedup_exact(
        self,
        columns: str | Sequence[str],
        keep: str = "first",
        *,
        priority: str | None = None,
        normalise: bool = False,
        id_column: str | None = None,
    ) -> Dataset:
        """Drops rows that have the same values in `columns` as another, as `duplicate`; one of each is kept.

        That is the `first` or the `last` in input order; with `priority`, a column, the one with the largest value
        there, and of those the first or last. Rows stay in their order. Null equals null, and NaN equals NaN. With
        `normalise`, texts are the same that differ in case and white space alone, or in how they compose characters.

        With `id_column`, what is written has an extra output `duplicates`: `id`, `cluster`, `kept_id`, `similarity`
        (1.0) of each row that was dropped.

        What moves are 128-bit hashes (XXH3, which whoever wants to can make collide), 36 bytes a row. The rows are read
        twice, and what comes before is run twice: `checkpoint` what takes long.

        Raises ConfigError for a column that is not there, or is of a type without a hash or, for `priority`, an order.

        >>> texts = curate.from_items([{"n": 1, "text": "Hello"}, {"n": 2, "text": "hello "}, {"n": 3, "text": "Bye"}])
        >>> [row["n"] for row in texts.dedup_exact("text", normalise=True, priority="n").iter_rows()]
        [2, 3]
        """
        from curate.dataset.dedup import exact, plans

        same = exact.Same(key_columns("dedup_exact", columns), normalise, keep, priority, id_column)
        return self._then(plans.exact(self._plan, same))

    def dedup_minhash(
        self,
        column: str,
        *,
        id_column: str,
        threshold: float = 0.8,
        ngram: int = 5,
        bands: int = 14,
        rows: int = 8,
        seed: int = 0,
        unit: str = "word",
    ) -> Dataset:
        """Drops rows whose texts in `column` are nearly those of another, as `duplicate`; of each cluster the first is
        kept. Rows stay in their order.

        Texts are sets of n-grams of `ngram` words (or, by `unit`, of each `character`); case, punctuation and white
        space do not matter to words. Two are near duplicates whose sets have a Jaccard similarity of `threshold` at
        least, and a cluster is what is connected by such pairs. Pairs are looked for by MinHash, with `bands` bands of
        `rows` places: of pairs with a similarity of s a share of 1 - (1 - s**rows)**bands is found, by default 92 % at
        0.8, 98.8 % at 0.85 and 99.96 % at 0.9. Their similarity is then that of the sets, not an estimate, so that none
        below the threshold is taken for one. `seed` decides which pairs are missed.

        What is written has an extra output `duplicates`: `id`, `cluster`, `kept_id`, and the `similarity` to the most
        similar row of the cluster, of each row that was dropped.

        A text of fewer words than an n-gram is one n-gram. Null, and texts without a word, are kept. The rows are read
        four times, and what comes before is run four times: `checkpoint` what takes long.

        Raises ConfigError for a column that is not there or is no text, and for numbers that make no sense.

        >>> words = "one two three four five six seven eight nine ten eleven twelve"
        >>> texts = [words, f"{words} thirteen", "something else"]
        >>> rows = curate.from_items([{"n": n, "text": text} for n, text in enumerate(texts)])
        >>> [row["n"] for row in rows.dedup_minhash("text", id_column="n").iter_rows()]
        [0, 2]
        """
        from curate.dataset.dedup import near, plans

        how = near.Near(column, id_column, threshold, ngram, bands, rows, seed, unit)
        return self._then(plans.near(self._plan, how))

    def distinct(
        self, keys: str | Sequence[str] | None = None, *, keep: str = "first", order_by: str | None = None
    ) -> Dataset:
        """Keeps one row of each key: the rows whose `keys` columns (None: all) are equal are duplicates.

        It is the `first` or `last` one in the order of the input; with `order_by`, that with the smallest or largest
        value of that column, and of equal values the first or last one; nulls and NaN only where there is nothing else.
        Rows come in order of the keys, null last. A write books the others as dropped for "duplicate". Nulls equal each
        other, and so do NaN and the two zeros. Raises ConfigError for columns that are not there or have no order.

        >>> ds = curate.from_items([{"k": "b", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 0}])
        >>> ds.distinct("k").take_all()
        [{'k': 'a', 'n': 2}, {'k': 'b', 'n': 1}]
        >>> ds.distinct("k", order_by="n").take_all()
        [{'k': 'a', 'n': 2}, {'k': 'b', 'n': 0}]
        """
        return self._then(distincts.distinct(self._plan, keys, keep, order_by))

    def join(
        self,
        other: Dataset,
        *,
        on: str | Sequence[str],
        how: str = "inner",
        right_on: str | Sequence[str] | None = None,
        left_suffix: str = "",
        right_suffix: str = "_right",
        broadcast: bool = False,
    ) -> Dataset:
        """Joins rows with those of another dataset whose keys are equal: `on` here, `right_on` there (None: the same).

        `how` is inner; left, right or outer, which keep rows without a match of one side or both; semi or anti, which
        keep the rows of this dataset that have a match, or none, as they are. Keys come once, as this dataset calls
        them; other columns that both have get the suffixes. Rows come in order of the keys, then in the order of this
        dataset, then of the other one. Null matches nothing; NaN matches NaN. Keys are of one type but for the width
        of numbers.

        With `broadcast` the other dataset is run at once, its rows are given to every task (1 GiB at most), and this
        one's rows keep their order and their shards: for an inner, left, semi or anti join with something small.

        A write books rows without a match as dropped for "unmatched" (of an anti join those with one, for "matched"),
        rows of the other dataset that became part of a row for "joined", and what a key gives more often as created.

        Raises ConfigError for columns that are not there, have no order, or are of two types; for names that meet.

        >>> people = curate.from_items([{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}])
        >>> visits = curate.from_items([{"who": 2, "day": 5}, {"who": 2, "day": 6}])
        >>> people.join(visits, on="id", right_on="who", how="left").take_all()
        [{'id': 1, 'name': 'ann', 'day': None}, {'id': 2, 'name': 'bob', 'day': 5}, {'id': 2, 'name': 'bob', 'day': 6}]
        """
        rows = other.to_arrow if broadcast else None
        suffixes = left_suffix, right_suffix
        return self._then(joining.join(self._plan, other._plan, on, how, right_on, *suffixes, rows))

    def unique(self, column: str) -> list[Any]:
        """Returns the values that a column has, each once, ascending, NaN and then None last. They have to fit into
        memory. Raises ConfigError for a column that is not there, or whose values have no order.

        >>> curate.from_items([{"k": "b"}, {"k": None}, {"k": "a"}, {"k": "b"}]).unique("k")
        ['a', 'b', None]
        """
        return distincts.unique(self._plan, column, self._blocks_of)

    def sum(self, on: str | Sequence[str]) -> Any:
        """Returns the sum of a column, or a dictionary of those of several; None of nothing. Nulls are left out.

        Partial results are made where the rows are and added in the order of the input. Whole numbers and decimals are
        exact, or raise SumOverflow beyond 64 bits or 38 digits. Raises ConfigError for a column without a sum. So do
        `min`, `max`, `mean`, `std`, `quantile` and `aggregate`, of columns without one.

        >>> curate.range(4).sum("id"), curate.range(4).sum(["id"])
        (6, {'id_sum': 6})
        """
        return grouping.total(self._plan, "sum", on, self._blocks_of)

    def min(self, on: str | Sequence[str]) -> Any:
        """Returns the smallest value of a column, or of several, as `sum` does; NaN only if there is nothing else.

        >>> curate.range(4).min("id")
        0
        """
        return grouping.total(self._plan, "min", on, self._blocks_of)

    def max(self, on: str | Sequence[str]) -> Any:
        """Returns the largest value of a column, or of several, as `sum` does; NaN only if there is nothing else.

        >>> curate.range(4).max("id")
        3
        """
        return grouping.total(self._plan, "max", on, self._blocks_of)

    def mean(self, on: str | Sequence[str]) -> Any:
        """Returns the mean of a column, or of several, as `sum` does; a float.

        >>> curate.range(4).mean("id")
        1.5
        """
        return grouping.total(self._plan, "mean", on, self._blocks_of)

    def std(self, on: str | Sequence[str], ddof: int = 1) -> Any:
        """Returns the standard deviation of a column, or of several, as `sum` does: by the number of values less
        `ddof`; None if that is not above 0.

        >>> curate.range(3).std("id")
        1.0
        """
        return grouping.total(self._plan, "std", on, self._blocks_of, ddof=ddof)

    def quantile(self, on: str | Sequence[str], q: float = 0.5) -> Any:
        """Returns the value below which a part `q` (0 to 1) of a column is, or of several, as `sum` does.

        It is exact, between two values by a straight line; all values of the column are held in this process.

        >>> curate.range(4).quantile("id")
        1.5
        """
        return grouping.total(self._plan, "quantile", on, self._blocks_of, q=q)

    def aggregate(self, aggregates: Sequence[tuple[str | None, str]]) -> dict[str, Any]:
        """Returns several aggregates of all rows, named as those of `groupby(...).aggregate`.

        >>> curate.range(4).aggregate([("id", "mean"), (None, "count")])
        {'id_mean': 1.5, 'count': 4}
        """
        return grouping.totals(self._plan, "aggregate", grouping.pairs("aggregate", aggregates), self._blocks_of)

    def using(self, options: Options | None = None, **changes: Any) -> Dataset:
        """Says how rows are made: with these `Options`, or with the ones there are and these fields of them changed.

        Raises ConfigError for an option that there is not, and for a value that makes no sense.

        >>> curate.range(2).using(backend="inline", block_bytes=1 << 20).count()
        2
        """
        known = [one.name for one in fields(Options)]
        for name in changes:
            if name not in known:
                raise ConfigError(f"no option {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}")
        return replace(self, _how=replace(options or self._how, **changes))

    # Consuming

    def count(self) -> int:
        """Returns the number of rows; from the footers of Parquet files where every row is known to be kept.

        >>> import pyarrow.compute as pc
        >>> curate.range(10).filter(pc.field("id") < 3).count()
        3
        """
        known = rows_of(self._plan)
        if known is not None:
            return known
        found = schema_of(self._plan)
        least = self if found is None or not len(found) else self._part(self.select_columns(found.names[0]))
        return sum(block.num_rows for block in least._blocks())

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Returns the first `limit` rows as dictionaries; reads no more than it takes. Raises ConfigError if negative.

        >>> curate.range(100).take(1)
        [{'id': 0}]
        """
        return self._limited(limit).take_all()

    def take_all(self) -> list[dict[str, Any]]:
        """Returns all rows as dictionaries; they have to fit into memory.

        >>> curate.range(1).take_all()
        [{'id': 0}]
        """
        return list(self.iter_rows())

    def take_batch(self, batch_size: int = 20, *, batch_format: str = "pyarrow") -> Batch:
        """Returns the first `batch_size` rows as one batch. Raises ConfigError if there is no row.

        >>> curate.range(100).take_batch(2, batch_format="numpy")["id"].tolist()
        [0, 1]
        """
        convert.check_format(batch_format)
        check_rows("batch_size", batch_size, 1)
        table = self._limited(batch_size).to_arrow()
        if not table.num_rows:
            raise ConfigError("take_batch: the dataset has no rows")
        return convert.formatted(table, batch_format)

    def show(self, limit: int = 20) -> None:
        """Prints the first `limit` rows.

        >>> curate.range(2).show()
        {'id': 0}
        {'id': 1}
        """
        console = Console(width=200, soft_wrap=True)
        for row in self.take(limit):
            console.print(repr(row), markup=False, highlight=False)

    def iter_rows(self) -> Generator[dict[str, Any]]:
        """Yields the rows as dictionaries of Python values, the first while later ones are still being read.

        To stop early ends all that runs.

        >>> next(curate.range(3).iter_rows())
        {'id': 0}
        """
        return consuming.iter_rows(self._blocks)

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: str = "pyarrow",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Generator[Batch]:
        """Yields the rows in batches of `batch_size` rows, the last one smaller, or left out with `drop_last`.

        With `batch_size=None`, blocks as they come, of 1 MiB at first and `block_bytes` in the end. Formats as for
        `map_batches`. A thread makes `prefetch_batches` batches ahead, which are held beside the memory budget; with 0,
        all is done between two batches, in the caller's thread.

        With `local_shuffle_buffer_size`, each batch is drawn at random from a buffer of as many rows, at least
        `batch_size`, which is filled up before: every row comes once, none more than a buffer too early. The order
        depends on the order of the rows, these numbers and `local_shuffle_seed` alone (and on the version of numpy);
        without a seed it is another one each time.

        What is raised reaches the caller after the batches before it. To stop early (`break`, `close`) ends all that
        runs, frees what was made, and returns when the thread has ended. Raises ConfigError for an unknown format, a
        size below 1, or a shuffle without a `batch_size`.

        >>> [batch.num_rows for batch in curate.range(5).iter_batches(batch_size=2)]
        [2, 2, 1]
        >>> shuffled = curate.range(6).iter_batches(batch_size=3, local_shuffle_buffer_size=6, local_shuffle_seed=0)
        >>> sorted(number for batch in shuffled for number in batch["id"].to_pylist())
        [0, 1, 2, 3, 4, 5]
        """
        return consuming.iter_batches(
            self._blocks,
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            form=consuming.in_format(batch_format),
            around=partial(connection, self._how, self._ran),
        )

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, np.ndarray[Any, Any]]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Generator[Any]:
        """Yields batches as dictionaries of torch tensors; or what `collate_fn` makes of a dictionary of arrays.

        Lists of one length become a further dimension. `dtypes` is the type of all tensors, or those of columns by
        name; else it is that of the column. Tensors, also those in lists, tuples and dictionaries that `collate_fn`
        returns, are put on `device` ("auto": the CPU), from pinned memory with `pin_memory`. All of it is done ahead,
        in the thread, and all else is as for `iter_batches`.

        Raises ConfigError if torch is not installed, for `dtypes` beside `collate_fn`, and as `iter_batches` does;
        TypeError, when the batch is made, for a column of texts, or of lists of several lengths.

        >>> [batch["id"].tolist() for batch in curate.range(3).iter_torch_batches(batch_size=2)]  # doctest: +SKIP
        [[0, 1], [2]]
        """
        return consuming.iter_torch_batches(
            self._blocks,
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            device=device,
            collate_fn=collate_fn,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            pin_memory=pin_memory,
            around=partial(connection, self._how, self._ran),
        )

    def to_pandas(self, limit: int | None = None) -> Any:
        """Returns all rows as a pandas.DataFrame; they have to fit into memory. Types are as for `map_batches`.

        Raises ConfigError if there are more than `limit` rows (None: any number), or pandas is not installed.

        >>> curate.range(2).to_pandas()["id"].tolist()
        [0, 1]
        """
        convert.need_pandas("to_pandas")
        if limit is None:
            return convert.to_pandas(self.to_arrow())
        check_rows("limit", limit, 0)
        table = self._limited(limit + 1).to_arrow()
        if table.num_rows > limit:
            raise ConfigError(f"to_pandas: there are more than {limit:,} rows; take the first with limit({limit})")
        return convert.to_pandas(table)

    def materialize(self) -> Dataset:
        """Runs what there is to run, and returns its rows as a dataset that has them in this process's memory.

        What follows on it does not run it again.

        >>> numbers = curate.range(3).map(lambda row: {"n": row["id"] * 2}).materialize()
        >>> numbers.count(), numbers.take_all()
        (3, [{'n': 0}, {'n': 2}, {'n': 4}])
        """
        tables = self._tables()
        return self._held("materialize", tables, 0, sum(table.num_rows for table in tables))

    def split(self, n: int, *, equal: bool = False) -> list[Dataset]:
        """Runs what there is to run, and returns the rows in `n` datasets that follow each other, held as `materialize`
        does.

        Their numbers of rows differ by one at most; with `equal` they are the same, and the last rows, less than `n`,
        are left out. Raises ConfigError for `n` below 1.

        >>> [part.count() for part in curate.range(5).split(2)]
        [2, 3]
        >>> [part.take_all() for part in curate.range(5).split(2, equal=True)]
        [[{'id': 0}, {'id': 1}], [{'id': 2}, {'id': 3}]]
        """
        check_rows("n", n, 1)
        tables = self._tables()
        rows = sum(table.num_rows for table in tables)
        ends = [part * (rows // n) if equal else part * rows // n for part in range(n + 1)]
        return [self._held("split", tables, start, stop) for start, stop in pairwise(ends)]

    def streaming_split(self, n: int, *, equal: bool = False) -> list[DataIterator]:
        """Returns `n` iterators over disjoint shares of the rows, each to be consumed in a thread of its own.

        They have `iter_rows`, `iter_batches` and `iter_torch_batches`. All are fed from one run: block k goes to number
        k mod `n`; with `equal` each block is cut into `n` parts of as many rows, so that all get the same number, and
        the last rows, less than `n`, are left out. One block waits for each at most: a consumer that is slow holds up
        the others, and one that does not begin holds them up for good. One that stops early, or that nobody holds any
        more, is left out. The run ends when all have ended.

        They can be iterated again, which runs all again, once all have ended. They belong to this process. It is not
        resumable: which rows a consumer has seen is written down nowhere. Raises ConfigError for `n` below 1.

        >>> import concurrent.futures
        >>> shares = curate.range(6).streaming_split(2, equal=True)
        >>> with concurrent.futures.ThreadPoolExecutor(2) as threads:
        ...     list(threads.map(lambda share: [row["id"] for row in share.iter_rows()], shares))
        [[0, 1, 2], [3, 4, 5]]
        """
        check_rows("n", n, 1)
        passes = Passes(self._blocks, n, equal=equal)
        return [DataIterator(passes, share) for share in range(n)]

    def to_arrow(self) -> pa.Table:
        """Returns all rows as one table; they have to fit into memory.

        >>> curate.range(3).to_arrow().num_rows
        3
        """
        return joined(self._tables())

    def _held(self, method: str, tables: Sequence[pa.Table], start: int, stop: int) -> Dataset:
        """Returns rows of tables as a dataset."""
        whole = joined(list(tables))
        ends = accumulate((table.num_rows for table in tables), initial=0)
        cut = [(max(first, start), min(last, stop)) for first, last in pairwise(ends)]
        pieces = tuple(whole.slice(first, last - first) for first, last in cut if first < last)
        return self._part(self._with(Scan(Tables(method, pieces, whole.schema))), Ran(self._ran.last))

    # Writing

    def checkpoint(self, path: str | os.PathLike[str]) -> Dataset:
        """Has the rows written below `path` as Parquet before anything that follows, which reads them from there.

        The write is a job of its own: resumable, and free once it is complete. It outlives this dataset and is used
        again by whoever asks for the same: same files, same operators. Where `path` holds the rows of other operators,
        running raises ConfigError, with the difference; where shards of it fail, CheckpointFailed.

        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n')
        >>> doubled = curate.read_json(folder / "in.jsonl").map(lambda row: {"n": row["n"] * 2})
        >>> kept = doubled.checkpoint(folder / "kept")
        >>> kept.take_all(), curate.read_parquet(folder / "kept").count()
        ([{'n': 2}], 1)
        """
        return self._with(Checkpoint(self._plan, os.fspath(path)))

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str | None = None,
        codec: str | None = None,
        keep_stages: bool = False,
        drop_removed: bool = False,
    ) -> Summary:
        """Writes one Parquet file for each input shard below `path`, as a job, and returns the run's summary.

        Idempotent: what is written already is skipped, so that calling it again finishes what was left. Its identity
        is that of its operators: their code, defaults and closures. `codec` is zstd (default), snappy or none.
        `backend` is that of `using`, else ray.

        After an exchange there are as many files as it has outputs. Its stages are removed once all of them are there;
        with `keep_stages` they stay, below `path` or in $CURATE_SCRATCH, for the next run without it to remove. What an
        exchange gives depends on all of its input: when files are new, gone or changed since the write began, calling
        it again raises ConfigError.

        Raises ConfigError for a plan that closes over a value of which no identity can be made, and for a `path` that
        holds something else. Shards that fail do not raise: see `Summary.state`.

        >>> import pyarrow.compute as pc
        >>> import tempfile, pathlib, pyarrow.parquet as pq
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n{"n": 2}\\n')
        >>> found = curate.read_json(folder / "in.jsonl").filter(pc.field("n") > 1, reason="small")
        >>> found.write_parquet(folder / "out", backend="inline").books.dropped
        {'small': 1}
        >>> curate.read_parquet(folder / "out").take_all()
        [{'n': 2}]
        """
        return self._write(path, OutputFormat.PARQUET, backend, codec, keep_stages, drop_removed)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str | None = None,
        codec: str | None = None,
        keep_stages: bool = False,
        drop_removed: bool = False,
    ) -> Summary:
        """Writes one file of JSON lines for each input shard below `path`; all else is as for `write_parquet`.

        `codec` is zstd (default) or gzip.

        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n')
        >>> _ = curate.read_json(folder / "in.jsonl").write_json(folder / "out", backend="inline")
        >>> [path.name for path in (folder / "out").glob("in*")]
        ['in.jsonl.zst']
        """
        return self._write(path, OutputFormat.JSONL, backend, codec, keep_stages, drop_removed)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str | None = None,
        codec: str | None = None,
        keep_stages: bool = False,
        drop_removed: bool = False,
    ) -> Summary:
        """Writes one CSV file with a header for each input shard below `path`; all else is as for `write_parquet`.

        `codec` is zstd (default) or gzip. A shard with a column that CSV has no way to write, such as a list, fails.

        >>> import gzip, tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n')
        >>> _ = curate.read_json(folder / "in.jsonl").write_csv(folder / "out", backend="inline", codec="gzip")
        >>> gzip.open(folder / "out" / "in.csv.gz", "rt").read().split()
        ['"n"', '1']
        """
        return self._write(path, OutputFormat.CSV, backend, codec, keep_stages, drop_removed)

    # Looking

    def explain(self) -> str:
        """Returns the logical and the physical plan: what is fused, what is pushed into the read, how much is read. And
        how it is written, where that is through an exchange and what is consumed is not.

        >>> import pyarrow.compute as pc
        >>> print(curate.range(9).filter(pc.field("id") > 2).limit(1).explain())
        logical
          limit(1)
            filter((id > 2))
              range(9)
        physical
          first 1 rows, then stop
            tasks (1 CPU each)
              range(9)
                gives at most 1 rows of a piece; reads as many first, and more only if those are not enough
                fused: filter((id > 2))
        """
        consumed = list(rules.lines(rules.lower(self._plan), 1))
        told = ["logical", *lines(self._plan, 1), "physical", *consumed]
        # What a write refuses is none of a consumer's business.
        with suppress(ConfigError):
            if (plan := through_files(self._plan)) is not None:
                written = list(rules.lines(rules.lower(plan), 1))
                told += ["written", *written] if written != consumed else []
        return "\n".join(told)

    def stats(self) -> str:
        """Returns what the last consumption or write of this very dataset took, or takes, if it goes on.

        For each operator: rows and bytes in and out, the mean and the largest block that it gave; the time that it was
        at work (wall, and CPU of its thread), all tasks or actors together, and that tasks waited for its pool; how
        many actors it has, and how much of their time they were at work; the most memory that a process held which it
        was at work in. Then how blocks went to the consumer, and one sentence that says what limits the pipeline.

        Of pieces that have not ended, or were stopped early, it is what they had done when they last gave a block. What
        `checkpoint` wrote is told as well. Of a dataset that has not run, it says so.

        >>> doubled = curate.range(3).map(lambda row: {"n": row["id"] * 2})
        >>> rows = doubled.take_all()
        >>> print(doubled.stats())  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
        operator       rows in  rows out  bytes in  bytes out  a block  largest
        range(3)                       3                 24 B     24 B     24 B
        map(<lambda>)        3         3      24 B       24 B     24 B     24 B
        ...
        took ...
        """
        return self._ran.told()

    def _limited(self, rows: int) -> Dataset:
        return self._part(self.limit(rows))

    def _write(
        self,
        path: str | os.PathLike[str],
        format: OutputFormat,
        backend: str | None,
        codec: str | None,
        keep_stages: bool,
        drop_removed: bool,
    ) -> Summary:
        from curate.dataset.driver import run

        log.ensure_configured()
        spec, inputs = stage_of(self._plan, format, codec)
        spec = replace(spec, memory_budget=self._how.memory_budget)
        return run(
            spec,
            RunOptions(
                inputs=tuple(inputs),
                output=os.fspath(path),
                backend=backend or self._how.backend or "ray",
                keep_stages=keep_stages,
                drop_removed=drop_removed,
                allow_incomplete_input=may_be_incomplete(self._plan),
                display=self._ran.begin().write(terminal_display()),
            ),
        )


def _given(
    args: Iterable[Any] | None,
    kwargs: Mapping[str, Any] | None,
    constructor_args: Iterable[Any] | None,
    constructor_kwargs: Mapping[str, Any] | None,
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...], dict[str, Any]]:
    return tuple(args or ()), dict(kwargs or {}), tuple(constructor_args or ()), dict(constructor_kwargs or {})


def _columns(method: str, cols: str | Sequence[str]) -> tuple[str, ...]:
    columns = (cols,) if isinstance(cols, str) else tuple(cols)
    for name in columns:
        if columns.count(name) > 1:
            raise ConfigError(f"{method}: the column {name!r} is named {columns.count(name)} times")
    return columns
