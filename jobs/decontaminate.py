"""Keep evaluation sets out of a corpus: `python jobs/decontaminate.py --input 'gs://b/*.parquet' --output gs://b/clean
--sets gs://b/evals/gsm8k.jsonl --sets gs://b/evals/mmlu.parquet --set-columns question`.

A text is contaminated if it has `--n` 13 words in a row of an example (Brown et al. 2020, appendix C), without case,
punctuation, marks above letters, and with numbers as 0 (`--normalise datatrove`). N-grams that more than
`--max-documents` 10 texts of the corpus have are phrases of the language rather than examples, and are left out of
account, as there; 0 counts all, and reads the input once instead of twice.

Each of `--sets` is a file of JSON lines (plain, gzip, zstd) or Parquet, a row an example. It is called after the file,
or by `--set-names`. `--set-columns` have the texts, or lists of texts; several are one text, in that order. Where sets
have others: `--columns-of-sets '{"mmlu": ["question", "choices"]}'`. N-grams that end in `--prompt-columns`, which come
first, do not count: so a page that quotes a question is kept, and one with question and answer is not. A set whose
examples are all shorter than an n-gram is refused; of others it is logged how many examples cannot be found.

By `--action`, texts are dropped (`contaminated`), or annotated by the columns `contaminated_ngrams` (how many different
ones) and `contaminated_sets`, or the n-grams are cut out of them, from blank to blank, with `--margin` characters on
either side (Brown et al.: 200); then texts with fewer than `--min-words` words left are dropped. Rows keep their order,
files and columns. Nulls are kept.

The extra output `<output>/_side/contaminated/` has one row for each n-gram that a text shares with a set: `id`, `set`,
`example` (the first that has it: its number in the set, from 0), `ngram` (as it is compared), `start` and `end` of its
first place in the text, in characters, and its number of `occurrences` in it.

With `--max-documents 0 --words spacy --n 12` it drops what `NGramsDecontFilter` of datatrove 0.10.1 drops of the same
sets, whose query is the prompt column.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Literal

from curate.dataset.dataset import Dataset
from curate.dedup.evaluation import Compared, evaluation_sets
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import param
from curate.job.shapes import RowsJob
from curate.keywords import naming_columns, option
from curate.units import whole


class Decontaminate(RowsJob):
    """Drop, mark or cut texts that have words of evaluation sets.

    Rows keep their order and columns. The extra output `contaminated` lists n-grams, each with set, example and row.
    """

    version = "1"
    sides = ("contaminated",)
    text_column: str = param("text", help="column with the text")
    id_column: str = param("id", help="column that identifies rows in the list of n-grams")
    sets: list[Asset] = param(help="evaluation sets: JSON lines or Parquet, local or URIs")
    set_names: list[str] = param([], help="names of the sets, in order; default: the names of their files")
    set_columns: list[str] = param(["text"], help="columns of the sets that have the texts of an example")
    columns_of_sets: dict[str, Any] = param({}, help="columns of sets that have others, by the name of the set")
    prompt_columns: list[str] = param([], help="columns before these, of which alone no n-gram counts")
    n: int = param(13, help="words of an n-gram")
    max_documents: int = param(10, help="leave out n-grams that more texts of the corpus have; 0: count all")
    action: Literal["drop", "annotate", "cut"] = param("drop", help="what becomes of contaminated texts")
    normalise: Literal["exact", "folded", "ccnet", "datatrove"] = param("datatrove", help="what of a text is compared")
    words: Literal["whitespace", "spacy"] = param(
        "whitespace", help="how texts are split into words; spacy needs the package"
    )
    margin: int = param(0, help="cut: characters on either side that are cut out, too")
    min_words: int = param(50, help="cut: minimum words of a text of which something was cut out")

    def check(self) -> None:
        """Raises ConfigError for sets without names of their own, or columns of none."""
        if not self.sets:
            raise ConfigError("--sets names no evaluation set, so nothing would be found; name at least one")
        if not self.set_columns and set(self._names()) - set(self.columns_of_sets):
            raise ConfigError("--set-columns is empty; name the columns with the texts of an example")
        if self.set_names and len(self.set_names) != len(self.sets):
            raise ConfigError(
                f"--set-names has {len(self.set_names)} names for {len(self.sets)} sets; give one for each"
            )
        for name in self._names():
            if self._names().count(name) > 1:
                raise ConfigError(f"two evaluation sets are called {name!r}; give each its own with --set-names")
        for name, columns in self.columns_of_sets.items():
            if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
                raise ConfigError(
                    f'--columns-of-sets: {name!r} has {columns!r}, expected a list of columns, as ["question"]'
                )
        if self.action != "cut":
            self._say_unused(("margin", "min_words"), option("action", "cut"))
        # Here 0 counts all n-grams, for which a dataset has None.
        whole("decontaminate: max_documents", self.max_documents, 0)
        columns = {name: getattr(self, name) for name in ("set_columns", "columns_of_sets", "prompt_columns")}
        with naming_columns(columns):  # and not the one of the corpus, which may be called alike
            index = Compared(self._sets(), self.n, self.normalise, self.words).index()
        for one in index.short:
            if one.short or one.empty:
                self.log.warning(
                    f"evaluation set {one.name!r}: {one.short + one.empty:,} of {one.examples:,} examples cannot be "
                    f"found: they have fewer than {self.n} words ({one.empty:,} have none)",
                    set=one.name,
                    short=one.short,
                    empty=one.empty,
                )

    def _names(self) -> list[str]:
        return self.set_names or [PurePosixPath(one.uri).name.split(".")[0] for one in self.sets]

    def _files(self) -> dict[str, Asset]:
        return dict(zip(self._names(), self.sets, strict=True))

    def _sets(self) -> Any:
        return evaluation_sets(self._files(), self._columns(), self.prompt_columns)

    def _columns(self) -> dict[str, list[str]]:
        return {**dict.fromkeys(self._names(), self.set_columns), **self.columns_of_sets}

    def build(self, ds: Dataset) -> Dataset:
        return ds.decontaminate(
            self.text_column,
            self._files(),
            self._columns(),
            prompt_columns=self.prompt_columns,
            id_column=self.id_column,
            n=self.n,
            max_documents=self.max_documents or None,
            action=self.action,
            normalise=self.normalise,
            words=self.words,
            margin=self.margin,
            min_words=self.min_words,
        )


if __name__ == "__main__":
    Decontaminate.main()
