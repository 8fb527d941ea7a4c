"""The files of a corpus of tokens: found, looked at, and checked to be whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.prefetch import ahead
from curate.sources.listing import list_inputs
from curate.sources.patterns import parse_input
from curate.sources.upstream import list_whole, refuse_holes, warn_of_holes
from curate.storage.protocol import Object
from curate.stores.open import open_store
from curate.training.layouts import LOOKS, PACKED, PAIRS, SUFFIXES, Layout, TokenFile
from curate.training.order import CHUNK_BYTES, Chunks, Integers

COLUMN = "tokens"
"""Of Parquet: the column of tokens, unless another one is named."""
READERS = 16
"""Files that are looked at, at once."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokens as files have them."""

    path: str
    layout: Layout
    column: str
    """Of Parquet."""
    files: tuple[TokenFile, ...]
    fingerprint: str
    """The same for the same names, sizes, numbers of tokens and first bytes, wherever the files lie."""
    dtype: np.dtype[Any]
    """In which the tokens of all files fit."""
    unit_file: Integers
    """The file of each unit."""
    unit_first: Integers
    """The first unit of each file."""
    unit_tokens: Integers
    """Tokens of each unit."""

    def chunks(self, sequence_length: int) -> Chunks:
        """Returns how its samples lie: each unit is cut into sequences, and what remains at its end is left out."""
        samples = self.unit_tokens // sequence_length
        most = samples
        if self.layout is not Layout.PARQUET:
            # By the widest type: a file's chunks are no other where another file is wider.
            most = np.full_like(samples, max(1, CHUNK_BYTES // (sequence_length * self.dtype.itemsize)))
        return Chunks(samples, np.maximum(most, 1))


def find_corpus(path: str, sequence_length: int, column: str, allow_incomplete_input: bool) -> Corpus:
    """Lists and looks at the files of a corpus.

    Raises ConfigError for a path without tokens, an output that is not complete, files of several layouts, a column of
    files that have none, and packed sequences of another length; CorruptInput for files that cannot be read.
    """
    patterns = [parse_input(path)]
    inputs, holes = list_whole(patterns, lambda: list_inputs(patterns, open_store), open_store)
    if allow_incomplete_input:
        warn_of_holes(holes, "TokenShards")
    else:
        refuse_holes(holes, open_store, "TokenShards(..., allow_incomplete_input=True)")
    uris, names, sizes, generations = (one.to_pylist() for one in inputs.table.table().columns)
    objects = dict(zip(names, map(Object, uris, sizes, generations), strict=True))
    layout = _layout(path, names)
    if layout is not Layout.PARQUET and column != COLUMN:
        raise ConfigError(
            f"column={column!r} has no effect: {path!r} has {layout.value}, which is tokens alone; leave column= out"
        )
    pairs: dict[str, tuple[Object, Any]] = {name: (one, column) for name, one in objects.items()}
    if layout in PAIRS:
        pairs = _paired(path, objects, *PAIRS[layout])
    files = tuple(found for _, found in ahead(lambda pair: LOOKS[layout](*pair), pairs.values(), READERS))
    _refuse_other_length(files, sequence_length)
    dtype = np.result_type(*{one.dtype for one in files}).newbyteorder("=")
    if dtype.kind not in "iu":
        kinds = ", ".join(sorted({str(one.dtype) for one in files}))
        raise ConfigError(f"{path!r} has tokens of the types {kinds}, which no type of whole numbers has room for")
    counts = [len(one.units) for one in files]
    return Corpus(
        path,
        layout,
        column,
        files,
        _fingerprint(pairs, files),
        dtype,
        np.repeat(np.arange(len(files)), counts),
        np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64),
        np.array([tokens for one in files for tokens in one.units], np.int64),
    )


def refuse_without_documents(corpus: Corpus) -> None:
    """Raises ConfigError if there are no lengths of documents in a file with tokens."""
    for one in corpus.files:
        if sum(one.units) and (not one.packed or corpus.layout is not Layout.PARQUET):
            raise ConfigError(
                f"{one.object.uri} has no column {PACKED!r}, which document_lengths=True needs: pack documents "
                "into sequences as Parquet (jobs/tokens.py with pack=), or leave it out"
            )


def _layout(path: str, names: list[str]) -> Layout:
    found: dict[Layout | None, list[str]] = {}
    for name in names:
        found.setdefault(SUFFIXES.get(name[name.rfind(".") :] if "." in name else ""), []).append(name)
    if len(found) == 1 and (layout := next(iter(found))) is not None:
        return layout
    told = "; ".join(
        f"{len(some):,} {'of no such kind' if kind is None else kind.value}, such as {some[0]}"
        for kind, some in found.items()
    )
    raise ConfigError(
        f"{path!r} is not a corpus of tokens of one kind: it has {told}. Expected the output of a job that makes "
        "tokens: .npy, .bin with .idx, .ds with .ds.index, or .parquet files, all alike; name one kind with a "
        f"glob, such as {path.rstrip('/')}/**/*.npy"
    )


def _paired(path: str, objects: dict[str, Object], tokens: str, index: str) -> dict[str, tuple[Object, Object]]:
    """Returns each file of tokens with its index, by its name; what is neither is left out."""
    stems = {
        suffix: {name.removesuffix(suffix) for name in objects if name.endswith(suffix)} for suffix in (tokens, index)
    }
    if alone := sorted(stems[tokens] ^ stems[index]):
        shown = ", ".join(alone[:SHOWN])
        raise ConfigError(
            f"{path!r} has a {tokens} without its {index}, or the other way around: {shown}; run the job that made "
            "them again, which makes what is missing"
        )
    return {stem + tokens: (objects[stem + tokens], objects[stem + index]) for stem in sorted(stems[tokens])}


def _refuse_other_length(files: Iterable[TokenFile], sequence_length: int) -> None:
    for one in files:
        if one.packed and one.packed != sequence_length:
            raise ConfigError(
                f"{one.object.uri} has packed sequences of {one.packed:,} tokens, but sequence_length is "
                f"{sequence_length:,}; pass sequence_length={one.packed}, or pack the documents anew"
            )


def _fingerprint(names: Iterable[str], files: Iterable[TokenFile]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for name, one in zip(sorted(names), files, strict=True):
        found.update(repr((name, one.dtype.str, one.units, one.object.size, one.digest)).encode())
    return found.hexdigest()
