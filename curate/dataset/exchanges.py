"""Methods of a Dataset that move rows between shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from curate.arrow.batches import joined
from curate.arrow.order import Order, SortKey
from curate.dataset.base import Base
from curate.dataset.grouped import GroupedData
from curate.errors import ConfigError
from curate.exchange.kinds.base import Repartitioned, column_names, key_columns, order_by
from curate.exchange.kinds.sort import Sorted
from curate.operators.arguments import refuse_unused
from curate.plan import distinct as distincts
from curate.plan import join as joining
from curate.plan.nodes import schema_of
from curate.plan.rewrites import shuffle_plan
from curate.units import whole, whole_seed

if TYPE_CHECKING:
    from curate.mixture.mixture import Mixture


SHARDS = 10_000_000
"""Of a write, most: as many as a driver has been seen to plan, in 1.4 GB of memory."""


class Exchanges(Base):
    """What needs all rows, or those of other shards."""

    __slots__ = ()

    def sort(
        self, key: str | Sequence[str], descending: bool | Sequence[bool] = False, *, nulls: str = "at_end"
    ) -> Self:
        """Sorts the rows by one column, or by several; rows with equal keys keep their order.

        `descending` is for all keys, or one for each. Nulls are at the end, or with `nulls="at_start"` at the start,
        for both directions; NaN is beside them. Raises ConfigError for a column that is unknown, nested, or of a type
        that has no order.

        >>> curate.from_items([{"n": 2}, {"n": None}, {"n": 1}]).sort("n").take_all()
        [{'n': 1}, {'n': 2}, {'n': None}]
        """
        keys = column_names("sort", key)
        ways = descending if isinstance(descending, list | tuple) else [descending] * len(keys)
        if not all(isinstance(way, bool) for way in ways):
            raise ConfigError(
                f"sort: descending is {descending!r:.80}, expected True or False; several columns are one list"
            )
        if not keys or len(ways) != len(keys):
            raise ConfigError(
                f"sort: {len(keys)} keys but {len(ways)} values of descending; pass one for each key, or one for all"
            )
        order = Order(tuple(map(SortKey, keys, ways)), nulls)
        return self._exchange(Sorted(order))

    def random_shuffle(self, *, seed: int | None = None, num_shards: int | None = None) -> Self:
        """Puts the rows in random order: all orders are equally likely; the same input and seed give the same order.

        A write has `num_shards` outputs whose lengths differ by one at most (None: by their bytes). Without a seed, a
        write chooses one and keeps it for its reruns; consumed rows have another order each time. Raises ConfigError
        for numbers below 1 or above ten million, or a seed below 0.

        >>> curate.range(5).random_shuffle(seed=1).take_all() == curate.range(5).random_shuffle(seed=1).take_all()
        True
        """
        if seed is not None:
            seed = whole_seed(seed)
        if num_shards is not None:
            num_shards = whole("num_shards", num_shards, 1, SHARDS)
        return self._with(shuffle_plan(self._plan, seed, num_shards))

    def repartition(self, num_shards: int, *, shuffle: bool = False, seed: int | None = None) -> Self:
        """Makes a write have `num_shards` outputs whose lengths differ by one at most, in the same order; with
        `shuffle` in random order, by `seed`. Raises ConfigError for numbers below 1 or above ten million.

        >>> curate.range(3).repartition(2).count()
        3
        """
        num_shards = whole("num_shards", num_shards, 1, SHARDS)
        if shuffle:
            return self.random_shuffle(seed=seed, num_shards=num_shards)
        refuse_unused("repartition", "rows keep their order without shuffle=True", seed=seed)
        return self._exchange(Repartitioned(num_shards))

    def groupby(self, key: str | Sequence[str] | None) -> GroupedData[Self]:
        """Groups rows by one column, or several; the methods of the result return one row per group.

        With None all rows are one group, which one task reduces. Raises ConfigError for a column that is unknown,
        nested, or of a type that has no order.

        >>> curate.from_items([{"k": "b", "n": 1}, {"k": "a", "n": 2}]).groupby("k").sum("n").take_all()
        [{'k': 'a', 'n_sum': 2}, {'k': 'b', 'n_sum': 1}]
        """
        keys = () if key is None else key_columns("groupby", key)
        found = schema_of(self._plan)
        if found is not None:
            order_by(keys).check("groupby", found)
        return GroupedData(self, keys)

    def dedup_exact(
        self,
        columns: str | Sequence[str],
        keep: str = "first",
        *,
        priority: str | None = None,
        normalise: bool = False,
        id_column: str | None = None,
    ) -> Self:
        """Drops rows that have the same values in `columns` as another, as `duplicate`; one of each is kept.

        That is the `first` or the `last` in input order; with `priority`, a column, the one with the largest value, and
        of those the first or last. Rows stay in order. Null equals null, and NaN equals NaN. With `normalise`, texts
        are equal if they differ only in case, white space or Unicode composition, as the job `dedup_exact` has it.

        With `id_column`, a write has an extra output `duplicates`: `id`, `cluster`, `kept_id`, `similarity` (1.0) of
        each dropped row. If an exchange or a limit follows, the write warns that it is left out; a checkpoint between
        the two has it.

        The exchange moves 128-bit hashes (XXH3, not safe against deliberate collisions), 36 bytes a row. The rows are
        read twice, and the steps before run twice: use `checkpoint` after slow ones.

        A write of files takes new ones that sort behind all others, unless `keep="last"`, `priority`, a function before
        or an exchange let new rows change old outputs: it writes theirs, and reads the others once, for their hashes,
        or not at all if the write before had `keep_stages=True`.

        Raises ConfigError for an unknown column, one of a type without a hash or, for `priority`, without an order.

        >>> texts = curate.from_items([{"n": 1, "text": "Hello"}, {"n": 2, "text": "hello "}, {"n": 3, "text": "Bye"}])
        >>> [row["n"] for row in texts.dedup_exact("text", normalise=True, priority="n").iter_rows()]
        [2, 3]
        """
        from curate.dedup import exact
        from curate.plan import dedup

        same = exact.ExactDedup(key_columns("dedup_exact", columns), normalise, keep, priority, id_column)
        return self._then(dedup.without_copies(self._plan, exact.DropCopies(same)))

    def dedup_paragraphs(
        self,
        column: str,
        *,
        id_column: str | None = None,
        unit: str = "line",
        normalise: str | None = None,
        sentences: int = 3,
        words: str = "whitespace",
        min_unit_words: int = 0,
        min_words: int = 50,
    ) -> Self:
        """Cuts out of the texts in `column` what an earlier text has, too: each `line` (to the line feed), `paragraph`
        (to a blank line), or window of so many `sentences`. What is left keeps its separators; nothing else changes.

        A row of whose text something was cut out is dropped as `nothing left`, or with fewer than `min_words` words
        left as `too few words left`. Rows stay in order, and the first of equal parts is kept where it is. Null, and
        texts without a part, stay.

        `normalise` says what is compared: parts as they are (`exact`), or as `folded`, `ccnet` or `datatrove` have
        them; None: paragraphs exact, as Dolma; lines as CCNet; sentences as datatrove's C4. Parts with fewer than
        `min_unit_words` words are not compared. `words` are split, and sentences found, at `whitespace`, or by `spacy`.

        With `id_column`, a write has an extra output `removed`: `id`, `start` and `end` of each span that was cut out,
        in characters of the text as it was, `kind` (the unit), `cluster` (the same for equal parts), `kept_id` and
        `kept_start`: where the part is kept. The text without these spans is what is left, of dropped rows, too.

        The exchange moves 128-bit hashes, 44 bytes a part and the id. The rows are read twice, and the steps before run
        twice: use `checkpoint` after slow ones. New files behind all others are taken as by `dedup_exact`.

        Raises ConfigError for a column that is unknown or not text, and for invalid values.

        >>> pages = curate.from_items([{"text": "One.\\nShare this"}, {"text": "Two.\\nshare this\\nThree."}])
        >>> pages.dedup_paragraphs("text", min_words=1).take_all()
        [{'text': 'One.\\nShare this'}, {'text': 'Two.\\nThree.'}]
        """
        from curate.dedup import spans
        from curate.plan import dedup

        given = (unit, normalise, sentences, words, min_unit_words, min_words, id_column)
        return self._then(dedup.without_copies(self._plan, spans.CutCopies(spans.SpanDedup(column, *given))))

    def decontaminate(
        self,
        column: str,
        sets: Mapping[str, Any],
        columns: Sequence[str] | Mapping[str, Sequence[str]] = ("text",),
        *,
        prompt_columns: Sequence[str] = (),
        id_column: str | None = None,
        n: int = 13,
        max_documents: int | None = 10,
        action: str = "drop",
        normalise: str = "datatrove",
        words: str = "whitespace",
        margin: int = 0,
        min_words: int = 50,
    ) -> Self:
        """Finds texts in `column` that have `n` words in a row of an example of an evaluation set.

        `sets` are files by the name of the set, each a `curate.Asset`: JSON lines or Parquet, whose `columns` (the same
        for all, or by set) have texts or lists of texts. N-grams that end in `prompt_columns`, which come before them,
        do not count. N-grams that more than `max_documents` rows have are left out of account; None: none are.

        By `action`, rows are dropped as `contaminated`; or `annotate`d by two columns, `contaminated_ngrams` (how many)
        and `contaminated_sets`; or their n-grams are `cut` out, with `margin` characters on either side, and rows with
        fewer than `min_words` words left are dropped. `normalise` and `words` are as in `dedup_paragraphs`.

        With `id_column`, a write has an extra output `contaminated`: `id`, `set`, `example` (its number in the set,
        from 0), `ngram`, `start` and `end` of its first place in the text, and its `occurrences` there.

        Rows stay in order, and null stays. They are read twice, and the steps before run twice, unless `max_documents`
        is None. Raises ConfigError for columns that are unknown, or not text, of rows or sets; for a set of which no
        example has `n` words; and for invalid values.

        >>> import json, tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        ...     _ = file.write(json.dumps({"text": "To be, or not to be"}))
        ...     file.flush()
        ...     pages = curate.from_items([{"text": "He said: to be or not!"}, {"text": "To be is to do"}])
        ...     pages.decontaminate("text", {"hamlet": curate.Asset(file.name)}, n=4).take_all()
        [{'text': 'To be is to do'}]
        """
        from curate.dedup.contamination import Decontamination
        from curate.dedup.evaluation import Compared, evaluation_sets
        from curate.plan import dedup

        compared = Compared(evaluation_sets(sets, columns, prompt_columns), n, normalise, words)
        how = Decontamination(column, compared, action, max_documents, margin, min_words, id_column)
        plan = dedup.decontaminated(self._plan, how)
        # A set that is none is said before anything runs.
        compared.index()
        return self._then(plan)

    def dedup_minhash(
        self,
        column: str,
        *,
        id_column: str,
        threshold: float = 0.8,
        drop: str = "verified",
        exempt: str | Mapping[str, Sequence[Any]] | None = None,
        priority: Mapping[str, Sequence[Any]] | None = None,
        source_column: str | None = None,
        ngram: int = 5,
        bands: int = 14,
        rows: int = 8,
        seed: int = 0,
        unit: str = "word",
    ) -> Self:
        """Drops rows whose text in `column` is nearly that of another row, which is kept, as `duplicate`. Rows stay in
        order.

        Texts are sets of n-grams of `ngram` words (or, by `unit`, of each `character`); case, punctuation and white
        space do not matter to words. Two texts are near duplicates if the Jaccard similarity of their sets is at least
        `threshold`. With `drop="verified"` the first row is kept, then each that is no near duplicate of a row that is
        kept. With `drop="component"` rows that a chain of near duplicates connects are a cluster, whatever the
        similarity of its ends, and the first of each cluster is kept.

        Rows of which `exempt` holds are never dropped, and come first: the name of a boolean column, or a column and
        its values, `{"source": ["wiki"]}`. `priority`, `{"source": ["books", "web"]}`, says which come next: rows of
        these values, in this order, then all others. Else rows come in input order.

        MinHash finds the pairs, with `bands` bands of `rows` places: of pairs with a similarity of s a share of
        1 - (1 - s**rows)**bands is found, by default 92 % at 0.8, 98.8 % at 0.85 and 99.96 % at 0.9. Their similarity
        is then computed exactly, so no pair below the threshold counts. `seed` decides which pairs are missed.

        A write has an extra output `duplicates`: `id`, `cluster`, `kept_id`, and `similarity` of each dropped row: to
        the most similar row that is kept, which `kept_id` is, or (component) to the most similar row of the cluster.
        With `source_column`, which is that of `priority` unless given, it has `source` and `kept_source`. If an
        exchange or a limit follows, the write warns that it is left out; a checkpoint between the two has it.

        A text of fewer words than an n-gram is one n-gram. Null, and texts without a word, are kept. The rows are read
        four times, and the steps before run four times: use `checkpoint` after slow ones.

        Raises ConfigError for a column that is unknown or not text, for invalid numbers, and for values that a column
        cannot have.

        >>> words = "one two three four five six seven eight nine ten eleven twelve"
        >>> texts = [words, f"{words} thirteen", "something else"]
        >>> rows = curate.from_items([{"n": n, "text": text} for n, text in enumerate(texts)])
        >>> [row["n"] for row in rows.dedup_minhash("text", id_column="n").iter_rows()]
        [0, 2]
        """
        from curate.dedup import near
        from curate.plan import dedup

        kept, kept_values = near.column_and_values("exempt", exempt)
        first, values = near.column_and_values("priority", priority)
        how = near.NearDedup(
            *(column, id_column, threshold, ngram, bands, rows, seed, unit),
            *(drop, kept, kept_values, first, values or (), first if source_column is None else source_column),
        )
        return self._then(dedup.near(self._plan, how))

    def mix_sources(
        self,
        weights: Mapping[str, float] | Mixture,
        budget: int | None = None,
        *,
        id_column: str,
        source_column: str = "source",
        unit: str = "documents",
        count_column: str | None = None,
        text_column: str = "text",
        strata_column: str | None = None,
        epoch_column: str | None = None,
        max_epochs: int = 4,
        seed: int = 0,
        allow_shortfall: bool = False,
    ) -> Self:
        """Draws rows of several sources by weight, up to a budget; `source_column` says which source a row is of.

        A source gives its share of the budget: whole epochs of all its rows first, then those with the lowest hashes of
        `id_column` once more, up to its share: in documents to the row, in characters or tokens below it by less than
        the next row has. `count_column` has the size of a row (`unit="tokens"`); characters are those of `text_column`
        without one. With `strata_column` each of its values keeps its share in the source, to a row. Rows stay in
        order, each followed by its copies; `epoch_column` is added, with 0, 1, 2, ... for these.

        With more rows in the input and the same budget, a row of before is there as often as it was, or less (strata
        aside). A source that has too little for its share, in `max_epochs`, is refused, with both numbers; with
        `allow_shortfall` all of its epochs are written. Rows of sources without a weight are dropped, rows without an
        id or a size set aside. A write has an extra output `sources`, a row for each, and counts what is wanted,
        available and written of each. The rows are read twice, and the steps before run twice.

        Raises ConfigError for unknown columns, and for weights and numbers that are not above 0.

        >>> rows = [{"id": n, "source": "web" if n % 4 else "books"} for n in range(40)]
        >>> mixed = curate.from_items(rows).mix_sources({"web": 1, "books": 1}, 30, id_column="id")
        >>> mixed.groupby("source").count().take_all()
        [{'source': 'books', 'count': 15}, {'source': 'web', 'count': 15}]
        """
        from curate.mixture.mixture import Mixture, Source
        from curate.mixture.rows import Mixing
        from curate.plan import mixture as plans

        if isinstance(weights, Mixture):
            mixture = weights
        elif isinstance(weights, Mapping) and budget is not None:
            sources = tuple(Source(str(name), weight, max_epochs) for name, weight in weights.items())
            mixture = Mixture(sources, budget, unit, seed)
        else:
            raise ConfigError(
                f'mix_sources takes weights and a budget, as mix_sources({{"web": 0.7}}, 1000), found {weights!r}'
            )
        columns = source_column, id_column, count_column, text_column, strata_column, epoch_column
        return self._then(plans.mixed(self._plan, Mixing(mixture, *columns, allow_shortfall)))

    def distinct(
        self, keys: str | Sequence[str] | None = None, *, keep: str = "first", order_by: str | None = None
    ) -> Self:
        """Keeps one row per key: rows with equal `keys` columns (None: all) are duplicates.

        It is the `first` or `last` one in input order; with `order_by`, the one with the smallest or largest value of
        that column, and of equal values the first or last; nulls and NaN only without other values. Rows are in order
        of the keys, null last. A write counts the others as dropped for "duplicate". Nulls equal each other, as do NaN
        and the two zeros. Raises ConfigError for columns that are unknown or have no order.

        >>> ds = curate.from_items([{"k": "b", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 0}])
        >>> ds.distinct("k").take_all()
        [{'k': 'a', 'n': 2}, {'k': 'b', 'n': 1}]
        >>> ds.distinct("k", order_by="n").take_all()
        [{'k': 'a', 'n': 2}, {'k': 'b', 'n': 0}]
        """
        return self._then(distincts.distinct(self._plan, keys, keep, order_by))

    def join(
        self,
        other: Self,
        *,
        on: str | Sequence[str],
        how: str = "inner",
        right_on: str | Sequence[str] | None = None,
        left_suffix: str = "",
        right_suffix: str = "_right",
        broadcast: bool = False,
    ) -> Self:
        """Joins rows with the rows of another dataset that have equal keys: `on`, and `right_on` in `other` (None: the
        same).

        `how` is inner; left, right or outer, which keep rows without a match of one side or both; semi or anti, which
        keep the rows of this dataset with, or without, a match. Keys appear once, with this dataset's names; other
        columns that both have get the suffixes. Rows are in order of the keys, then of this dataset, then of the other
        one. Null matches nothing; NaN matches NaN. Keys must have one type (of any width and unit).

        With `broadcast` the other dataset runs now, every task gets its rows (1 GiB at most), and this dataset's rows
        keep their order and shards: for an inner, left, semi or anti join with a small dataset.

        A write counts rows without a match as dropped for "unmatched" (anti join: those with one, for "matched"),
        joined rows of the other dataset as dropped for "joined", and repeated matches as created.

        Raises ConfigError for columns that are unknown, have no order or differ in type, and for names that collide.

        >>> people = curate.from_items([{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}])
        >>> visits = curate.from_items([{"who": 2, "day": 5}, {"who": 2, "day": 6}])
        >>> people.join(visits, on="id", right_on="who", how="left").take_all()
        [{'id': 1, 'name': 'ann', 'day': None}, {'id': 2, 'name': 'bob', 'day': 5}, {'id': 2, 'name': 'bob', 'day': 6}]
        """
        rows = (lambda: joined(other._tables())) if broadcast else None
        suffixes = left_suffix, right_suffix
        left, right = self._plans("join", (other,))
        return self._then(joining.join(left, right, on, how, right_on, *suffixes, rows))
