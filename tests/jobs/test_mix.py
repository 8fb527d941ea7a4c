"""The job that mixes sources by weight."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.errors import ConfigError
from curate.mixture.choice import Keys
from curate.mixture.file import digest, parse_mixture
from curate.mixture.rows import Mixing
from curate.observe.job import find_job
from curate.testing.local import LocalRun, run_local
from jobs.mix import Mix
from tests.job.inline import everything, output_rows, outputs, quarantined, run_job, write_jsonl, write_parquet
from tests.mixture.plain import hashes, mixed

Rows = list[dict[str, Any]]


def corpus(number: int, seed: int = 0) -> Rows:
    """Rows of three sources and a fourth that is in no mixture; some ids are there twice."""
    rng = random.Random(seed)
    sources = rng.choices(["web", "books", "code", "other"], [6, 1, 2, 1], k=number)
    return [
        {
            "id": f"d{rng.randrange(number)}",
            "source": source,
            "lang": rng.choice(["en", "en", "de", None]),
            "text": "ä" * rng.randrange(9),
            "tokens": rng.randrange(12),
        }
        for source in sources
    ]


def mixture(folder: Path, budget: int, unit: str = "documents", **weights: float | str) -> str:
    """Writes a mixture; a weight may be a whole table."""
    tables = [
        f"[sources.{name}]\n{f'weight = {one}' if not isinstance(one, str) else one}" for name, one in weights.items()
    ]
    path = folder / "mix.toml"
    path.write_text(f'budget = {budget}\nunit = "{unit}"\n' + "\n".join(tables))
    return str(path)


def mixing(path: str, **columns: Any) -> Mixing:
    return Mixing(parse_mixture(Path(path).read_text(), path), "source", "id", **columns)


def spread(folder: Path, rows: Rows, files: int) -> Path:
    """Writes rows to files, in order."""
    for number in range(files):
        own = rows[len(rows) * number // files : len(rows) * (number + 1) // files]
        write_parquet(
            folder / f"{number:02}.parquet", pa.Table.from_pylist(own, schema=pa.table(rows_columns(rows)).schema)
        )
    return folder


def rows_columns(rows: Rows) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def books(ran: LocalRun) -> dict[str, dict[str, Any]]:
    return {row["source"]: row for row in ran.sides["sources"].to_pylist()}


@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("unit", "columns"),
    [
        ("documents", {}),
        ("documents", {"strata_column": "lang"}),
        ("characters", {"text_column": "text"}),
        ("tokens", {"count_column": "tokens", "strata_column": "lang"}),
    ],
)
def test_rows_are_those_of_a_plain_mixture(tmp_path: Path, unit: str, columns: dict[str, str]) -> None:
    """Each row as often as if rows were laid end to end, lowest hash first; in order, copies behind each other."""
    for seed, budget in ((1, 700), (2, 90), (3, 1501)):
        rows = corpus(300, seed)
        path = mixture(tmp_path, budget, unit, web=0.5, books=0.2, code="weight = 0.3\nmax_epochs = 50")
        job = Mix(mixture=path, allow_shortfall=True, batch_size=seed * 11, **{"text_column": "text", **columns})
        source, out = spread(tmp_path / f"in{seed}", rows, 5), tmp_path / f"out{seed}"
        assert run_job(job, source, out).state == "complete"
        copies = mixed(mixing(path, **columns), rows)
        assert [row for row in output_rows(out) if "written" not in row] == [
            row for row, number in zip(rows, copies, strict=True) for _ in range(number)
        ]


def test_quotas_are_met_to_the_row_and_the_books_say_so(tmp_path: Path) -> None:
    """Of documents, exactly; counters, extra output and rows say the same; the books balance."""
    rows = corpus(1000)
    path = mixture(tmp_path, 1001, web=0.5, books=0.2, code=0.3)
    ran = run_local(Mix(mixture=path), rows)
    had = Counter(row["source"] for row in rows)
    assert Counter(row["source"] for row in ran.rows) == {"web": 501, "books": 200, "code": 300}
    assert books(ran)["web"] == {
        "source": "web",
        "weight": 0.5,
        "unit": "documents",
        "wanted": 501,
        "available": had["web"],
        "written": 501,
        "missing": 0,
        "epochs": 501 / had["web"],
        "max_epochs": 4,
        "available_rows": had["web"],
        "written_rows": 501,
    }
    told = ran.summary.books
    assert told.counters["books: wanted documents"] == told.counters["books: written documents"] == 200
    assert told.counters["books: available documents"] == had["books"]
    assert told.dropped["source not in the mixture"] == had["other"]
    assert told.balanced()
    assert told.rows_out == 1001
    # Whole epochs first: the least and the most often that rows of a source are there differ by one.
    of = Counter(row["id"] for row in ran.rows if row["source"] == "books")
    once = Counter(row["id"] for row in rows if row["source"] == "books")
    assert {of[id] // number for id, number in once.items()} == {200 // had["books"], 200 // had["books"] + 1}


@pytest.mark.parametrize("unit", ["characters", "tokens"])
@pytest.mark.parametrize("strata", [None, "lang", "id"])
def test_sizes_are_met_from_below_to_a_document(tmp_path: Path, unit: str, strata: str | None) -> None:
    """However many strata there are, and though each of them is owed less than a row."""
    rows = corpus(600, 4)
    path = mixture(tmp_path, 1777, unit, web=0.5, books=0.2, code=0.3)
    job = Mix(mixture=path, count_column="tokens" if unit == "tokens" else None, strata_column=strata)
    ran = run_local(job, rows)
    size = (lambda row: row["tokens"]) if unit == "tokens" else (lambda row: len(row["text"]))
    assert sum(one["wanted"] for one in books(ran).values()) == 1777
    empty = [row for row in rows if row["source"] != "other" and not size(row)]
    assert ran.summary.books.dropped[f"no {unit}"] == len(empty) > 0
    for name, told in books(ran).items():
        own = [size(row) for row in ran.rows if row["source"] == name]
        assert (sum(own), len(own)) == (told["written"], told["written_rows"])
        assert told["available"] == sum(size(row) for row in rows if row["source"] == name)
        assert 0 <= told["missing"] == told["wanted"] - told["written"] < max(map(size, rows))


def test_the_same_rows_as_the_corpus_grows(tmp_path: Path) -> None:
    """A new file, before all others: as many rows go as come, and each is one whose hash is above what is left."""
    rows = corpus(900, 5)
    for row, number in zip(rows, range(len(rows)), strict=True):
        row["id"] = f"d{number}"
    new, old = rows[:300], rows[300:]
    path = mixture(tmp_path, 400, web=0.7, books=0.1, code=0.2)

    def ids(rows: Rows) -> Counter[str]:
        return Counter(row["id"] for row in run_local(Mix(mixture=path), rows).rows)

    before, after = ids(old), ids(new + old)
    news = {row["id"] for row in new}
    left, came = before - after, after - before
    assert set(came) <= news
    assert left.total() == came.total() == sum(number for id, number in after.items() if id in news) > 0
    number = dict(zip([row["id"] for row in rows], hashes(mixing(path), rows), strict=True))
    source = {row["id"]: row["source"] for row in rows}
    for name in ("web", "books", "code"):
        gone = [number[id] for id in left if source[id] == name]
        stay = [
            number[id]
            for id in after
            if source[id] == name and after[id] == max(after[one] for one in after if source[one] == name)
        ]
        assert not gone or min(gone) > max(stay)


def test_other_sources_and_files_change_nothing_of_a_source(tmp_path: Path) -> None:
    """Rows are drawn by their ids alone, whatever else there is, in any order and number of files."""
    rows = corpus(400, 6)
    path = mixture(tmp_path, 300, web=0.5, code=0.5)
    web = [row for row in run_local(Mix(mixture=path), rows).rows if row["source"] == "web"]
    others = [{**row, "id": f"x{at}", "source": "code"} for at, row in enumerate(corpus(200, 7))]
    rng = random.Random(1)
    shuffled = rng.sample(rows + others, len(rows) + len(others))
    again = [row for row in run_local(Mix(mixture=path), shuffled).rows if row["source"] == "web"]
    assert Counter(row["id"] for row in again) == Counter(row["id"] for row in web)


def chi_square(found: Counter[Any], expected: dict[Any, float]) -> float:
    return sum((found[one] - of) ** 2 / of for one, of in expected.items())


@pytest.mark.slow
def test_strata_have_the_shares_of_their_source(tmp_path: Path) -> None:
    """To the row by the column, and by chi-square in all that nobody asked for: what is drawn is a fair sample."""
    rng = random.Random(8)
    rows = [
        {"id": f"d{at}", "source": "web", "lang": rng.choice("aaaaabbbc"), "year": rng.randrange(20), "file": at // 500}
        for at in range(10_000)
    ]
    path = mixture(tmp_path, 2000, web=1.0)
    had = {name: Counter(row[name] for row in rows) for name in ("lang", "year", "file")}
    free, stratified = (run_local(Mix(mixture=path, strata_column=one), rows).rows for one in (None, "lang"))
    assert all(abs(Counter(row["lang"] for row in stratified)[one] - of / 5) < 1 for one, of in had["lang"].items())
    for drawn in (free, stratified):
        assert len(drawn) == 2000
        for name in ("year", "file"):
            found = chi_square(Counter(row[name] for row in drawn), {one: of / 5 for one, of in had[name].items()})
            # Of 19 degrees of freedom: beyond 43.8 one time in a thousand. Drawn from a fifth, it is 4/5 of that.
            assert 3 < found < 35
    assert chi_square(Counter(row["lang"] for row in free), {one: of / 5 for one, of in had["lang"].items()}) < 13.8
    other = run_local(Mix(mixture=mixture(tmp_path, 2000, web=1.0)), [{**row, "id": f"e{row['id']}"} for row in rows])
    assert len({row["id"][1:] for row in other.rows} & {row["id"] for row in free}) < 500


def test_strata_of_nearly_each_row_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curate.mixture.choice.MOST_STRATA", 50)
    with pytest.raises(ConfigError, match="the column 'id' makes more than 50 strata of 1 sources; name a column with"):
        run_local(Mix(mixture=mixture(tmp_path, 10, web=1.0), strata_column="id"), corpus(200))


def test_copies_are_numbered_if_asked(tmp_path: Path) -> None:
    rows = corpus(60, 9)
    path = mixture(tmp_path, 150, web="weight = 1\nmax_epochs = 100")
    ran = run_local(Mix(mixture=path, epoch_column="epoch"), rows)
    assert [{name: row[name] for name in row if name != "epoch"} for row in ran.rows] == run_local(
        Mix(mixture=path), rows
    ).rows
    assert ran.table.schema.field("epoch").type == pa.int32()
    at = 0
    for row, number in zip(rows, mixed(mixing(path), rows), strict=True):
        assert [one["epoch"] for one in ran.rows[at : at + number]] == list(range(number))
        assert all(one["id"] == row["id"] for one in ran.rows[at : at + number])
        at += number


def test_sources_may_be_files(tmp_path: Path) -> None:
    """By patterns of their paths; the column is added; a file of none is not in the mixture, one of two is refused."""
    rows = [{"id": f"d{at}", "n": at} for at in range(90)]
    for number, name in enumerate(("web/a", "web/x/b", "books/c", "notes/d")):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{**row, "id": f"{number}{row['id']}"} for row in rows])
    path = mixture(tmp_path, 100, web='weight = 1\nfiles = ["web/*"]', books='weight = 1\nfiles = "books/*"')
    summary = run_job(Mix(mixture=path), tmp_path / "in", tmp_path / "out")
    drawn = [row for row in output_rows(tmp_path / "out") if "n" in row]
    assert Counter(row["source"] for row in drawn) == {"web": 50, "books": 50}
    assert {row["source"]: row["id"][0] in "01" for row in drawn} == {"web": True, "books": False}
    assert summary.books.dropped["source not in the mixture"] == 90
    both = mixture(tmp_path, 100, web='weight = 1\nfiles = ["*"]', books='weight = 1\nfiles = ["books/*"]')
    failed = run_job(Mix(mixture=both), tmp_path / "in", tmp_path / "both")
    assert "the file 'books/c' fits the patterns of 'books' and 'web'" in failed.failures[0].error
    with pytest.raises(ConfigError, match="the sources of the mixture have files, but there is a column 'n' already"):
        run_local(Mix(mixture=path, source_column="n"), rows)


def test_what_cannot_be_met_is_refused_with_all_numbers_or_said(tmp_path: Path) -> None:
    """Each source that lacks something, what the data has instead, and what to do; then what there is, if asked."""
    rows = [{"id": f"d{at}", "source": ["web", "books", "wiki", None][at % 4]} for at in range(400)]
    path = mixture(tmp_path, 1000, web=0.5, boks=0.3, books="weight = 0.2\nmax_epochs = 2")
    with pytest.raises(ConfigError) as refused:
        run_local(Mix(mixture=path), rows, directory=tmp_path / "run")
    assert str(refused.value) == (
        "mix: source 'boks': 300 documents wanted, 0 available; source 'web': 500 documents wanted, 100 "
        "available, at most 400 in 4 epochs. The mixture does not name these values of 'source': null (100 rows), "
        "'wiki' (100 rows). Lower the budget or its weight, let it be repeated more often (max_epochs), or write "
        "what there is (allow_shortfall)"
    )
    with pytest.raises(ConfigError, match=r"'wikki': 10 documents wanted, 0 available; did you mean 'wiki'\?"):
        run_local(Mix(mixture=mixture(tmp_path, 10, wikki=1.0)), rows)
    path = mixture(tmp_path, 1000, web=0.5, boks=0.3, books="weight = 0.2\nmax_epochs = 2")
    ran = run_local(Mix(mixture=path, allow_shortfall=True), rows, directory=tmp_path / "run")
    assert Counter(row["source"] for row in ran.rows) == {"web": 400, "books": 200}
    assert {name: (one["wanted"], one["written"], one["missing"]) for name, one in books(ran).items()} == {
        "web": (500, 400, 100),
        "books": (200, 200, 0),
        "boks": (300, 0, 300),
    }
    assert ran.summary.books.counters["web: missing documents"] == 100
    assert ran.summary.books.counters["boks: missing documents"] == 300


@pytest.mark.slow
def test_a_refused_mixture_is_taken_back_and_its_hashes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job is left that would be in the way: with other weights in the file the same command works, its rows are
    those of a run from nothing, and no row is looked at twice for its hash."""
    source, out = spread(tmp_path / "in", corpus(300), 3), tmp_path / "out"
    hashed, apply = [], Keys.apply

    def counted(self: Keys, batch: pa.Table, *rest: Any) -> Any:
        hashed.append(batch.num_rows)
        return apply(self, batch, *rest)

    monkeypatch.setattr(Keys, "apply", counted)
    path = mixture(tmp_path, 5000, web=0.5, books=0.5)
    for _ in range(2):
        with pytest.raises(ConfigError, match="source 'books': 2,500 documents wanted"):
            run_job(Mix(mixture=path), source, out)
        assert not (out / "_curate" / "job.json").exists()
        assert {name.partition("/")[2].partition("/")[0] for name in everything(out)} <= {"stages"}
    path = mixture(tmp_path, 50, web=0.7, books=0.3)
    assert run_job(Mix(mixture=path), source, out).state == "complete"
    assert sum(hashed) == 300
    run_job(Mix(mixture=path), source, tmp_path / "anew")
    for name, data in everything(tmp_path / "anew").items():
        assert name.startswith("_curate/") or everything(out)[name] == data


