"""Every number of a report adds up: to `summary.json` of the job that made the corpus, and to what DuckDB counts.

The model is walked: a number that nothing here says the value of fails the test. So does another model than the golden
one, at any parallelism, after kills.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import duckdb
import orjson
import pyarrow.parquet as pq
import pytest

from curate.ledger import layout
from curate.report.make import make_report, wanted
from curate.report.model import QUANTILES
from curate.report.numbers import UNIT
from curate.storage.protocol import Store
from curate.stores.open import wrap_stores
from tests.pages.test_numbers import Place, numbers
from tests.report.samples import reports, scored

__all__ = ["reports"]

GOLDEN = Path(__file__).with_name("scored.json")
MEASURES = {"text": "length({})", "bytes": "octet_length({})", "list": "len({})", "number": "{}", "date": "{}"}
"""By kind of a column, what of its values is a number."""


class Truth:
    """What DuckDB finds in the outputs of a job, and in its inputs."""

    def __init__(self, output: str) -> None:
        self.root = Path(output)
        self.tables = {"out": f"'{output}/*.parquet'", "in": f"'{output}/../in/*.parquet'"}
        self.summary = orjson.loads((self.root / layout.SUMMARY).read_bytes())

    def asked(self, what: str, rest: str = "", table: str = "out") -> list[tuple[Any, ...]]:
        return duckdb.sql(f"SELECT {what} FROM {self.tables[table]} {rest}").fetchall()

    def one(self, what: str, rest: str = "") -> Any:
        [(found,)] = self.asked(what, rest)
        return found

    def numbers(self, report: Mapping[str, Any]) -> dict[Place, Any]:
        """Returns what each number of a report is to be, by place."""
        texts = [one["name"] for one in report["columns"] if one["kind"] == "text"]
        characters = " + ".join(f"coalesce(sum(length({name})), 0)" for name in texts)
        sources = {key: tuple(rest) for key, *rest in self.asked(f"source, count(*), {characters}", "GROUP BY source")}
        before = dict(self.asked("source, count(*)", "GROUP BY source", "in"))
        told = {
            "version": 1,
            "rows": self.one("count(*)"),
            "bytes": sum(pq.read_table(path).nbytes for path in self.root.glob("*.parquet")),
            "characters": self.one(characters),
            "columns": [self.column(one) for one in report["columns"]],
            "sources": [self.source(one["source"], sources, before) for one in report["sources"]],
            "other_sources": {"rows": 0, "characters": 0},
            "job": {
                "identity": orjson.loads((self.root / layout.JOB).read_bytes())["identity"],
                "rows": self.summary["rows"],
                "quarantine": [self.reason(one) for one in report["job"]["quarantine"]],
                "quarantine_read": self.summary["rows"]["quarantined"],
                "dropped": [
                    {"rows": self.summary["rows"]["dropped"][one["reason"]]} for one in report["job"]["dropped"]
                ],
            },
        }
        return dict(numbers(orjson.loads(orjson.dumps(told))))

    def source(self, key: Any, now: Mapping[Any, Any], before: Mapping[Any, int]) -> dict[str, Any]:
        rows, characters = now.get(key, (0, 0))
        return {"rows": rows, "characters": characters, "rows_in": before[key], "kept": rows / before[key]}

    def reason(self, one: Mapping[str, Any]) -> dict[str, Any]:
        """Each row is in the input where it is said to be."""
        lines = []
        for sample in one["samples"]:
            name = orjson.loads(sample["row"])["id"]
            [(words, file)] = self.asked("words, filename", f"WHERE id = '{name}'", "in")
            assert (words, Path(file).stem) == (7, sample["shard"])
            lines.append(sample["line"])
        [(seven,)] = self.asked("count(*) FILTER (words = 7)", "", "in")
        assert seven == self.summary["rows"]["quarantined"]
        return {"rows": seven, "samples": [{"line": line} for line in lines]}

    def column(self, one: Mapping[str, Any]) -> dict[str, Any]:
        name, kind = one["name"], one["kind"]
        told: dict[str, Any] = {
            "rows": self.one("count(*)"),
            "nulls": self.one(f"count(*) FILTER ({name} IS NULL)"),
            "distinct": self.one(f"count(DISTINCT {name})"),
            "frequent": self.frequent(one),
            "frequent_missed": 0,
        }
        if kind in ("text", "bytes"):
            told["bytes"] = self.one(f"sum({'strlen' if kind == 'text' else 'octet_length'}({name}))")
        if kind not in MEASURES:
            return told
        value = MEASURES[kind].format(name)
        ends = self.asked(f"min({value}), max({value})")[0]
        assert [str(end) for end in ends] == [str(one["least"]), str(one["greatest"])]
        told |= {"quantiles": self.quantiles(one, value), "histogram": self.bars(one, value)}
        if kind != "date":
            told |= {"least": ends[0], "greatest": ends[1], "mean": self.one(f"avg({value})")}
        if "kept_from" in one:
            at_least = "count(*) FILTER (floor({} * {}) >= {})"
            steps = [self.one(at_least.format(name, UNIT, at * UNIT // 100)) for at in range(100)]
            told |= {"kept_from": [[at / 100, count] for at, count in enumerate(steps)], "threshold": 0.25}
        return told

    def quantiles(self, one: Mapping[str, Any], value: str) -> dict[str, Any]:
        """As near as a sketch is."""
        shares = {str(share): self.one(f"quantile_disc({value}, {share})") for share in QUANTILES}
        for share, true in shares.items():
            found = one["quantiles"][share]
            if isinstance(found, str):
                assert found == str(true)
            else:
                assert found == pytest.approx(true, rel=1 / 64)
        return dict(one["quantiles"])

    def bars(self, one: Mapping[str, Any], value: str) -> list[list[Any]]:
        """Each bar has the rows between its ends; all of them together have all rows that are not null."""
        found: list[list[Any]] = []
        for low, high, _ in one["histogram"]:
            last = f"{value} = {high!r} AND {high!r} = {one['greatest']!r}"
            where = f"{value} >= {low!r} AND ({value} < {high!r} OR {value} = {low!r} OR {last})"
            if "kept_from" in one:
                where = (
                    f"floor({value} * {UNIT}) >= {round(low * UNIT)} AND floor({value} * {UNIT}) < {round(high * UNIT)}"
                )
            found.append([low, high, self.one(f"count(*) FILTER ({where})")])
        assert sum(bar[2] for bar in found) == one["rows"] - one["nulls"], one["name"]
        return found

    def frequent(self, one: Mapping[str, Any]) -> list[list[Any]]:
        counts = {shown(key): count for key, count in self.asked(f"{one['name']}, count(*)", f"GROUP BY {one['name']}")}
        return [[value, counts[value]] for value, _ in one["frequent"]]


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex(" ")
    return value if isinstance(value, int | float | str) or value is None else str(value)


@pytest.mark.slow
def test_every_number_of_a_report(reports: dict[str, dict[str, Any]]) -> None:
    report = orjson.loads(orjson.dumps(reports["scored"]))
    expected = Truth(report["corpus"]).numbers(report)
    found = dict(numbers(report))
    assert found.keys() == expected.keys()
    wrong = {
        place: (value, expected[place])
        for place, value in found.items()
        # What rows take in memory depends on the tables that they come in: offsets, and marks of nulls.
        if not math.isclose(value, expected[place], rel_tol=0.01 if place == ("bytes",) else 1e-9)
    }
    assert wrong == {}
    rows = report["job"]["rows"]
    assert rows["in"] + rows["created"] == rows["out"] + sum(rows["dropped"].values()) + rows["quarantined"]
    assert rows["out"] == report["rows"] == sum(one["rows"] for one in report["sources"])
    assert rows["in"] == sum(one["rows_in"] for one in report["sources"])


def plain(report: Mapping[str, Any]) -> Any:
    """Returns a report without what depends on where its files are, and on the code of the job beside them."""
    told = orjson.loads(orjson.dumps(report))
    return {**told, "corpus": "CORPUS", "job": {**told["job"], "identity": "IDENTITY"}}


def test_the_golden_report(reports: dict[str, dict[str, Any]]) -> None:
    """The model of a corpus is what it was; where it changes on purpose, what was found is written into the file."""
    assert plain(reports["scored"]) == orjson.loads(GOLDEN.read_bytes())


class Watched:
    """A store that copies a folder before each change of something in it: what a kill would leave there."""

    def __init__(self, inner: Store, folder: Path, copies: list[Path]) -> None:
        self._inner, self._folder, self._copies = inner, folder, copies

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._inner, name)
        if name not in ("writer", "publish", "replace"):
            return called

        def copied(uri: str, *rest: Any, **more: Any) -> Any:
            if uri.startswith(f"{self._folder}/") and self._folder.exists():
                copy = self._folder.with_name(f"copy-{len(self._copies)}")
                self._copies.append(Path(shutil.copytree(self._folder, copy)))
            return called(uri, *rest, **more)

        return copied


def bury(copy: Path) -> None:
    """Has the ledger say that its runs were of a process that is gone, which is this one."""
    for path in copy.glob("*/_curate/runs/*/*.json"):
        path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"pid_started": "1"}))


@pytest.mark.slow
def test_the_same_report_after_kills(tmp_path: Path) -> None:
    """Wherever the making of it ended, it goes on, to the golden one."""
    corpus, work, copies = scored(tmp_path), tmp_path / "work", []  # type: ignore[var-annotated]
    with wrap_stores(lambda store: cast(Store, Watched(store, work, copies))):
        make_report(wanted(corpus, by="source", work=str(work), backend="inline"))
    golden = orjson.loads(GOLDEN.read_bytes())
    assert len(copies) > 8
    for copy in copies[:: len(copies) // 4]:
        bury(copy)
        assert plain(make_report(wanted(corpus, by="source", work=str(copy), backend="inline"))) == golden


@pytest.mark.slow
def test_the_same_report_on_workers(tmp_path: Path) -> None:
    corpus = scored(tmp_path)
    assert plain(make_report(wanted(corpus, by="source", backend="local"))) == orjson.loads(GOLDEN.read_bytes())
