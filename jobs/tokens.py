"""Turn texts into tokens: `python jobs/tokens.py --input 'gs://b/clean/*.parquet' --output gs://b/tokens
--tokenizer gs://b/tokenizer.json --end-token '<|endoftext|>'`.

Any `tokenizer.json` of the package `tokenizers` fits (extra `tokens`). A document becomes a row with `tokens`: uint16
if the vocabulary fits, else uint32. Truncation and padding that the file asks for are off, so nothing is cut, and the
name of a special token in a text is text like any other, so that no text can pretend to end.

With `--pack N` a row is a sequence of exactly N tokens, with `document_lengths` for masks and `padding`. Sequences are
made shard by shard, so that each shard has a tail of its own. How they are made: `curate/tokens/packing`.

`--format memmap` writes all tokens of a shard as one array of numpy, `megatron` a `.bin` with its `.idx`, `datatrove`
a `.ds` with its `.ds.index` and `.ds.metadata`, and `mds` shards for mosaicml-streaming with an `index.json`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, CorruptInput
from curate.job.asset import Asset
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.keywords import option
from curate.late_pandas import numbers
from curate.objects.record import OutputFormat
from curate.texts.pieces import shown
from curate.tokens.documents import TOKENS, Documents
from curate.tokens.packing import BEST_FIT, CONCATENATE
from curate.tokens.step import (
    N_DOCUMENTS,
    N_EMPTY,
    N_TOKENS,
    N_UNKNOWN,
    Packing,
    PackTokens,
    sequence_schema,
)
from curate.tokens.vocabulary import Vocabulary, opened

FLAT = (OutputFormat.MEMMAP, OutputFormat.MEGATRON, OutputFormat.DATATROVE)
"""Formats of tokens alone."""
KEEPING = "--keep-text, --keep-columns and --keep-positions"
LONG = "longer than a sequence"
LONGEST = 100_000_000
"""Tokens of a sequence, at most: the last one of each shard is filled up in memory."""


class Tokenize(TextJob):
    """Turn each record's text into tokens of a vocabulary."""

    name = "tokens"
    version = "1"
    batch_size = 1024
    tokenizer: Asset = param(help="tokenizer.json, local or a URI")
    begin_token: str | None = param(None, help="token before each document, such as <s>")
    end_token: str | None = param(None, help="token behind each document, such as <|endoftext|>")
    template: bool = param(False, help="also add the tokens that the tokenizer's own template adds, such as [CLS]")
    specials_in_text: bool = param(False, help="take names of special tokens in texts for these tokens")
    pack: int | None = param(None, help="tokens of a sequence; default: a row is a document")
    pack_by: Literal["concatenate", "best-fit"] = param(
        CONCATENATE, help="cut documents where a sequence is full, or fit whole ones into sequences"
    )
    long: Literal["refuse", "cut", "drop"] = param(
        "refuse", help="best-fit: what becomes of documents longer than a sequence"
    )
    tail: Literal["pad", "drop"] = param("pad", help="concatenate: what becomes of the last tokens of a shard")
    pad_token: str | None = param(None, help="token of padding; default: the end token")
    width: Literal["auto", "uint16", "uint32"] = param("auto", help="integers of the output; auto: the first that fits")
    max_unknown: float = param(0.05, help="largest share of unknown tokens of a shard, 0 to 1")
    keep_text: bool = param(False, help="also write the text to the output")

    @property
    def output_schema(self) -> pa.Schema | None:
        """That of outputs without columns of the input: no text is encoded to learn it."""
        if self.pack is None and self.format not in FLAT:
            return None
        tokens = pa.list_(self._type(self._vocabulary()))
        return pa.schema([(TOKENS, tokens)]) if self.format in FLAT else sequence_schema(tokens)

    def check(self) -> None:
        """Raises ConfigError for a tokenizer that does not fit, and parameters that contradict each other. Says which
        have no effect."""
        if TOKENS in (self.id_column, *[self.text_column] * self.keep_text, *self.keep_columns):
            raise ConfigError(f"the output has a column {TOKENS!r} of its own; leave {TOKENS!r} out of what is kept")
        if not 0 <= self.max_unknown <= 1:
            raise ConfigError(f"--max-unknown {self.max_unknown:g} is no share; these are between 0 and 1")
        alone = "a sequence is of several documents" if self.pack is not None else f"{self.format} has tokens alone"
        kept = self.keep_text or self.keep_columns or self.keep_positions
        if kept and (self.pack is not None or self.format in FLAT):
            raise ConfigError(f"{alone}, so no column can be kept; leave out {KEEPING}")
        if self.attributes and (self.pack is not None or self.format != OutputFormat.PARQUET):
            what = "a sequence is of several documents" if self.pack is not None else f"{self.format} has no places"
            raise ConfigError(
                f"attributes are tokens of each row beside its place in the input, and {what}; leave out --pack, and "
                "write parquet"
            )
        self._say_what_packs_nothing()
        vocabulary = self._vocabulary()
        self._tokens_of(vocabulary)
        self._padding(vocabulary)
        self._packing(vocabulary)
        self._type(vocabulary)
        if (what_it_does := vocabulary.at_unknown) and self.max_unknown < 1:
            raise ConfigError(
                f"{self.tokenizer.uri} {what_it_does}: its model has no unknown token, and not a token for each byte. "
                "Train it with an unknown token, byte_fallback (of BPE) and <0x00> to <0xFF>, or ByteLevel and "
                "initial_alphabet=ByteLevel.alphabet(); with --max-unknown 1 it is taken as it is, and rows that it "
                "fails at are set aside"
            )

    def build(self, ds: Dataset) -> Dataset:
        """Tokenises batch by batch, then makes sequences over whole shards."""
        tokenised = super().build(ds)
        assert isinstance(tokenised, Dataset)
        packing = None if self.pack is None else self._packing(self._vocabulary())
        made = tokenised._apply(PackTokens(packing, self.max_unknown))
        return made.select_columns([TOKENS]) if self.format in FLAT else made

    def setup(self) -> None:
        # One of its own: in a long-lived process a tokenizer that was used for other texts was seen to be slower.
        opened.cache_clear()
        vocabulary = self._vocabulary()
        if vocabulary.shortens:
            self.log.info("the tokenizer's own truncation or padding is off", found=vocabulary.shortens)
        self._loaded = vocabulary
        self._begin, self._end = self._tokens_of(vocabulary)
        self._list_of = self._type(vocabulary)
        self._unknown = vocabulary.unknown

    def process(self, batch: pa.Table) -> pa.Table:
        documents, refused = self._loaded.encode(batch[self.text_column].to_pylist())
        for place, why in refused.items():
            self.quarantine({name: shown(batch[name][place]) for name in batch.column_names}, why, place)
        if refused:
            batch = batch.filter(pa.array([place not in refused for place in range(len(batch))], pa.bool_()))
        if blank := int(np.count_nonzero(documents.lengths == 0)):
            self.count(N_EMPTY, blank)
        marked = documents.marked(self._begin, self._end)
        lists = marked.lists(self._list_of)
        table = self.passed_through(batch, text=self.keep_text)
        if self.pack is not None and self.pack_by == BEST_FIT and self.long != "cut":
            longer = marked.lengths > self.pack
            if longer.any():
                table, lists, marked = self._without(table, lists, marked, longer)
        # Of documents that are kept.
        kept = numbers(lists.flatten())
        if self._unknown is not None and (unknown := int(np.count_nonzero(kept == self._unknown))):
            self.count(N_UNKNOWN, unknown)
        self.count(N_DOCUMENTS, len(lists))
        self.count(N_TOKENS, int(marked.lengths.sum()))
        if self.pack is not None or self.format in FLAT:
            return pa.table([lists], names=[TOKENS])
        return table.append_column(TOKENS, lists)

    def _without(
        self, table: pa.Table, lists: pa.ListArray, documents: Documents, longer: np.ndarray
    ) -> tuple[pa.Table, pa.ListArray, Documents]:
        """Returns what is left without documents that fit no sequence. Raises CorruptInput if these are refused."""
        if self.long == "refuse":
            first = int(np.flatnonzero(longer)[0])
            raise CorruptInput(
                f"the document with {self.id_column} {shown(table[self.id_column][first])!r} has "
                f"{int(documents.lengths[first]):,} tokens, and --pack is {self.pack:,}: cut such documents with "
                "--long cut, leave them out with --long drop, or pack longer sequences"
            )
        self.drop(table.filter(pa.array(longer)), LONG)
        kept = pa.array(~longer)
        fitting = lists.filter(kept)
        return table.filter(kept), fitting, Documents(documents.ids[:0], documents.lengths[~longer])

    def _vocabulary(self) -> Vocabulary:
        path, file = self.tokenizer.local(), self.tokenizer.object
        return opened(path, file.generation if file else "", self.template, self.specials_in_text)

    def _tokens_of(self, vocabulary: Vocabulary) -> tuple[int | None, int | None]:
        """Returns the tokens before and behind each document. Raises ConfigError for one that there is not."""
        begin = None if self.begin_token is None else vocabulary.id_of("--begin-token", self.begin_token)
        end = None if self.end_token is None else vocabulary.id_of("--end-token", self.end_token)
        if self.format == OutputFormat.MEMMAP and end is None and self.pack is None:
            some = vocabulary.specials[:5]
            raise ConfigError(
                "--format memmap writes documents one after the other, and only --end-token says where one ends; give "
                f"it, such as {' or '.join(some) if some else 'a token of the vocabulary'}"
            )
        return begin, end

    def _say_what_packs_nothing(self) -> None:
        if self.pack is None:
            self._say_unused(("pack_by", "long", "tail", "pad_token"), option("pack", ...))
        elif self.pack_by == BEST_FIT:
            self._say_unused(("tail",), option("pack_by", CONCATENATE))
        else:
            self._say_unused(("long",), option("pack_by", BEST_FIT))
            if self.tail == "drop":
                self._say_unused(("pad_token",), option("tail", "pad"))

    def _padding(self, vocabulary: Vocabulary) -> int | None:
        """Returns the token of padding, if there is one. Raises ConfigError for one that the vocabulary has not."""
        name = self.pad_token if self.pad_token is not None else self.end_token
        return None if name is None else vocabulary.id_of("--pad-token", name)

    def _packing(self, vocabulary: Vocabulary) -> Packing | None:
        """Returns how sequences are made. Raises ConfigError if they cannot be."""
        if self.pack is None:
            return None
        if not 2 <= self.pack <= LONGEST:
            raise ConfigError(f"--pack {self.pack}: expected 2 or more tokens in a sequence, {LONGEST:,} at most")
        if self.pack_by == CONCATENATE and self.tail == "drop":
            return Packing(self.pack, self.pack_by, None)
        padding = self._padding(vocabulary)
        if padding is None:
            drop = ", or leave the tail out with --tail drop" if self.pack_by == CONCATENATE else ""
            raise ConfigError(f"sequences that are not full need a token of padding; give --pad-token{drop}")
        return Packing(self.pack, self.pack_by, padding)

    def _type(self, vocabulary: Vocabulary) -> pa.DataType:
        """Returns the type of a token. Raises ConfigError if the largest id is above it."""
        name = self.width
        if name == "auto":
            name = "uint16" if vocabulary.largest <= np.iinfo(np.uint16).max else "uint32"
        if vocabulary.largest > np.iinfo(name).max:
            raise ConfigError(
                f"--width {name} has ids up to {np.iinfo(name).max:,}, and the largest id of the tokenizer is "
                f"{vocabulary.largest:,}; leave --width out"
            )
        return pa.type_for_alias(name)


if __name__ == "__main__":
    Tokenize.main()