def test_no_rows_at_all_is_a_mixture_that_cannot_be_met(tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.string()), "source": pa.array([], pa.string())})
    path = mixture(tmp_path, 10, web=1.0)
    with pytest.raises(ConfigError, match="source 'web': 10 documents wanted, 0 available"):
        run_local(Mix(mixture=path), empty)
    assert run_local(Mix(mixture=path, allow_shortfall=True), empty).summary.state == "complete"


@pytest.mark.parametrize("tokens", [[0, 0, 0], [0, -1, 0], [-1, -1, -1], [], [None, 0, 1]], ids=str)
def test_each_source_is_listed_once_whatever_rows_there_are(tmp_path: Path, tokens: list[int | None]) -> None:
    """With what it lacks, though no shard has a row that could be drawn, or any at all."""
    path = mixture(tmp_path, 10, "tokens", web=0.5, books=0.5)
    schema = pa.schema([("id", pa.string()), ("source", pa.string()), ("tokens", pa.int64())])
    for number, one in enumerate([*tokens, *tokens]):
        rows = [{"id": "a", "source": "web", "tokens": one}]
        write_parquet(tmp_path / "in" / f"{number}.parquet", pa.Table.from_pylist(rows, schema=schema))
    write_parquet(tmp_path / "in" / "none.parquet", schema.empty_table())
    job, out = Mix(mixture=path, count_column="tokens", allow_shortfall=True), tmp_path / "out"
    counters = run_job(job, tmp_path / "in", out).books.counters
    listed = pq.ParquetDataset(out / "_side" / "sources").read().to_pylist()
    assert [(one["source"], one["wanted"]) for one in listed] == [("books", 5), ("web", 5)]
    missing = [counters.get(f"{one['source']}: missing tokens", 0) for one in listed]
    assert missing == [one["missing"] for one in listed] == [5 - one["written"] for one in listed]


