"""Reports of corpora: their numbers are DuckDB's, the same at any parallelism and after growth, and add up with the
books of the job that made the corpus."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import curate
from curate.cli.main import cli
from curate.errors import ConfigError
from curate.keywords import on_command_line
from curate.observe.job import read_status
from curate.report import make
from curate.report.corpus import Corpus, Source
from curate.report.html import document
from curate.report.make import make_report, wanted
from curate.report.model import score_bounds, sources_of
from curate.sources import columns

SOURCES = ("cc", "wiki", "forum")


def rows(number: int, count: int = 200) -> pa.Table:
    rng = random.Random(number)
    texts = [" ".join(rng.choices(["alpha", "beta", "ü", "<b>"], k=rng.randrange(40))) for _ in range(count)]
    return pa.table(
        {
            "id": [f"{number}-{at}" for at in range(count)],
            "text": pa.array([None if at % 50 == 7 else text for at, text in enumerate(texts)]),
            "source": [rng.choice(SOURCES) for _ in range(count)],
            "score": pa.array([rng.random() for _ in range(count)], pa.float32()),
            "year": pa.array([2000 + rng.randrange(25) for _ in range(count)], pa.int16()),
        }
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Five files, and the output of a job that keeps half of them, and nearly nothing of one source."""
    (tmp_path / "in").mkdir()
    for number in range(5):
        pq.write_table(rows(number), tmp_path / "in" / f"{number}.parquet")
    kept = (curate.col("score") > 0.5) & ((curate.col("source") != "forum") | (curate.col("score") > 0.97))
    ds = curate.read_parquet(tmp_path / "in").filter(kept)
    assert ds.write_parquet(tmp_path / "out", backend="inline").done == 5
    return tmp_path / "out"


def made(corpus: Path, **how: Any) -> dict[str, Any]:
    return make_report(wanted(str(corpus), **({"by": "source", "backend": "inline"} | how)))


