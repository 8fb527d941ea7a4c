"""Pairs of rows that share a band, and how alike they are.

Of a bucket of up to 16 rows all pairs are looked at: 120 at most. A larger one is boilerplate as a rule: a licence, a
cookie notice that thousands of pages have in common, and little else. All pairs of those are an explosion (a bucket of
a million rows has 5 * 10^11), and pairs with the first row alone miss those that are copies of each other and not of
that one. So every row brings its *twin* along, a hash of three places of its signature that are in another band. Two
rows of a similarity of s have the same twin with a probability of s**3, whatever the bucket: 0.73 at 0.9, and 0.22 at
0.6. In a large bucket each row is paired with the first of its twin, and the firsts of twins each with the one before:
as many pairs as rows, less one, which connect all of the bucket. Of a twin, rows of the same n-grams are paired with
the first of these, and not with that of the twin: copies meet for sure, whatever else is in the bucket. What is missed
in one band has others to be found in.

Where rows are dropped for the very row that is kept, each is paired with the first of its bucket, too: of a thousand
copies all are to meet the one that stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from curate.dedup.minhash import of_twin
from curate.dedup.shingles import Shingles

SMALL = 16
"""Rows of a bucket up to which all pairs are looked at."""


Ints = npt.NDArray[np.int64]


_PAIRS_BITS = 12
_PAIRS = 1 << _PAIRS_BITS


def pairs_of_buckets(
    buckets: Any, places: Ints, twins: Any, classes: Any = None, *, with_first: bool = False
) -> tuple[Ints, Ints]:
    """Returns pairs of places of rows in one bucket, the smaller first, each once, in order.

    `buckets` is where the rows of one bucket are beside each other; no place is in it twice. Rows may be in any order.
    Which of them is the first goes by `classes`, then by place. `with_first`, every row of a large bucket is paired
    with the first of all of it, too.

    >>> u, v = pairs_of_buckets(np.array([7, 7, 7, 9]), np.array([4, 2, 3, 5]), np.array([0, 0, 0, 0]))
    >>> list(zip(u.tolist(), v.tolist()))
    [(2, 3), (2, 4), (3, 4)]
    """
    starts, sizes = runs(buckets)
    found = []
    for size in range(2, SMALL + 1):
        of_size = starts[sizes == size]
        if len(of_size):
            a, b = np.triu_indices(size, 1)
            found.append((places[of_size[:, None] + a].ravel(), places[of_size[:, None] + b].ravel()))
    large = np.repeat(sizes > SMALL, sizes)
    if large.any():
        of = np.zeros(len(places), np.int32) if classes is None else classes
        own = np.repeat(starts, sizes)[large], places[large], twins[large], of[large]
        found.append(_of_large(*own))
        if with_first:
            found.append(_with_first(own[0], own[1], own[3]))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    one, other = (np.concatenate(ends) for ends in zip(*found, strict=True))
    return distinct_pairs(np.minimum(one, other), np.maximum(one, other))


def _with_first(buckets: Ints, places: Ints, classes: Any) -> tuple[Ints, Ints]:
    order = np.lexsort((places, classes, buckets))
    places = places[order]
    starts, sizes = runs(buckets[order])
    others = np.delete(places, starts)
    return np.repeat(places[starts], sizes - 1), others


def _of_large(buckets: Ints, places: Ints, twins: Any, classes: Any) -> tuple[Ints, Ints]:
    order = np.lexsort((places, classes, twins, buckets))
    buckets, places, twins = buckets[order], places[order], twins[order]
    new = np.append(True, buckets[1:] != buckets[:-1])
    copies, to = _heads(new, twins)
    heads, own = _heads(new, of_twin(twins))
    to[copies] = own[copies]
    to[heads[1:]] = heads[:-1]
    led = ~new
    return places[to[led]], places[led]


def _heads(new: Any, values: Any) -> tuple[Ints, Ints]:
    """Returns where runs of equal values start, each within what a `new` one begins, and for each row the start of its
    own."""
    first = new | np.append(True, values[1:] != values[:-1])
    heads = np.flatnonzero(first)
    return heads, heads[np.cumsum(first) - 1]


def runs(values: Any) -> tuple[Ints, Ints]:
    """Returns where runs of equal values start, and how long they are."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))[: len(values)]
    return starts, np.diff(starts, append=len(values))


def distinct_pairs(u: Ints, v: Ints) -> tuple[Ints, Ints]:
    """Returns each pair once, in order."""
    order = np.lexsort((v, u))
    u, v = u[order], v[order]
    new = np.append(True, (u[1:] != u[:-1]) | (v[1:] != v[:-1]))[: len(u)]
    return u[new], v[new]


def similarities(left: Shingles, right: Shingles) -> npt.NDArray[np.float64]:
    """Returns the Jaccard similarity of each set on the left with the one on the right that has its number.

    Sets are distinct. Hashes are compared by 52 of their bits: of two sets of a million n-grams, that takes one for
    another once in four thousand times.
    """
    found = np.zeros(len(left.counts), np.float64)
    for first in range(0, len(found), _PAIRS):
        last = min(first + _PAIRS, len(found))
        keys = np.concatenate([_keys(left, first, last), _keys(right, first, last)])
        keys.sort()
        both = keys[1:][keys[1:] == keys[:-1]] & np.uint64(_PAIRS - 1)
        common = np.bincount(both.astype(np.int64), minlength=last - first)
        either = left.counts[first:last] + right.counts[first:last] - common
        found[first:last] = common / np.maximum(either, 1)
    return found


def _keys(sets: Shingles, first: int, last: int) -> npt.NDArray[np.uint64]:
    """Returns hashes whose lower bits are replaced by the number of the set."""
    hashes = sets.hashes[sets.offsets[first] : sets.offsets[last]]
    numbers = np.repeat(np.arange(last - first, dtype=np.uint64), sets.counts[first:last])
    return (hashes & ~np.uint64(_PAIRS - 1)) | numbers
