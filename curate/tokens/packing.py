"""Sequences of one length, made of documents: cut where a sequence is full, or each document whole in one sequence.

`Concatenated` is what GPT-3 and most models since were trained on (Brown et al. 2020, appendix B): documents one after
the other, cut into sequences. `BestFit` is best-fit-decreasing (Johnson 1974; for language models Ding et al. 2024,
"Fewer Truncations Improve Language Modeling"): the longest document first, each into the sequence in which it leaves
the least room, the first one of these, or into a new one; the rest of a sequence is padding. It is applied to as many
documents at a time as fill a window of sequences, so that memory is bounded. Sequences come in order of their first
documents, and documents in a sequence in their order.

Both are given documents in any number of calls, and what they make does not depend on how many there were.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from curate.dataclass import dataclass
from curate.tokens.documents import Array, Documents, offsets

CONCATENATE, BEST_FIT = "concatenate", "best-fit"
WINDOW = 4096
"""Sequences that documents are chosen for at a time, about: only the last few of a window are not full."""
NO_PIECES: Array = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences of one length."""

    ids: Array
    """All tokens, one sequence after the other, with their padding."""
    pieces: Array
    """Tokens of each document, or piece of one, in order."""
    counts: Array
    """Pieces in each sequence."""
    padding: Array
    """Tokens of padding at the end of each sequence."""

    def __len__(self) -> int:
        return len(self.counts)


class Packer(Protocol):
    """Makes sequences of documents."""

    def take(self, documents: Documents) -> Sequences:
        """Takes further documents; returns the sequences that are complete."""

    def end(self) -> tuple[Sequences, Array]:
        """Returns the sequences that are left, and the tokens of each piece of a document that is in none."""


class Concatenated:
    """Documents one after the other, cut into sequences of `length` tokens."""

    def __init__(self, length: int, pad: int | None) -> None:
        """`pad`: token that fills the last sequence up; None: tokens that do not fill one are left out."""
        self._length = length
        self._pad = pad
        self._left: Documents | None = None

    def take(self, documents: Documents) -> Sequences:
        left = self._left
        if left is not None:
            documents = Documents(
                np.concatenate([left.ids, documents.ids]), np.concatenate([left.lengths, documents.lengths])
            )
        whole = len(documents.ids) // self._length * self._length
        ends = np.cumsum(documents.lengths)
        cuts = np.arange(self._length, whole + 1, self._length)
        # Where a piece ends: at the end of its document, or of its sequence. An empty document is no piece.
        at = np.unique(np.concatenate([ends[documents.lengths > 0], cuts]))
        at = at[at > 0]
        inside = at[at <= whole]
        pieces = np.diff(inside, prepend=0)
        counts = np.diff(np.searchsorted(inside, cuts, side="right"), prepend=0)
        self._left = Documents(documents.ids[whole:].copy(), np.diff(at[at > whole], prepend=whole))
        return Sequences(documents.ids[:whole], pieces, counts, np.zeros(len(cuts), np.int64))

    def end(self) -> tuple[Sequences, Array]:
        left, self._left = self._left, None
        if left is None or not len(left.ids):
            return _none(), NO_PIECES
        if self._pad is None:
            return _none(), left.lengths
        padding = self._length - len(left.ids)
        ids = np.concatenate([left.ids, np.full(padding, self._pad, left.ids.dtype)])
        return Sequences(ids, left.lengths, np.array([len(left.lengths)]), np.array([padding])), NO_PIECES


class BestFit:
    """Documents of at most `length` tokens, each whole in one sequence, filled up with `pad`; longer ones are cut into
    pieces of that length and a rest."""

    def __init__(self, length: int, pad: int, window: int = WINDOW) -> None:
        self._length = length
        self._pad = pad
        self._most = window * length
        """Tokens of a window."""
        self._waiting: list[Documents] = []
        self._tokens = 0

    def take(self, documents: Documents) -> Sequences:
        pieces = np.asarray(cut(documents.lengths, self._length))
        made = []
        starts = offsets(pieces)
        at = 0
        while at < len(pieces):
            # As many as the window has room for; the first one that has none begins the next window.
            end = int(np.searchsorted(starts, starts[at] + self._most - self._tokens, side="right")) - 1
            self._waiting.append(Documents(documents.ids[starts[at] : starts[end]], pieces[at:end]))
            self._tokens += int(starts[end] - starts[at])
            if end < len(pieces):
                made.append(self._window())
            at = end
        return _together(made)

    def end(self) -> tuple[Sequences, Array]:
        return self._window(), NO_PIECES

    def _window(self) -> Sequences:
        waiting, self._waiting, self._tokens = self._waiting, [], 0
        if not waiting:
            return _none()
        ids = np.concatenate([one.ids for one in waiting])
        lengths = np.concatenate([one.lengths for one in waiting])
        if not len(lengths):
            return _none()
        chosen = best_fit(lengths.tolist(), self._length)
        starts = offsets(lengths)
        out = np.full(len(chosen) * self._length, self._pad, ids.dtype)
        padding = np.empty(len(chosen), np.int64)
        for number, members in enumerate(chosen):
            at = number * self._length
            for one in members:
                size = int(lengths[one])
                out[at : at + size] = ids[starts[one] : starts[one + 1]]
                at += size
            padding[number] = (number + 1) * self._length - at
        order = [one for members in chosen for one in members]
        return Sequences(out, lengths[order], np.array([len(members) for members in chosen]), padding)


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Returns which of the lengths go together, at most `room` in all: best-fit-decreasing.

    In each list the numbers of lengths in order, and the lists in order of their first ones. Of bins with as much room
    the one that was opened first is taken, and of lengths that are equal the first one comes first.

    >>> best_fit([3, 6, 2, 5, 4], 10)
    [[0, 2, 3], [1, 4]]
    """
    bins: list[list[int]] = []
    free: dict[int, list[int]] = {}
    """Numbers of bins, as a heap, by the room in them."""
    rooms: list[int] = []
    """The keys of `free`, in order."""
    for number in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        size = lengths[number]
        at = bisect_left(rooms, size)
        if at == len(rooms):
            chosen, left = len(bins), room
            bins.append([])
        else:
            left = rooms[at]
            chosen = heapq.heappop(free[left])
            if not free[left]:
                del free[left], rooms[at]
        bins[chosen].append(number)
        if left > size:
            if left - size not in free:
                free[left - size] = []
                insort(rooms, left - size)
            heapq.heappush(free[left - size], chosen)
    return sorted(map(sorted, bins))


def cut(lengths: Array, room: int) -> Array:
    """Returns lengths with those above `room` in pieces of that, and a rest; none that is 0.

    >>> cut(np.array([3, 0, 10, 4]), 4).tolist()
    [3, 4, 4, 2, 4]
    """
    if not len(lengths) or int(lengths.max()) <= room:
        return lengths[lengths > 0]
    number = -(-lengths // room)
    pieces = np.full(int(number.sum()), room, np.int64)
    last = np.cumsum(number)[number > 0] - 1
    kept = lengths[number > 0]
    pieces[last] = kept - (number[number > 0] - 1) * room
    return pieces


def _none() -> Sequences:
    return Sequences(NO_PIECES, NO_PIECES, NO_PIECES, NO_PIECES)


def _together(parts: Sequence[Sequences]) -> Sequences:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _none()
    return Sequences(
        np.concatenate([one.ids for one in parts]),
        np.concatenate([one.pieces for one in parts]),
        np.concatenate([one.counts for one in parts]),
        np.concatenate([one.padding for one in parts]),
    )
