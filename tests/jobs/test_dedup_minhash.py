"""The job of near deduplication."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.dedup.buckets import HEAVY
from curate.dedup.near import DROPS, VERIFIED
from curate.errors import ConfigError
from curate.testing.local import run_local
from jobs import dedup_minhash
from jobs.dedup_minhash import DedupMinhash
from tests.dedup.corpus import corpus, found_share
from tests.jobs.places import PLACES, there
from tests.jobs.test_dedup_exact import deduplicated

WORDS = " ".join(f"w{n}" for n in range(40))
TEXTS = [WORDS, f"{WORDS} x", WORDS.upper() + "!", "short", None, None, "Short."]
ROWS = [{"id": str(n), "text": text, "n": n} for n, text in enumerate(TEXTS)]


def test_the_first_of_those_that_are_alike_is_kept() -> None:
    """All columns are kept; the others are told with the similarity that their n-grams have; nulls are nobody's."""
    ran = run_local(DedupMinhash(), ROWS)
    assert ran.rows == [ROWS[n] for n in (0, 3, 4, 5)]
    told = [(row["id"], row["kept_id"], row["similarity"]) for row in ran.sides["duplicates"].to_pylist()]
    assert told == [("1", "0", 36 / 37), ("2", "0", 1.0), ("6", "3", 1.0)]
    assert ran.summary.books.dropped == {"duplicate": 3}


@pytest.mark.ci(4)
@pytest.mark.quick(1)
@pytest.mark.parametrize("drop_by", DROPS)
@pytest.mark.parametrize("copies", [HEAVY, HEAVY + 1, 2 * HEAVY])
@pytest.mark.parametrize("own", [0, 2], ids=["the same", "alike"])
def test_a_page_that_is_there_a_thousand_times_in_one_shard(own: int, copies: int, drop_by: str) -> None:
    """Its buckets become pairs where they are, more of them than they have rows; the first page stays, as do others."""
    template = " ".join(f"w{n}" for n in range(400))
    pages = [" ".join([template, *(f"own{n}-{at}" for n in range(own))]) for at in range(copies)]
    texts = [*(f"one of its own, number {n}, {n}, {n}" for n in range(9)), *pages]
    ran = run_local(DedupMinhash(drop_by=drop_by), [{"id": str(n), "text": text} for n, text in enumerate(texts)])
    assert [row["id"] for row in ran.rows] == [str(n) for n in range(10)]
    assert ran.summary.books.dropped == {"duplicate": copies - 1}
    assert ran.summary.books.balanced()


@pytest.mark.ci(3)
@pytest.mark.parametrize("drop_by", DROPS)
@pytest.mark.parametrize("own", [4, 8, 12])
def test_copies_among_pages_of_one_template_meet(own: int, drop_by: str) -> None:
    """Which are in one bucket with them, and alike, though less than the threshold."""
    draw = random.Random(own)
    template = " ".join(f"w{n}" for n in range(200))
    pages = [" ".join([template, *(f"own{draw.random()}" for _ in range(own))]) for _ in range(200)] * 2
    draw.shuffle(pages)
    job = DedupMinhash(drop_by=drop_by, threshold=0.99)
    ran = run_local(job, [{"id": str(n), "text": text} for n, text in enumerate(pages)])
    assert len(ran.rows) == 200
    assert {row["text"] for row in ran.rows} == set(pages)


def chain() -> list[dict[str, object]]:
    """A, B and C: A is like B, B like C, and A not like C."""
    words = [f"w{n}" for n in range(60)]
    texts = [words, [*words[4:], *"pqrs"], [*words[8:], *"pqrstuvw"]]
    sources = ["web", None, "books"]
    rows = zip("ABC", map(" ".join, texts), sources, strict=True)
    return [{"id": id, "text": text, "source": source, "safe": id == "B"} for id, text, source in rows]