def test_rows_that_cannot_be_drawn_are_set_aside(tmp_path: Path) -> None:
    """Without an id, without a count, or of a size that none can be; once, and not drawn."""
    rows: Rows = [{"id": f"d{at}", "source": "web", "tokens": 2} for at in range(20)]
    rows += [
        {"id": None, "source": "web", "tokens": 2},
        {"id": "a", "source": "web", "tokens": None},
        {"id": "b", "source": "web", "tokens": -1},
        {"id": "c", "source": "web", "tokens": 2**41},
    ]
    out = tmp_path / "out"
    path = mixture(tmp_path, 80, "tokens", web=1.0)
    summary = run_job(Mix(mixture=path, count_column="tokens"), spread(tmp_path / "in", rows, 1), out)
    assert [(row["line"], row["reason"]) for row in quarantined(out)] == [
        (21, "no id"),
        (22, "no tokens"),
        (23, "tokens is below 0"),
        (24, "tokens is above 1,099,511,627,776"),
    ]
    assert (summary.books.quarantined, summary.books.rows_out) == (4, 40)
    unsigned = pa.table({"id": ["a", "b"], "source": ["web"] * 2, "tokens": pa.array([2**64 - 1, 80], pa.uint64())})
    assert [row["id"] for row in run_local(Mix(mixture=path, count_column="tokens"), unsigned).rows] == ["b"]


