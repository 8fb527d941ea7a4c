"""From rows to FineWeb's shards: `python jobs/fineweb.py --input 'gs://b/rows/*.parquet' --output gs://b/fineweb
--shards 64`.

The steps of Penedo et al. 2024, "The FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale", as the
example of datatrove has them, each a job with an output of its own below `--output`:

    languages   English, with a score of 0.65 or more                       jobs/langid.py
    quality     Gopher's rules, C4's but for the ends of lines, FineWeb's   jobs/quality.py
    unique      near copies: 14 bands of 8 rows, 5 words, 0.75              jobs/dedup_minhash.py
    personal    mail addresses and IP addresses are replaced                jobs/pii.py
    shards      a random order                                              jobs/shuffle.py

It begins with rows: what takes pages out of archives, and the rules for URLs, are no part of it yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from curate.chain.recipe import Part, Recipe
from curate.cli.chain import recipe_main
from curate.job.params import param


class FineWeb(Recipe):
    """Make FineWeb's shards of rows of text.

    Rows have the id, the text and the columns to keep, in random order.
    """

    text_column: str = param("text", help="column with the text")
    id_column: str = param("id", help="column that identifies rows")
    keep_columns: list[str] = param([], help="columns to pass through, such as url,date")
    words: Literal["spacy", "whitespace"] = param(
        "spacy", help="what a word is: what spaCy's English rules make of a text, or what is between white space"
    )
    shards: int = param(help="number of output files; their row counts differ by one at most")
    seed: int = param(0, help="seed of the random order; another seed gives another order")

    def parts(self, begin: str) -> Iterable[Part]:
        """Yields the steps."""
        del begin  # with rows, always
        columns = {"text_column": self.text_column, "id_column": self.id_column}
        kept = {**columns, "keep_columns": self.keep_columns}
        yield Part("languages", "langid", {**kept, "keep": ["en"], "min_score": 0.65})
        yield Part(
            "quality",
            "quality",
            {
                **kept,
                "rules": ["gopher-repetition", "gopher", "c4", "fineweb"],
                "words": self.words,
                "ended_lines": False,
            },
        )
        yield Part("unique", "dedup_minhash", {**columns, "threshold": 0.75, "ngram": 5, "bands": 14, "rows": 8})
        yield Part("personal", "pii", {**kept, "kinds": ["email", "ip"]})
        yield Part("shards", "shuffle", {"shards": self.shards, "seed": self.seed})


if __name__ == "__main__":
    recipe_main(FineWeb)
