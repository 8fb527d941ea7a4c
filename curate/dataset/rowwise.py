"""Methods of a Dataset that change rows within their shards and call no function."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence, Set, Sized
from typing import Any, Self

from curate.arrow.expressions import as_expression
from curate.attributes.found import find
from curate.dataset.base import Base
from curate.dataset.batches import fraction_of
from curate.errors import ConfigError
from curate.exchange.kinds.base import column_names
from curate.operators import columns as ops
from curate.operators.arguments import path_text, refuse_unused
from curate.operators.parts import split_off
from curate.operators.sample import RandomSample, TrainTestSide
from curate.plan.attributes import with_attributes
from curate.plan.nodes import Limit, Union, Zip
from curate.plan.rewrites import lacks_seed, unified
from curate.units import whole, whole_seed


class Rowwise(Base):
    """What becomes of rows and columns where they are."""

    __slots__ = ()

    def with_columns(self, exprs: Mapping[str, Any]) -> Self:
        """Adds several columns computed by pyarrow.compute expressions; columns with these names are replaced in place.

        All expressions see the columns as they were before. Raises ConfigError as `with_column` does, and for no
        column.

        >>> curate.range(2).with_columns({"id": curate.col("id") + 1, "old": curate.col("id")}).take_all()
        [{'id': 1, 'old': 0}, {'id': 2, 'old': 1}]
        """
        if not isinstance(exprs, Mapping) or not exprs:
            raise ConfigError(f"with_columns takes expressions by the names of their columns, found {exprs!r}")
        columns = [(name, as_expression(f"with_columns({name!r})", expr)) for name, expr in exprs.items()]
        return self._apply(ops.WithColumns(tuple(columns)))

    def select_columns(self, cols: str | Sequence[str]) -> Self:
        """Keeps these columns, in this order. Parquet columns that nothing needs are not read.

        Raises ConfigError for a column that is unknown or named twice.

        >>> import pyarrow.compute as pc
        >>> curate.range(1).with_column("a", pc.field("id")).select_columns(["a"]).take_all()
        [{'a': 0}]
        """
        return self._apply(ops.Select(column_names("select_columns", cols)))

    def drop_columns(self, cols: str | Sequence[str]) -> Self:
        """Removes these columns. Raises ConfigError for a column that is unknown or named twice.

        >>> import pyarrow.compute as pc
        >>> curate.range(1).with_column("a", pc.field("id")).drop_columns("id").take_all()
        [{'a': 0}]
        """
        return self._apply(ops.Drop(column_names("drop_columns", cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Self:
        """Renames columns, from old names to new ones; they keep their places.

        A list has the new names of all columns, in order; after a function, the first rows run to find the old ones.
        Raises ConfigError for an unknown column, two of one name, or a list of another length.

        >>> curate.range(1).rename_columns({"id": "n"}).rename_columns(["m"]).take_all()
        [{'m': 0}]
        """
        if not isinstance(names, Mapping):
            found = self.schema().names
            if isinstance(names, str | Set) or not isinstance(names, Sized) or len(names) != len(found):
                raise ConfigError(
                    f"rename_columns({names!r}): expected the new names of all {len(found)} columns "
                    f"({', '.join(found)}), or a dictionary from old names to new ones"
                )
            names = dict(zip(found, names, strict=True))
        return self._apply(ops.Rename(dict(names)))

    def split_off(
        self, parts: Mapping[str, float], *, column: str, cluster_column: str | None = None, seed: int = 0
    ) -> Self:
        """Sends parts of the rows to extra outputs: `{"test": 0.01}` a hundredth to `test`. All others go on.

        The hash of `column` decides, so a row is in the same part in any corpus, order and file. With `cluster_column`
        its hash decides where it is not null: near copies that have a cluster in common are in one part. Rows in which
        `column` is null are set aside. `seed` makes other parts. A write counts the rows of a part as dropped, "in
        test", and has them as the extra output `test`: an exchange that follows needs a checkpoint before it, which
        keeps them.

        Raises ConfigError for unknown columns, a share that is not between 0 and 1, or shares beyond 1 in all; a write
        does if the parts would be lost.

        >>> curate.range(1000).split_off({"test": 0.1}, column="id").count()
        909
        """
        return self._apply(split_off(parts, column, cluster_column, seed))

    def with_attributes(self, path: str | os.PathLike[str], columns: str | Sequence[str] | None = None) -> Self:
        """Adds what an attributes job (`attributes = True`, or `--attributes`) has written at `path` for these rows.

        Rows are joined by their places in the files that they are read from, without an exchange, so that one pass that
        scores them serves many thresholds. `columns` are the attributes to add; None: all of them. An attribute is null
        in a row that the job has set aside.

        Rows may be filtered before, and carry their place on the way. Those of what was written before are found by
        their column `curate_position`, which `filter(..., keep_positions=True)` and `keep_positions` of a job keep.
        The files are cut into the same shards as for the attributes.

        Raises ConfigError for attributes that are not complete, of other files, or of another version of them; for rows
        made by a function, joined, grouped or in memory, whose places are not known; and for a column that is there
        already.

        >>> import pyarrow.compute as pc, pathlib, tempfile
        >>> class Length(curate.TextJob):
        ...     version = "1"
        ...     attributes = True
        ...     def process(self, batch):
        ...         return self.passed_through(batch).append_column("length", pc.utf8_length(batch["text"]))
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "in.jsonl").write_text('{"id": 1, "text": "four"}\\n{"id": 2, "text": "three"}\\n')
        >>> _ = Length().run(input=folder / "in.jsonl", output=folder / "length", backend="inline")
        >>> scored = curate.read_json(folder / "in.jsonl").with_attributes(folder / "length")
        >>> [scored.filter(curate.col("length") > least).count() for least in (3, 4, 5)]
        [2, 1, 0]
        """
        root = path_text(path, "with_attributes")
        found = find(root, None if columns is None else column_names("with_attributes", columns))
        return self._with(with_attributes(self._plan, found))

    def limit(self, limit: int) -> Self:
        """Keeps the first `limit` rows. When consumed, work beyond them stops, and later steps run in this process.

        A write of files or rows in memory counts once how far the limit reaches, and records that. An exchange, a zip
        or a checkpoint before it is made completely; for `sort` and up to 65,536 rows, each map shard keeps no more
        than these. Raises ConfigError for a negative number.

        >>> curate.range(1_000_000_000).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        return self._with(Limit(self._plan, whole("limit", limit, 0)))

    def union(self, *other: Self) -> Self:
        """Returns the rows of this dataset, then those of the others.

        A column that some of them lack is null in their rows, and types are widened if another type fits all values.

        In a write, parts that are read and processed alike have one output per input; others need an exchange, which
        keeps their order.

        Raises ConfigError, with the schemas, for a column whose types cannot be unified.

        >>> curate.range(1).union(curate.range(2), curate.from_items(["a"])).take_all()
        [{'id': 0, 'item': None}, {'id': 0, 'item': None}, {'id': 1, 'item': None}, {'id': None, 'item': 'a'}]
        """
        return self._with(Union(unified(self._plans("union", other))))

    def zip(self, *other: Self) -> Self:
        """Puts the rows of this dataset and of others side by side, in order; all must have equally many rows.

        A column whose name is taken gets the first free suffix of _1, _2, … When consumed, the rows are combined in
        this process, which also runs later steps; all datasets run at once, each with its share of the memory budget
        and of the cluster. A write needs an exchange. Different lengths raise ConfigError: when consumed, once the
        shortest ends; in a write, before the first output.

        >>> curate.range(2).zip(curate.from_items(["a", "b"]), curate.range(2)).take_all()
        [{'id': 0, 'item': 'a', 'id_1': 0}, {'id': 1, 'item': 'b', 'id_1': 1}]
        """
        return self._with(Zip(tuple(self._plans("zip", other))))

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Self:
        """Keeps about `fraction` of the rows (0 to 1), in their order.

        The choice depends on `seed`, on the source (file, table, range) and on the row's position in it: a seed always
        keeps the same rows, and a larger fraction keeps these and more; without one, a seed is chosen now, so a script
        that writes such rows is another job each time, and does not resume. After a limit or a zip, an exchange first
        gives each row its place. A write counts the others as dropped for "random_sample". Raises ConfigError for
        another fraction, or a seed below 0.

        >>> curate.range(1000).random_sample(0.01, seed=3).count()
        12
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ConfigError(f"random_sample(fraction={fraction!r}): expected a number from 0 to 1")
        seed = secrets.randbits(64) if seed is None else whole_seed(seed)
        return self._apply(RandomSample(float(fraction), seed))

    def streaming_train_test_split(
        self,
        test_size: float,
        *,
        split_type: str = "random",
        hash_column: str | None = None,
        seed: int | None = None,
    ) -> tuple[Self, Self]:
        """Returns two lazy datasets: the second has about the proportion `test_size` of the rows, the first has all
        others; rows stay in order.

        Rows are chosen as for `random_sample`: with a seed both sides are the same each time. With `split_type="hash"`
        the value in `hash_column` decides, so all rows of one author, for example, are on one side. Each side runs
        separately. A write counts the rows of the other side as dropped for "train_test_split". Raises ConfigError for
        another proportion, a column that is unknown or has no hash, and after a shuffle without a seed: each side runs
        it anew, in another order.

        >>> train, test = curate.range(1000).streaming_train_test_split(0.25, split_type="hash", hash_column="id")
        >>> train.count(), test.count()
        (755, 245)
        """
        fraction = float(fraction_of("streaming_train_test_split", test_size))
        if split_type not in ("random", "hash") or (split_type == "hash") != (hash_column is not None):
            raise ConfigError(
                f"streaming_train_test_split(split_type={split_type!r}, hash_column={hash_column!r}): write "
                "split_type='random', or split_type='hash' and the column with hash_column"
            )
        if hash_column is not None:
            refuse_unused("streaming_train_test_split", "the value in hash_column alone decides", seed=seed)
            seed = 0
        elif lacks_seed(self._plan):
            raise ConfigError(
                "streaming_train_test_split: each side shuffles anew, and rows are chosen by their places, so a row "
                "could be on both sides or on none; give random_shuffle (or repartition) a seed, as in "
                "random_shuffle(seed=1), or split by the value in a column: split_type='hash', hash_column=..."
            )
        seed = secrets.randbits(64) if seed is None else whole_seed(seed)
        train, test = (self._apply(TrainTestSide(fraction, seed, side, hash_column)) for side in (False, True))
        return train, test
