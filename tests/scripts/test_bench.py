"""scripts/bench: every part runs at tiny sizes, rows that are wrong end it, and figures are what they say."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from scripts.benches import checks, common, corpora, dedup, edges, exchange, loader, map, memory, shards, texts, tokens
from scripts.benches import rows as bench_rows
from tests.support.fakes import NEVER_S
from tests.support.harness import wait_until

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench"


def bench(*arguments: str) -> str:
    """Returns what was printed. The exit code says whether a target was missed; no error ended it."""
    command = [sys.executable, str(SCRIPT), *arguments]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=NEVER_S, env=environment, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "Error:" not in done.stderr, done.stderr
    assert done.returncode == int("MISSED" in done.stdout)
    return done.stdout


def table(rows: int) -> pa.Table:
    return pa.table({"id": np.arange(rows), "text": [f"text {k}" for k in range(rows)]})


class TestSameRows:
    def check(self, folder: Path, found: pa.Table, wanted: pa.Table) -> None:
        pq.write_table(found, folder / "a.parquet")
        checks.same_rows(wanted)(folder, None)

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
    common.judge(report, "ratio", ours, rival, 1 / 4)
    assert report.missed == 0
    common.judge(report, "ratio", ours, rival, 1 / 5)
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


def in_folder(folder: Path, *tables: pa.Table) -> Path:
    """Writes each table as a Parquet file, named in this order."""
    for number, one in enumerate(tables):
        pq.write_table(one, folder / f"{number}.parquet")
    return folder


class TestSortedRows:
    """What a sort is compared with: the rows, sorted, by a key that no two rows have."""

    def check(self, folder: Path, *found: pa.Table) -> None:
        checks.sorted_rows(table(9), "id")(in_folder(folder, *found), None)

    def test_files_are_put_together_by_their_first_keys(self, tmp_path: Path) -> None:
        """Ray Data names files by chance; empty ones have no place, and large strings are strings."""
        large = table(9).set_column(1, "text", table(9)["text"].cast("large_string"))
        self.check(tmp_path, large.slice(6), table(9).slice(0, 4), table(0), table(9).slice(4, 2))

    @pytest.mark.parametrize(
        ("found", "problem"),
        [
            ([table(8)], "number of rows is 8, expected 9"),
            ([table(9).select(["id"])], "columns"),
            ([table(9).take([0, 1, 2, 3, 5, 4, 6, 7, 8])], "not in order"),
            ([table(9).take([0, 1, 4, 5]), table(9).take([2, 3, 6, 7, 8])], "not in order"),
            ([table(9).take([0, 1, 2, 3, 4, 5, 6, 7, 7])], "not in order"),
            ([table(9).set_column(1, "text", table(9)["text"].take([0, 1, 2, 3, 4, 5, 6, 8, 7]))], "'text'"),
        ],
    )
    def test_no_sort_is_found_out(self, tmp_path: Path, found: list[pa.Table], problem: str) -> None:
        """Rows out of order, in a file or from file to file, lost ones, and values of other rows end the bench."""
        with pytest.raises(click.ClickException, match=problem):
            self.check(tmp_path, *found)


class TestShuffledRows:
    @pytest.mark.parametrize("kept", [0, 0.5, 1])
    def test_what_is_in_order_is_no_shuffle(self, tmp_path: Path, kept: float) -> None:
        """Rows that are where they were, or half of them, are not shuffled; a permutation is."""
        rows = 20_000
        places = np.random.default_rng(1).permutation(rows)
        order = np.where(np.arange(rows) < kept * rows, np.arange(rows), 0)
        order[int(kept * rows) :] = places[places >= kept * rows]
        check = checks.shuffled_rows(table(rows))
        in_folder(tmp_path, table(rows).take(pa.array(order)))
        if kept:
            with pytest.raises(click.ClickException, match="correlate by"):
                check(tmp_path, None)
        else:
            check(tmp_path, None)

    def test_rows_are_compared(self, tmp_path: Path) -> None:
        """A random order of other rows is none of these."""
        in_folder(tmp_path, table(10).take([3, 9, 1, 0, 4, 2, 7, 8, 6, 6]))
        with pytest.raises(click.ClickException, match="not that of the same work"):
            checks.shuffled_rows(table(10))(tmp_path, None)


class TestSums:
    @pytest.mark.parametrize(
        ("groups", "sums", "problem"),
        [([2, 1], [5, 4], None), ([1, 2], [5, 4], "all sums"), ([1], [4], "groups is 1"), ([1, 1], [4, 4], "all sums")],
    )
    def test_sums_are_those_of_their_groups(
        self, tmp_path: Path, groups: list[int], sums: list[int], problem: str | None
    ) -> None:
        """In any order, in a column of any name."""
        in_folder(tmp_path, pa.table({"group": groups, "sum(value)": sums}))
        check = checks.same_sums({1: 4, 2: 5})
        if problem is None:
            check(tmp_path, None)
        else:
            with pytest.raises(click.ClickException, match=problem):
                check(tmp_path, None)

    def test_files_are_counted(self, tmp_path: Path) -> None:
        """As many files as were asked for, whatever rows they have."""
        in_folder(tmp_path, table(2), table(3))
        checks.in_files(lambda *_: None, 2)(tmp_path, None)
        with pytest.raises(click.ClickException, match="number of files is 2, expected 3"):
            checks.in_files(lambda *_: None, 3)(tmp_path, None)


def test_objects_are_counted_without_ledgers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run files and outputs are what there is one of for each map and each part; any other file of data is too many."""
    stage = tmp_path / "_curate/stages/0123"
    (stage / "_curate/runs").mkdir(parents=True)
    for path in (stage / "a.run", stage / "b.run", stage / "_curate/runs/run.json", tmp_path / "_curate/job.json"):
        path.touch()
    in_folder(tmp_path, table(1), table(1), table(1))
    report = common.Report()
    exchange.count_objects(report, "a sort", tmp_path)
    assert report.missed == 0
    assert (
        "objects of a sort: 5 (target 2 maps + 3 outputs = 5; a file for each pair would be 6)"
        in capsys.readouterr().out
    )
    (stage / "pair-0-0.bin").touch()
    exchange.count_objects(report, "a sort", tmp_path)
    assert report.missed == 1