@pytest.mark.ci(5)
@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("given", "kept", "told"),
    [
        ({}, "AC", [("B", "A")]),
        ({"drop_by": "component"}, "A", [("B", "A"), ("C", "A")]),
        ({"exempt_column": "safe"}, "B", [("A", "B"), ("C", "B")]),
        ({"exempt_column": "safe", "drop_by": "component"}, "B", [("A", "B"), ("C", "B")]),
        ({"exempt_column": "source", "exempt_values": ["web", "books"]}, "AC", [("B", "A")]),
        ({"exempt_column": "id", "exempt_values": ["B", "C"]}, "BC", [("A", "B")]),
        ({"exempt_column": "id", "exempt_values": ["C"], "drop_by": "component"}, "C", [("A", "C"), ("B", "C")]),
        ({"priority_column": "id", "priority": ["B"]}, "B", [("A", "B"), ("C", "B")]),
        ({"priority_column": "source", "priority": ["books"]}, "AC", [("B", "C")]),
    ],
    ids=str,
)
def test_of_a_chain(given: dict[str, Any], kept: str, told: list[tuple[str, str]]) -> None:
    """Which row stays goes by exemption, then by priority, then by the order of rows; what is dropped is like it."""
    ran = run_local(DedupMinhash(threshold=0.8, bands=40, rows=4, **given), chain())
    assert "".join(row["id"] for row in ran.rows) == kept
    assert [(row["id"], row["kept_id"]) for row in ran.sides["duplicates"].to_pylist()] == told


def test_what_each_source_lost_to_which() -> None:
    """Sources are listed; rows of sources that are not in the priority list come last, and are counted."""
    job = DedupMinhash(threshold=0.8, bands=40, rows=4, priority_column="source", priority=["books", "wiki"])
    ran = run_local(job, [*chain(), {"id": "D", "text": chain()[0]["text"], "source": "wiki", "safe": False}])
    assert [row["id"] for row in ran.rows] == ["C", "D"]
    told = [(row["id"], row["source"], row["kept_source"]) for row in ran.sides["duplicates"].to_pylist()]
    assert told == [("A", "web", "wiki"), ("B", None, "books")]
    assert ran.summary.books.counters["source not in the priority list"] == 2


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        ({}, {}),
        ({"exempt_column": "safe"}, {"exempt rows": 1}),
        (
            {"exempt_column": "source", "exempt_values": ["bookz", "web"]},
            {"exempt rows": 1, "exempt rows: source bookz": 0, "exempt rows: source web": 1},
        ),
        ({"exempt_column": "id", "exempt_values": list("ABD") * 14}, {"exempt rows": 2}),
        (
            {"priority_column": "source", "priority": ["wiki", "books"]},
            {"source not in the priority list": 2, "priority rows: source wiki": 0, "priority rows: source books": 1},
        ),
    ],
    ids=["nothing", "true", "exempt values", "too many values", "priority"],
)
def test_a_value_that_no_row_has_is_counted(given: dict[str, Any], counted: dict[str, int]) -> None:
    """With 0, beside the others: a misspelt one protects nothing."""
    found = run_local(DedupMinhash(**given), chain()).summary.books.counters
    assert {name: number for name, number in found.items() if name != "side duplicates"} == counted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drop_by": "verify"}, "drop_by is 'verify', expected one of .*; did you mean 'verified'"),
        ({"exempt_values": ["a"]}, "--exempt-values needs --exempt-column"),
        ({"exempt_column": "source"}, "exempt column 'source' is string, expected booleans; or name its values"),
        ({"priority_column": "source"}, "--priority-column and --priority go together"),
        ({"priority": ["a"]}, "--priority-column and --priority go together"),
        ({"priority_column": "source", "priority": ["a", "a"]}, "has 'a' twice"),
        ({"priority_column": "sauce", "priority": ["a"]}, "no column 'sauce'"),
    ],
)
def test_what_goes_not_together_is_refused(given: dict[str, Any], said: str) -> None:
    """With what was found and what to do."""
    with pytest.raises(ConfigError, match=said):
        run_local(DedupMinhash(**given), chain())


def test_the_threshold_holds() -> None:
    """A pair below it is none; characters are another measure."""
    strict = run_local(DedupMinhash(threshold=0.98), ROWS)
    assert [row["id"] for row in strict.rows] == ["0", "1", "3", "4", "5"]
    characters = run_local(DedupMinhash(unit="character", threshold=0.9), ROWS)
    assert [row["id"] for row in characters.rows] == ["0", "3", "4", "5", "6"]


