"""Sequences of documents, beside plain loops that look at every sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.tokens.documents import Documents, documents_of
from curate.tokens.packing import BestFit, Concatenated, Packer, Sequences, best_fit, cut
from tests.support.examples import examples

PAD = 99
LENGTHS = st.lists(st.integers(0, 40), max_size=40)


def documents(lengths: list[int]) -> Documents:
    """Documents whose tokens tell where they are."""
    return Documents(np.arange(sum(lengths), dtype=np.uint32) + 100, np.array(lengths, np.int64))


def parts(lengths: list[int], at: list[int]) -> list[Documents]:
    """The same, in several calls."""
    whole, bounds = documents(lengths), sorted({0, len(lengths), *(one for one in at if one < len(lengths))})
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    return [Documents(whole.ids[starts[a] : starts[b]], whole.lengths[a:b]) for a, b in itertools.pairwise(bounds)]


def packed(packer: Packer, calls: list[Documents]) -> tuple[list[tuple[list[int], list[int], int]], int]:
    """Returns tokens, lengths and padding of each sequence, and how many tokens were left out."""
    made = [packer.take(one) for one in calls]
    last, dropped = packer.end()
    found = []
    for one in [*made, last]:
        found += rows(one)
    return found, int(dropped.sum())


def rows(made: Sequences) -> list[tuple[list[int], list[int], int]]:
    ids = np.split(made.ids, len(made)) if len(made) else []
    pieces = np.split(made.pieces, np.cumsum(made.counts)[:-1]) if len(made) else []
    return [(a.tolist(), b.tolist(), int(c)) for a, b, c in zip(ids, pieces, made.padding.tolist(), strict=True)]


def plainly_best_fit(lengths: list[int], room: int) -> list[list[int]]:
    """Best-fit-decreasing by looking at all sequences each time."""
    bins: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda one: (-lengths[one], one)):
        fitting = [
            (room - sum(lengths[one] for one in members), at)
            for at, members in enumerate(bins)
            if sum(lengths[one] for one in members) + lengths[number] <= room
        ]
        if fitting:
            bins[min(fitting)[1]].append(number)
        else:
            bins.append([number])
    return sorted(sorted(members) for members in bins)


@given(lengths=st.lists(st.integers(1, 20), max_size=60), room=st.integers(20, 50))
@settings(max_examples=examples(200))
def test_best_fit_is_that_of_looking_at_all_sequences(lengths: list[int], room: int) -> None:
    assert best_fit(lengths, room) == plainly_best_fit(lengths, room)


@given(lengths=LENGTHS, at=st.lists(st.integers(0, 40), max_size=4), length=st.integers(2, 30), pad=st.booleans())
@settings(max_examples=examples(200))
def test_concatenated_sequences_are_slices_of_all_tokens(
    lengths: list[int], at: list[int], length: int, pad: bool
) -> None:
    """Whatever calls the documents come in; lengths say where documents end; and nothing is lost but a tail that is
    counted."""
    found, dropped = packed(Concatenated(length, PAD if pad else None), parts(lengths, at))
    tokens = documents(lengths).ids.tolist()
    whole = len(tokens) // length * length
    rest = len(tokens) - whole
    expected = [tokens[k : k + length] for k in range(0, whole, length)]
    if pad and rest:
        expected.append(tokens[whole:] + [PAD] * (length - rest))
    assert [one for one, _, _ in found] == expected
    assert dropped == (0 if pad else rest)
    ends = {int(one) for one in np.cumsum(lengths)} | set(range(0, whole + 1, length))
    position = 0
    for _, pieces, padding in found:
        assert sum(pieces) + padding == length
        assert all(pieces)
        begin = position
        for piece in pieces:
            assert not any(position < end < position + piece for end in ends)
            position += piece
            assert position in ends or position == len(tokens)
        assert position == begin + length - padding


@given(
    lengths=LENGTHS, at=st.lists(st.integers(0, 40), max_size=4), length=st.integers(2, 30), window=st.integers(1, 4)
)
@settings(max_examples=examples(200))
def test_best_fit_cuts_no_document_that_fits(lengths: list[int], at: list[int], length: int, window: int) -> None:
    """Each document is whole in one sequence, once, or in pieces of the length of a sequence and a rest; and the calls
    that they come in change nothing."""
    found, dropped = packed(BestFit(length, PAD, window), parts(lengths, at))
    once, _ = packed(BestFit(length, PAD, window), [documents(lengths)])
    assert found == once
    assert not dropped
    pieces = []
    for ids, own, padding in found:
        assert len(ids) == length
        assert ids[length - padding :] == [PAD] * padding
        position = 0
        for size in own:
            pieces.append(ids[position : position + size])
            position += size
        assert position + padding == length
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    tokens = documents(lengths).ids.tolist()
    expected = [
        tokens[k : min(k + length, end)] for start, end in itertools.pairwise(starts) for k in range(start, end, length)
    ]
    assert sorted(pieces) == sorted(expected)


def test_what_best_fit_saves() -> None:
    """Of documents of all lengths, less than one token in a hundred is padding."""
    lengths = np.random.default_rng(1).integers(1, 512, 4000).tolist()
    chosen = best_fit(lengths, 512)
    assert len(chosen) * 512 < 1.01 * sum(lengths) + 512


def test_lists_of_a_column_that_was_cut() -> None:
    """A slice of a column has its own documents, and no other."""
    lists = documents([2, 0, 3, 1]).lists(pa.uint32()).slice(1, 2)
    found = documents_of(lists)
    assert (found.ids.tolist(), found.lengths.tolist()) == ([102, 103, 104], [0, 3])


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_nothing(lengths: list[int]) -> None:
    for packer in (Concatenated(4, PAD), Concatenated(4, None), BestFit(4, PAD)):
        assert packed(packer, [documents(lengths)]) == ([], 0)
        assert packed(packer, []) == ([], 0)
    assert cut(np.zeros(0, np.int64), 3).tolist() == []