class TestOwnFolder:
    """A scratch folder is run from and removed from: it is the bench's own, or refused."""

    def test_it_is_made_for_one_user_and_found_again(self, tmp_path: Path) -> None:
        folder = common.own_folder(tmp_path / "a/b")
        assert folder == (tmp_path / "a/b").resolve()
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "kept").touch()
        assert common.own_folder(tmp_path / "a/b") == folder
        assert (folder / "kept").exists()
        (tmp_path / "empty").mkdir()
        common.own_folder(tmp_path / "empty")

    def test_files_of_somebody_are_not_taken_for_its_own(self, tmp_path: Path) -> None:
        """Where there is no mark: neither removed nor written over."""
        (tmp_path / "shards").mkdir()
        with pytest.raises(click.ClickException, match=r"has files and no \.curate-scratch: .*\(such as shards\)"):
            common.own_folder(tmp_path)
        assert list(tmp_path.iterdir()) == [tmp_path / "shards"]

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
    def test_what_others_may_write_to_is_refused(self, tmp_path: Path, mode: int) -> None:
        """Marked or not: a program in it could be theirs."""
        folder = common.own_folder(tmp_path / "scratch")
        folder.chmod(mode)
        with pytest.raises(click.ClickException, match=f"can be written to by others \\(mode {mode:o}\\)"):
            common.own_folder(folder)

    def test_what_belongs_to_others_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = common.own_folder(tmp_path / "scratch")
        monkeypatch.setattr(common.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(click.ClickException, match="belongs to user id"):
            common.own_folder(folder)

    def test_a_link_and_a_file_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(common.own_folder(tmp_path / "scratch"))
        (tmp_path / "file").touch()
        with pytest.raises(click.ClickException, match="is a link to"):
            common.own_folder(tmp_path / "link")
        with pytest.raises(click.ClickException, match="is not a folder"):
            common.own_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tasks", "--shards", "0", "--finished", "0"], "leaves nothing to measure"),
        (["tasks", "--shards", "-1"], "-1 is not in the range x>=0"),
        (["exchange", "--only", "scaling", "--backend", "local"], "--backend has no effect on these parts"),
        (["exchange", "--only", "scaling", "--only", "resume", "--backend", "ray"], "--backend has no effect on these"),
        (["map", "--only", "many", "--backend", "local"], "--backend has no effect on this part"),
        (["map", "--text-bytes", "100", "--files", "3"], "--files has no effect with --text-bytes"),
        (["map", "--text-bytes", "100", "--blocks", "3"], "--blocks has no effect with --text-bytes"),
        (["map", "--text-bytes", "100", "--batches", "3"], "--batches has no effect with --text-bytes"),
        (["memory", "--sort", "--budget", "3"], "--budget has no effect with --sort"),
        (["memory", "--sort", "--block", "3"], "--block has no effect with --sort"),
    ],
)
def test_options_without_effect_are_refused(script: ModuleType, words: list[str], said: str) -> None:
    """Before anything is measured: who gives one believes that it was."""
    ended = CliRunner().invoke(script.main, words)
    assert ended.exit_code == 2
    assert said in ended.output


