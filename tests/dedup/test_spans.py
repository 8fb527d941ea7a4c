"""Parts of texts that other texts have, against a dictionary of what was seen, in plain Python."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.exact import Chosen, Digests
from curate.dedup.spans import CutCopies, SpanDedup
from curate.errors import ConfigError
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from tests.dedup.marked import read_again
from tests.exchange.local import exchanged

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
PIECES = [
    "A b.",
    "a  B.",
    "Go!",
    "1",
    "2",
    "—",
    " ",
    "\n",
    "\n\n",
    "\r\n",
    "\n \n",
    ". ",
    "\u00a0",
    "שלום.",
    "你好。",
    "😀",
]
TEXTS = st.one_of(st.none(), st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
SHARDS = st.lists(st.lists(TEXTS, max_size=5), max_size=4)
ANY = st.lists(st.lists(st.one_of(TEXTS, st.text(max_size=8)), max_size=5), max_size=4)


def plain_units(text: str, unit: str) -> list[tuple[int, int]]:
    """Where the units of a text are."""
    if unit == "sentences":
        ends = [m.end() for m in re.finditer(r"""[.!?…]["'”’»)\]]{0,8}\s+|[。！？]["'”’」』）]{0,8}\s*""", text)]
        cuts = [0, *ends, len(text)]
        found = []
        for start, stop in pairwise(cuts):
            piece = text[start:stop]
            if piece.strip():
                start += len(piece) - len(piece.lstrip())
                found.append((start, start + len(piece.strip())))
        return found
    lines, at = [], 0
    for line in text.split("\n"):
        lines.append((at, at + len(line), bool(line.strip())))
        at += len(line) + 1
    if unit == "line":
        return [(start, stop) for start, stop, some in lines if some]
    found = []
    for number, (start, stop, some) in enumerate(lines):
        if some and number and lines[number - 1][2]:
            found[-1] = (found[-1][0], stop)
        elif some:
            found.append((start, stop))
    return found


def plain(rows: list[tuple[int, str | None]], same: SpanDedup) -> tuple[list[Any], list[Any], dict[str, int]]:
    """What is left of rows, the spans that are cut out, and the rows that are dropped by reason."""
    forms = {
        "exact": str,
        "folded": lambda text: " ".join(text.lower().split()),
        "ccnet": lambda text: re.sub("[—。]", "", re.sub(r"\d", "0", text.strip().lower())),
        "datatrove": lambda text: " ".join(re.sub("[—。.!]", " ", re.sub(r"\d+", "0", text.lower())).split()),
    }
    size = same.sentences if same.unit == "sentences" else 1
    seen: dict[str, tuple[int, int]] = {}
    left: list[Any] = []
    spans: list[Any] = []
    dropped: dict[str, int] = {}
    for id, text in rows:
        found = plain_units(text or "", same.unit)
        gone: dict[int, tuple[int, int]] = {}
        for number in range(len(found) - size + 1):
            window = found[number : number + size]
            key = " ".join(forms[same.compared_as]((text or "")[start:stop]) for start, stop in window)
            if not key.strip() or len(key.split()) < same.min_unit_words:
                continue
            first = seen.setdefault(key, (id, window[0][0]))
            if first != (id, window[0][0]):
                for at in range(number, number + size):
                    gone.setdefault(at, first)
        cut = []
        for at in sorted(gone):
            start, stop = found[at]
            if any(one not in gone for one in range(at)):
                start = found[at - 1][1]
            elif at + 1 < len(found):
                stop = found[at + 1][0]
            cut.append((start, stop))
            spans.append((id, start, stop, *gone[at]))
        rest = text
        for start, stop in reversed(cut):
            assert rest is not None
            rest = rest[:start] + rest[stop:]
        words = len((rest or "").split())
        if cut and words < max(1, same.min_words):
            reason = "too few words left" if words else "nothing left"
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            left.append((id, rest))
    return left, spans, dropped


def cut_out(same: SpanDedup, shards: list[pa.Table], seed: int = 0) -> tuple[list[Any], list[Any], dict[str, int]]:
    marks = exchanged(Chosen(same), shards, seed=seed).table if shards else pa.table({})
    made, told, dropped = read_again(CutCopies(same), marks, shards, seed)
    left = [(row["id"], row["text"]) for table in made for row in table.to_pylist()]
    assert told.num_rows == 0 or set(told["kind"].to_pylist()) == {same.unit}
    spans = [(row["id"], row["start"], row["end"], row["kept_id"], row["kept_start"]) for row in told.to_pylist()]
    return left, spans, dropped


def tables(shards: list[list[str | None]], type: pa.DataType | None = None) -> list[pa.Table]:
    made, number = [], 0
    for shard in shards:
        ids = pa.array(range(number, number + len(shard)), pa.int64())
        made.append(pa.table({"id": ids, "text": pa.array(shard, type or pa.string())}))
        number += len(shard)
    return made


@given(
    SHARDS,
    st.sampled_from(
        [("line", None), ("line", "exact"), ("paragraph", None), ("paragraph", "folded"), ("sentences", None)]
    ),
    st.integers(1, 3),
    st.sampled_from([0, 0, 2]),
    st.integers(0, 4),
    st.integers(0, 99),
)
def test_the_first_of_equal_parts_is_kept(
    shards: list[list[str | None]], kind: tuple[str, str | None], sentences: int, least: int, words: int, seed: int
) -> None:
    """What is left, what is told and what is dropped are those of a loop over all texts, however they are in shards."""
    same = SpanDedup("text", kind[0], kind[1], sentences, "whitespace", least, words, "id")
    rows = [(row["id"], row["text"]) for table in tables(shards) for row in table.to_pylist()]
    assert cut_out(same, tables(shards), seed) == plain(rows, same)


@given(
    ANY,
    st.sampled_from(["line", "paragraph", "sentences"]),
    st.sampled_from(["exact", "folded", "ccnet", "datatrove"]),
)
def test_the_text_without_its_spans_is_what_is_left(shards: list[list[str | None]], unit: str, form: str) -> None:
    """Whatever is compared: spans are in order and apart, and nothing else in a text changes."""
    same = SpanDedup("text", unit, form, 2, id_column="id", min_words=0)
    texts = {row["id"]: row["text"] for table in tables(shards) for row in table.to_pylist()}
    left, spans, dropped = cut_out(same, tables(shards))
    assert spans == sorted(spans)
    for one, next in pairwise(spans):
        assert one[0] < next[0] or one[2] <= next[1]
    for id, start, stop, kept_id, kept_start in reversed(spans):
        assert (kept_id, kept_start) < (id, start + 3)
        texts[id] = texts[id][:start] + texts[id][stop:]
    assert left == [(id, text) for id, text in texts.items() if id in dict(left)]
    assert len(texts) - len(left) == sum(dropped.values())


@pytest.mark.parametrize(
    "type",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=lambda type: str(type)[:9],
)
def test_texts_keep_their_type(type: pa.DataType) -> None:
    shards = tables([["a\nb", None], ["b\nc"]], type)
    same = SpanDedup("text", min_words=0, id_column="id")
    marks = exchanged(Chosen(same), shards).table
    made, _, _ = read_again(CutCopies(same), marks, shards)
    assert [table.schema for table in made] == [shards[0].schema] * 2
    assert [row for table in made for row in table["text"].to_pylist()] == ["a\nb", None, "c"]


@pytest.mark.slow
def test_a_line_that_is_everywhere_is_one_for_each_shard() -> None:
    """However often "Share this" is in a shard, one row is exchanged for it, and one mark comes back."""
    shards = [pa.table({"id": range(300), "text": [f"{rank}-{n}x\nShare this\n" for n in range(300)]}) for rank in "ab"]
    same = SpanDedup("text", form="exact", min_words=0, id_column="id")
    prepared = pa.concat_tables(Digests(same).apply(shards[0], ShardBooks(BadRowBudget()), BatchPosition("a", 0, 0)))
    assert prepared.num_rows == 600
    assert Chosen(same).fold(prepared).num_rows == 301
    made = exchanged(Chosen(same), shards, batch_rows=100)
    assert made.table.num_rows == 2
    left, spans, _ = cut_out(same, shards)
    assert left == [
        (n, f"{rank}-{n}x\n" + "Share this\n" * (rank == "a" and n == 0)) for rank in "ab" for n in range(300)
    ]
    assert {one[3:] for one in spans} == {(0, 5)}


@pytest.mark.ci(11)
@pytest.mark.slow
@pytest.mark.quick(18)
@pytest.mark.parametrize("unit", ["line", "paragraph", "sentences"])
@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000,
        "." * 300_000,
        "\n" * 300_000,
        ". " * 150_000,
        "word " * 60_000,
        "a\n" * 100_000,
        ".\"'" * 90_000,
        "\u202e. שלום" * 40_000,
        " " * 300_000,
        "\r\n \r\n" * 60_000,
        "1." * 150_000,
    ],
    ids=lambda text: repr(text[:4]),
)
def test_hostile_texts_take_linear_time(unit: str, text: str) -> None:
    """No text makes more spans, or parts, than it has characters, and what is left is found for each."""
    same = SpanDedup("text", unit, id_column="id", min_words=0)
    table = pa.table({"id": [0, 1], "text": [text, text]})
    marks = exchanged(Chosen(same), [table]).table
    made, told, _ = read_again(CutCopies(same), marks, [table])
    assert told.num_rows <= 2 * len(text)
    assert made[0]["id"].to_pylist()[:1] == [0]


