"""Evaluation sets: their examples as n-grams, which texts of a corpus must not have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.arrow.expressions import refuse_unknown
from curate.arrow.types import is_list, is_text, value_type
from curate.dataclass import dataclass
from curate.dedup import normalise
from curate.dedup.normalise import DATATROVE, FORMS, in_form
from curate.errors import ConfigError, did_you_mean, refuse_other
from curate.texts import ngrams
from curate.texts.ngrams import Tokens, said, tokens
from curate.texts.pieces import Array
from curate.texts.words import SPACY, WHITESPACE, Words, splitter
from curate.units import MOST, keep_whole

_TABLE_BITS = 20
"""Of the smallest table that says which hashes there may be."""


class File(Protocol):
    """A file that is named by a job: a `curate.Asset`."""

    @property
    def uri(self) -> str: ...

    def identity(self) -> dict[str, Any]: ...

    def local(self) -> str: ...


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Where the examples of a set are: JSON lines (plain, gzip, zstd) or Parquet, a row an example."""

    name: str
    file: File
    columns: tuple[str, ...]
    """Texts, or lists of texts, that make up an example, in order."""
    prompt: tuple[str, ...] = ()
    """Columns before these, of which alone no n-gram counts: a question that is quoted says no answer."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What is looked for in texts, and how it is compared."""

    sets: tuple[EvaluationSet, ...]
    n: int = 13
    """Words of an n-gram."""
    form: str = DATATROVE
    """What is compared: see `in_form`."""
    words: str = WHITESPACE
    """How texts are split into words: `whitespace` or `spacy`."""

    def __post_init__(self) -> None:
        keep_whole(self, "decontaminate: ", {"n": 1}, MOST)
        for name, value, known in (("normalise", self.form, FORMS), ("words", self.words, (WHITESPACE, SPACY))):
            refuse_other(f"decontaminate: {name}", value, known)
        if not self.sets:
            raise ConfigError("decontaminate: there is no evaluation set to look for; name at least one")
        names = [one.name for one in self.sets]
        for one in self.sets:
            if not one.name or names.count(one.name) > 1:
                what = f"called {one.name!r}" if one.name else "without a name"
                raise ConfigError(
                    f"decontaminate: {names.count(one.name)} evaluation sets are {what}; give other names"
                )
            if not one.columns:
                raise ConfigError(
                    f"decontaminate: evaluation set {one.name!r} has no column; name those with its texts"
                )

    def identity(self) -> Any:
        """Returns what decides what is found, as JSON values."""
        sets = [[one.name, one.file.identity(), list(one.columns), list(one.prompt)] for one in self.sets]
        return [sets, self.n, self.form, self.words, [normalise.VERSION, ngrams.VERSION]]

    def tokens(self, texts: pa.Array) -> Tokens:
        """Returns the words of texts as they are compared."""
        return tokens(texts.cast(pa.large_string()), lambda some: in_form(some, self.form), splitter(self.words))

    def index(self) -> Index:
        """Returns the n-grams of all sets; read once in each process. Raises ConfigError for a set that is none."""
        key = json.dumps(self.identity())
        found = _indexes.pop(key) if key in _indexes else Index.of(self)
        # Behind all others, as each step of several goes on with its own; by what the files are known to be once read.
        _indexes[json.dumps(self.identity())] = found
        while len(_indexes) > _HELD:
            del _indexes[next(iter(_indexes))]
        return found


_HELD = 4
_indexes: dict[str, Index] = {}
"""Those that were used last."""


@dataclass(frozen=True)
class Short:
    """Examples of a set that cannot be found."""

    name: str
    examples: int
    """All of the set."""
    short: int
    """Those with words, and fewer than an n-gram has."""
    empty: int
    """Those without a word."""


