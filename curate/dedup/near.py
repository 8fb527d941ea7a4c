"""Near duplicates: when texts are alike, and which rows may be dropped for which.

    bands      every text becomes a row for each of its bands (`buckets`, `minhash`)
    pairs      rows of one band come together, and become pairs to look at (`buckets`, `pairs`)
    led        rows of very large buckets are paired with the first of all (`buckets`)
    sets       the rows are read again: for each pair the n-grams of its first text are sent to the place of the second
    edges      the rows are read again: the n-grams of the second text are there, and pairs that are not alike go
               (`alike`)
    choice     one pass over the edges in the order of rows says which rows are dropped, and for which (`choice`); or
    clusters   what is connected is a cluster, of which the first row is kept (`clusters`)
    drop       the rows are read again, in order; those that are marked are dropped (`dropped`)

No text travels, and of its n-grams only those of candidates, eight bytes each and once for each pair: to send n-grams
along with bands would move them as often as there are bands, of all texts. The price are two reads of the column, of
which only candidates are looked at. Similarities are those of the sets of n-grams, not estimates: a pair that is below
the threshold is never an edge.

Rows are in order of their `CLASS`, then as they are in the corpus: class 0 are rows that may not be dropped, then come
those of each value of the priority list, then all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curate.arrow import hashing
from curate.arrow.expressions import refuse_unknown
from curate.arrow.recast import decoded
from curate.arrow.types import is_encoded, is_text, value_type
from curate.dataclass import dataclass
from curate.dedup import minhash, shingles
from curate.dedup.shingles import UNITS, Shingles
from curate.errors import ConfigError, refuse_other
from curate.operators.protocol import Rule
from curate.texts.pieces import readable
from curate.units import LARGEST_SEED, MOST, keep_whole, whole

VERSION = 3
"""Of which pairs are looked at, and what becomes of them."""

VERIFIED, COMPONENT = "verified", "component"
DROPS = (VERIFIED, COMPONENT)
"""Which rows are dropped: those like a row that is kept, or all of a connected component but the first."""

PLACES = 1 << 14
"""Of a signature, most: Penedo et al. 2023 (RefinedWeb) have 450 bands of 20 rows. Of 1,024 texts, bands of one row
then take 0.5 GB."""

MOST_COUNTED = 40
"""Values of a list up to which rows of each are counted."""
NAME_CHARS = 80

CLASS, ID, SOURCE = "__class", "__id", "__source"

OTHER, OTHER_CLASS, OTHER_ID, OTHER_SOURCE = "__other", "__other_class", "__other_id", "__other_source"

SIMILARITY, KEPT_SOURCE = "__similarity", "__kept_source"

Classes = npt.NDArray[np.int32]
Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NearDedup(Rule):
    """When texts are near duplicates, and which rows are dropped for it."""

    column: str
    id_column: str
    threshold: float = 0.8
    ngram: int = 5
    bands: int = 14
    rows: int = 8
    seed: int = 0
    unit: str = "word"
    drop: str = VERIFIED
    exempt: str | None = None
    """The column of rows that may not be dropped: of booleans, or of `exempt_values`."""
    exempt_values: Values | None = None
    priority: str | None = None
    """The column whose values, in the order of `priority_values`, say which rows come first."""
    priority_values: Values = ()
    source: str | None = None
    """The column that tells where a row is from."""

    def __post_init__(self) -> None:
        for name, column in (("column", self.column), ("id_column", self.id_column), ("source_column", self.source)):
            if not isinstance(column, str) and (column is not None or name != "source_column"):
                told = f" is {column!r}, expected the name of a column"
                raise ConfigError.of_argument(f"dedup_minhash: {name}", column, told)
        if not isinstance(self.threshold, int | float) or not 0 < self.threshold <= 1:
            told = f" is {self.threshold!r}, expected more than 0, at most 1"
            raise ConfigError.of_argument("dedup_minhash: threshold", self.threshold, told)
        keep_whole(self, "dedup_minhash: ", {"ngram": 1, "bands": 1, "rows": 1}, MOST)
        whole("dedup_minhash: bands times rows", self.bands * self.rows, 1, PLACES)
        refuse_other("dedup_minhash: unit", self.unit, UNITS)
        refuse_other("dedup_minhash: drop", self.drop, DROPS)
        if self.priority is not None and not self.priority_values:
            raise ConfigError(f"dedup_minhash: the priority of {self.priority!r} has no value; list them, in order")
        if self.exempt_values == ():
            raise ConfigError(
                f"dedup_minhash: exempt has no value of {self.exempt!r}, so every row may be dropped; list some, or "
                "leave exempt out"
            )
        twice = [one for number, one in enumerate(self.priority_values) if one in self.priority_values[:number]]
        if twice:
            raise ConfigError(f"dedup_minhash: the priority of {self.priority!r} has {twice[0]!r} twice; list it once")
        keep_whole(self, "", {"seed": 0}, LARGEST_SEED)

    @property
    def name(self) -> str:
        return f"dedup_minhash({self.column!r})"

    @property
    def named(self) -> tuple[str, ...]:
        names = (self.column, self.id_column, self.exempt, self.priority, self.source)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def verified(self) -> bool:
        """Whether rows are dropped for rows that they are like, not for what connects them."""
        return self.drop == VERIFIED

    @property
    def ordered(self) -> bool:
        """Whether rows are in another order than in the corpus."""
        return self.exempt is not None or self.priority is not None

    def check(self, found: pa.Schema) -> None:
        """Raises ConfigError for columns that are not there, texts that are none, and values that no row can have."""
        refuse_unknown("dedup_minhash", self.named, found.names)
        type = found.field(self.column).type
        if not is_text(value_type(type)):
            told = f"dedup_minhash: column {self.column!r} is {type}, expected texts"
            raise ConfigError.of_column(f"{told}; use dedup_exact to find rows with equal values", self.column)
        if self.exempt is not None and self.exempt_values is None:
            type = found.field(self.exempt).type
            if not pa.types.is_boolean(type):
                told = f"dedup_minhash: exempt column {self.exempt!r} is {type}, expected booleans"
                raise ConfigError.of_column(f"{told}; or name its values that may not be dropped", self.exempt)
        for what, of, values in self._lists:
            _values_of(what, of, values, found.field(of).type)

    def shingles(self, texts: pa.ChunkedArray) -> Shingles:
        """Returns the n-grams of texts; none of a text that is not UTF-8."""
        return shingles.shingles(readable(texts)[0], self.ngram, self.unit)

    def classes(self, batch: pa.Table) -> Classes:
        """Returns the class of each row: 0 if it may not be dropped, else by its place in the priority list; those
        that are not in the list have the last one.
        """
        found = np.full(batch.num_rows, len(self.priority_values) + 1, np.int32)
        if self.priority is not None:
            listed = _places("priority", self.priority, self.priority_values, batch[self.priority])
            found[listed >= 0] = listed[listed >= 0] + 1
        if self.exempt is not None and self.exempt_values is None:
            found[pc.fill_null(batch[self.exempt], False).to_numpy()] = 0
        elif self.exempt is not None and self.exempt_values is not None:
            found[_places("exempt", self.exempt, self.exempt_values, batch[self.exempt]) >= 0] = 0
        return found

    def counted(self, batch: pa.Table) -> Mapping[str, int]:
        """Returns how many rows are exempt, have each listed value, or come last since they have none of the priority
        list. A listed value that no row has is counted, too: with 0, which tells a misspelt one."""
        found: Counter[str] = Counter()
        classes = self.classes(batch)
        if self.exempt is not None:
            found["exempt rows"] = int((classes == 0).sum())
        if self.priority is not None and (unlisted := int((classes > len(self.priority_values)).sum())):
            found[f"{self.priority} not in the priority list"] = unlisted
        for what, of, values in self._lists:
            if len(values) <= MOST_COUNTED:
                places = _places(what, of, values, batch[of])
                numbers = np.bincount(places[places >= 0], minlength=len(values)).tolist()
                for value, number in zip(values, numbers, strict=True):
                    found[f"{what} rows: {of} {value}"[:NAME_CHARS]] += number
        return found

    @property
    def _lists(self) -> list[tuple[str, str, Values]]:
        """The lists of values, each with what it is for and the column that has them."""
        lists = (
            ("exempt", self.exempt, self.exempt_values),
            ("priority", self.priority, self.priority_values),
        )
        return [(what, of, values) for what, of, values in lists if of is not None and values is not None]

    def identity(self) -> Any:
        """Returns what decides which rows are duplicates, as JSON values."""
        versions = [hashing.VERSION, shingles.VERSION, minhash.VERSION, VERSION]
        given = [self.threshold, self.ngram, self.bands, self.rows, self.seed, self.unit, self.drop]
        exempt = None if self.exempt_values is None else list(map(repr, self.exempt_values))
        order = [self.exempt, exempt, self.priority, list(map(repr, self.priority_values)), self.source]
        return [self.column, self.id_column, *given, order, versions]


def column_and_values(what: str, given: str | Mapping[str, Sequence[Any]] | None) -> tuple[str | None, Values | None]:
    """Returns the column that is named, and its values: of a name alone, None. Raises ConfigError for anything else.

    >>> column_and_values("priority", {"source": ["books", "web"]})
    ('source', ('books', 'web'))
    """
    if given is None or isinstance(given, str):
        return given, None
    if isinstance(given, Mapping) and len(given) == 1:
        [(name, values)] = given.items()
        if isinstance(name, str) and isinstance(values, Sequence) and not isinstance(values, str | bytes):
            return name, tuple(values)
    raise ConfigError(f"dedup_minhash: {what}={given!r}, expected one column and its values: {{'source': ['a']}}")


def _values_of(what: str, name: str, values: Values, type: pa.DataType) -> pa.Array:
    """Returns values in the type of a column. Raises ConfigError for those that it cannot have."""
    to = value_type(type)
    if pa.types.is_nested(to):
        raise ConfigError(
            f"dedup_minhash: {what} has {list(values)}, and column {name!r} is {type}, expected one value"
        )
    try:
        try:
            return pa.array(values, to)
        except (pa.ArrowTypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Of a command line all values are texts.
            return pa.array(values).cast(to)
    except (pa.ArrowTypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"dedup_minhash: {what} has {list(values)}, and column {name!r} is {type}: {error}") from None


def _places(what: str, name: str, values: Values, column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Returns where the value of each row is in a list; -1: nowhere."""
    own = _values_of(what, name, values, column.type)
    plain = decoded(column) if is_encoded(column.type) else column
    found = pc.index_in(plain.cast(own.type), value_set=own)
    numbers: npt.NDArray[np.int64] = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return numbers
