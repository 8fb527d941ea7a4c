"""Signatures and bands, against brute force and against what probability says of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup import minhash
from curate.dedup.minhash import band_hashes, signatures
from curate.dedup.shingles import Shingles
from tests.dedup.corpus import found_share


def sets_of(lists: list[list[int]]) -> Shingles:
    """Sets, as shingles."""
    flat = [one for each in lists for one in each]
    return Shingles(np.array(flat, np.uint64), np.cumsum([0, *map(len, lists)], dtype=np.int64))


GOLDEN_SIGNATURES = [[0, 0, 0, 0], [2690008344, 3182773768, 2768365240, 2750724968]]
GOLDEN_BANDS = [[10482244766611484844, 9652772306995859073], [6559867243239537569, 3671418887870264941]]
SETS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=9), max_size=9)


@given(SETS, st.integers(1, 8), st.integers(0, 2**64 - 1), st.integers(1, 12))
def test_a_signature_has_the_least_of_each_permutation(
    lists: list[list[int]], permutations: int, seed: int, block: int
) -> None:
    """Each place has the least product of the upper halves and an odd number, modulo 2**32, however blocks are cut."""
    before, minhash._BLOCK = minhash._BLOCK, block
    try:
        found = signatures(sets_of(lists), permutations, seed)
    finally:
        minhash._BLOCK = before
    factors = [xxhash.xxh3_64_intdigest(n.to_bytes(8, "little"), seed) % 2**32 | 1 for n in range(permutations)]
    expected = [
        [min((x * f) % 2**32 for x in [v >> 32 for v in one]) if one else 2**32 - 1 for one in lists] for f in factors
    ]
    assert found.tolist() == expected


def test_the_bits_are_frozen() -> None:
    """Golden values: bands are in run files."""
    sets = sets_of([[2**63 + 5, 2**40, 7], [2**35 + 1]])
    assert signatures(sets, 4, 9).T.tolist() == GOLDEN_SIGNATURES
    assert band_hashes(signatures(sets, 4, 9), 2).T.tolist() == GOLDEN_BANDS


def pairs(count: int, size: int, common: int, seed: int) -> tuple[Shingles, Shingles]:
    """Pairs of random sets of a size, with elements in common."""
    base = np.random.default_rng(seed).integers(0, 2**64, (count, 2 * size - common), dtype=np.uint64)
    offsets = np.arange(count + 1) * size
    right = np.concatenate([base[:, :common], base[:, size:]], axis=1)
    return Shingles(base[:, :size].ravel(), offsets), Shingles(right.ravel(), offsets)


@pytest.mark.parametrize(("size", "common"), [(10, 9), (50, 44), (100, 67), (20, 13)])
def test_estimates_are_unbiased_and_places_independent(size: int, common: int) -> None:
    """Over 8,000 pairs the mean is within five standard errors of the similarity, the variance within 8 % of that of
    independent places (five standard errors of it), and bands are shared as often as the curve says.
    """
    count, permutations, bands = 8_000, 112, 14
    similarity = common / (2 * size - common)
    left, right = (signatures(one, permutations, 3) for one in pairs(count, size, common, seed=1))
    estimates = (left == right).mean(axis=0)
    one = similarity * (1 - similarity) / permutations
    assert abs(estimates.mean() - similarity) < 5 * math.sqrt(one / count)
    assert abs(estimates.var() / one - 1) < 0.08
    shared = (band_hashes(left, bands) == band_hashes(right, bands)).any(axis=0).mean()
    curve = found_share(similarity, bands, 8)
    assert abs(shared - curve) < 5 * math.sqrt(curve * (1 - curve) / count) + 1e-9


def test_bands_are_independent() -> None:
    """How many of 14 bands two sets share is binomial: its variance over 8,000 pairs is within 10 % of that."""
    left, right = (band_hashes(signatures(one, 112, 5), 14) for one in pairs(8_000, 60, 54, seed=2))
    shared = (left == right).sum(axis=0)
    each = (54 / 66) ** 8
    assert abs(shared.mean() / (14 * each) - 1) < 0.02
    assert abs(shared.var() / (14 * each * (1 - each)) - 1) < 0.1


def test_other_bands_and_seeds_have_nothing_in_common() -> None:
    """A hash of one band is found in no other band, also where all places are the same; nor under another seed."""
    same: npt.NDArray[np.uint32] = np.full((6, 3), 5, np.uint32)
    assert len(set(band_hashes(same, 3).ravel().tolist())) == 3
    sets, _ = pairs(50, 20, 10, seed=3)
    assert not (signatures(sets, 20, 1) == signatures(sets, 20, 2)).any()


def test_repetition_and_order_do_not_matter() -> None:
    """Sets are sets."""
    found = signatures(sets_of([[1 << 33, 2 << 33, 3 << 33], [3 << 33, 1 << 33, 2 << 33, 2 << 33]]), 16)
    assert found[:, 0].tolist() == found[:, 1].tolist()


def test_the_estimate_agrees_with_rensa() -> None:
    """On the same sets a library made for MinHash estimates the same similarity, within five standard errors."""
    rensa = pytest.importorskip("rensa")
    left, right = pairs(4_000, 100, 89, seed=4)
    theirs = [
        np.array(
            rensa.RMinHash.digest_matrix_from_flat_token_hashes(
                one.hashes, one.offsets.astype(np.uint64), 112, 7
            ).to_rows()
        )
        for one in (left, right)
    ]
    ours = [signatures(one, 112, 7) for one in (left, right)]
    difference = (theirs[0] == theirs[1]).mean() - (ours[0] == ours[1]).mean()
    assert abs(difference) < 5 * math.sqrt(2 * 0.8 * 0.2 / 112 / 4_000)


def test_the_table_of_the_module_is_what_the_curve_gives() -> None:
    """The shares in the module's docstring are those of 14 bands of 8 rows."""
    row = next(line for line in (minhash.__doc__ or "").splitlines() if line.strip().startswith("found"))
    told = [float(one) for one in row.split()[2:]]
    assert told == [round(100 * found_share(one, 14, 8), 1) for one in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)]
