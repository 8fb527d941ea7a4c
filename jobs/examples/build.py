"""Several steps in one job: `python jobs/examples/build.py --input 'pages/*.jsonl.gz' --output out/authors`.

`build` is given the rows and returns what is written. Steps that move rows between shards, such as groupby, join and
sort, are stages of the same job: it resumes at the furthest shard of each, and its books say where every row went.
"""

from __future__ import annotations

from curate import Dataset, Job, col, param


class Authors(Job):
    """Give each comment the number of comments and the mean score of its author; leave out authors with few of them."""

    version = "1"
    columns = ["id", "author", "body", "score"]  # noqa: RUF012
    min_comments: int = param(5, help="comments of an author from which they are kept")

    def build(self, ds: Dataset) -> Dataset:
        known = ds.filter(col("author") != "[deleted]", reason="author deleted")
        authors = known.groupby("author").aggregate([("id", "count"), ("score", "mean")])
        regular = authors.filter(col("id_count") >= self.min_comments)
        joined = known.join(regular, on="author", how="inner")
        return joined.sort(["author", "id"]).rename_columns({"id_count": "comments", "score_mean": "mean_score"})


if __name__ == "__main__":
    Authors.main()
