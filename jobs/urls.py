"""Keep pages by their URL: `python jobs/urls.py --input 'gs://b/pages/*.parquet' --output gs://b/wanted
--block-domains gs://b/lists/domains.txt --block-words gs://b/lists/words.txt`.

Each list is a text file in UTF-8 with an entry a line; blank lines and those that begin with `#` are left out. They are
applied in this order, and a row is dropped for the first that it fails:

- `--keep-domains`: domains or hosts of which alone rows are kept
- `--block-domains`: registered domains (`example.co.uk`, for all of its hosts), then hosts (`www.example.co.uk`)
- `--block-urls`: whole URLs, as they are spelt
- `--block-words`: words of URLs (what is between characters that are no ASCII letters or digits), as they are spelt
- `--soft-words`: words, of which a URL may have up to `--max-soft-words` different ones
- `--block-parts`: parts of a URL's letters and digits, in lower case, wherever a word begins or ends

The order, words and parts are those of FineWeb's code (`URLFilter` of datatrove 0.10.1). Entries of the last three
lists are read as there: their letters and digits, in lower case; so words of URLs are found where they are in lower
case. Rows keep their columns and their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow.types import is_text, value_type
from curate.errors import ConfigError, did_you_mean
from curate.job.asset import Asset
from curate.job.params import param
from curate.job.shapes import RowsJob
from curate.keywords import option
from curate.texts import urls
from curate.texts.pieces import Array, readable, shown
from curate.texts.words import different

NOT_KEPT = "domain is not one to keep"
DOMAIN, HOST, URL = "blocked domain", "blocked host", "blocked url"
WORD, SOFT_WORDS, PART = "blocked word", "too many soft words", "blocked part of a word"
LISTS = {
    "keep_domains": urls.DOMAIN,
    "block_domains": urls.DOMAIN,
    "block_urls": urls.URL,
    "block_words": urls.WORD,
    "soft_words": urls.WORD,
    "block_parts": urls.WORD,
}


class Urls(RowsJob):
    """Keep the rows whose URL passes lists of domains and words.

    Rows without a URL are bad rows, and go to quarantine.
    """

    name = "urls"
    version = "1"
    url_column: str = param("url", help="column that holds the URL")
    keep_domains: Asset | None = param(None, help="domains or hosts: rows of any other are dropped")
    block_domains: Asset | None = param(None, help="domains or hosts whose rows are dropped")
    block_urls: Asset | None = param(None, help="URLs whose rows are dropped")
    block_words: Asset | None = param(None, help="words of which a URL may have none")
    soft_words: Asset | None = param(None, help="words of which a URL may have a few")
    max_soft_words: int = param(1, help="maximum different soft words of a URL; FineWeb has 1")
    block_parts: Asset | None = param(None, help="parts of which the letters and digits of a URL may have none")

    def check(self) -> None:
        """Raises ConfigError where there is no list, or one of another shape. Says which number has no effect."""
        given = {name: asset for name in LISTS if (asset := getattr(self, name)) is not None}
        if not given:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in LISTS)
            raise ConfigError(f"no list is given, so every row would be kept; give one of {options}")
        if self.attributes:
            raise ConfigError("attributes are columns of each row, and this job adds none and drops rows; leave it out")
        if self.max_soft_words < 0:
            raise ConfigError(f"--max-soft-words {self.max_soft_words} would keep no URL; give 0 or more")
        if self.soft_words is None:
            self._say_unused(("max_soft_words",), option("soft_words", ...))
        if self.keep_domains or self.block_domains:
            urls.check_installed()
        for name, asset in given.items():
            urls.read_list(asset.local(), LISTS[name], asset.uri)

    def setup(self) -> None:
        def local(asset: Asset | None) -> str | None:
            return None if asset is None else asset.local()

        keep, domains, addresses = local(self.keep_domains), local(self.block_domains), local(self.block_urls)
        block, soft, parts = local(self.block_words), local(self.soft_words), local(self.block_parts)
        self._keep = keep and urls.read_domains(keep)
        self._domains = domains and urls.read_domains(domains)
        self._urls = addresses and urls.Listed.of(urls.read_list(addresses, urls.URL))
        self._words = block and tuple(urls.read_words(block).to_pylist())
        self._soft = soft and tuple(urls.read_words(soft).to_pylist())
        self._parts = parts and urls.Parts.of(urls.read_words(parts))

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        batch = self._having_urls(batch)
        # By chunk: a list of words counts with 32 bits. A table without rows has none, and tells the columns.
        for part in batch.to_batches() or [pa.RecordBatch.from_pylist([], batch.schema)]:
            table = pa.Table.from_batches([part])
            kept = np.ones(len(table), dtype=bool)
            for reason, failed in self.failed(part.column(self.url_column).cast(pa.string())):
                if (now := failed & kept).any():
                    self.drop(table.filter(pa.array(now)), reason)
                    kept &= ~now
            yield table if kept.all() else table.filter(pa.array(kept))

    def failed(self, addresses: pa.Array) -> Iterator[tuple[str, Array]]:
        """Yields each reason in order, and which URLs are to be dropped for it."""
        if self._keep or self._domains:
            hosts = urls.hosts(addresses)
            domains = urls.registered(hosts)
            if self._keep:
                yield NOT_KEPT, ~(self._keep.has(domains) | self._keep.has(hosts))
            if self._domains:
                yield DOMAIN, self._domains.has(domains)
                yield HOST, self._domains.has(hosts)
        if self._urls:
            yield URL, self._urls.has(addresses)
        if self._words or self._soft:
            words = urls.words(addresses)
            if self._words:
                yield WORD, different(words, self._words) > 0
            if self._soft:
                yield SOFT_WORDS, different(words, self._soft) > self.max_soft_words
        if self._parts:
            yield PART, self._parts.within(urls.letters(addresses))

    def check_columns(self, found: pa.Schema) -> None:
        """Raises ConfigError for rows without a column of URLs: before anything is written, too."""
        if self.url_column not in found.names:
            hint = did_you_mean(self.url_column, found.names)
            known = f"no column {self.url_column!r}{hint}; there are {', '.join(found.names)}"
            raise ConfigError.of_column(known, self.url_column)
        type = value_type(found.field(self.url_column).type)
        if not is_text(type) and not pa.types.is_null(type):
            raise ConfigError.of_column(f"column {self.url_column!r} is {type}, expected text", self.url_column)

    def _having_urls(self, batch: pa.Table) -> pa.Table:
        self.check_columns(batch.schema)
        column = batch[self.url_column]
        plain, unread = readable(column)
        if not column.null_count and not unread:
            return batch
        missing = pc.is_null(plain)
        for place in pc.indices_nonzero(missing).to_pylist():
            row = {name: shown(batch[name][place]) for name in batch.column_names}
            why = "not UTF-8" if column[place].is_valid else "null"
            self.quarantine(row, f"{self.url_column} is {why}", place)
        return batch.filter(pc.invert(missing))


if __name__ == "__main__":
    Urls.main()