def one(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(column for column in report["columns"] if column["name"] == name)


def asked(what: str, folder: Path) -> list[tuple[Any, ...]]:
    """Returns what DuckDB tells of the Parquet files in a folder."""
    return duckdb.sql(what.format(f"'{folder}/*.parquet'")).fetchall()


def test_its_numbers_are_duckdbs(corpus: Path) -> None:
    report = made(corpus)
    assert asked("select count(*) from {}", corpus) == [(report["rows"],)]
    text = one(report, "text")
    lengths = "select count(text), min(length(text)), max(length(text)) from {}"
    assert asked(lengths, corpus) == [(text["rows"] - text["nulls"], text["least"], text["greatest"])]
    characters = "sum(length(id)) + sum(length(text)) + sum(length(source))"
    assert asked(f"select {characters} from {{}}", corpus) == [(report["characters"],)]
    year = one(report, "year")
    assert asked("select min(year), avg(year), max(year) from {}", corpus) == [
        (year["least"], pytest.approx(year["mean"]), year["greatest"])
    ]
    assert dict(map(tuple, year["frequent"])) == dict(asked("select year, count(*) from {} group by year", corpus))
    score = one(report, "score")
    assert asked("select avg(score::double) from {}", corpus) == [(pytest.approx(score["mean"]),)]
    by_source = (
        "select source, count(*), sum(length(id)) + sum(length(text)) + sum(length(source)) from {} group by source"
    )
    told = {(own["source"], own["rows"], own["characters"]) for own in report["sources"]}
    assert told == set(asked(by_source, corpus))
    before = dict(asked("select source, count(*) from {} group by source", corpus.parent / "in"))
    assert {own["source"]: own["rows_in"] for own in report["sources"]} == before
    assert [own["source"] for own in report["sources"] if own["lost"]] == ["forum"]
    for column in report["columns"]:
        assert sum(bar[2] for bar in column.get("histogram", [])) == column["rows"] - column["nulls"]


def test_it_adds_up_with_the_books(corpus: Path) -> None:
    report = made(corpus)
    rows = report["job"]["rows"]
    assert rows["out"] == report["rows"] == sum(source["rows"] for source in report["sources"])
    assert rows["in"] == sum(source["rows_in"] for source in report["sources"]) == 1000


def test_dropped_rows_are_shown_by_reason(corpus: Path) -> None:
    """20 of each reason, chosen by hash over all shards; the page has them as texts."""
    report = made(corpus)
    [dropped] = report["job"]["dropped"]
    assert {dropped["reason"]: dropped["rows"]} == report["job"]["rows"]["dropped"]
    shown = [orjson.loads(row["row"]) for row in dropped["samples"]]
    assert len({row["id"] for row in shown}) == 20
    assert len({row["shard"] for row in dropped["samples"]}) > 1
    assert all(row["score"] <= 0.97 for row in shown)
    page = document(report).decode()
    assert shown[0]["id"] in page
    assert "<b>" not in page


def test_characters_of_sources_add_up(tmp_path: Path) -> None:
    """Texts in structs and dictionaries count, nulls do not."""
    table = pa.table(
        {
            "by": pa.array(["a", "b", None, "a"]),
            "in": pa.array([{"t": "four"}, None, {"t": None}, {"t": "ü"}]),
            "code": pa.array(["x", None, "yy", "x"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "one.parquet")
    report = make_report(wanted(str(tmp_path / "one.parquet"), by="by", work=str(tmp_path / "r"), backend="inline"))
    assert sum(source["characters"] for source in report["sources"]) == report["characters"] == 3 + 5 + 4
    assert {source["source"]: source["characters"] for source in report["sources"]} == {"a": 9, "b": 1, None: 2}


def test_columns_whose_names_are_alike_are_two(tmp_path: Path) -> None:
    """A column called like a field of another one."""
    table = pa.table({"a.b": [1, 2, 3], "a": [{"b": "x"}, {"b": "y"}, {"b": None}]})
    for part in range(2):
        pq.write_table(table, tmp_path / f"{part}.parquet")
    report = make_report(wanted(str(tmp_path), work=str(tmp_path) + "-r", backend="inline"))
    assert {column["name"]: column["kind"] for column in report["columns"]} == {'"a.b"': "number", "a.b": "text"}
    assert (one(report, '"a.b"')["nulls"], one(report, "a.b")["nulls"]) == (0, 2)


@pytest.mark.parametrize("gone", [True, False])
def test_sources_that_are_not_known_say_why(corpus: Path, gone: bool) -> None:
    """Inputs that are gone, or that lack the column; not as if nothing was asked."""
    if gone:
        (corpus.parent / "in" / "3.parquet").unlink()
        report = made(corpus)
        assert "3.parquet" in report["job"]["inputs_unknown"]
    else:
        other = curate.read_parquet(corpus).with_column("kind", lambda row: row["source"])
        assert other.write_parquet(corpus.parent / "other", backend="inline").state == "complete"
        report = made(corpus.parent / "other", by="kind")
        assert report["job"]["inputs_unknown"] == "the inputs of the job have no column 'kind'"
    assert all("kept" not in source for source in report["sources"])
    assert b"is not known: " in document(report)


def test_inputs_are_those_of_the_plan(corpus: Path) -> None:
    """Not whatever lies beside them now."""
    before = made(corpus)["sources"]
    pq.write_table(rows(9), corpus.parent / "in" / "9.parquet")
    assert made(corpus, work=str(corpus.parent / "anew"))["sources"] == before


def test_a_quarantine_that_was_not_read_whole_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(row: dict[str, int]) -> dict[str, int]:
        raise curate.BadRow(f"odd{row['id'] * 0}")

    out = tmp_path / "out"
    curate.range(9).map(odd).write_parquet(out, backend="inline", max_bad_rows="100%")
    monkeypatch.setattr(make, "MOST_QUARANTINED", 4)
    report = make_report(wanted(str(out), backend="inline"))
    assert report["job"]["quarantine_read"] == 4
    assert b"The first 4 of 9 were looked at" in document(report)


class TestDuplicates:
    """What a deduplication removed: sizes, similarities, sources, and pairs with their texts."""

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["exact", "minhash"])
    def test_it_is_counted_and_shown(self, kind: str, tmp_path: Path) -> None:
        words = [" ".join(f"w{100 * text + at}" for at in range(60)) for text in range(6)]
        some = [
            {
                "id": f"{text}-{copy}",
                "text": words[text] + f" <i>{copy}" * (kind == "minhash"),
                "source": "ab"[copy % 2],
            }
            for text in range(6)
            for copy in range(text + 1)
        ]
        for part in range(2):
            (tmp_path / "in").mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_pylist(some[part::2]), tmp_path / "in" / f"{part}.parquet")
        ds = curate.read_parquet(tmp_path / "in")
        found = (
            ds.dedup_exact("text", id_column="id")
            if kind == "exact"
            else ds.dedup_minhash("text", id_column="id", threshold=0.7, priority={"source": ["b"]})
        )
        assert found.write_parquet(tmp_path / "out", backend="inline").state == "complete"
        report = made(tmp_path / "out")
        told = report["job"]["duplicates"]
        removed = duckdb.sql(f"select count(*) from '{tmp_path}/out/_side/duplicates/*.parquet'").fetchall()
        assert removed == [(told["rows"],)] == [(sum(count for _, count in told["similarities"]),)] == [(15,)]
        assert told["clusters"] == [[str(size), 1] for size in range(2, 7)]
        assert sum(count for _, count in told["sources"]) == 15
        assert len(told["pairs"]) == 15
        for pair in told["pairs"]:
            assert pair["id"].partition("-")[0] == pair["kept_id"].partition("-")[0]
            assert pair["column"] == "text"
            assert pair["text"].startswith(words[int(pair["id"][0])][:50])
            assert (pair["text"] == pair["kept_text"]) == (kind == "exact")
        # Of each text but the first one copy of b is kept.
        lost = [["a", "b", 11], ["b", "b", 4]]
        assert told["lost_to"] == ([] if kind == "exact" else lost)
        page = document(report).decode()
        assert ("by the source of the row that is kept" in page) == (kind == "minhash")
        assert ("<mark>" in page) == (kind == "minhash")
        assert "<i>1" not in page
        assert "15 rows were removed as duplicates of 5 that are kept" in page


def test_a_deduplication_that_removed_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(rows(1), tmp_path / "in" / "1.parquet")
    ds = curate.read_parquet(tmp_path / "in").dedup_exact("id", id_column="id")
    assert ds.write_parquet(tmp_path / "out", backend="inline").state == "complete"
    told = made(tmp_path / "out")["job"]["duplicates"]
    assert told is None or (told["rows"], told["clusters"], told["pairs"]) == (0, [], [])


class TestAgainst:
    """Two corpora side by side: what appeared, what went, what changed."""

    @pytest.fixture
    def other(self, corpus: Path) -> Path:
        """The same rows but for some: one file more, one less, every tenth year another."""
        for number in range(1, 6):
            table = rows(number)
            years = [year + (at % 10 == 0) for at, year in enumerate(table["year"].to_pylist())]
            changed = table.set_column(4, "year", pa.array(years, pa.int16())).drop_columns(["score"])
            (corpus.parent / "other").mkdir(exist_ok=True)
            pq.write_table(changed, corpus.parent / "other" / f"{number}.parquet")
        whole = curate.read_parquet(corpus.parent / "in").drop_columns(["score"])
        assert whole.write_parquet(corpus.parent / "whole", backend="inline").state == "complete"
        return corpus.parent / "other"

    def test_ids_are_those_that_duckdb_tells_apart(self, corpus: Path, other: Path) -> None:
        here = corpus.parent / "whole"
        report = made(here, against=str(other), id_column="id")
        ids = report["against"]["ids"]
        both = f"'{here}/*.parquet' a full outer join '{other}/*.parquet' b on a.id = b.id"
        counted = duckdb.sql(
            "select count(*) filter (a.year = b.year), count(*) filter (a.year != b.year), "
            f"count(*) filter (b.id is null), count(*) filter (a.id is null) from {both}"
        ).fetchall()
        assert counted == [(ids["equal"], ids["changed"], ids["appeared"], ids["went"])] == [(720, 80, 200, 200)]
        assert {one.partition("-")[0] for one in ids["examples"]["appeared"]} == {"0"}
        assert {one.partition("-")[0] for one in ids["examples"]["went"]} == {"5"}
        assert all(int(one.partition("-")[2]) % 10 == 0 for one in ids["examples"]["changed"])
        assert [len(own) for own in ids["examples"].values()] == [20, 20, 20]
        again = made(here, against=str(other), id_column="id")
        assert again == report
        assert b"Beside another corpus" in document(report)

    @pytest.mark.slow
    def test_it_sees_what_is_new(self, corpus: Path, other: Path) -> None:
        here = corpus.parent / "whole"
        made(here, against=str(other), id_column="id")
        pq.write_table(rows(0).drop_columns(["score"]), other / "0.parquet")
        assert made(here, against=str(other), id_column="id")["against"]["ids"]["appeared"] == 0

    @pytest.mark.slow
    def test_columns_are_put_beside_each_other(self, corpus: Path, other: Path) -> None:
        """Those of one side alone, too; and the books of two runs."""
        report = made(corpus, against=str(other))
        assert report["against"]["ids"] is None
        assert report["against"]["report"]["rows"] == 1_000
        page = document(report).decode()
        assert "<code>score</code>" in page
        assert "no column of ids was named" in page
        two = made(corpus, against=str(corpus), id_column="id")
        assert two["against"]["ids"]["equal"] == two["rows"]
        assert "All columns have the same numbers." in document(two).decode()

    def test_a_column_that_is_not_there(self, corpus: Path, other: Path) -> None:
        """It is told with the option that names it, before all rows are read for a report."""
        work = corpus.parent / "unmade"
        with pytest.raises(ConfigError, match=r"there is no column 'idd'; did you mean 'id'.*with id_column=\.\.\.$"):
            made(corpus, against=str(other), id_column="idd", work=str(work))
        with on_command_line(), pytest.raises(ConfigError, match=r"there is no column 'kin'; .*with --by \.\.\.$"):
            made(corpus, by="kin", work=str(work))
        assert not work.exists()

    def test_ids_without_another_corpus(self, corpus: Path) -> None:
        with pytest.raises(ConfigError, match=r"--against|against="):
            made(corpus, id_column="id")

    def test_ids_that_are_null_or_there_twice(self, tmp_path: Path) -> None:
        """Rows of one id are equal whatever their order, and not if there is one more of them."""
        for name, ids, values in (
            ("a", [1, 1, None, 2, 2], ["x", "y", "z", "v", "v"]),
            ("b", [1, None, 1, 2], ["y", "z", "x", "v"]),
        ):
            pq.write_table(pa.table({"id": ids, "v": values}), tmp_path / f"{name}.parquet")
        how = {"by": "", "work": str(tmp_path / "r"), "against": str(tmp_path / "b.parquet"), "id_column": "id"}
        ids = made(tmp_path / "a.parquet", **how)["against"]["ids"]
        assert (ids["equal"], ids["changed"], ids["appeared"], ids["went"]) == (2, 1, 0, 0)


@pytest.mark.slow
def test_the_same_on_workers_and_when_it_grows(corpus: Path) -> None:
    """On worker processes as in this one; and of files that came later as of all at once."""
    here = made(corpus, work=f"{corpus}-here")
    assert made(corpus, work=f"{corpus}-there", backend="local") == here
    plain = corpus.parent / "in"
    before = made(plain)
    pq.write_table(rows(9), plain / "9.parquet")
    grown = made(plain)
    assert grown["rows"] == before["rows"] + 200
    assert grown == made(plain, work=f"{corpus}-anew")


def test_the_page_shows_texts_as_texts(corpus: Path) -> None:
    """Markup in a corpus is text in its report; nothing is fetched, and no script runs but the page's own."""
    hostile = corpus.parent / "hostile"
    hostile.mkdir()
    texts = ["<script>alert(1)</script>", "\x1b[31mred", "\u202eright to left", "x" * 10_000_000, ""]
    pq.write_table(pa.table({"<img src=x onerror=alert(1)>": texts * 2}), hostile / "a.parquet")
    page = document(make_report(wanted(str(hostile), backend="inline"))).decode()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert not {"\x1b", "\u202e"} & set(page)
    assert "default-src &#x27;none&#x27;" in page
    assert len(page) < 100_000


def test_a_corpus_without_rows_or_columns(tmp_path: Path) -> None:
    for name, table in {"rows": rows(0, 0), "columns": pa.table({}), "both": pa.table({"a": pa.nulls(3)})}.items():
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "a.parquet")
        report = make_report(wanted(str(tmp_path / name), backend="inline"))
        assert report["rows"] == table.num_rows
        assert document(report)


@pytest.mark.slow
def test_on_the_command_line(corpus: Path) -> None:
    """It writes one file, its own only; says what is wrong; and tells its numbers as JSON."""
    page = corpus.parent / "page.html"
    argv = ["report", str(corpus), "--by", "source", "--backend", "inline"]
    first = CliRunner().invoke(cli, [*argv, "--output", str(page)])
    assert first.exit_code == 0, first.output
    assert page.read_text().startswith("<!doctype html>")
    again = CliRunner().invoke(cli, [*argv, "--output", str(page)])
    assert again.exit_code == 0
    page.write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not a page of curate"):
        CliRunner().invoke(cli, [*argv, "--output", str(page)], catch_exceptions=False)
    with pytest.raises(ConfigError, match="did you mean 'source'"):
        CliRunner().invoke(cli, ["report", str(corpus), "--by", "sorce"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="a glob has no place beside it"):
        CliRunner().invoke(cli, ["report", f"{corpus}/*.parquet"], catch_exceptions=False)


def test_the_threshold_of_a_job() -> None:
    """It is drawn into the column that a parameter names, or the only one with scores."""
    scores = Corpus.of(pa.schema({"toxicity": pa.float32()}))
    scores.columns[0].numbers.unit.update({3: 1})
    scores.columns[0].numbers.count = 1
    assert score_bounds(scores, {"parameters": {"threshold": 0.5}}) == {"toxicity": 0.5}
    assert score_bounds(scores, {"parameters": {"threshold": "0.5"}}) == {}
    assert score_bounds(scores, {}) == {}


def test_sources_that_are_gone() -> None:
    told = sources_of(Corpus([], rows=5, sources={"a": Source(5, 50)}), {"a": Source(10), "b": Source(4)})
    assert [(one["source"], one["kept"], one["lost"]) for one in told] == [("a", 0.5, False), ("b", 0.0, True)]


def test_a_report_is_called_so_on_screens(tmp_path: Path) -> None:
    """The list of known jobs, and the display of its run, say what it is."""
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    make_report(wanted(str(tmp_path / "a.parquet"), work=str(tmp_path / "work"), backend="inline"))
    assert read_status(str(tmp_path / "work" / "rows"), 0.0).job == "report"


@pytest.mark.parametrize(
    ("format", "usual", "odd", "type"),
    [
        ("json", 1, 2**64 - 1, pa.uint64()),
        ("csv", "1", "x", pa.string()),
        ("json", None, ["x"], pa.list_(pa.string())),
        ("csv", True, None, pa.bool_()),
    ],
)
def test_outputs_are_read_as_their_job_wrote_them(
    format: str, usual: Any, odd: Any, type: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CSV and JSON lines do not tell types, and the outputs that are looked at may lack what another one has. A report
    that was made before of rows that were read as others is made anew."""
    monkeypatch.setattr(columns, "MORE_FILES", 0)
    parts = [pa.table({"v": pa.array([value], type)}) for value in (usual, odd, usual)]
    getattr(curate.from_arrow(parts), f"write_{format}")(tmp_path / "out", backend="inline")
    asked = wanted(str(tmp_path / "out"), backend="inline")
    with (
        monkeypatch.context() as patched,
        nullcontext() if odd is None else pytest.raises(ConfigError, match="2 of 3 shards"),
    ):
        patched.setattr(make, "_told_by", lambda _: None)
        make_report(asked)
    report = make_report(asked)
    (column,) = (one for one in report["columns"] if "[]" not in one["name"])
    assert (report["rows"], column["nulls"]) == (3, [usual, odd, usual].count(None))
    assert make_report(asked) == report