def test_the_demos_comments_are_made_where_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any folder: they are found beside the scripts, not in the one at hand."""
    assert SCRIPT.parents[1] / "demo/reddit" == tokens.DEMO
    ran: list[Any] = []
    monkeypatch.setattr(tokens.subprocess, "run", lambda command, **_: ran.append(command))
    assert tokens.demo_corpus(tmp_path) == tmp_path
    assert ran == []
    assert tokens.demo_corpus(tmp_path / "none") == tmp_path / "none"
    assert ran == [[sys.executable, str(SCRIPT.parent / "corpus"), "--output", str(tmp_path / "none")]]


def test_files_of_the_user_are_not_removed(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    ended = CliRunner().invoke(script.main, ["shards", "--shards", "10", "--scratch", str(tmp_path)])
    assert ended.exit_code == 1
    assert "has files and no .curate-scratch" in ended.output
    assert list(tmp_path.iterdir()) == [tmp_path / "shards"]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURATE_BACKEND", "inline")
        patch.syspath_prepend(str(SCRIPT.parent))
        loaded = importlib.machinery.SourceFileLoader("bench_script", str(SCRIPT))
        spec = importlib.util.spec_from_loader("bench_script", loaded)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loaded.exec_module(module)
        yield module


def test_a_reader_that_skips_tokens_is_no_fast_one() -> None:
    """All sequences, but for a last batch that is not full."""
    batch, whole = loader.BATCH * loader.LENGTH * 2, 1_000_000_000 // (8 * loader.LENGTH * 2) * 8 * loader.LENGTH * 2
    for read in (whole, whole - batch + 1):
        loader.expect_whole("x", read, 1000)
    for read in (whole + 1, whole - batch, 0):
        with pytest.raises(click.ClickException, match=f"x read {read:,} bytes of tokens, expected {whole:,}"):
            loader.expect_whole("x", read, 1000)


@pytest.mark.parametrize(
    ("phase", "said", "wrong"),
    [
        ("run", {"state": "complete", "total": 9, "skipped": 0}, {"state": "failed"}),
        ("rerun", {"state": "complete", "total": 9, "skipped": 9}, {"skipped": 8}),
        ("status", {"done": 9}, {"done": 0}),
        ("quick", {"done": 9}, {"done": 10}),
        ("listing", {"objects": 12}, {"objects": 8}),
        ("listings", {"objects": 21}, {"objects": 17}),
    ],
)
def test_a_phase_that_passes_over_shards_is_no_fast_one(phase: str, said: Any, wrong: Any) -> None:
    shards._expect_done(phase, 9, said)
    with pytest.raises(click.ClickException, match=f"^{phase}: "):
        shards._expect_done(phase, 9, {**said, **wrong})


class TestCorpus:
    @pytest.mark.slow
    def test_the_truth_is_that_of_the_texts(self) -> None:
        """Texts are the same where the truth says so, and nowhere else; near copies are alike, others not at all."""
        made = dedup.corpus(300, seed=3)
        texts = made.table["text"].to_pylist()
        shingles = [
            {tuple(words[k : k + 5]) for k in range(len(words) - 4)} for words in (text.split() for text in texts)
        ]
        for one in range(300):
            for other in range(one):
                alike = len(shingles[one] & shingles[other]) / len(shingles[one] | shingles[other])
                assert (texts[one] == texts[other]) == (made.exact[one] == made.exact[other])
                if made.near[one] != made.near[other]:
                    assert alike < 0.1
                else:
                    # Two near copies of one text may have twice the edits; each is near enough to the text.
                    assert alike > 0.8
        assert len(set(made.exact.tolist())) == 240
        assert len(set(made.near.tolist())) == 210

    @pytest.mark.parametrize("seed", range(20))
    def test_what_is_kept_is_judged_by_the_truth(self, seed: int) -> None:
        """Recall is of the copies that are not kept; a text is lost if none of it is kept: counted one by one."""
        random = np.random.default_rng(seed)
        truth = random.integers(0, 8, 20)
        kept = [k for k in range(20) if random.random() < 0.5]
        left = [truth[k] for k in kept]
        lost = [text for text in set(truth.tolist()) if text not in left]
        spare = sum(left.count(text) - 1 for text in set(left))
        texts = len(set(truth.tolist()))
        found = dedup.judged([f"d{k:08d}" for k in kept], truth)
        assert found.recall == pytest.approx(1 - spare / (20 - texts))
        assert found.lost == pytest.approx(len(lost) / texts)

    @pytest.mark.quick(1)
    @pytest.mark.parametrize("near", [False, True])
    def test_copies_that_stay_and_texts_that_go_end_the_bench(self, tmp_path: Path, near: bool) -> None:
        """Of exact copies all are found and no text is lost; of near ones, one in a hundred may be."""
        made = dedup.corpus(2000)
        truth = made.near if near else made.exact
        first = np.unique(truth, return_index=True)[1]
        check = dedup.deduplicated(2000, near=near)

        def kept(ids: list[int]) -> Path:
            return in_folder(tmp_path, pa.table({"id": [f"d{k:08d}" for k in ids]}))

        check(kept(first.tolist()), None)
        if near:
            check(kept(first.tolist()[5:]), None)
        with pytest.raises(click.ClickException, match="texts are lost"):
            check(kept(first.tolist()[20 if near else 1 :]), None)
        with pytest.raises(click.ClickException, match="copies were found"):
            check(kept(list(range(2000))), None)
        with pytest.raises(click.ClickException, match="there twice is 1"):
            check(kept([*first.tolist(), int(first[0])]), None)


class TestEdges:
    @pytest.mark.parametrize("drop", ["verified", "component"])
    def test_marks_are_held_against_the_edges(self, drop: str, tmp_path: Path) -> None:
        """Of a chain, of cliques and of a component; what is wrong ends the bench."""
        made = edges.graph(2_000, seed=1)
        parent = list(range(made.rows))
        kept_for: dict[int, int] = {}
        pairs = sorted(zip(made.v.tolist(), made.u.tolist(), strict=True))
        for v, u in pairs:
            if drop == "verified":
                if u not in kept_for:
                    kept_for.setdefault(v, u)
            else:
                one, other = sorted(edges_root(parent, row) for row in (u, v))
                parent[other] = one
        if drop == "component":
            kept_for = {row: edges_root(parent, row) for row in range(made.rows) if edges_root(parent, row) != row}
        rows = np.array(sorted(kept_for))
        kept = [kept_for[row] for row in rows.tolist()]

        def marks(number: int, rows: Any, kept: Any) -> Path:
            folder = tmp_path / f"{number}"
            folder.mkdir()
            table = pa.table({"__place": edges.places(rows, made.rows), "__kept_id": kept})
            pq.write_table(table, folder / "marks.parquet")
            return folder

        edges.check(drop, made, marks(0, rows, kept))
        with pytest.raises(click.ClickException, match=r"rows that are kept|pairs of rows that are both kept"):
            edges.check(drop, made, marks(1, rows[:-1], kept[:-1]))
        with pytest.raises(click.ClickException, match="dropped for one that is dropped"):
            edges.check(drop, made, marks(2, rows, [*kept[:-1], int(rows[0])]))


def edges_root(parent: list[int], row: int) -> int:
    while parent[row] != row:
        row = parent[row]
    return row


@pytest.mark.slow
def test_mapped_files_are_not_anonymous(disk_path: Path) -> None:
    """Pages of a file that a process has touched are in what it holds, and not in what it has allocated."""
    file = disk_path / "file"
    file.write_bytes(bytes(60 << 20))
    program = (
        f"import mmap, sys; own = bytearray(90 << 20); file = open({str(file)!r}, 'rb'); "
        "shared = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); sum(shared[k] for k in range(0, len(shared), 4096))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}; print('ready', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 90 << 20 <= memory.anonymous_bytes(child.pid) < 120 << 20
        assert memory.private_bytes(child.pid) >= 150 << 20
        child.kill()
    assert memory.anonymous_bytes(child.pid) == 0


class TestRowsOf:
    def test_order_does_not_matter_and_rows_do(self, tmp_path: Path) -> None:
        """The same rows in other files and another order are the same; another row, or one twice, is not."""
        folders = [tmp_path / name for name in "abcd"]
        for folder in folders:
            folder.mkdir()
        wanted = memory.rows_of(in_folder(folders[0], table(9)), ["id", "text"])
        assert wanted.count == 9
        assert memory.rows_of(in_folder(folders[1], table(9).slice(5), table(9).slice(0, 5)), ["id", "text"]) == wanted
        assert memory.rows_of(in_folder(folders[2], table(9).take([*range(8), 7])), ["id", "text"]) != wanted
        other = table(9).set_column(1, "text", table(9)["text"].take([1, 0, *range(2, 9)]))
        assert memory.rows_of(in_folder(folders[3], other), ["id", "text"]) != wanted

    @pytest.mark.parametrize("parts", [[[0, 1, 3, 2], [4]], [[0, 1, 2], [4], [3]]])
    def test_order_is_checked_in_and_across_files(self, tmp_path: Path, parts: list[list[int]]) -> None:
        """A row that comes after a greater one, of its file or of the one before, ends the bench."""
        in_folder(tmp_path, *(table(5).take(part) for part in parts))
        with pytest.raises(click.ClickException, match="not in order"):
            memory.rows_of(tmp_path, ["id"], "id")
        assert memory.rows_of(tmp_path, ["id"]).count == 5


@pytest.mark.parametrize("start", [0, 1_000_000, 60_000_000])
def test_rows_that_are_sorted_have_the_bytes_that_are_said(start: int) -> None:
    """Ten times the budget is what they have in Arrow, wherever their ids begin."""
    rows = 50_000
    assert memory.SORTED_ROW_BYTES <= bench_rows.exchange_rows(start, rows).nbytes / rows < memory.SORTED_ROW_BYTES + 6


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [150, 1500, 15_000])
def test_texts_of_corpora_are_like_those_of_a_language(size_bytes: int) -> None:
    """As long as asked for, no two the same, compressed as texts of the web are; a seed decides all."""
    made = [texts.Texts(size_bytes).make(np.random.default_rng(5), 3_000_000 // size_bytes) for _ in range(2)]
    assert made[0].equals(made[1])
    assert len(set(made[0].to_pylist())) == len(made[0])
    raw = "".join(made[0].to_pylist()).encode()
    assert 0.9 * size_bytes <= len(raw) / len(made[0]) <= 1.1 * size_bytes
    assert 2.2 <= len(raw) / len(pa.compress(raw, "zstd", asbytes=True)) <= 2.8


@pytest.mark.nightly
@pytest.mark.slow
def test_a_row_of_a_corpus_in_five_is_a_copy(tmp_path: Path) -> None:
    """In all files but the first, of texts of the file before; the rows are those of the corpus in all else."""
    folder = bench_rows.corpus_with_copies(tmp_path / "rows", 3200, 150)
    found = pq.read_table(folder)
    plain = pa.concat_tables(bench_rows.corpus_tables(3200, 150))
    assert found.drop_columns(["text"]).equals(plain.drop_columns(["text"]))
    assert 3200 - len(set(found["text"].to_pylist())) == 31 * 20


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(("kind", "what"), [("maps", "write"), ("sort", "key")])
def test_the_bare_loop_does_the_work(kind: str, what: str, tmp_path: Path) -> None:
    """It is no limit if it leaves something out; its time is that of the work, without imports."""
    source = bench_rows.corpus_files(tmp_path / "rows", 640, 150)
    ended = common.go([sys.executable, corpora.BARE, kind, what, source, tmp_path / "out", 2], tmp_path / "said")
    assert ended.found > 0
    rows = pads.dataset(source).to_table()
    if kind == "sort":
        checks.sorted_rows(rows.sort_by("key"), "key")(tmp_path / "out", None)
    else:
        checks.same_rows(corpora.measured(rows.sort_by("id")))(tmp_path / "out", None)


class TestJudged:
    """What a corpus' contest is held against."""

    def runs(self, name: str, seconds: float, system_s: float = 0.1) -> common.Runs:
        return common.Runs(name, [seconds], [0.0], [1.0 - system_s], [system_s])

    @pytest.mark.parametrize(
        ("ours_s", "floor_s", "rival_s", "system_s", "missed"),
        [
            (1.2, 1.0, 6.0, 0.15, 0),
            (1.3, 1.0, 6.0, 0.15, 0),  # 0.3 s more, where that is more
            (6.1, 5.0, 60.0, 0.15, 1),
            (1.2, 1.0, 3.0, 0.15, 1),
            (1.2, 1.0, 6.0, 0.16, 1),
            (7.0, 5.0, 8.0, 0.5, 3),
        ],
    )
    def test_by_floor_rival_and_share_of_the_system(
        self, ours_s: float, floor_s: float, rival_s: float, system_s: float, missed: int
    ) -> None:
        report = common.Report()
        floors = [self.runs("Polars", 2 * floor_s), self.runs("DuckDB", floor_s)]
        corpora.judge_corpus(report, self.runs("curate", ours_s, system_s), self.runs("Ray Data", rival_s), floors)
        assert report.missed == missed


