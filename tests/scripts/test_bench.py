"""scripts/bench: every part runs at tiny sizes, rows that are wrong end it, and figures are what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.benches import common, map, memory

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench"


def bench(*arguments: str) -> tuple[int, str]:
    """Returns exit code and what was printed; a bench that was ended by an error is none that missed a target."""
    command = [sys.executable, str(SCRIPT), *arguments]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "Error:" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def table(rows: int) -> pa.Table:
    return pa.table({"id": np.arange(rows), "text": [f"text {k}" for k in range(rows)]})


class TestSameRows:
    def check(self, folder: Path, found: pa.Table, wanted: pa.Table) -> None:
        pq.write_table(found, folder / "a.parquet")
        map.same_rows(wanted)(folder, None)

    def test_order_and_the_kind_of_string_do_not_matter(self, tmp_path: Path) -> None:
        """What Ray Data gives, in its order and with large strings, is the same work."""
        found = table(9).set_column(1, "text", table(9)["text"].cast("large_string"))
        self.check(tmp_path, found.take([8, *range(8)]), table(9))

    @pytest.mark.parametrize(
        ("found", "problem"),
        [
            (table(8), "number of rows is 8, expected 9"),
            (table(9).select(["id"]), "columns"),
            (table(9).set_column(1, "text", pa.array(["text 0"] * 9)), "'text' is not that of the same work"),
        ],
    )
    def test_other_rows_end_the_bench(self, tmp_path: Path, found: pa.Table, problem: str) -> None:
        """A run that lost rows, columns or values is not a fast run."""
        with pytest.raises(click.ClickException, match=problem):
            self.check(tmp_path, found, table(9))


class TestAlternate:
    def test_all_take_turns_and_have_folders_of_their_own(self, tmp_path: Path) -> None:
        """Rivals run in turn, so that what slows the machine down for a while slows down both."""
        seen: list[tuple[str, Path]] = []

        def run(name: str) -> common.Run:
            return lambda folder: seen.append((name, folder))

        results = common.alternate({"a": run("a"), "b": run("b")}, tmp_path, 2, lambda _, __: None)
        assert [name for name, _ in seen] == ["a", "b", "a", "b"]
        assert len({folder for _, folder in seen}) == 4
        assert [len(result.seconds) for result in results] == [2, 2]

    def test_a_wrong_run_is_named(self, tmp_path: Path) -> None:
        """What a run returns is checked, and the message says whose it was."""

        def check(_: Path, found: Any) -> None:
            common.expect("the answer", found, 42)

        with pytest.raises(click.ClickException, match="b: the answer is 41, expected 42"):
            common.alternate({"a": lambda _: 42, "b": lambda _: 41}, tmp_path, 1, check)


def test_the_median_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """One slow round of five changes nothing; a ratio above its target is a miss, and is counted."""
    report = common.Report()
    ours, rival = common.Runs("ours", [1.0, 1.0, 9.0]), common.Runs("rival", [4.0, 4.0, 4.0])
    map.judge(report, "ratio", ours, rival, 1 / 4)
    assert report.missed == 0
    map.judge(report, "ratio", ours, rival, 1 / 5)
    assert report.missed == 1
    assert capsys.readouterr().out.splitlines() == [
        "  ok      ratio: 0.250 x (target <= 0.250 x)",
        "  MISSED  ratio: 0.250 x (target <= 0.200 x)",
    ]


def test_an_actor_is_busy_between_its_first_call_and_its_last() -> None:
    """What it takes to start, and to end, is not its steady state; the order of the answers does not matter."""
    assert map.busy_share([(5.0, 6.0), (0.0, 2.0), (2.0, 3.0), (4.0, 5.0)]) == pytest.approx(2 / 3)


def test_inputs_that_were_left_half_made_are_made_anew(tmp_path: Path) -> None:
    """Inputs are kept from run to run, but for those whose making was interrupted."""
    folder = tmp_path / "in"

    def fails() -> None:
        (folder / "left").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        common.once(folder, fails)
    common.once(folder, (folder / "made").touch)
    common.once(folder, fails)
    assert [path.name for path in folder.iterdir()] == ["made"]


def test_memory_of_a_process_is_its_own() -> None:
    """Memory that a process touches is counted; what it shares with others through a mapping is the object store's."""
    program = (
        "import mmap, sys; own = bytearray(90 << 20); shared = mmap.mmap(-1, 60 << 20); shared.write(bytes(60 << 20))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}; print('ready', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in [pid for pid, _ in memory.descendants(os.getpid())]
        assert 90 << 20 <= memory.private_bytes(child.pid) < 140 << 20
        child.kill()
    assert memory.private_bytes(child.pid) == 0


def test_peaks_of_one_time_are_no_sum_of_peaks() -> None:
    """What was held together is the most of any look, not the sum of what each held at its own worst."""
    peaks = memory.Peaks()
    peaks.add({"a": 5, "b": 1})
    peaks.add({"a": 1, "b": 4})
    assert peaks.most == {"a": 5, "b": 4}
    assert peaks.together == 6


@pytest.mark.slow
def test_map_at_tiny_sizes(tmp_path: Path) -> None:
    """Every part does its work on both, checks it, and judges it; the exit code is whether a target was missed."""
    sizes = ["--megabytes", "2", "--files", "40", "--blocks", "40", "--batches", "64", "--rounds", "1"]
    code, said = bench("map", *sizes, "--scratch", str(tmp_path))
    assert said.count("curate, to Ray Data: ") == len(map.CONTESTS) + 1
    assert said.count("actor busy: ") == 1
    assert code == int("MISSED" in said)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("runs-")] == []


@pytest.mark.slow
def test_tasks_at_tiny_sizes(tmp_path: Path) -> None:
    """The bare loop and curate copy the same rows; a finished job is run again."""
    code, said = bench("tasks", "--shards", "30", "--finished", "0", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("to the bare loop") == 2
    assert code == int("MISSED" in said)


@pytest.mark.slow
def test_memory_at_a_tiny_size() -> None:
    """Every process and the object store are looked at."""
    code, said = bench("memory", "--gigabytes", "1", "--budget", "64", "--block", "8")
    for name in ("object store", "this process", "worker"):
        assert f"\n  {name}" in said
    assert code == int("MISSED" in said)
