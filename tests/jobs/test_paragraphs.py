"""The job that cuts out what earlier texts have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.dedup.spans import SpanDedup
from curate.errors import ConfigError
from curate.testing.local import run_local
from jobs.paragraphs import Paragraphs
from tests.dedup.test_spans import plain
from tests.job.inline import everything, output_rows, outputs, run_job
from tests.jobs.places import PLACES, there

PAGE = "Home | News\nA story of {0} that is long enough.\n\nIt went on for {0} days.\nShare this\n"
ROWS = [{"id": str(n), "text": PAGE.format(n % 7), "n": n} for n in range(5)]


def test_boilerplate_goes_and_the_story_stays() -> None:
    """Lines are compared with digits as 0; the first of each is kept; other columns are as they were."""
    ran = run_local(Paragraphs(min_words=0, normalise="exact"), ROWS)
    assert ran.rows[0] == ROWS[0]
    assert ran.rows[1] == {"id": "1", "text": "A story of 1 that is long enough.\n\nIt went on for 1 days.\n", "n": 1}
    told = ran.sides["removed"].to_pylist()
    assert [(row["id"], row["start"], row["end"], row["kept_id"], row["kept_start"]) for row in told[:2]] == [
        ("1", 0, 12, "0", 0),
        ("1", 69, 80, "0", 70),
    ]
    assert {row["kind"] for row in told} == {"line"}
    assert len({row["cluster"] for row in told}) == 2
    assert ran.summary.books.counters["lines removed"] == len(told) == 8


def test_too_little_is_left() -> None:
    """As CCNet compares lines, stories with other digits are the same, and nothing is left; a short text that nothing
    is cut out of stays; null stays.
    """
    rows = [*ROWS, {"id": "x", "text": "Home | News\nAnother one.", "n": 9}, {"id": "y", "text": None, "n": 9}]
    ran = run_local(Paragraphs(min_words=3), [*rows, {"id": "z", "text": "so short", "n": 9}])
    assert [row["id"] for row in ran.rows] == ["0", "y", "z"]
    assert ran.summary.books.dropped == {"nothing left": 4, "too few words left": 1}
    assert {row["id"] for row in ran.sides["removed"].to_pylist()} == {"1", "2", "3", "4", "x"}


def test_three_sentences_that_are_there_before_go() -> None:
    """As C4 does: with all that they say, where they begin and where they end."""
    texts = ["One. Two. Three. Four.", "Zero. Two. Three. Four. Five.", "Two. Three. Six."]
    ran = run_local(
        Paragraphs(unit="sentences", min_words=0), [{"id": n, "text": text} for n, text in enumerate(texts)]
    )
    assert [row["text"] for row in ran.rows] == [texts[0], "Zero. Five.", texts[2]]
    assert [(row["start"], row["end"], row["kept_start"]) for row in ran.sides["removed"].to_pylist()] == [
        (5, 10, 5),
        (10, 17, 5),
        (17, 23, 5),
    ]


def test_what_makes_no_sense_is_refused() -> None:
    """Parameters and columns are looked at before anything runs."""
    for said, job in {
        "no column 'body'": Paragraphs(text_column="body"),
        "parts are cut out of 'text', so it cannot identify rows": Paragraphs(id_column="text"),
        "column 'n' is int64, expected texts": Paragraphs(text_column="n"),
        "min-words is -1, expected a whole number": Paragraphs(min_words=-1),
    }.items():
        with pytest.raises(ConfigError, match=said):
            run_local(job, ROWS)
    with pytest.raises(ConfigError, match="'lines', expected one of"):
        Paragraphs(unit="lines")


def test_spacy_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything runs: words are counted last, behind two stages over all texts."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 1, "text": "a"}\n')
    with pytest.raises(
        ConfigError, match=r"need spaCy, which is not installed: pip install 'curate\[words\]'; or choose 'whitespace'"
    ):
        Paragraphs(words="spacy").run(input=str(path), output=str(tmp_path / "out"), backend="inline")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("unit", ["line", "sentences"])
def test_texts_that_are_not_utf8_stay_and_are_counted(unit: str) -> None:
    """Half a surrogate, or any other byte: such a text is compared with nothing, and is written as it was."""
    texts = [b"ok.\nfine.", b"\xed\xa0\x80\nfine.", b"\xff\nfine.", b"x.\nfine."]
    table = pa.table({"id": range(4), "text": pa.array(texts).view(pa.string())})
    ran = run_local(Paragraphs(min_words=0, unit=unit), table)
    left = [*texts[:3], b"x." if unit == "line" else texts[3]]
    assert ran.table["text"].cast(pa.binary()).to_pylist() == left
    assert ran.summary.books.counters["texts that are not UTF-8"] == 2


@pytest.mark.nightly
@pytest.mark.parametrize("unit", ["line", "sentences"])
def test_a_text_of_100_mb(unit: str) -> None:
    """It is a text like others: what an earlier one has is cut out of it."""
    text = "".join(f"Line {n:08} of a very long text, which goes on and on.\n" for n in range(1_900_000))
    first = text[: text.index("Line 00000100")]
    table = pa.table({"id": [0, 1], "text": pa.array([first, text], pa.large_string())})
    ran = run_local(Paragraphs(unit=unit, normalise="exact"), table)
    assert len(text) > 100_000_000
    assert ran.table["text"].to_pylist() == [first, text.removeprefix(first)]


def pages(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of lines, some of which others have; some texts are null, or empty."""
    draw = random.Random(seed)
    words = ["we", "the", "of", "cookies", "read", "more", "1", "2", "news", "page"]
    found = []
    for number in range(count):
        lines = [
            " ".join(draw.choices(words, k=draw.choice([0, 1, 2, 9]))) + draw.choice(["", ".", "!"])
            for _ in range(draw.randrange(12))
        ]
        notice = ["We use cookies.", "Read more!", "It is page 1 of 9.", "See all news."]
        lines[len(lines) // 2 :] = notice if number % 3 == 0 else lines[len(lines) // 2 :]
        text = draw.choice(["\n", "\n", "\n\n", " "]).join(lines)
        found.append({"id": number, "text": None if number % 50 == 7 else text})
    return found


def written(rows: list[dict[str, Any]], folder: Path, files: int) -> Path:
    folder.mkdir()
    for number in range(files):
        part = rows[number * len(rows) // files : (number + 1) * len(rows) // files]
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        pq.write_table(pa.Table.from_pylist(part, schema), folder / f"{number:02}.parquet")
    return folder


@pytest.mark.ci(3)
@pytest.mark.ray(0)
@pytest.mark.parametrize(("files", "backend"), PLACES)
@pytest.mark.parametrize("unit", ["line", "paragraph", "sentences"])
def test_brute_force_at_one_shard_and_many(
    unit: str, files: int, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What is left, what is told and the books are those of a loop over all texts, and the same for any files."""
    rows = pages(300, seed=3)
    same = Paragraphs(unit=unit, min_words=4)
    left, spans, dropped = plain(
        [(row["id"], row["text"]) for row in rows], SpanDedup("text", unit, min_words=4, id_column="id")
    )
    out = tmp_path / "out"
    folder = written(rows, tmp_path / "in", files)
    summary = same.run(input=str(folder), output=str(out), backend=there(backend, request))
    main = {name: table for name, table in outputs(out).items() if not name.startswith("_side")}
    assert [tuple(row.values()) for table in main.values() for row in table.to_pylist()] == left
    told = output_rows(out / "_side/removed")
    assert [tuple(row[name] for name in ("id", "start", "end", "kept_id", "kept_start")) for row in told] == spans
    assert summary.books.dropped == dropped
    assert summary.books.rows_in == 300
    assert sum(dropped.values()) > 10
    assert len(spans) > 150


@pytest.mark.slow
def test_new_inputs_behind_the_others_change_no_output(tmp_path: Path) -> None:
    """The first of equal lines is kept, so no row changes for a later one: outputs are those of a run from nothing."""
    rows = pages(80, seed=4)
    folder = written(rows, tmp_path / "in", 4)
    last = (folder / "03.parquet").rename(tmp_path / "later")
    run_job(Paragraphs(), folder, tmp_path / "out")
    before = {name: data for name, data in everything(tmp_path / "out").items() if not name.startswith("_curate")}
    last.rename(folder / "03.parquet")
    run_job(Paragraphs(), folder, tmp_path / "out")
    run_job(Paragraphs(), folder, tmp_path / "new")
    after = {name: data for name, data in everything(tmp_path / "out").items() if not name.startswith("_curate")}
    assert before.items() < after.items()
    assert outputs(tmp_path / "out") == outputs(tmp_path / "new")
