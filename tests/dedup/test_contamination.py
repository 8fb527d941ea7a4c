"""Words that texts share with evaluation sets, against loops over all of them in plain Python."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dedup.contamination import Common, Decontaminate, Decontamination
from curate.dedup.evaluation import Compared, EvaluationSet, examples_of
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition
from tests.dedup.marked import read_again
from tests.exchange.local import exchanged

WORDS = ["a", "B", "c!", "-", "(d e)", "  ", "\n", "é", "1.5", "2", "שלום", "a.b"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)
SHARDS = st.lists(st.lists(st.one_of(st.none(), TEXT), max_size=5), max_size=4)
PLAIN = str.maketrans({"!": " ", "-": " ", "(": " ", ")": " ", ".": " ", "é": "e"})


class Held:
    """A file in memory's stead, which says how often it was asked for."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        self.uri = str(path)
        self._rows = json.dumps(rows)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def identity(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def local(self) -> str:
        return self.uri


def plain_words(text: str | None) -> list[str]:
    """The words of a text as they are compared, without those that are marks alone."""
    return [
        word
        for chunk in (text or "").lower().split()
        for word in chunk.replace("1.5", "0").replace("2", "0").translate(PLAIN).split()
    ]


def spots(text: str | None) -> list[tuple[int, int]]:
    """For each of these words, where the chunk is that it is of."""
    found, at = [], 0
    for chunk in (text or "").split():
        at = (text or "").index(chunk, at)
        found += [(at, at + len(chunk))] * len(plain_words(chunk))
        at += len(chunk)
    return found


def grams(text: str | None, n: int) -> list[str]:
    words = plain_words(text)
    return [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]


@given(
    shards=SHARDS,
    sets=st.lists(st.lists(TEXT, min_size=1, max_size=3), min_size=1, max_size=3),
    n=st.integers(1, 4),
    most=st.sampled_from([None, 1, 2]),
    action=st.sampled_from(["drop", "annotate", "cut"]),
    margin=st.sampled_from([0, 0, 3]),
    seed=st.integers(0, 99),
)
def test_what_a_loop_finds(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[str | None]],
    sets: list[list[str]],
    n: int,
    most: int | None,
    action: str,
    margin: int,
    seed: int,
) -> None:
    """Rows, texts, columns and what is told are those of loops over texts and examples, however texts are in shards."""
    folder = tmp_path_factory.mktemp("sets")
    sets = [[*examples, "a b c d e"] for examples in sets]
    known: dict[str, dict[str, int]] = {}
    made = []
    for number, examples in enumerate(sets):
        held = Held(folder / f"{number}", [{"q": text} for text in examples])
        made.append(EvaluationSet(f"set{number}", held, ("q",)))
        for place, text in enumerate(examples):
            for gram in grams(text, n):
                known.setdefault(gram, {}).setdefault(f"set{number}", place)
    how = Decontamination("text", Compared(tuple(made), n), action, most, margin, 2, "id")
    flat = [text for shard in shards for text in shard]
    tables, at = [], 0
    for shard in shards:
        tables.append(
            pa.table({"id": pa.array(range(at, at + len(shard)), pa.int64()), "text": pa.array(shard, pa.string())})
        )
        at += len(shard)
    frequency = Counter(gram for text in flat for gram in set(grams(text, n)))
    rows, told, dropped = [], [], Counter[str]()
    for id, text in enumerate(flat):
        found: dict[str, list[tuple[int, int]]] = {}
        for place, gram in enumerate(grams(text, n)):
            if gram in known and (most is None or frequency[gram] <= most):
                found.setdefault(gram, []).append((spots(text)[place][0], spots(text)[place + n - 1][1]))
        for gram, places in found.items():
            told += [(id, name, example, gram, *places[0], len(places)) for name, example in known[gram].items()]
        names = sorted({name for gram in found for name in known[gram]})
        if action == "annotate":
            rows.append((id, text, len(found), names))
        elif action == "drop" and found:
            dropped["contaminated"] += 1
        elif found:
            gone = {
                place
                for places in found.values()
                for low, high in places
                for place in range(low - margin, high + margin)
            }
            left = "".join(one for place, one in enumerate(text or "") if place not in gone)
            if len(left.split()) >= 2:
                rows.append((id, left))
            else:
                dropped["too few words left" if left.split() else "nothing left"] += 1
        else:
            rows.append((id, text))
    marks = exchanged(Common(how), tables, seed=seed).table if tables and most is not None else pa.table({})
    after, side, books = read_again(Decontaminate(how), marks, tables, seed)
    assert [tuple(row.values()) for table in after for row in table.to_pylist()] == rows
    assert [tuple(row.values()) for row in side.to_pylist()] == told
    assert books == dropped


