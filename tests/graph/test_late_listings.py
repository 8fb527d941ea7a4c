"""No listing is of one moment: one that another driver's end falls into may have what says that all is done, and lack
what was done before that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import curate
from curate.dataset.dataset import Dataset
from curate.graph import graph
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.resume import commit
from tests.job.inline import outputs, run_job, write_jsonl


class Plain(curate.Job):
    version = "1"
    trouble: str = curate.param("", help="a file; where it is, no row can be written")

    def process(self, batch: Any) -> Any:
        if Path(self.trouble).exists():
            raise ValueError("none today")
        return batch


class Sorted(Plain):
    def build(self, ds: Dataset) -> Dataset:
        return super().build(ds.sort("n"))  # type: ignore[return-value]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in range(3):
        write_jsonl(tmp_path / "in" / f"{file}.jsonl", b"".join(b'{"n":%d}\n' % (7 * n % 10) for n in range(file, 9)))
    return tmp_path


def run(shape: type[Plain], folder: Path, output: str, *, trouble: bool = False) -> str:
    if trouble:
        (folder / "trouble").touch()
    ended = run_job(shape(trouble=str(folder / "trouble")), folder / "in", folder / output)
    (folder / "trouble").unlink(missing_ok=True)
    return ended.state


@pytest.mark.parametrize("shape", [Plain, Sorted])
def test_outputs_that_it_lacks_are_looked_for_again(
    shape: type[Plain], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job, or of a stage before the last one. What says "complete" stays, for another driver reads it."""
    assert run(shape, folder, "fresh") == "complete"
    assert run(shape, folder, "out", trouble=shape is Sorted) == ("failed" if shape is Sorted else "complete")
    listed, late, taken = Ledger.list, list[OutputListing](), list[str]()

    def early(ledger: Ledger, **how: Any) -> OutputListing:
        found = listed(ledger, **how)
        if found.summary is not None and not late:
            late.append(found)
            return found.without(range(len(found.objects)))
        return found

    monkeypatch.setattr(Ledger, "list", early)
    monkeypatch.setattr(commit, "_take_away", lambda _, seen: taken.append(seen.uri))
    assert run(shape, folder, "out") == "complete"
    assert [bool(len(one.objects)) for one in late] == [True]
    assert taken == []
    assert outputs(folder / "out") == outputs(folder / "fresh")


@pytest.mark.parametrize("times", [1, 2])
def test_a_stage_that_another_driver_takes_for_incomplete(
    folder: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """As some of its outputs were removed, say: it is completed again."""
    assert run(Sorted, folder, "fresh") == "complete"
    books_of, taken = graph.upstream_books_of, list[Path]()

    def after_another(*given: Any) -> Any:
        [summary] = (folder / "out" / layout.STAGES).glob(f"*/{layout.SUMMARY}")
        if len(taken) < times:
            taken.append(summary)
            summary.unlink()
        return books_of(*given)

    monkeypatch.setattr(graph, "upstream_books_of", after_another)
    assert run(Sorted, folder, "out") == "complete"
    assert len(taken) == times
    assert outputs(folder / "out") == outputs(folder / "fresh")