@pytest.mark.slow
def test_what_is_not_utf8_is_drawn_as_it_is(tmp_path: Path) -> None:
    """Texts and ids, and sources that no mixture can name; in quarantine, too."""
    bad = pa.array([b"\xff\xfe", b"a\xc3", b"good", b"\xff"]).view(pa.string())
    sources = pa.array([b"web", b"web", b"web", b"\xffweb"]).view(pa.string())
    table = pa.table({"id": bad, "source": sources, "text": bad, "n": [1, 2, 3, 4]})
    for unit in ("documents", "characters"):
        path = mixture(tmp_path, 100, unit, web="weight = 1\nmax_epochs = 100")
        ran = run_local(Mix(mixture=path), table)
        assert (ran.summary.state, set(ran.table["n"].to_pylist())) == ("complete", {1, 2, 3})
    with pytest.raises(
        ConfigError, match=re.escape("these values of 'source': '\N{REPLACEMENT CHARACTER}web' (1 rows)")
    ):
        run_local(Mix(mixture=mixture(tmp_path, 100, web=1.0)), table)
    source = write_parquet(tmp_path / "in.parquet", table.set_column(0, "id", pa.array([None, "b", "c", "d"])))
    run_job(Mix(mixture=mixture(tmp_path, 2, web=1.0)), source, tmp_path / "out")
    assert [row["reason"] for row in quarantined(tmp_path / "out")] == ["no id"]


