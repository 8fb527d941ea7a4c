"""Extra outputs of a job: their names, their paths, and which of them exist.

    <output>/<shard><suffix>                the main output of a shard
    <output>/_side/<name>/<shard><suffix>   an extra one, of the same format

Extra outputs are published before the main one, whose existence alone means that the shard is done; so whoever finds a
shard done finds all of its outputs. The underscore keeps them out of sight of who reads the main output;
`<output>/_side/<name>` is itself a plain dataset.

Each carries the record of its shard and, beyond that, its own name as `side`. The books of a shard are those of its
main output. How many rows an extra one has is the shard's counter `side <name>`.

>>> import pyarrow.compute as pc
>>> from curate.testing import run_local
>>> class Sorted(curate.Job):
...     version = "1"
...     sides = ("short",)
...     def process(self, batch):
...         long = pc.greater(pc.utf8_length(batch["text"]), 5)
...         short = batch.filter(pc.invert(long))
...         self.drop(len(short), "short")
...         return {"main": batch.filter(long), "short": short}
>>> ran = run_local(Sorted, [{"text": "a long one"}, {"text": "tiny"}])
>>> ran.rows, ran.sides["short"].to_pylist(), ran.summary.books.counters
([{'text': 'a long one'}], [{'text': 'tiny'}], {'side short': 1})
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from curate.errors import ConfigError
from curate.ledger import layout
from curate.ledger.listing import OutputListing
from curate.ledger.manifest import ShardPlan, with_suffix
from curate.ledger.packed import positions

MAIN = "main"
"""What the main output is called where there are extra ones."""
SIDES = "_side/"
"""What the names of extra outputs begin with, below the output prefix."""
RECORD_SIDE = "side"
"""The field of a record that says which extra output it is; a main output has none."""
_NAME = "[A-Za-z0-9][A-Za-z0-9_-]*"


def check_side(owner: str, name: Any) -> str:
    """Returns the name of an extra output. Raises ConfigError for one that is none.

    >>> check_side("Job.sides", "rejected-2")
    'rejected-2'
    """
    if not isinstance(name, str) or re.fullmatch(_NAME, name) is None or name == MAIN:
        wanted = "expected letters, digits, - and _, starting with a letter or a digit"
        why = "that is the main output" if name == MAIN else wanted
        raise ConfigError(f"{owner}: {name!r} cannot be the name of an extra output: {why}")
    return name


def check_sides(owner: str, names: Iterable[Any]) -> None:
    """Raises ConfigError for a name that no extra output can have, and for two that are one folder where a file system
    takes small and capital letters for the same."""
    folders: dict[str, str] = {}
    for name in names:
        other = folders.setdefault(check_side(owner, name).lower(), name)
        if other != name:
            raise ConfigError(
                f"{owner}: the extra outputs {other!r} and {name!r} differ by small and capital letters alone, and are "
                "one folder on some file systems; rename one"
            )


def counter(side: str) -> str:
    """Returns the name of the counter of an extra output's rows.

    >>> counter("rejected")
    'side rejected'
    """
    return f"side {side}"


def schema_name(side: str) -> str:
    """Returns the name under which the ledger keeps the schema of an extra output."""
    return f"side-{side}"


def side_name(side: str, output: str) -> str:
    """Returns where an extra output lies, relative to the output prefix, whose main output is called `output`.

    >>> side_name("rejected", "2023/a.parquet")
    '_side/rejected/2023/a.parquet'
    """
    return f"{SIDES}{side}/{output}"


def companion(suffix: str) -> tuple[str, ...]:
    """Returns the suffixes of the other files of outputs with this suffix. They are published before them, as extra
    outputs are.

    >>> companion(".idx"), companion(".parquet")
    (('.bin',), ())
    """
    return layout.COMPANIONS.get(suffix, ())


def companion_name(output: str, suffix: str, other: str) -> str:
    """Returns what the other file of an output is called.

    >>> companion_name("2023/a.idx", ".idx", ".bin")
    '2023/a.bin'
    """
    return output.removesuffix(suffix) + other


def bare(suffix: str) -> tuple[str, ...]:
    """Returns those of the other files of an output that carry no record: they are known by their names.

    >>> bare(".ds.metadata"), bare(".idx")
    (('.ds', '.ds.index'), ())
    """
    return tuple(other for other in companion(suffix) if other in layout.BARE)


def sides_of_job(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the extra outputs of a job, from its `job.json`."""
    # Not all of them are part of its identity: those of a deduplication follow from its operators.
    return tuple(sorted(job.get("sides", job["identity"].get("sides", ()))))


def side_rows(listing: OutputListing) -> Any:
    """Returns the rows of a listing that lie where extra outputs do, in order."""
    return np.flatnonzero(listing.objects.where("name", lambda names: pc.starts_with(names, SIDES)))


def sides_of_shards(listing: OutputListing, plan: ShardPlan, suffix: str, ranks: Any) -> Any:
    """Returns the rows of a listing that are extra outputs of these shards, whatever the extra outputs are called."""
    return sides_of_ids(listing, plan.table.take(ranks, "id")["id"], suffix)


def sides_of_ids(listing: OutputListing, ids: Any, suffix: str) -> Any:
    """Returns the rows of a listing that are extra outputs of shards of these ids, or other files of their outputs."""
    rows = side_rows(listing)
    found = [rows]
    if len(rows):
        mains = pc.replace_substring_regex(listing.objects.take(rows, "name")["name"], f"^{SIDES}{_NAME}/", "")
        wanted = pc.binary_join_element_wise(ids, suffix, "")
        found = [rows[pc.is_in(mains, value_set=wanted).to_numpy()]]
    found += [listing.rows_named(pc.binary_join_element_wise(ids, other, "")) for other in companion(suffix)]
    return np.concatenate(found)


def match_named(plan: ShardPlan, listing: OutputListing, suffix: str, side: str = "") -> Any:
    """Returns the row in the listing of each shard's file with this suffix, -1 where there is none: of the extra output
    of this name, or beside the main one."""
    folder = side_name(side, "") if side else ""
    return positions(with_suffix(plan.table, suffix, folder), listing.objects, "name")