def asset(path: Path, data: bytes) -> Asset:
    path.write_bytes(data)
    return Asset(str(path))


LONG = "one two three four five"
ROWS = [
    {"q": LONG, "a": ["six", None, "seven"]},
    {"q": "", "a": None},
    {"q": None},
    {"q": LONG, "a": ["x"]},
    {"q": "short"},
]


def examples(one: EvaluationSet) -> list[str]:
    texts, columns = examples_of(one)
    found = texts.to_pylist()
    return [" ".join(found[at : at + columns]) for at in range(0, len(found), columns)]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_a_set_is_read_whatever_its_format(tmp_path: Path, kind: str) -> None:
    """By what is in it, not by its name; lists of texts are one, null and a column that a row lacks are empty."""
    lines = "".join(json.dumps(row) + "\n\n" for row in ROWS).encode()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "set")
        data = (tmp_path / "set").read_bytes()
    else:
        twice = gzip.compress(lines[:50]) + gzip.compress(lines[50:])
        data = {"jsonl.gz": twice, "jsonl.zst": zstd(lines), "jsonl": lines}[kind]
    one = EvaluationSet("s", asset(tmp_path / "named.txt", data), ("q", "a"))
    assert examples(one) == [f"{LONG} six seven", " ", " ", f"{LONG} x", "short "]


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(
            b"q,a\none two,x\n",
            r"set 's' \(.*bad\), line 1: .*expected an object of JSON on each line",
            id="another format",
        ),
        pytest.param(b'{"q": "\xff"}\n', "line 1: ", id="not UTF-8"),
        pytest.param(b'{"q": "\\ud800"}\n', "line 1: ", id="a lone surrogate"),
        pytest.param(b'{"q": "x"}\n["y"]\n', "line 2: it is a list; expected an object", id="a list"),
        pytest.param(b'[{"q": "x"}]\n', "line 1: it is a list", id="one array"),
        pytest.param(b'{"q": 5}\n', "line 1: column 'q' is 5, expected a text or a list of texts", id="a number"),
        pytest.param(b'{"question": "x"}\n', "no column 'q'", id="a missing column"),
        pytest.param(b"\n\n", "set 's' .* has no example; leave it out", id="no example"),
        pytest.param(b"", "has no example", id="nothing"),
        pytest.param(
            gzip.compress(b'{"q": "x"}\n' * 999)[:-9], "expected an object of JSON on each line", id="cut off gzip"
        ),
        pytest.param(b"PAR1xx", "cannot be read as Parquet", id="Parquet cut off"),
        pytest.param(
            b'{"q": "a b c"}\n{"q": ""}\n',
            r"none of its 2 examples has 4 words in q \(1 have none\)",
            id="all too short",
        ),
        pytest.param(b'{"q": "! ? - . ! ! !"}\n', "none of its 1 examples has 4 words", id="only marks"),
    ],
)
def test_a_set_that_is_none_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    """What is wrong, and where; before anything runs."""
    with pytest.raises(ConfigError, match=said):
        Compared((EvaluationSet("s", asset(tmp_path / "bad", data), ("q",)),), n=4).index()


def test_a_missing_column_of_parquet_is_refused_with_those_there_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": [LONG], "n": [1]}), tmp_path / "set")
    file = Asset(str(tmp_path / "set"))
    with pytest.raises(ConfigError, match=r"set 's' .*no column 'questions'.*'question'"):
        Compared((EvaluationSet("s", file, ("questions",)),), n=4).index()
    with pytest.raises(ConfigError, match="column 'n' is int64, expected texts or lists of texts"):
        Compared((EvaluationSet("s", file, ("n",)),), n=4).index()


def test_short_and_empty_examples_are_counted_and_the_same_one_twice_is_one(tmp_path: Path) -> None:
    data = "".join(json.dumps({"q": text}) + "\n" for text in (LONG, "", "x y", LONG, None)).encode()
    index = Compared((EvaluationSet("s", asset(tmp_path / "set", data), ("q",)),), n=4).index()
    [short] = index.short
    assert (short.examples, short.short, short.empty) == (5, 1, 2)
    assert len(index.hashes) == 2
    assert index.examples.tolist() == [0, 0]


def test_steps_that_take_turns_read_their_sets_once(tmp_path: Path) -> None:
    made = [
        Compared((EvaluationSet("s", asset(tmp_path / f"set{n}", json.dumps({"q": LONG}).encode()), ("q",)),), n=n)
        for n in (3, 4)
    ]
    first = [one.index() for one in made]
    assert all(one.index() is index for _ in range(2) for one, index in zip(made, first, strict=True))