@pytest.mark.parametrize(
    ("unit", "columns", "said"),
    [
        ("documents", {"id_column": "ids"}, "there is no column 'ids'; did you mean 'id'?"),
        ("documents", {"source_column": "soruce"}, "there is no column 'soruce'; did you mean 'source'?"),
        ("documents", {"strata_column": "language"}, "there is no column 'language'"),
        ("documents", {"source_column": "score"}, "the column of sources, 'score', is double, expected texts"),
        ("documents", {"count_column": "tokens"}, "the budget is in documents, so the counts of 'tokens' have no use"),
        ("documents", {"epoch_column": "text"}, "there is a column 'text' already; choose another epoch column"),
        ("tokens", {}, "the budget is in tokens; name the column with the number of tokens of each row"),
        ("tokens", {"count_column": "score"}, "the column 'score' is double, expected whole numbers"),
        ("characters", {"text_column": "tokens"}, "the column 'tokens' is int64, expected texts"),
    ],
)
def test_columns_that_make_no_sense_are_refused(tmp_path: Path, unit: str, columns: dict[str, str], said: str) -> None:
    """Before anything runs."""
    rows = [{"id": "a", "source": "web", "text": "a", "tokens": 1, "score": 0.5}]
    with pytest.raises(ConfigError, match=re.escape(said)):
        run_local(Mix(mixture=mixture(tmp_path, 1, unit, web=1.0), **columns), rows)


