"""The base class of all parts of a Dataset: its plan, its options and its blocks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from curate.arrow.schema import format_schema
from curate.arrow.unknown import is_known
from curate.dataclass import dataclass, field, fields, replace
from curate.dataset.execute import Options, blocks, settled, watching
from curate.dataset.schemas import blank_of, unions_settled
from curate.dataset.stats import LastRun, with_progress
from curate.errors import ConfigError, did_you_mean
from curate.exchange.protocol import Exchange
from curate.notebook import html_table
from curate.operators.arguments import answer_methods
from curate.operators.foreign import no_attribute, refuse
from curate.operators.protocol import Operator
from curate.operators.ray_data import USING
from curate.pipeline.classify import show_frames
from curate.plan.explain import chain_text, explain_logical, explain_physical
from curate.plan.nodes import Apply, Exchanged, Limit, Plan, Scan, Union, name_of, schema_of, sources_of, walk
from curate.plan.physical import End, Physical, lower, lower_stage, unpaced
from curate.plan.rewrites import seeded
from curate.sources.memory import Tables
from curate.sources.protocol import FileListing
from curate.streaming.prefetch import Stopped, never_stopped
from curate.units import format_count

SHOWN_COLUMNS = 10
"""Columns that `repr` shows."""
SHOWN_ROWS = 5
"""Rows in memory that a notebook shows."""


@answer_methods
@dataclass(frozen=True, slots=True, repr=False)
class Base:
    """A plan, the options that it runs with, and what came of its runs."""

    _plan: Plan
    _how: Options = field(default_factory=Options)
    _ran: LastRun = field(init=False, default_factory=LastRun, repr=False, compare=False)

    def __init_subclass__(cls) -> None:
        answer_methods(cls)

    def __repr__(self) -> str:
        """Returns what was asked for, and the columns as far as they are known; reads nothing."""
        columns = "columns are known once it runs"
        with suppress(ConfigError):
            if (found := schema_of(self._plan)) is not None:
                more = len(found) - SHOWN_COLUMNS
                columns = format_schema(pa.schema(list(found)[:SHOWN_COLUMNS]))
                columns += f", and {format_count(more, 'column')} more" if more > 0 else ""
        return f"Dataset({chain_text(self._plan)}; {columns})"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the plan, the columns as far as they are known, and first rows of a dataset in
        memory; runs and reads nothing."""
        plan = escape("\n".join(explain_logical(self._plan)))
        told = f"<b>Dataset</b><pre>{plan}</pre>"
        with suppress(ConfigError):
            if (found := schema_of(self._plan)) is not None:
                told += html_table([(one.name, one.type) for one in found], ("column", "type"))
        source = self._plan.source if isinstance(self._plan, Scan) else None
        if isinstance(source, Tables) and source.tables:
            first = source.tables[0].slice(0, SHOWN_ROWS)
            told += html_table(([*row.values()] for row in first.to_pylist()), first.column_names)
        return told

    if not TYPE_CHECKING:  # where a name that there is not is to be seen

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Dataset", self, name)

        def __getitem__(self, _: Any) -> Any:
            raise TypeError("a curate.Dataset holds no rows: iter_rows(), take(5), select_columns(['a']), to_pandas()")

    def schema(self) -> pa.Schema:
        """Returns the schema of the rows; runs nothing unless a function makes them.

        After a function it is that of the first rows. Without rows it is the schema of the function's result for an
        empty table, or has no columns.

        >>> curate.range(1).schema().names
        ['id']
        """
        found = schema_of(self._plan)
        if found is None:
            # Not the first row alone: of what type values are, all of a batch tell; else the batches that follow.
            batch = self._first(lambda plan: unpaced(_consumed(Limit(plan, 1))))
            if batch is None or not all(is_known(field.type) for field in batch.schema):
                batch = self._first(_consumed)
            found = (self._blank() if batch is None else batch).schema
        return found

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """Returns the names of the columns, as `schema` finds them; with `fetch_if_missing=False` None if a function
        had to run.

        >>> curate.range(1).columns()
        ['id']
        """
        found = self.schema() if fetch_if_missing else schema_of(self._plan)
        return None if found is None else list(found.names)

    def input_files(self) -> list[str]:
        """Returns the files that are read, each once, in order; rows in memory have none. Runs nothing.

        >>> curate.range(1).input_files()
        []
        """
        listed = [one.listing["uri"].to_pylist() for one in sources_of(self._plan) if isinstance(one, FileListing)]
        return list(dict.fromkeys(chain.from_iterable(listed)))

    def num_blocks(self) -> int:
        """Returns how many shards are read: parts of large files, tables in memory. Runs nothing.

        Raises ConfigError after an exchange, a checkpoint, a limit or a zip, which are known only after a run.

        >>> curate.range(3).num_blocks()
        1
        """
        behind = [name_of(one) for one in walk(self._plan) if not isinstance(one, Scan | Apply | Union)]
        if behind:
            raise ConfigError(
                f"num_blocks: how many shards {behind[0]} makes is known only after it has run; call materialize()"
            )
        return sum(1 for source in sources_of(self._plan) for _ in source.pieces())

    def size_bytes(self) -> int:
        """Runs the dataset and returns the bytes of all rows in memory, in Arrow's format.

        >>> curate.range(10).size_bytes()
        80
        """
        return sum(block.nbytes for block in self._blocks())

    def using(self, options: Options | None = None, **changes: Any) -> Self:
        """Sets how the dataset runs: with these `Options`, or with the current ones and these fields changed.

        They hold for all that it runs: when its rows are consumed, for its checkpoints, and for a write. Raises
        ConfigError for an unknown option or an invalid value.

        >>> curate.range(2).using(backend="inline", block_bytes=1 << 20).count()
        2
        """
        known = [one.name for one in fields(Options)]
        for name in changes:
            if name not in known:
                instead = f": {USING[name]}" if name in USING else did_you_mean(name, known)
                raise ConfigError(f"using() has no option {name!r}{instead}; there are: {', '.join(known)}")
        return replace(self, _how=replace(options or self._how, **changes))

    def explain(self) -> str:
        """Returns the logical and the physical plan: what is fused, what is pushed into the read, how much is read. If
        a write needs an exchange that consuming does not need, it shows that plan as well.

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
        consumed = list(explain_physical(_consumed(self._plan), 1))
        told = ["logical", *explain_logical(self._plan, 1), "physical", *consumed]
        # What a write refuses is none of a consumer's business.
        with suppress(ConfigError):
            lowered = lower_stage(self._plan, End.FILES)
            written = list(explain_physical(lowered, 1))
            told += ["written", *written] if lowered.upstream and written != consumed else []
        return "\n".join(told)

    def stats(self) -> str:
        """Returns statistics of the last consumption or write of this dataset object, also while it runs.

        For each operator: rows and bytes in and out, the mean and the largest output block; the busy time (wall, and
        CPU of its thread) of all tasks or actors together, and the time that tasks waited for its pool; the number of
        actors and how busy they were; the peak memory of a process that ran it. Then the flow of blocks to the
        consumer, and one sentence that names the bottleneck.

        Pieces that have not ended, or were stopped early, count up to their last block. Writes of `checkpoint` are
        included. If the dataset has not run, the text says so.

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

    def _with(self, plan: Plan) -> Self:
        """Returns a dataset of another plan, which has not run."""
        return replace(self, _plan=plan)

    def _then(self, plan: Plan) -> Self:
        """Returns a dataset of another plan. Raises ConfigError for what can be seen to be wrong with its columns."""
        # It is refused here, where it was said.
        schema_of(plan)
        return self._with(plan)

    def _apply(self, operator: Operator) -> Self:
        """Returns a dataset of the rows that an operator makes of these."""
        return self._then(Apply(self._plan, operator))

    def _exchange(self, how: Exchange) -> Self:
        """Returns a dataset of the rows in the shards that an exchange puts them in."""
        return self._then(Exchanged((self._plan,), how))

    def _plans(self, method: str, others: tuple[Self, ...]) -> list[Plan]:
        """Returns the plans of this dataset and of others. Raises ConfigError for what is no dataset."""
        for one in others:
            if not isinstance(one, Base):
                several = isinstance(one, list) and all(isinstance(each, Base) for each in one)
                refuse(method, "curate.Datasets", one, list=f"{method}(*datasets)" if several else "")
        return [one._plan for one in (self, *others)]

    def _part(self, other: Self, ran: LastRun | None = None) -> Self:
        """Returns a dataset whose runs count as runs of this one; or which has run as `ran` says."""
        object.__setattr__(other, "_ran", ran or self._ran)
        return other

    def _first(self, lowered: Callable[[Plan], Physical]) -> pa.Table | None:
        """Returns the first block of what runs for this dataset; None if there are no rows."""
        with self._watching(), closing(self._run(lowered)) as stream:
            first: pa.Table | None = next(stream, None)
        return first

    def _tables(self) -> list[pa.Table]:
        """Returns all blocks; one without rows, of the schema as far as it is known, if there are none."""
        with self._watching():
            return list(self._blocks()) or [self._blank()]

    def _watching(self) -> AbstractContextManager[None]:
        """Returns what is around a run that ends before anything else changes: see `watching`. Whoever iterates changes
        what functions use in between."""
        return watching(self._plan, self._how.backend)

    def _blank(self) -> pa.Table:
        """Returns a table without rows, once it was run and there were none."""
        return blank_of(self._plan, _consumed(self._plan), self._ran.last, lambda part: self._with(part).schema())

    def _blocks(self, stopped: Stopped = never_stopped) -> Any:
        return self._run(_consumed, stopped)

    def _blocks_of(self, plan: Plan) -> Any:
        """Returns the blocks of another plan, run as this one is."""
        return self._then(plan)._blocks()

    def _run(self, lowered: Callable[[Plan], Physical], stopped: Stopped = never_stopped) -> Any:
        run = self._ran.begin()

        def made() -> Iterator[pa.Table]:
            plan = unions_settled(self._plan, lambda part: self._with(part).schema())
            # One seed for all that lack one, as where they are written.
            physical = lowered(seeded(plan, secrets.randbits(63)))
            how, chosen = settled(plan, self._how)
            chosen.tell()
            try:
                yield from blocks(physical, how, stopped, run=run)
            except Exception as error:
                show_frames(error)
                raise

        return with_progress(made(), run)


def _consumed(plan: Plan) -> Physical:
    return lower(plan, End.BLOCKS)