@dataclass(frozen=True)
class Index:
    """The n-grams of evaluation sets, each once, by their hashes."""

    n: int
    names: tuple[str, ...]
    hashes: Array
    """In order."""
    at: Array
    """Where one of each begins, in `words`."""
    words: Words
    gram: Array
    """The n-gram of each entry, in order: an entry for each set that has it."""
    sets: Array
    """The number of the set."""
    examples: Array
    """The first example of the set that has it."""
    short: tuple[Short, ...]
    table: Array
    """Whether there may be a hash that begins with these bits."""

    @classmethod
    def of(cls, how: Compared) -> Index:
        """Reads all sets."""
        loaded = [examples_of(one) for one in how.sets]
        counts = [len(texts) for texts, _ in loaded]
        # Prompt and answer are texts of their own, beside each other; here each example is one again.
        found = how.tokens(pa.concat_arrays([texts for texts, _ in loaded])).words
        columns = np.repeat([size for _, size in loaded], counts)
        prompts = np.repeat([len(one.prompt) for one in how.sets], counts)
        set_of = np.repeat(np.arange(len(how.sets)), counts)
        first_of_set = np.cumsum(counts) - counts
        row = np.arange(len(columns)) - first_of_set[set_of]
        example = row // np.maximum(columns, 1)
        is_prompt = row % np.maximum(columns, 1) < prompts
        first_example = np.concatenate(
            [[0], np.cumsum([count // size for (_, size), count in zip(loaded, counts, strict=True)])]
        )
        number = first_example[set_of] + example
        words = Words(found.vocabulary, found.code, number[found.owner], int(first_example[-1]))
        hashes, first = ngrams.ngrams(words, how.n)
        told = ~is_prompt[found.owner[first + how.n - 1]] if len(first) else np.zeros(0, bool)
        hashes, first = hashes[told], first[told]
        known, at, which = np.unique(hashes, return_index=True, return_inverse=True)
        owner = words.owner[first]
        sets = np.searchsorted(first_example, owner, side="right") - 1
        # The first example of each set that has an n-gram.
        entry, begins = np.unique(which * len(how.sets) + sets, return_index=True)
        short = []
        for place, one in enumerate(how.sets):
            sizes = words.count[first_example[place] : first_example[place + 1]]
            told_short = Short(
                one.name, len(sizes), int(((sizes > 0) & (sizes < how.n)).sum()), int((sizes == 0).sum())
            )
            if not (sets == place).any():
                raise ConfigError(
                    f"{_called(one)}: none of its {len(sizes):,} examples has {how.n} words in "
                    f"{', '.join(one.columns)} ({told_short.empty:,} have none), so nothing of it could be found; name "
                    "other columns, or a smaller n"
                )
            short.append(told_short)
        bits = max(_TABLE_BITS, int(len(known) * 16).bit_length())
        table = np.zeros(1 << bits, bool)
        table[(known >> np.uint64(64 - bits)).astype(np.int64)] = True
        examples = (owner - first_example[sets])[begins]
        names = tuple(one.name for one in how.sets)
        return cls(
            how.n,
            names,
            known,
            first[at],
            words,
            entry // len(names),
            entry % len(names),
            examples,
            tuple(short),
            table,
        )

    def find(self, words: Words) -> tuple[Array, Array]:
        """Returns where n-grams of the sets are in texts: the first word of each, in order, and its number here."""
        hashes, first = ngrams.ngrams(words, self.n)
        bits = len(self.table).bit_length() - 1
        may = np.flatnonzero(self.table[(hashes >> np.uint64(64 - bits)).astype(np.int64)])
        hashes, first = hashes[may], first[may]
        gram = np.minimum(np.searchsorted(self.hashes, hashes), max(0, len(self.hashes) - 1))
        same = self.hashes[gram] == hashes
        first, gram = first[same], gram[same]
        # One in 10**19 of the others has the same hash by chance, and there are 10**12 texts times n-grams.
        each, one = np.unique(gram, return_index=True)
        equal = [ours == theirs for ours, theirs in zip(self.said(each), said(words, first[one], self.n), strict=True)]
        right = np.isin(gram, each[np.array(equal, bool)])
        return first[right], gram[right]

    def said(self, grams: Array) -> list[str]:
        """Returns n-grams as texts."""
        return said(self.words, self.at[grams], self.n)

    def entries(self, grams: Array) -> tuple[Array, Array]:
        """Returns the entries of n-grams, and which of them each is of."""
        low, high = np.searchsorted(self.gram, grams), np.searchsorted(self.gram, grams, side="right")
        of = np.repeat(np.arange(len(grams)), high - low)
        ends = np.cumsum(high - low)
        return np.arange(len(of)) - np.repeat(ends - (high - low) - low, high - low), of


def evaluation_sets(
    files: Mapping[str, Any], columns: Sequence[str] | Mapping[str, Sequence[str]], prompt: Sequence[str]
) -> tuple[EvaluationSet, ...]:
    """Returns sets by name, all with the same columns or each with its own. Raises ConfigError for what is no file, and
    columns of sets that there are not."""
    if not isinstance(files, Mapping):
        raise ConfigError(
            f'decontaminate takes files by the names of sets, as {{"gsm8k": curate.Asset(path)}}, found {files!r}'
        )
    made = []
    prompt = (prompt,) if isinstance(prompt, str) else prompt
    by_set = columns if isinstance(columns, Mapping) else dict.fromkeys(files, columns)
    for name in by_set:
        if name not in files:
            raise ConfigError(
                f"decontaminate: columns of {name!r}{did_you_mean(name, list(files))}; sets are {_all(files)}"
            )
    for name, file in files.items():
        if not hasattr(file, "local"):
            raise ConfigError(f"decontaminate: the evaluation set {name!r} is {file!r}; pass curate.Asset(path)")
        if name not in by_set:
            raise ConfigError(f"decontaminate: no columns of the evaluation set {name!r}; name those with its texts")
        chosen = by_set[name]
        made.append(EvaluationSet(name, file, (chosen,) if isinstance(chosen, str) else tuple(chosen), tuple(prompt)))
    return tuple(made)


def _all(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


# Files


def examples_of(one: EvaluationSet) -> tuple[pa.Array, int]:
    """Returns the texts of the columns of a set, those of an example after each other, and how many these are. Raises
    ConfigError for what is no such file, and a column that it has not."""
    names = [*one.prompt, *(name for name in one.columns if name not in one.prompt)]
    path = one.file.local()
    with open(path, "rb") as file:
        magic = file.read(4)
    table = _parquet(one, path, names) if magic == b"PAR1" else _json_lines(one, path, magic, names)
    if not table.num_rows:
        raise ConfigError(f"{_called(one)} has no example; leave it out, or name another file")
    columns = [_texts(one, name, table[name].combine_chunks()) for name in names]
    order = np.arange(len(names) * table.num_rows).reshape(len(names), -1).T.ravel()
    return pa.concat_arrays(columns).take(pa.array(order)), len(names)


def _called(one: EvaluationSet) -> str:
    return f"evaluation set {one.name!r} ({one.file.uri})"


def _texts(one: EvaluationSet, name: str, values: pa.Array) -> pa.Array:
    type = value_type(values.type)
    if is_list(type) and is_text(value_type(type.value_type)):
        # Not joined by Arrow, to which a list with a null in it is null.
        values = pa.array([_plain(one, name) for one in values.to_pylist()], pa.large_string())
    elif not is_text(type) and not pa.types.is_null(type):
        raise ConfigError(f"{_called(one)}: column {name!r} is {type}, expected texts or lists of texts")
    return values.cast(pa.large_string()).fill_null("")


def _parquet(one: EvaluationSet, path: str, names: Sequence[str]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            refuse_unknown(_called(one), names, file.schema_arrow.names)
            return file.read(list(names))
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{_called(one)} cannot be read as Parquet: {error}; write it again") from error


def _json_lines(one: EvaluationSet, path: str, magic: bytes, names: Sequence[str]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    known: dict[str, None] = {}
    number = 0
    try:
        for line in _lines(path, magic):
            number += 1
            if not line.strip():
                continue
            row = orjson.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"it is a {type(row).__name__}")
            known.update(dict.fromkeys(row))
            for name in names:
                columns[name].append(_plain(row.get(name), name))
    except (ValueError, OSError, EOFError) as error:
        raise ConfigError(
            f"{_called(one)}, line {number:,}: {error}; expected an object of JSON on each line (plain, gzip or zstd), "
            "or Parquet"
        ) from error
    if known:
        refuse_unknown(_called(one), names, list(known))
    return pa.table({name: pa.array(values, pa.large_string()) for name, values in columns.items()})


def _plain(value: Any, name: str) -> str | None:
    """Returns a text, or a list of texts as one."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(one is None or isinstance(one, str) for one in value):
        return " ".join(filter(None, value))
    raise ValueError(f"column {name!r} is {value!r:.60}, expected a text or a list of texts")


def _lines(path: str, magic: bytes) -> Iterator[bytes]:
    if magic[:2] == b"\x1f\x8b":
        with gzip.open(path) as lines:
            yield from lines
    elif magic == b"\x28\xb5\x2f\xfd":
        with pa.CompressedInputStream(path, "zstd") as stream:
            reader: IO[bytes] = stream
            yield from reader.read().splitlines()
    else:
        with open(path, "rb") as plain:
            yield from plain
