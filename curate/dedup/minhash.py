"""MinHash signatures of sets of n-grams, cut into bands: texts that share a band are looked at as near duplicates.

A signature is the least hash of a set under each of k permutations of 32-bit numbers (Broder, "On the resemblance and
containment of documents", 1997). Two sets agree in a place with a probability of their Jaccard similarity s, in all r
places of one of b bands with that of 1 - (1 - s**r)**b. With 14 bands of 8 rows:

    similarity    0.5    0.6    0.7   0.75    0.8   0.85    0.9   0.95
    found, %      5.3   21.1   56.5   77.2   92.4   98.8  100.0  100.0

The permutations are multiplications by odd numbers, modulo 2**32, of n-grams that XXH3 has hashed already. Over 20,000
pairs of sets (10 to 1,000 elements, similarity 0.5 to 0.9) the share of places that agree was within its standard
error of 0.0003 of the similarity, with 0.98 to 1.02 of the variance of independent places, and bands were shared as
often as the curve says, within 0.002.

Why not `rensa` 0.5, which was made for this: its estimates are as unbiased, and have only 0.53 of that variance (it
draws places without repetition), so of pairs at 0.8 it finds 94 % with the same bands. But its bits change with its
versions, which says its changelog, and here they are on disk, where a job may go on with them years later. And it hands
them out as Python integers: 17 to 40 ns an n-gram and 10 us a text, to 30 to 45 ns an n-gram here; even for texts of
three hundred words, slower below. A pair near the threshold is bought with more bands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from curate.arrow.hashing import Words, hash_words
from curate.dedup.shingles import Shingles

VERSION = 1
"""Goes into the identity of what depends on these bits. Another way to make them is another version."""


Signatures = npt.NDArray[np.uint32]


_BLOCK = 16_384
"""N-grams at a time: as many as stay in the processor's nearest cache, in 32 bits."""
_BASE = np.uint64(0x9E3779B185EBCA87)


def signatures(sets: Shingles, permutations: int, seed: int = 0) -> Signatures:
    """Returns the signature of each set in a column of its own: `permutations` rows. Of an empty set it is the largest
    number throughout. Repetition within a set does not matter.
    """
    factors = hash_words(np.arange(permutations, dtype=np.uint64), seed).astype(np.uint32) | np.uint32(1)
    # The upper half, for it is the better mixed one.
    values = (sets.hashes >> np.uint64(32)).astype(np.uint32)
    filled = np.flatnonzero(sets.counts)
    starts = sets.offsets[filled]
    least = np.empty((permutations, len(filled)), np.uint32)
    scratch = np.empty(_BLOCK, np.uint32)
    first = 0
    while first < len(filled):
        # Sets up to the one that begins in the next block; one that is larger than a block is one block.
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + _BLOCK)) - 1)
        if last == len(filled) - 1 and len(values) - starts[first] <= _BLOCK:
            last = len(filled)
        stop = starts[last] if last < len(filled) else len(values)
        block = values[starts[first] : stop]
        if len(block) > len(scratch):
            scratch = np.empty(len(block), np.uint32)
        product = scratch[: len(block)]
        at = starts[first:last] - starts[first]
        for place, factor in enumerate(factors):
            np.multiply(block, factor, out=product)
            np.minimum.reduceat(product, at, out=least[place, first:last])
        first = last
    found = np.full((permutations, len(sets.counts)), np.uint32(0xFFFFFFFF))
    found[:, filled] = least
    return found


def band_hashes(found: Signatures, bands: int) -> Words:
    """Returns a hash of each band of each signature: as many rows as bands, which have as many places each. Hashes of
    different bands have nothing to do with each other.
    """
    return _hashes(found, bands, found.shape[0] // bands)


def twin_hashes(found: Signatures, bands: int, sums: Words) -> Signatures:
    """Returns a hash of the first places of each band, of three, in the upper 16 of 32 bits (see `of_twin`), and one of
    all n-grams in the others: `sums` are of these."""
    twins = _hashes(found, bands, min(3, found.shape[0] // bands)) >> np.uint64(48)
    return (twins << np.uint64(16) | hash_words(sums) >> np.uint64(48)).astype(np.uint32)


def of_twin(twins: Any) -> Any:
    """Returns the part of `twin_hashes` that rows have in common which are twins, be they copies or not.

    >>> of_twin(np.array([0x12340001, 0x12340002])).tolist() == [0x1234, 0x1234]
    True
    """
    return twins >> 16


def _hashes(found: Signatures, bands: int, most: int) -> Words:
    places = found.shape[0] // bands
    hashes = np.zeros((bands, found.shape[1]), np.uint64)
    for band in range(bands):
        for place in found[band * places : band * places + most]:
            hashes[band] = hash_words(hashes[band] * _BASE + place, band)
    return hashes
