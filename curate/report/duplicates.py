"""What a deduplication removed: sizes of clusters, similarities, some pairs with their texts, rows by source.

Read from the extra output `duplicates` beside a corpus. Texts of rows that were removed are known of those that were
sampled when they were dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow.compute as pc

from curate.dataset.dataset import Dataset
from curate.dedup.dropped import id_column_of
from curate.dedup.exact import DUPLICATE, DUPLICATES
from curate.errors import ConfigError
from curate.ledger.side_outputs import SIDES, sides_of_job
from curate.objects.samples import MOST_SAMPLED
from curate.observe.job import FoundJob
from curate.report.column import cut
from curate.report.written import written_anew

SHOWN_CHARS = 500
"""Characters of a text that are shown: as many as are kept of a row that was dropped."""
REST = 10
"""Sizes of clusters from which they are counted together."""
JOBS = ("dedup_exact", "dedup_minhash")
"""Jobs of curate whose parameter `id_column` is what duplicates are listed by."""
_UNCOUNTED = "duplicates could not be counted"


def place_of(found: FoundJob) -> str:
    """Returns where the duplicates of a job are; empty if it lists none."""
    return f"{found.ledger.root}/{SIDES}{DUPLICATES}" if DUPLICATES in sides_of_job(found.job) else ""


def cluster_sizes(duplicates: Dataset, work: str, backend: str | None, read: Any) -> list[list[Any]]:
    """Returns how many clusters there are of each size, with the row that is kept; the last one is of that and more."""
    sizes = duplicates.groupby("cluster").aggregate([(None, "count")]).rename_columns({"count": "removed"})
    counted = sizes.groupby("removed").aggregate([(None, "count")])
    written_anew(counted, work, backend, _UNCOUNTED)
    found: dict[int, int] = {}
    for row in read(work).iter_rows():
        size = min(row["removed"] + 1, REST)
        found[size] = found.get(size, 0) + row["count"]
    return [[f"{size}{' and more' * (size == REST)}", found[size]] for size in sorted(found)]


def removed_by_source(
    inputs: Dataset, duplicates: Dataset, columns: tuple[str, str], work: str, backend: str | None, read: Any
) -> list[list[Any]]:
    """Returns how many rows of each source were removed as duplicates, most first; `columns`: id and source.

    Raises ConfigError where ids do not tell rows apart: which of those with one id was removed is not listed.
    """
    id_column, by = columns
    gone = inputs.select_columns([*dict.fromkeys(columns)]).join(
        duplicates.select_columns(["id"]), on=id_column, right_on="id", how="semi"
    )
    written_anew(gone.groupby(by).aggregate([(None, "count")]), work, backend, _UNCOUNTED)
    rows = [[None if row[by] is None else str(row[by]), row["count"]] for row in read(work).iter_rows()]
    if (counted := sum(count for _, count in rows)) != (removed := duplicates.count()):
        raise ConfigError(
            f"{removed:,} rows were removed, and {counted:,} of the inputs have an id of these in the column "
            f"{id_column!r}; deduplicate with an id column that identifies rows"
        )
    return sorted(rows, key=lambda one: (-one[1], str(one[0])))


def lost_to(duplicates: Dataset, work: str, backend: str | None, read: Any) -> list[list[Any]]:
    """Returns how many rows each source lost to which, most first; empty where sources were not listed."""
    pair = ["source", "kept_source"]
    if not set(pair) <= set(duplicates.columns() or []):
        return []
    written_anew(duplicates.groupby(pair).aggregate([(None, "count")]), work, backend, _UNCOUNTED)
    rows = [
        [*(None if row[one] is None else str(row[one]) for one in pair), row["count"]] for row in read(work).iter_rows()
    ]
    return sorted(rows, key=lambda one: (-one[2], str(one[0]), str(one[1])))


def sampled_pairs(
    dropped: Sequence[Mapping[str, Any]], duplicates: Dataset, corpus: Dataset, identity: Mapping[str, Any]
) -> tuple[str, list[dict[str, Any]]]:
    """Returns the column of ids, and pairs of a row that was removed, of those that are shown, and the one that is kept
    in its place, with a text of both. Empty where the column is not known; no pairs where no removed row is.

    The `identity` of the job says the column. Where it does not, it is the one column of the corpus in which all of
    these rows have what is listed of them.
    """
    rows = [
        orjson.loads(one["row"])
        for reason in dropped
        if reason["reason"] == DUPLICATE
        for one in reason["samples"][:MOST_SAMPLED]
    ]
    there = [name for name in corpus.columns() or [] if any(name in row for row in rows)]
    id_column = _said(identity) or _fitting(there, rows, duplicates, corpus)
    if id_column not in there:
        return id_column, []
    by_id = _by_id(rows, id_column)
    pairs = _pairs_of(by_id, duplicates)
    kept = _kept(corpus, id_column, pairs)
    told = []
    for one in pairs:
        ours, theirs = by_id[str(one["id"])], kept.get(str(one["kept_id"]), {})
        column = _longest(ours, theirs, id_column)
        told.append(
            {
                "id": str(one["id"]),
                "kept_id": str(one["kept_id"]),
                "similarity": one["similarity"],
                "column": column,
                "text": cut(ours.get(column, ""), SHOWN_CHARS),
                "kept_text": cut(theirs.get(column, ""), SHOWN_CHARS),
            }
        )
    return id_column, told


def _said(identity: Mapping[str, Any]) -> str:
    """Returns the column that duplicates are listed by, as a dataset or one of curate's own jobs says; else nothing."""
    by_job = identity.get("job") in JOBS and (identity.get("parameters") or {}).get("id_column")
    return id_column_of(identity.get("operators", ())) or by_job or ""


