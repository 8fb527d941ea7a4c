"""Reads the samples of a window: of each chunk what is needed, in few large reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from curate.dataclass import dataclass
from curate.prefetch import ahead
from curate.storage.uris import is_local
from curate.training.corpus import Corpus
from curate.training.layouts import Layout, Lengths, Tokens, ranges_of, read_group
from curate.training.order import CHUNK_BYTES, Integers, Window

LOCAL_GAP_BYTES = 16 << 10
"""What lies between two samples on a disk is read too, up to so much: that is quicker than to read twice."""
REQUESTS = 8
"""Chunks that are read from a store at once."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Sequences, a row each."""

    tokens: Tokens
    documents: Lengths | None = None
    """The lengths of the documents in each, if they are asked for."""


def read_window(corpus: Corpus, window: Window, places: Integers, room: Tokens, documents: bool) -> Samples:
    """Returns the samples at places of an epoch within a window, in the first rows of `room`; `documents`: with the
    lengths of documents. Raises CorruptInput."""
    slots, samples = window.samples(places)
    found, sequence_length = room[: len(places)], room.shape[1]
    lengths = np.empty(len(places), object) if documents else None
    sorted_rows = np.lexsort((samples, slots))
    ends = np.searchsorted(slots[sorted_rows], np.arange(len(window.units) + 1))
    needed = [sorted_rows[ends[slot] : ends[slot + 1]] for slot in range(len(window.units))]

    def read(slot: int) -> None:
        rows = needed[slot]
        for at, part in _read_chunk(corpus, int(window.units[slot]), samples[rows], sequence_length, documents):
            # Each chunk fills rows of its own.
            found[rows[at]] = part.tokens
            if lengths is not None:
                lengths[rows[at]] = part.documents

    slots_needed = [slot for slot, rows in enumerate(needed) if len(rows)]
    if is_local(corpus.files[0].object.uri) or corpus.layout is Layout.PARQUET:
        # A row group is as large as many chunks.
        for slot in slots_needed:
            read(slot)
    else:
        for _ in ahead(read, slots_needed, REQUESTS):
            pass
    return Samples(found, lengths)


def _read_chunk(
    corpus: Corpus, unit: int, samples: Integers, length: int, documents: bool
) -> Iterator[tuple[slice, Samples]]:
    """Yields samples of a unit, in ascending order, with their places among those that are asked for."""
    number = int(corpus.unit_file[unit])
    file = corpus.files[number]
    if corpus.layout is Layout.PARQUET:
        tokens, lengths = read_group(file, unit - int(corpus.unit_first[number]), corpus.column, documents)
        rows = tokens[: len(tokens) // length * length].reshape(-1, length)[samples]
        yield slice(0, len(samples)), Samples(rows, None if lengths is None else lengths[samples])
        return
    gap_bytes = LOCAL_GAP_BYTES if is_local(file.object.uri) else CHUNK_BYTES
    runs = list(runs_of(samples, gap_bytes // (length * file.dtype.itemsize)))
    ranges = [(int(samples[one.start]) * length, (int(samples[one.stop - 1]) + 1) * length) for one in runs]
    for run, tokens in zip(runs, ranges_of(file, ranges), strict=True):
        part = tokens.reshape(-1, length)
        yield run, Samples(part if len(part) == run.stop - run.start else part[samples[run] - samples[run.start]])


def runs_of(samples: Integers, gap: int) -> Iterator[slice]:
    """Yields slices of ascending numbers, with at most `gap` others between two of one slice.

    >>> list(runs_of(np.array([1, 2, 5, 9]), 2))
    [slice(0, 3, None), slice(3, 4, None)]
    """
    cuts = np.flatnonzero(np.diff(samples) > gap + 1) + 1
    ends = [0, *cuts.tolist(), len(samples)]
    for start, stop in pairwise(ends):
        yield slice(start, stop)