def test_the_cpu_of_processes_that_have_ended_counts() -> None:
    before = common.tree_cpu_s()
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert sum(common.tree_cpu_s()) - sum(before) >= 0.15


@pytest.mark.slow
def test_what_a_program_leaves_behind_is_adopted_as_long_as_it_is_measured(tmp_path: Path) -> None:
    """Its CPU counts; what others leave later is that of whoever waits for it, and not ours."""
    burn = "import time; print(flush=True)\nwhile time.process_time() < 0.2: pass"
    leave = (
        "import subprocess, sys; print('ready', flush=True); input();"
        f"child = subprocess.Popen([sys.executable, '-c', {burn!r}], stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid)"
    )
    ended = common.go([sys.executable, "-c", leave], tmp_path / "said")
    assert ended.user_s + ended.system_s >= 0.15
    assert not Path(f"/proc/{ended.found}").exists()
    left = subprocess.run([sys.executable, "-c", leave], input="go", check=True, capture_output=True, text=True)
    orphan = Path(f"/proc/{left.stdout.split()[-1]}")
    wait_until(lambda: not orphan.exists(), "whoever has adopted it waits for it")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.ray_lane
def test_exchange_at_tiny_sizes(tmp_path: Path) -> None:
    """Every exchange is done by all, checked and judged."""
    parts = [argument for part in exchange.CONTESTS for argument in ("--only", part)]
    said = bench("exchange", *parts, "--rows", "20000", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("curate, to Ray Data") == len(exchange.CONTESTS)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("runs-")] == []


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.ray_lane
@pytest.mark.parametrize(
    ("command", "size", "parts"),
    [("map", ["--megabytes", "1"], corpora.MAPS), ("exchange", ["--rows", "3200"], corpora.EXCHANGES)],
)
def test_corpora_at_tiny_sizes(command: str, size: list[str], parts: dict[str, Any], tmp_path: Path) -> None:
    """Every contest is done by all, checked, judged by three targets, and a line of the table."""
    said = bench(command, *size, "--text-bytes", "150", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("curate, to Ray Data: ") == said.count("of its CPU, the kernel's: ") == len(parts)
    assert [line.split(" |")[0][2:] for line in said.splitlines() if line.startswith("| ")][1:] == list(parts)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("runs-")] == []


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.ray_lane
def test_growth_and_resuming_at_tiny_sizes(tmp_path: Path) -> None:
    """Objects are counted at two sizes; a driver is killed and run again, and what it leaves is what was wanted."""
    parts = ["--only", "scaling", "--only", "resume"]
    said = bench("exchange", *parts, "--rows", "20000", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("ok      objects of ") == 2
    assert said.count("what was left, to the whole: ") == 1


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.ray_lane
def test_dedup_at_tiny_sizes(tmp_path: Path) -> None:
    """datatrove gets an environment of its own, and both find the copies that there are."""
    said = bench("dedup", "--documents", "300", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("documents/s") == 4
    assert said.count("curate, to datatrove: ") == 1


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.ray_lane
@pytest.mark.usefixtures("gigabytes")
def test_memory_of_a_small_sort(tmp_path: Path) -> None:
    """A sort of a gigabyte is looked at, and its rows are compared."""
    said = bench("memory", "--sort", "--gigabytes", "1", "--scratch", str(tmp_path))
    for name in ("object store", "this process", "worker", "with the pages of mapped files"):
        assert f"\n  {name}" in said


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.ray_lane
def test_map_at_tiny_sizes(tmp_path: Path) -> None:
    """Every part does its work on both, checks it, and judges it. The exit code is whether a target was missed."""
    sizes = ["--megabytes", "2", "--files", "40", "--blocks", "40", "--batches", "64", "--rounds", "1"]
    only = [argument for part in map.PARTS for argument in ("--only", part)]
    said = bench("map", *only, *sizes, "--scratch", str(tmp_path))
    assert said.count("curate, to Ray Data: ") == len(map.PARTS) - 1
    assert said.count("actor busy: ") == 1
    assert [path for path in tmp_path.iterdir() if path.name.startswith("runs-")] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_report_at_a_tiny_size(tmp_path: Path) -> None:
    """curate and DuckDB count the same rows; data-juicer, which takes an environment of its own, is left out."""
    said = bench("report", "--no-rivals", "--megabytes", "1", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("MB/s a core") == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_page_at_a_tiny_size(tmp_path: Path) -> None:
    """Its size, time and memory are judged; made again, it costs a listing of the output, and one of known jobs."""
    said = bench("page", "--shards", "30", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("(target <= ") == 3
    assert "made again, {'list': 2, " in said


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.ray_lane
def test_tasks_at_tiny_sizes(tmp_path: Path) -> None:
    """The bare loop and curate, on Ray and in worker processes, copy the same rows; a finished job is run again."""
    said = bench("tasks", "--shards", "30", "--finished", "0", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count("to the bare loop") == 3
    assert said.count("--backend local to curate on this Ray") == 2


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("gigabytes")
def test_memory_at_a_tiny_size() -> None:
    """Every process and the object store are looked at."""
    said = bench("memory", "--gigabytes", "1", "--budget", "64", "--block", "8")
    for name in ("object store", "this process", "worker"):
        assert f"\n  {name}" in said


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.ray_lane
def test_service_at_a_tiny_size(tmp_path: Path) -> None:
    """A service of its own for each run; every batch is served once, which ends the bench if it is not."""
    said = bench("service", "--shards", "2", "--batches", "20", "--rounds", "1", "--scratch", str(tmp_path))
    assert said.count(" calls   ") == 2
    assert said.count("with refusals, to the time without: ") == 1
    assert [path for path in tmp_path.iterdir() if path.name.startswith("runs-")] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_start_beside_another_checkout(tmp_path: Path) -> None:
    """First output, prompt and a run with nothing to do are measured on both, and their ratios are judged."""
    arguments = ("--against", str(SCRIPT.parents[1]), "--backend", "inline", "--rounds", "1")
    said = bench("start", *arguments, "--scratch", str(tmp_path))
    assert said.count("; ratio ") == 3


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("listed", ["made-up", "disk"])
def test_shards_at_a_tiny_size(listed: str, tmp_path: Path) -> None:
    """Each phase is measured, and what was run is found done."""
    said = bench("shards", "--shards", "500", "--listed", listed, "--scratch", str(tmp_path), "--json")
    phases = orjson.loads(said.splitlines()[-1])["500"]
    assert phases["run"]["total"] == phases["rerun"]["skipped"] == phases["status"]["done"] == 500


def test_what_is_kept_is_made_anew_for_something_else(tmp_path: Path) -> None:
    """And where its making was cut off; a virtual environment is of what curate asked for when it was made."""
    made = []
    for of in ("one", "one", "other"):
        common.once(tmp_path / "folder", lambda: made.append(len(made)), of)
    assert made == [0, 1]
    with pytest.raises(KeyError):
        common.once(tmp_path / "folder", lambda: {}["cut off"], "third")
    for of in ("other", "other"):
        common.once(tmp_path / "folder", lambda: made.append(len(made)), of)
    assert made == [0, 1, 2]
