"""Recipes from web archives to shards, killed on the way: the same bytes, and each record is in one place."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.crawl import BLOCKED, EXAMPLE, Crawl, crawl
from tests.support.fakes import NEVER_S
from tests.support.harness import Driver, Place, Zygote, outputs, run, wait_until, write_files

SHARDS = 2
STEPS = {
    "fineweb": ["pages", "urls", "languages", "quality", "unique", "personal", "shards"],
    "dolma": [
        *("pages", "urls", "languages", "addresses", "exact", "quality"),
        *("personal", "paragraphs", "decontaminate", "shards"),
    ],
}
LOST = {
    "pages": {
        "status is not 200": ["missing"],
        "not HTML": ["picture"],
        "empty after extraction": ["empty"],
        "quarantined": ["broken"],
    },
    "urls": {"blocked host": ["blocked"]},
    "languages": {"another language": ["german"]},
    "addresses": {"duplicate": ["same url"]},
}
"""What the steps that look at one text drop, as it was made to be."""


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_killed_at_some_operations(name: str, tmp_path: Path) -> None:
    """Every operation of the store is as likely, in whichever step it is."""
    made = _files(tmp_path, pages=120, files=2)
    draw = random.Random(name)
    with Zygote(tmp_path / "zygote") as zygote:
        path, *options = _command(name, tmp_path, "whole", "inline")
        argv = [f"jobs/{path}.py", *options]
        operations = len(zygote.operations(*argv))
        whole = zygote.run(*argv)
        assert whole.code == 0, whole.err
        path, *options = _command(name, tmp_path, "killed", "inline")
        argv = [f"jobs/{path}.py", *options]
        kills = 0
        for _ in range(3):
            when = draw.choice(["before", "after"])
            ended = zygote.run(*argv, kill_operation=draw.randrange(operations // 3), kill_when=when)
            assert ended.code in (-signal.SIGKILL, 0), ended.err
            kills += ended.code != 0
        assert kills
        again = zygote.run(*argv)
    assert again.code == 0, again.err
    _same(name, tmp_path, whole.json, again.json)
    _in_one_place(name, tmp_path, made, again.json)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", STEPS)
def test_twenty_thousand_pages_killed_ten_times(name: str, tmp_path: Path) -> None:
    """The driver is killed when steps have published some of their files, and its workers go on or end as they may."""
    made = _files(tmp_path, pages=20_000, files=40)
    draw = random.Random(name)
    whole = run(*CURATE, *_command(name, tmp_path, "whole", "local"))
    assert whole.code == 0, whole.err
    published = {step: _published(tmp_path / "whole" / step) for step in STEPS[name]}
    argv = [*CURATE, *_command(name, tmp_path, "killed", "local")]
    hit = 0
    for step in sorted(draw.choices(STEPS[name], k=10), key=STEPS[name].index):
        with Driver(argv) as driver:
            folder, some = tmp_path / "killed" / step, 1 + draw.randrange(published[step] * 7 // 10)
            wait_until(
                lambda d=driver, f=folder, n=some: _published(f) >= n or not d.running(), f"{step} has {some} files"
            )
            hit += driver.running()
            driver.signal(signal.SIGKILL)
            driver.process.communicate(timeout=NEVER_S)
            driver.wait_for_children()
    again = run(*argv)
    assert again.code == 0, again.err
    assert hit > 5, f"only {hit} kills hit a running chain"
    _same(name, tmp_path, whole.json, again.json)
    _in_one_place(name, tmp_path, made, again.json)


def _published(folder: Path) -> int:
    """Returns how many files a step has written, its ledger and stages too."""
    return sum(path.is_file() for path in folder.rglob("*"))


CURATE = ("-m", "curate.cli.main", "run")


def _files(folder: Path, *, pages: int, files: int) -> Crawl:
    made = crawl(pages, files, seed=1)
    write_files(folder / "in", made.files)
    (folder / "blocked.txt").write_text(f"# Not wanted\n{BLOCKED}\n")
    (folder / "evals.jsonl").write_bytes(orjson.dumps({"text": EXAMPLE}))
    return made


def _command(name: str, folder: Path, output: str, backend: str) -> list[str]:
    own = {"fineweb": ["--words", "whitespace"], "dolma": ["--eval-sets", str(folder / "evals.jsonl")]}[name]
    common = ["--input", str(folder / "in"), "--output", str(folder / output), "--shards", str(SHARDS), "--json"]
    return [name, *common, "--backend", backend, "--block-domains", str(folder / "blocked.txt"), *own]


def _same(name: str, folder: Path, whole: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    for step in STEPS[name]:
        found, expected = (Place(str(folder / one)).objects(step) for one in ("killed", "whole"))
        assert outputs(found) == outputs(expected), step
    rows, expected_rows = ([one["summary"]["rows"] for one in ended["steps"]] for ended in (again, whole))
    assert rows == expected_rows


def _in_one_place(name: str, folder: Path, made: Crawl, ended: Mapping[str, Any]) -> None:
    """Each record is dropped by one step for one reason, is in one quarantine, or is in one shard; by its id."""
    steps = {one["step"]: one["summary"] for one in ended["steps"]}
    assert list(steps) == STEPS[name]
    rows = {step: one["rows"] for step, one in steps.items()}
    gone = {step: {**one["dropped"], "quarantined": one["quarantined"]} for step, one in rows.items()}
    assert rows["pages"]["created"] == made.responses
    assert sum(steps["pages"]["counters"].values()) == made.others
    assert rows["shards"]["out"] + sum(sum(one.values()) for one in gone.values()) == made.responses
    for step, reasons in LOST.items():
        if step in gone:
            kinds = {reason: sum(made.kinds[kind] for kind in some) for reason, some in reasons.items()}
            assert +Counter(gone[step]) == +Counter(kinds)
    before: set[str] | None = None
    for step in STEPS[name]:
        ids = _ids(folder / "killed" / step)
        left = set(ids)
        assert len(left) == len(ids) == rows[step]["out"]
        if before is not None:
            assert left <= before
            assert len(before) - len(left) == sum(gone[step].values())
            assert len(left) < len(before) or step not in DROPPING[name], step
        before = left


DROPPING = {
    "fineweb": {"urls", "languages", "quality", "unique"},
    "dolma": {"urls", "languages", "addresses", "quality", "decontaminate"},
}
"""Steps that drop some of these pages, however few they are."""


def _ids(folder: Path) -> list[str]:
    found: Iterable[pa.Table] = (
        pq.read_table(path, columns=["id"])
        for path in folder.rglob("*.parquet")
        if not any(part.startswith("_") for part in path.relative_to(folder).parts)
    )
    return [one for table in found for one in table["id"].to_pylist()]
