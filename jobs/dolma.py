"""From rows to Dolma's shards: `python jobs/dolma.py --input 'gs://b/rows/*.parquet' --output gs://b/dolma
--shards 64`.

What Soldaini et al. 2024, "Dolma: an Open Corpus of Three Trillion Tokens for Language Model Pretraining Research", do
to pages of the web, with the thresholds of Dolma v1.6, each step a job with an output of its own below `--output`:

    languages   English, with a score of 0.5 or more                     jobs/langid.py
    exact       equal texts; `--url-column` equal URLs instead           jobs/dedup_exact.py
    quality     lines without an end, Gopher's rules as Dolma has them   jobs/quality.py
    personal    mail addresses, phone numbers and IP addresses           jobs/pii.py
    shards      a random order                                           jobs/shuffle.py

It begins with rows: what takes pages out of archives is no part of it yet, nor are paragraphs that occur in several
texts, texts of evaluation sets, and sentences that Dolma's models find toxic.
"""

from __future__ import annotations

from collections.abc import Iterable

from curate.chain.recipe import Part, Recipe
from curate.cli.chain import recipe_main
from curate.job.params import param

REPLACEMENTS = {"email": " |||EMAIL_ADDRESS||| ", "phone": " |||PHONE_NUMBER||| ", "ip": " |||IP_ADDRESS||| "}


class Dolma(Recipe):
    """Make Dolma's shards of rows of text.

    Rows have the id, the text and the columns to keep, in random order.
    """

    text_column: str = param("text", help="column with the text")
    id_column: str = param("id", help="column that identifies rows")
    keep_columns: list[str] = param([], help="columns to pass through, such as url,date")
    url_column: str = param("", help="column of the URL, of which each is kept once; default: each text once")
    shards: int = param(help="number of output files; their row counts differ by one at most")
    seed: int = param(0, help="seed of the random order; another seed gives another order")

    def parts(self, begin: str) -> Iterable[Part]:
        """Yields the steps."""
        del begin  # with rows, always
        columns = {"text_column": self.text_column, "id_column": self.id_column}
        url = [self.url_column] if self.url_column else []
        kept = {**columns, "keep_columns": list(dict.fromkeys([*self.keep_columns, *url]))}
        yield Part("languages", "langid", {**kept, "keep": ["en"], "min_score": 0.5})
        by = url or [self.text_column]
        yield Part("exact", "dedup_exact", {"by": by, "normalise": False, "id_column": self.id_column})
        yield Part("quality", "quality", {**kept, "rules": ["dolma"]})
        yield Part("personal", "pii", {**kept, "kinds": sorted(REPLACEMENTS), "replacements": REPLACEMENTS})
        yield Part("shards", "shuffle", {"shards": self.shards, "seed": self.seed})


if __name__ == "__main__":
    recipe_main(Dolma)
