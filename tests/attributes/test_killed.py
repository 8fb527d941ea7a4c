"""Runs that write attributes, and runs that read them, are killed and run again: the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.dataset.read.files import read_json, read_parquet
from tests.support.harness import Place, Zygote, corpus, outputs
from tests.support.sweeps import Sweep

JOB = "tests/e2e/jobs/tagged.py"


@pytest.mark.slow
def test_killed_before_operations_of_some_kinds(sweep: Sweep, tmp_path: Path) -> None:
    """The attributes, and what is kept by them; rows have their own attributes then. At night before each operation."""
    place = Place(str(tmp_path / "data"))
    source = place.write("in", corpus(sizes=(60, 40)))
    common = (JOB, "--backend", "inline", "--input", source)
    with Zygote(tmp_path / "zygote") as zygote:
        for name, scores in (("tags", ()), ("kept", ("--scores", f"{place.root}/tags"))):
            assert zygote.run(*common, *scores, "--output", f"{place.root}/{name}").code == 0
            expected = outputs(place.objects(name))
            operations = zygote.operations(*common, *scores, "--output", f"{place.root}/{name}-count")
            assert len(expected) > 2
            for number in sweep(operations, 12):
                argv = (*common, *scores, "--output", f"{place.root}/{name}-{number}")
                killed = zygote.run(*argv, kill_operation=number, kill_when="before")
                assert killed.code == -9, f"{name} {number}: {killed.err}"
                again = zygote.run(*argv)
                assert again.code == 0, f"{name} {number}: {again.err}"
                assert outputs(place.objects(f"{name}-{number}")) == expected, f"{name} {number}"
    rows = read_json(source).using(max_bad_rows="50%").with_attributes(f"{place.root}/tags").take_all()
    assert all(row["length"] == (None if row["text"] is None else len(row["text"])) for row in rows)
    kept = read_parquet(f"{place.root}/kept").take_all()
    assert [row["id"] for row in kept] == [row["id"] for row in rows if (row["length"] or 0) > 20]