def test_what_cannot_be_compared_is_refused() -> None:
    schema = pa.schema([("text", pa.string()), ("n", pa.int64())])
    with pytest.raises(ConfigError, match=r"dedup_paragraphs: .*'txt'.*'text'"):
        Chosen(SpanDedup("txt")).schema([schema])
    with pytest.raises(ConfigError, match="column 'n' is int64, expected texts"):
        Chosen(SpanDedup("n")).schema([schema])
    with pytest.raises(ConfigError, match="parts are cut out of 'text', so it cannot identify rows"):
        Chosen(SpanDedup("text", id_column="text")).schema([schema])
    with pytest.raises(
        ConfigError, match=r"unit='lines'; did you mean 'line'\?; there are paragraph, line and sentences"
    ):
        SpanDedup("text", "lines")
    with pytest.raises(ConfigError, match="normalise='ccnets'; did you mean 'ccnet'"):
        SpanDedup("text", form="ccnets")
    with pytest.raises(ConfigError, match="sentences is 0, expected a whole number, at least 1"):
        SpanDedup("text", sentences=0)


def test_schemas_are_known_from_no_rows() -> None:
    same = SpanDedup("text", min_words=0, id_column="id")
    shards = tables([["a", "a"]])
    marks = exchanged(Chosen(same), shards).table
    assert marks.schema == Chosen(same).schema([SCHEMA])
    _, told, _ = read_again(CutCopies(same), marks, shards)
    [rows, side] = CutCopies(same).apply(SCHEMA.empty_table(), ShardBooks(BadRowBudget()), BatchPosition("", 0))
    assert rows.schema == SCHEMA
    assert side.schema == told.schema