def test_a_set_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    found = []
    for text in (LONG, "six seven eight nine"):
        data = json.dumps({"q": text}).encode()
        index = Compared((EvaluationSet("s", asset(tmp_path / "set", data), ("q",)),), n=4).index()
        found.append(set(index.said(list(range(len(index.hashes))))))
    assert found == [{"one two three four", "two three four five"}, {"six seven eight nine"}]


def test_ngrams_of_prompts_alone_do_not_count(tmp_path: Path) -> None:
    """As datatrove has it: those that end in the answer count, also where they begin in the question."""
    data = json.dumps({"answer": "f g h", "question": "a b c d e"}).encode()
    for prompt, told in {("question",): {"d e f", "e f g", "f g h"}, (): {"f g h"}}.items():
        one = EvaluationSet("s", asset(tmp_path / "set", data), ("answer",), prompt)
        index = Compared((one,), n=3, form="exact").index()
        assert set(index.said(list(range(len(index.hashes))))) == told


def test_a_phrase_of_every_text_is_one_for_each_shard(tmp_path: Path) -> None:
    """However many texts have an n-gram, one row is exchanged for a shard, and one mark comes back."""
    data = json.dumps({"q": "all rights reserved to us"}).encode()
    how = Decontamination(
        "text", Compared((EvaluationSet("s", asset(tmp_path / "set", data), ("q",)),), n=5), id_column="id"
    )
    shards = [pa.table({"id": range(100), "text": ["All rights reserved, to us."] * 100}) for _ in range(3)]
    made = exchanged(Common(how), shards, batch_rows=40)
    assert made.table.num_rows == 3
    after, told, dropped = read_again(Decontaminate(how), made.table, shards, most=40)
    assert [table.num_rows for table in after] == [100] * 3
    assert not told.num_rows
    assert not dropped


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000,
        "a " * 150_000,
        ". " * 150_000,
        "a.b" * 100_000,
        "\u202eשלום " * 50_000,
        " " * 300_000,
        "1." * 150_000,
    ],
    ids=lambda text: repr(text[:4]),
)
@pytest.mark.parametrize("action", ["drop", "annotate", "cut"])
def test_hostile_texts_take_linear_time(tmp_path: Path, action: str, text: str) -> None:
    """Of a text with an n-gram a hundred thousand times one row is told, with how often."""
    data = json.dumps({"q": "a " * 5000}).encode()
    compared = Compared((EvaluationSet("s", asset(tmp_path / "set", data), ("q",)),))
    step = Decontaminate(Decontamination("text", compared, action, None, id_column="id"))
    table = pa.table({"id": [0], "text": [text]})
    made = list(step.apply(table, ShardBooks(BadRowBudget()), BatchPosition("", 0)))
    assert made[1].num_rows == (text == "a " * 150_000)
    if made[1].num_rows:
        assert made[1].table["occurrences"].to_pylist() == [150_000 - 12]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    file = asset(tmp_path / "set", json.dumps({"q": LONG}).encode())
    one = EvaluationSet("s", file, ("q",))
    for said, make in {
        "n is 0, expected a whole number, at least 1": lambda: Compared((one,), n=0),
        "no evaluation set to look for": lambda: Compared(()),
        "2 evaluation sets are called 's'; give other names": lambda: Compared((one, one)),
        "1 evaluation sets are without a name": lambda: Compared((EvaluationSet("", file, ("q",)),)),
        "set 's' has no column": lambda: Compared((EvaluationSet("s", file, ()),)),
        "normalise='datatrov'; did you mean 'datatrove'": lambda: Compared((one,), form="datatrov"),
        "action='drops'; did you mean 'drop'": lambda: Decontamination("text", Compared((one,)), "drops"),
        "max_documents is 0, expected": lambda: Decontamination("text", Compared((one,)), max_documents=0),
        "no column 'txt'": lambda: Decontamination("txt", Compared((one,))).check(pa.schema([("text", pa.string())])),
        "column 'n' is int64, expected texts": lambda: Decontamination("n", Compared((one,))).check(
            pa.schema([("n", pa.int64())])
        ),
        "a column 'contaminated_sets' already": lambda: Decontamination("text", Compared((one,)), "annotate").check(
            pa.schema([("text", pa.string()), ("contaminated_sets", pa.string())])
        ),
    }.items():
        with pytest.raises(ConfigError, match=said):
            make()