def test_what_the_file_says_is_the_identity(tmp_path: Path) -> None:
    """Another place and other comments are the same job; another weight is refused, with both; the digest is kept."""
    rows, out = corpus(60, 3), tmp_path / "out"
    source = spread(tmp_path / "in", rows, 2)
    path = Path(mixture(tmp_path, 30, web=0.5, code=0.5))
    assert run_job(Mix(mixture=str(path)), source, out).state == "complete"
    before = everything(out)
    other = tmp_path / "other.toml"
    other.write_text("# of May\n" + path.read_text())
    assert run_job(Mix(mixture=str(other)), source, out).state == "complete"
    assert {name: data for name, data in everything(out).items() if not name.startswith("_curate/")} == {
        name: data for name, data in before.items() if not name.startswith("_curate/")
    }
    own = {"weight": 0.5, "max_epochs": 4}
    told = find_job(str(out)).job["identity"]
    assert told["mixture_sha256"] == digest(parse_mixture(path.read_text(), ""))
    assert told["mixture"] == {
        "budget": 30,
        "unit": "documents",
        "seed": 0,
        **{f"sources.{name}.{key}": value for name in ("code", "web") for key, value in own.items()},
    }
    other.write_text(path.read_text().replace("[sources.web]\nweight = 0.5", "[sources.web]\nweight = 0.25"))
    with pytest.raises(ConfigError, match=r"mixture\.sources\.web\.weight: made with 0\.5, you asked for 0\.25"):
        run_job(Mix(mixture=str(other)), source, out)
    other.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        Mix(mixture=str(other)).spec()


def test_many_copies_are_written_a_batch_at_a_time(tmp_path: Path) -> None:
    """A source of few rows may be there a thousand times."""
    path = mixture(tmp_path, 50_000, web="weight = 1\nmax_epochs = 10_000")
    ran = run_local(Mix(mixture=path, epoch_column="epoch"), [{"id": at, "source": "web"} for at in range(7)])
    copies = Counter(ran.table["id"].to_pylist())
    assert (copies.total(), {*copies.values()}) == (50_000, {50_000 // 7, 50_000 // 7 + 1})
    assert {*ran.table["epoch"].to_pylist()} == {*range(50_000 // 7 + 1)}


def test_what_a_mixture_and_a_split_choose_is_unrelated(tmp_path: Path) -> None:
    """A mixture of half of the rows has a tenth of them in a part of a tenth."""
    from jobs.split import Split

    rows = [{"id": f"d{at}", "source": "web"} for at in range(4000)]
    drawn = run_local(Mix(mixture=mixture(tmp_path, 2000, web=1.0)), rows).rows
    parts = run_local(Split(parts={"train": 0.9, "test": 0.1}), drawn)
    assert abs(parts.sides["test"].num_rows - 200) < 4 * np.sqrt(180)


def test_outputs_are_called_after_inputs(tmp_path: Path) -> None:
    rows = corpus(50)
    assert (
        run_job(Mix(mixture=mixture(tmp_path, 10, web=1.0)), spread(tmp_path / "in", rows, 3), tmp_path / "out").state
        == "complete"
    )
    names = [f"{one:02}.parquet" for one in range(3)]
    assert sorted(outputs(tmp_path / "out")) == sorted([*names, *(f"_side/sources/{one}" for one in names)])
