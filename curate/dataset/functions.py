"""Methods of a Dataset that call user functions with its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Self, Unpack

import pyarrow as pa

from curate.arrow.declared import check_declared
from curate.arrow.expressions import as_expression, is_expression
from curate.dataset.base import Base
from curate.errors import ConfigError
from curate.keywords import shows_keywords
from curate.objects.places import POSITION
from curate.operators import columns, rows
from curate.operators.udf import UdfOptions, format_of, refuse_for_expression, udf_of
from curate.plan.attributes import placed
from curate.units import whole


class Functions(Base):
    """What functions make of rows, in their shards."""

    __slots__ = ()

    @shows_keywords(UdfOptions)
    def map_batches(
        self,
        fn: Callable[..., Any],
        *,
        batch_size: int | Literal["auto"] | None = None,
        batch_format: str | None = None,
        output_schema: pa.Schema | None = None,
        **options: Unpack[UdfOptions],
    ) -> Self:
        """Replaces batches of rows by the result of `fn(batch, *fn_args, **fn_kwargs)`.

        A batch has at most `batch_size` rows (None, "auto": about 16,384) and never crosses shards. `batch_format` is
        "pyarrow" (a Table), "numpy" (a dictionary of arrays) or "pandas" (a data frame). None: what `fn` declares its
        argument to be, `dict[str, np.ndarray]` or `pd.DataFrame`, and else pyarrow. `fn` returns any of these, or an
        iterator of them, with any number of rows, and always the same columns. It may make each in the same arrays.

        A column that `fn` returns with the type it received keeps its Arrow type. Null numbers are NaN in numpy, and
        null again in the result; integers beside nulls are floats, and integers again if all are whole (objects, where
        a float would round one).

        `output_schema` declares the result. Results are cast to it if no value changes; else SchemaMismatch names
        column, types and rows. Without it, the first rows decide the types, and a later batch that does not fit is
        refused.

        A function runs in the reading tasks. A class runs in a pool of actors: each makes one instance, with
        `fn_constructor_args` and `fn_constructor_kwargs`, and calls it with batches. `concurrency` sets the number of
        actors: 4, or 1 to 8 as `(1, 8)`. `compute` does the same, and puts a function into a pool; so do `num_gpus` and
        `resources` (custom ones of Ray), since Ray starts a new process for every task with a GPU. These, `num_cpus`
        (default 1, beside a GPU 0) and `memory` in bytes are per actor; for a function in tasks `num_cpus` is per task.

        Raises ConfigError for an `fn` that is not callable, wrong constructor arguments, an unknown format, or a size
        below 1. Errors of `fn` reach the consumer, with a note that names operator, rows and input; BadRow skips a row,
        or quarantines it in a write; an error in the constructor ends the run.

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
        ...     Scale, fn_constructor_args=[2], batch_format="numpy", concurrency=1
        ... )
        >>> scaled.take_all()
        [{'id': 0}, {'id': 2}, {'id': 4}]
        """
        udf, where = udf_of("map_batches", fn, options)
        form = format_of(fn, batch_format)
        if batch_size == "auto":
            batch_size = None
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1)
        declared = check_declared("map_batches", output_schema)
        return self._apply(rows.MapBatches(udf, batch_size, form, placement=where, output_schema=declared))

    @shows_keywords(UdfOptions)
    def map(
        self,
        fn: Callable[..., Mapping[str, Any]],
        *,
        output_schema: pa.Schema | None = None,
        isolate: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[UdfOptions],
    ) -> Self:
        """Replaces every row (a dictionary) by the dictionary that `fn(row)` returns; all must have the same keys.

        A column of the input keeps its type while it fits every value of a batch exactly; other types are inferred, and
        values without a common type are refused. Tensors are arrays of their shape, nulls are None, and keys are in the
        order of the first row. Where `fn` runs, its arguments and its `output_schema` are as for `map_batches`; with
        it, floats become the nearest of the declared type.

        With `isolate`, `fn` runs in a separate process beside the worker, so a crash, or a row that takes longer than
        `timeout_s` seconds of the processor (or ten times as many by the clock, where it waits), costs that row only:
        it is a bad row, and a write quarantines it.

        Raises ConfigError as `map_batches` does, and for `timeout_s` without `isolate`.

        >>> curate.range(2).map(lambda row: {"text": str(row["id"])}).take_all()
        [{'text': '0'}, {'text': '1'}]
        """
        udf, where = udf_of("map", fn, options)
        if timeout_s is not None and not isolate:
            raise ConfigError(
                f"map(timeout_s={timeout_s!r}) needs isolate=True: only a separate process can be stopped"
            )
        if isolate and isinstance(fn, type):
            raise ConfigError("map(isolate=True) runs a function in a separate process; it does not take a class")
        declared = check_declared("map", output_schema)
        if isolate:
            return self._apply(rows.MapIsolated(udf, timeout_s, placement=where, output_schema=declared))
        return self._apply(rows.MapRows(udf, False, placement=where, output_schema=declared))

    @shows_keywords(UdfOptions)
    def flat_map(
        self,
        fn: Callable[..., Iterable[Mapping[str, Any]]],
        *,
        output_schema: pa.Schema | None = None,
        **options: Unpack[UdfOptions],
    ) -> Self:
        """Replaces every row by the rows, dictionaries of the same keys, that `fn(row)` returns: none, or several.

        Arguments, `output_schema`, errors and where `fn` runs are as for `map_batches`.

        >>> curate.range(3).flat_map(lambda row: [row] * row["id"]).take_all()
        [{'id': 1}, {'id': 2}, {'id': 2}]
        """
        udf, where = udf_of("flat_map", fn, options)
        declared = check_declared("flat_map", output_schema)
        return self._apply(rows.MapRows(udf, True, placement=where, output_schema=declared))

    @shows_keywords(UdfOptions)
    def with_column(self, column_name: str, expr: Any, **options: Unpack[UdfOptions]) -> Self:
        """Adds a column computed by a pyarrow.compute expression as the last one; replaces one of that name in place.

        `expr` may also be a function of batches, as for `add_column`: tables, or what its parameter is annotated as.
        Raises ConfigError for anything else, and for an expression that does not fit the columns.

        >>> import pyarrow.compute as pc
        >>> curate.range(2).with_column("id", pc.field("id") + 1).take_all()
        [{'id': 1}, {'id': 2}]
        """
        if callable(expr) and not is_expression(expr):
            return self._column("with_column", column_name, expr, None, options)
        refuse_for_expression("with_column", options)
        expression = as_expression(f"with_column({column_name!r})", expr)
        return self._apply(columns.WithColumn(column_name, expression))

    @shows_keywords(UdfOptions)
    def add_column(
        self, col: str, fn: Callable[..., Any], *, batch_format: str | None = None, **options: Unpack[UdfOptions]
    ) -> Self:
        """Adds the result of `fn(batch)` as the last column; one of that name is replaced in place.

        `fn` returns an array, a series or a list with one value per row. Batch formats, types, errors and where `fn`
        runs are as for `map_batches`.

        >>> curate.range(2).add_column("double", lambda batch: batch["id"] * 2, batch_format="pandas").take_all()
        [{'id': 0, 'double': 0}, {'id': 1, 'double': 2}]
        """
        return self._column("add_column", col, fn, batch_format, options)

    def _column(self, method: str, column: str, fn: Any, batch_format: str | None, options: UdfOptions) -> Self:
        udf, where = udf_of(method, fn, options)
        form = format_of(fn, batch_format)
        if not isinstance(column, str) or not column:
            raise ConfigError(f"{method}({column!r}): a column name must be non-empty text")
        return self._apply(rows.AddColumn(udf, column, form, placement=where))

    @shows_keywords(UdfOptions)
    def filter(
        self,
        fn: Any = None,
        expr: Any = None,
        *,
        reason: str = "filter",
        keep_positions: bool = False,
        **options: Unpack[UdfOptions],
    ) -> Self:
        """Keeps rows for which `fn` is true: a pyarrow.compute expression (also as `expr`), or a function of the row.

        Rows where an expression is null are dropped. A write counts dropped rows under `reason`. First expressions over
        columns of Parquet files, or of their folders, are pushed into the read: row groups that cannot match are not
        read, and their rows are counted. Arguments of a function, and where it runs, are as for `map_batches`.

        With `keep_positions`, rows that are read from files have where they lie there as their last column,
        `curate_position`, by which `with_attributes` finds them in what is written; then all row groups are read.

        Raises ConfigError for an expression that is not boolean or names an unknown column, and as `map_batches` does.

        >>> import pyarrow.compute as pc
        >>> curate.range(4).filter(pc.field("id") >= 2).filter(lambda row: row["id"] != 3).take_all()
        [{'id': 2}]
        """
        if not reason or not isinstance(reason, str):
            raise ConfigError(f"filter(reason={reason!r}): a reason must be non-empty text")
        if (fn is None) == (expr is None):
            raise ConfigError(
                "filter takes a function of the row, or an expression such as curate.col('n') > 0; pass one of them"
            )
        if keep_positions:
            self = self._with(placed(self._plan, POSITION, "filter(keep_positions=True)"))
        if expr is None and (is_expression(fn) or not callable(fn)):
            expr = fn
        if expr is not None:
            refuse_for_expression("filter", options)
            return self._apply(columns.FilterExpression(as_expression("filter", expr), reason))
        udf, where = udf_of("filter", fn, options)
        return self._apply(rows.FilterRows(udf, reason, placement=where))
