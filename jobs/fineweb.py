"""From web archives to FineWeb's shards: `python jobs/fineweb.py --input 'gs://b/*.warc.gz' --output gs://b/fineweb
--shards 64 --block-domains gs://b/lists/domains.txt`.

The steps of Penedo et al. 2024, "The FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale", as the
example of datatrove has them, each a job with an output of its own below `--output`:

    pages       the text of pages, by trafilatura in favour of precision    jobs/extract.py
    urls        lists of domains, URLs and words, if any is given           jobs/urls.py
    languages   English, with a score of 0.65 or more                       jobs/langid.py
    quality     Gopher's rules, C4's but for the ends of lines, FineWeb's   jobs/quality.py
    unique      near copies: 14 bands of 8 rows, 5 words, 0.75              jobs/dedup_minhash.py
    personal    mail addresses and IP addresses are replaced                jobs/pii.py
    shards      a random order                                              jobs/shuffle.py

`--from rows` begins behind `pages`, with a text, an id and, for lists, a URL.

What differs from the published one: lists are data of the user, and are applied after the extraction, to the same
rows; of near copies, those that a chain connects are dropped as there, but each link has the similarity that was asked
for, where there a band in common is enough (`--drop-by verified` drops less: only what is like a row that is kept); all
archives are deduplicated together, where there each crawl is for itself; and all is written in a random order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from curate.chain.recipe import Part
from curate.chain.text_recipe import TextRecipe
from curate.cli.chain import recipe_main
from curate.job.asset import Asset
from curate.job.params import param

LISTS = ("block_domains", "block_urls", "block_words", "soft_words", "block_parts")


class FineWeb(TextRecipe):
    """Make FineWeb's shards of web archives, or of rows of text.

    Rows have the id, the text and the columns to keep, in random order; those of archives have url and date, too.
    """

    block_words: Asset | None = param(None, help="words of which a URL may have none")
    soft_words: Asset | None = param(None, help="words of which a URL may have one")
    block_parts: Asset | None = param(None, help="parts of which the letters and digits of a URL may have none")
    words: Literal["spacy", "whitespace"] = param(
        "spacy", help="what a word is: what spaCy's English rules make of a text, or what is between white space"
    )
    drop_by: Literal["component", "verified"] = param(
        "component", help="near copies to drop: connected to a row that is kept (as published), or like one (verified)"
    )

    def parts(self, begin: str) -> Iterable[Part]:
        """Yields the steps. Raises ConfigError for columns that the rows of pages cannot have."""
        yield from self.pages(begin, "trafilatura")
        lists = self.lists(*LISTS)
        given = ", ".join(f"--{name.replace('_', '-')}" for name in LISTS)
        why = "" if lists else f"no list of domains, URLs or words is given ({given}){self.unused('url_column')}"
        yield Part("urls", "urls", {"url_column": self.url_column, **lists}, left_out=why)
        passed = {**self.columns, "keep_columns": self.kept(begin)}
        yield Part("languages", "langid", {**passed, "keep": ["en"], "min_score": 0.65})
        rules = ["gopher-repetition", "gopher", "c4", "fineweb"]
        yield Part("quality", "quality", {**passed, "rules": rules, "words": self.words, "ended_lines": False})
        alike = {"threshold": 0.75, "ngram": 5, "bands": 14, "rows": 8, "drop_by": self.drop_by}
        yield Part("unique", "dedup_minhash", {**self.columns, **alike})
        yield Part("personal", "pii", {**passed, "kinds": ["email", "ip"]})
        yield self.in_random_order()


if __name__ == "__main__":
    recipe_main(FineWeb)
