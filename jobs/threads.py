"""Group comments into threads: `python jobs/threads.py --input 'gs://b/RC_*.zst' --output gs://b/threads`.

Reads one comment per row, with the fields of Pushshift's dumps (id, link_id, parent_id, subreddit, author, created_utc,
score, body), in any number of files and in any order. Writes one row for each thread, in order of `link_id`:

- `link_id`, `subreddit`: of the thread; the subreddit is that of its first comment.
- `text`: the comments in reading order: each comment is followed by its replies, and their replies.
- `comments`: the comments by time, as a list of id, parent_id, parent, depth, author, created_utc, score and body.
  `parent` is the position (from 0) of the parent comment in this list, if it is in it; `depth` counts its ancestors.
- `num_comments`: the length of that list. `num_omitted`: comments beyond `--max-comments`. `num_duplicates`: rows that
  were dropped because an earlier row has the same id.
- `num_orphans`: replies whose parent is missing; they are placed like replies to the post.
- `num_authors`, without deleted ones; `max_depth`; `first_utc` and `last_utc`, in seconds since 1970.

`created_utc` is a number. Where older dumps have it as text, make it one first: README.md says how.

An orphan's parent was removed, is older than the dump, or was omitted. If comments are replies to each other, the first
of them is an orphan. Comments with equal times keep the order of the input; those without a time come last.

The output is a corpus of threads: `jobs/toxicity.py --id-column link_id` scores it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.job import Job
from curate.job.params import param

DELETED = "[deleted]"
"""What Reddit writes for an author who is gone."""
COMMENT_PREFIX = "t1_"
"""How the id of a comment begins where it is the parent of another; a post has t3_."""

COMMENT = pa.struct(
    [
        ("id", pa.string()),
        ("parent_id", pa.string()),
        ("parent", pa.int32()),
        ("depth", pa.int32()),
        ("author", pa.string()),
        ("created_utc", pa.int64()),
        ("score", pa.int64()),
        ("body", pa.string()),
    ]
)
THREAD = pa.schema(
    [
        ("link_id", pa.string()),
        ("subreddit", pa.string()),
        ("text", pa.large_string()),
        ("comments", pa.list_(COMMENT)),
        ("num_comments", pa.int32()),
        ("num_omitted", pa.int32()),
        ("num_orphans", pa.int32()),
        ("num_duplicates", pa.int32()),
        ("num_authors", pa.int32()),
        ("max_depth", pa.int32()),
        ("first_utc", pa.int64()),
        ("last_utc", pa.int64()),
    ]
)


class Threads(Job):
    """Group comments into whole threads, one per row.

    All comments of a thread are in memory at once, in one task: about 1 GB for a thread of a million. --max-comments
    limits the comments that are written: the first ones are kept, and `num_omitted` counts the others. Rows without an
    id, a link_id or a body are bad rows, and go to quarantine.
    """

    version = "1"
    columns = {  # noqa: RUF012
        "id": pa.field("id", pa.string(), nullable=False),
        "link_id": pa.field("link_id", pa.string(), nullable=False),
        "parent_id": pa.string(),
        "subreddit": pa.string(),
        "author": pa.string(),
        "created_utc": pa.int64(),
        "score": pa.int64(),
        "body": pa.field("body", pa.string(), nullable=False),
    }
    output_schema = THREAD
    max_comments: int = param(100_000, help="maximum comments of a thread; the first ones are kept")
    separator: str = param("\n\n", help="separator between comments in the text of a thread")

    def check(self) -> None:
        """Raises ConfigError for a limit below 1, and for places, which a thread has none of."""
        if self.max_comments < 1:
            raise ConfigError(f"--max-comments {self.max_comments} would leave nothing of any thread; give at least 1")
        if self.keep_positions:
            raise ConfigError("--keep-positions: a thread is of many comments, each with its own place; leave it out")

    def build(self, ds: Dataset) -> Dataset:
        return ds.groupby("link_id").map_groups(
            thread, fn_kwargs={"most": self.max_comments, "separator": self.separator}
        )


def thread(comments: pa.Table, *, most: int, separator: str) -> pa.Table:
    """Returns a thread as a table of one row, from its comments in the order of the input."""
    chosen, duplicates = in_time(comments)
    omitted = max(0, len(chosen) - most)
    kept = comments.take(pa.array(chosen[:most]))
    ids, parent_ids = kept["id"].to_pylist(), kept["parent_id"].to_pylist()
    parents = parents_of(ids, parent_ids)
    order, depths = reading_order(parents)
    bodies = kept["body"].to_pylist()
    authors = set(kept["author"].to_pylist()) - {None, DELETED}
    orphans = sum(
        1
        for parent, named in zip(parents, parent_ids, strict=True)
        if parent is None and named is not None and named.startswith(COMMENT_PREFIX)
    )
    links, levels = pa.array(parents, pa.int32()), pa.array(depths, pa.int32())
    columns = {**dict(zip(kept.column_names, kept.columns, strict=True)), "parent": links, "depth": levels}
    structs = pa.StructArray.from_arrays([_whole(columns[field.name]) for field in COMMENT], fields=list(COMMENT))
    times = pc.min_max(kept["created_utc"]).as_py()
    row: dict[str, Any] = {
        "link_id": kept["link_id"][:1],
        "subreddit": kept["subreddit"][:1],
        "text": [separator.join([bodies[one] for one in order])],
        "comments": pa.ListArray.from_arrays(pa.array([0, len(structs)], pa.int32()), structs),
        "num_comments": [len(structs)],
        "num_omitted": [omitted],
        "num_orphans": [orphans],
        "num_duplicates": [duplicates],
        "num_authors": [len(authors)],
        "max_depth": [max(depths)],
        "first_utc": [times["min"]],
        "last_utc": [times["max"]],
    }
    return pa.table(row, schema=THREAD)


def in_time(comments: pa.Table) -> tuple[np.ndarray[Any, Any], int]:
    """Returns the rows of comments by time, each id once, and the number of duplicates.

    >>> rows, twice = in_time(pa.table({"id": ["a", "b", "a"], "created_utc": [5, 3, 1]}))
    >>> rows.tolist(), twice
    ([1, 0], 1)
    """
    first: dict[str, int] = {}
    for row, name in enumerate(comments["id"].to_pylist()):
        first.setdefault(name, row)
    rows = np.fromiter(first.values(), np.int64, len(first))
    times = comments["created_utc"].take(pa.array(rows))
    late = np.asarray(times.is_null())
    order = np.lexsort((pc.fill_null(times, 0).to_numpy(), late))
    return rows[order], comments.num_rows - len(rows)


def parents_of(ids: list[str], parent_ids: list[str | None]) -> list[int | None]:
    """Returns the position of each comment's parent; None for the post, and for a missing comment.

    >>> parents_of(["a", "b", "c"], ["t3_x", "t1_a", "t1_gone"])
    [None, 0, None]
    >>> parents_of(["a", "b"], ["t1_b", "t1_a"])
    [None, 0]
    """
    place = {COMMENT_PREFIX + name: number for number, name in enumerate(ids)}
    parents = [None if name is None else place.get(name) for name in parent_ids]
    known: set[int] = set()
    """Places from which the way up is known to end at the post."""
    for start in range(len(ids)):
        way: dict[int, None] = {}
        at: int | None = start
        while at is not None and at not in known and at not in way:
            way[at] = None
            at = parents[at]
        if at is not None and at in way:
            # A circle: the first of those in it is one that nobody answers from below.
            circle = list(way)[list(way).index(at) :]
            parents[min(circle)] = None
        known.update(way)
    return parents


def reading_order(parents: list[int | None]) -> tuple[list[int], list[int]]:
    """Returns the positions of comments in reading order, and the depth of each comment.

    >>> reading_order([None, 0, None, 0, 1])
    ([0, 1, 4, 3, 2], [0, 1, 0, 1, 2])
    """
    answers: dict[int | None, list[int]] = {}
    for place, parent in enumerate(parents):
        answers.setdefault(parent, []).append(place)
    order: list[int] = []
    depths = [0] * len(parents)
    # No recursion: people answer one another a thousand times.
    left = [(place, 0) for place in reversed(answers.get(None, ()))]
    while left:
        place, depth = left.pop()
        order.append(place)
        depths[place] = depth
        left += [(answer, depth + 1) for answer in reversed(answers.get(place, ()))]
    return order, depths


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


if __name__ == "__main__":
    Threads.main()
