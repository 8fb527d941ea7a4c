"""Mix a corpus from sources with weights: `python jobs/mix.py --input 'gs://b/*.parquet' --output gs://b/mixed
--mixture mix.toml`.

    # mix.toml
    budget = 1_000_000           # documents; with unit = "tokens" or "characters", of these
    max_epochs = 4               # how often a row may be there at most; a source may have its own

    [sources.web]
    weight = 0.7                 # in proportion to the other weights

    [sources.books]
    weight = 0.3
    max_epochs = 2

`--source-column` says which source a row is of. Or each source has patterns of files, as `files = ["web/*"]`, or
`["source=web/*"]`: their paths below the input, without ending; then the column is added. Sources seldom have the same
columns: `--keep-columns id,text` names those that all have, and are to be kept.

A source gives its share of the budget: whole epochs first, all of its rows; then those with the lowest hashes of
`--id-column` once more. A source of which 2.3 epochs are wanted has every row twice, and 30 % of them a third time. A
budget of documents is met to the row. One of characters (of `--text-column`) or tokens (of `--count-column`) is met
from below: what is missing is less than the next row of the source has. With `--strata-column lang` each language keeps
the share that it has in its source, to a row: what is left where no row fits goes to the languages that have most left.

Which rows are drawn depends on the ids in a source alone, not on files, their order or other sources. As the corpus
grows, a row is there as often as it was, or less, if the budget is the same: as many go as come. With strata, their
shares may change with the corpus, and more rows with these.

A source with too little for its share in its epochs is refused, with both numbers and the values of the column that the
mixture does not name: exit code 2, and with other weights in the file the same command works, from the same hashes.
`--allow-shortfall` writes what there is. The default of 4 epochs is that of Muennighoff et al.
2023 ("Scaling data-constrained language models"): up to there, rows that are read again are worth nearly as much as new
ones. Rows of sources without a weight are dropped as `source not in the mixture`, others as `not drawn`, those of size
0 as `no tokens`; rows without an id, or a count, go to quarantine.

The extra output `<output>/_side/sources/` has a row for each source: `wanted`, `available`, `written`, `missing` (in
the unit), `epochs`, `available_rows`, `written_rows`; the summary counts the same, of up to 40 sources. What the file
says, and its SHA-256, are part of the job's identity: comments and its place are not.

Rows stay in their files, in order, and a row is followed by its copies, which `--epoch-column epoch` numbers from 0. So
shuffle behind it: `jobs/shuffle.py`. The input is read twice; no text leaves the task that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import param
from curate.job.shapes import RowsJob
from curate.keywords import option
from curate.mixture.file import digest, parse_mixture
from curate.mixture.mixture import CHARACTERS, Mixture


class Mix(RowsJob):
    """Mix rows of several sources by weight, up to a budget.

    The budget is in documents, characters or tokens. Rows keep their order and columns, and some are there several
    times. The extra output `sources` has the books of each source.
    """

    version = "1"
    sides = ("sources",)
    mixture: Asset = param(help="TOML file of the mixture: budget, and weights of sources", identity=False)
    source_column: str = param("source", help="column that says which source a row is of")
    id_column: str = param("id", help="column whose hash decides which rows are drawn")
    text_column: str = param("text", help="column with the text, if characters are counted")
    count_column: str | None = param(None, help="column with the number of tokens of a row, or of characters")
    strata_column: str | None = param(None, help="column whose values keep their shares in each source")
    epoch_column: str | None = param(None, help="column to add, with the number of a copy of a row, from 0")
    allow_shortfall: bool = param(False, help="write what there is where a source has too little", identity=False)

    def check(self) -> None:
        """Raises ConfigError for a file that is no mixture, and a column without a name. Says which column has no
        effect."""
        if self.epoch_column == "":
            raise ConfigError("--epoch-column is empty; name the column, or leave it out")
        if self._read().unit != CHARACTERS:
            self._say_unused(("text_column",), f'unit = "{CHARACTERS}" in {self.mixture.uri}')
        elif self.count_column is not None:
            self._say_unused(("text_column",), option("count_column", ...), "with")

    def identity(self) -> Mapping[str, Any]:
        mixture = self._read()
        return {"mixture": mixture.parameters(), "mixture_sha256": digest(mixture)}

    def _read(self) -> Mixture:
        try:
            text = Path(self.mixture.local()).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.mixture.uri} cannot be read ({error}); pass the TOML file of a mixture"
            ) from error
        return parse_mixture(text, self.mixture.uri)

    def build(self, ds: Dataset) -> Dataset:
        mixture = self._read()
        return ds.mix_sources(
            mixture,
            id_column=self.id_column,
            source_column=self.source_column,
            count_column=self.count_column,
            text_column=self.text_column,
            strata_column=self.strata_column,
            epoch_column=self.epoch_column,
            allow_shortfall=self.allow_shortfall,
        )


if __name__ == "__main__":
    Mix.main()