def test_what_makes_no_sense_is_refused() -> None:
    """Numbers are looked at before anything runs."""
    with pytest.raises(ConfigError, match=r"threshold is 1\.5, expected more than 0, at most 1"):
        run_local(DedupMinhash(threshold=1.5), ROWS)


@pytest.mark.ci(4)
@pytest.mark.quick(4)
@pytest.mark.ray(0)
@pytest.mark.parametrize(
    "given",
    [{}, {"exempt_column": "source", "exempt_values": ["s0"]}, {"priority_column": "source", "priority": ["s2", "s1"]}],
    ids=["all alike", "exempt", "priority"],
)
@pytest.mark.parametrize(("files", "backend"), PLACES)
@pytest.mark.parametrize("drop", DROPS)
def test_the_same_as_by_brute_force(
    drop: str, files: int, given: dict[str, Any], backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In one shard and in many, on each backend: every text against every one, by the sets of its words by five. Rows
    come in order of exemption, priority and place, and each is kept unless it is like one that is kept."""
    count = 140
    table = pa.concat_tables(corpus(count, 1, seed=3, words=30, edits=2).shards)
    sources = [f"s{row * 7 % 4}" for row in range(count)]
    table = table.append_column("source", [sources])
    for number in range(files):
        (tmp_path / "in").mkdir(exist_ok=True)
        each = -(-count // files)
        pq.write_table(table.slice(number * each, each), tmp_path / "in" / f"{number}.parquet")
    grams = []
    for text in table["text"].to_pylist():
        words = text.split()
        grams.append({tuple(words[at : at + 5]) for at in range(len(words) - 4)})
    exempt = {row for row in range(count) if sources[row] in given.get("exempt_values", ())}
    first = [*given.get("priority", ())]
    place = {one: at for at, one in enumerate(first)}
    kept: list[int] = []
    dropped = {}
    for row in sorted(range(count), key=lambda row: (row not in exempt, place.get(sources[row], len(first)), row)):
        own = grams[row]
        like = {one: len(own & grams[one]) / len(own | grams[one]) for one in kept}
        like = {one: alike for one, alike in like.items() if alike >= 0.6}
        if like and row not in exempt:
            # Of several that are as similar, the first in this order.
            dropped[row] = (max(like, key=lambda one: like[one]), max(like.values()))
        else:
            kept.append(row)
    assert len(dropped) > 15
    job = DedupMinhash(threshold=0.6, bands=60, rows=3, drop_by=drop, **given)
    summary = job.run(input=str(tmp_path / "in"), output=str(tmp_path / "out"), backend=there(backend, request))
    assert summary.books.rows_out == count - summary.books.dropped["duplicate"]
    found = pq.read_table(sorted((tmp_path / "out").glob("*.parquet")))["id"].to_pylist()
    told = pq.read_table(tmp_path / "out" / "_side" / "duplicates").to_pylist()
    if drop == VERIFIED:
        assert found == sorted(kept)
        assert {one["id"]: (one["kept_id"], one["similarity"]) for one in told} == dropped
    else:
        assert set(found) <= set(kept)


@pytest.mark.slow
def test_the_script_itself_finds_what_was_made_a_copy(tmp_path: Path) -> None:
    """Of 20 % exact and 10 % near copies at least 99 % go, and at least 99 % of what goes is a copy."""
    summary = deduplicated("dedup_minhash.py", tmp_path, "--backend", "inline")
    kept = set(pq.read_table(tmp_path / "out")["id"].to_pylist())
    copies = {row for row, origin in corpus(2_000, 7, seed=5, words=100).origin.items() if row != origin}
    dropped = set(range(2_000)) - kept
    assert summary["rows"]["dropped"] == {"duplicate": len(dropped)}
    assert len(dropped & copies) >= 0.99 * len(copies)
    assert len(dropped & copies) >= 0.99 * len(dropped)


def test_the_table_of_the_docstring() -> None:
    """What it says that bands find is what the curve gives, rounded."""
    lines = [line.split() for line in (dedup_minhash.__doc__ or "").splitlines() if line.endswith("%")]
    assert len(lines) == 3
    for bands, _, _, rows, *shares in lines:
        told = [float(one) for one in shares if one != "%"]
        similarities = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
        assert told == [round(100 * found_share(one, int(bands), int(rows)), 1) for one in similarities]
