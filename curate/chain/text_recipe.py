"""TextRecipe: what recipes share that make a corpus of texts out of web archives, or of rows of text."""

from __future__ import annotations

from typing import Any

from curate.chain.recipe import Part, Recipe
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import param
from curate.keywords import option

WARC, ROWS = "warc", "rows"
COLUMNS = {"text_column": "text", "id_column": "id", "url_column": "url"}
"""What the rows of pages have."""


class TextRecipe(Recipe):
    """Base of recipes from web archives, or rows of text, to files in random order.

    >>> class Short(TextRecipe):
    ...     def parts(self, begin):
    ...         yield from self.pages(begin, "resiliparse")
    ...         yield self.in_random_order()
    >>> [one.job for one in Short(shards=4).parts("warc")], Short(shards=4).kept("warc")
    (['extract', 'shuffle'], ['url', 'date'])
    """

    begins = (WARC, ROWS)
    text_column: str = param("text", help="rows: column with the text")
    id_column: str = param("id", help="rows: column that identifies rows")
    url_column: str = param("url", help="rows: column with the URL, for lists")
    keep_columns: list[str] = param([], help="columns to pass through, such as title; of archives url and date are")
    block_domains: Asset | None = param(None, help="domains or hosts whose pages are dropped: a text file, one a line")
    block_urls: Asset | None = param(None, help="URLs whose pages are dropped")
    shards: int = param(help="number of output files; their row counts differ by one at most")
    seed: int = param(0, help="seed of the random order; another seed gives another order")

    @property
    def columns(self) -> dict[str, str]:
        """The parameters of a step that reads texts."""
        return {"text_column": self.text_column, "id_column": self.id_column}

    def pages(self, begin: str, extractor: str) -> list[Part]:
        """Returns the step that takes the text out of pages, if they are to be read. Raises ConfigError for columns
        that the rows of pages cannot have."""
        if begin != WARC:
            return []
        for name, own in COLUMNS.items():
            if getattr(self, name) not in (own, self._params[name].default):
                given = option(name, getattr(self, name))
                raise ConfigError(
                    f"{given} is for a recipe that begins with {ROWS}; the rows of pages have {own!r}: leave it out"
                )
        return [Part("pages", "extract", {"extractor": extractor})]

    def kept(self, begin: str) -> list[str]:
        """Returns the columns that each step passes through."""
        return list(dict.fromkeys([*(["url", "date"] if begin == WARC else []), *self.keep_columns]))

    def lists(self, *names: str) -> dict[str, Any]:
        """Returns those of the parameters with these names that are given, as those of the step that applies lists."""
        return {name: one.uri for name in names if (one := getattr(self, name)) is not None}

    def in_random_order(self) -> Part:
        """Returns the last step."""
        return Part("shards", "shuffle", {"shards": self.shards, "seed": self.seed})