def _fitting(names: Sequence[str], rows: Sequence[Mapping[str, Any]], duplicates: Dataset, corpus: Dataset) -> str:
    """Returns the one column in which all of these rows, and those that are kept in their place, have what is listed of
    them; nothing where several do: rows would be shown that have nothing to do with each other."""
    found = []
    for name in names:
        by_id = _by_id(rows, name)
        pairs = _pairs_of(by_id, duplicates) if all(row.get(name) is not None for row in rows) else []
        if (
            pairs
            and len(pairs) == len(by_id)
            and {str(one["kept_id"]) for one in pairs} <= _kept(corpus, name, pairs).keys()
        ):
            found.append(name)
    return found[0] if len(found) == 1 else ""


def _by_id(rows: Sequence[Mapping[str, Any]], id_column: str) -> dict[str, Mapping[str, Any]]:
    return {str(row[id_column]): row for row in rows if row.get(id_column) is not None}


def _pairs_of(by_id: Mapping[str, Any], duplicates: Dataset) -> list[dict[str, Any]]:
    """Returns the lines of the duplicates for these ids, each once, in their order."""
    wanted = pc.field("id").cast("string").isin(list(by_id))
    found = {str(row["id"]): row for row in duplicates.filter(wanted).iter_rows()}
    return [found[one] for one in by_id if one in found]


def _kept(corpus: Dataset, id_column: str, pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the rows of a corpus that are kept in place of others, by their ids."""
    wanted = pc.field(id_column).cast("string").isin([str(one["kept_id"]) for one in pairs])
    return {str(row[id_column]): row for row in corpus.filter(wanted).iter_rows()}


def _longest(ours: Mapping[str, Any], theirs: Mapping[str, Any], id_column: str) -> str:
    """Returns the column with the longest text of a row; of those that both have, if there are any."""
    texts = {name: len(value) for name, value in ours.items() if isinstance(value, str) and name != id_column}
    both = {name: size for name, size in texts.items() if isinstance(theirs.get(name), str)}
    return max(both or texts, key=lambda name: (both or texts)[name], default="")
