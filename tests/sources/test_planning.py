"""The plan: which shards inputs become, what their outputs are called; grown, and never planned twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from curate.errors import ConfigError
from curate.job.job import Job
from curate.job.shapes import FileJob
from curate.ledger.manifest import SCHEMA, ShardPlan, shard_row
from curate.ledger.packed import RowBuffer
from curate.ledger.summary import RunState
from curate.sources.planning import Sharding, refuse_collisions, refuse_too_long
from curate.sources.split import whole
from tests.job.inline import everything, numbered, output_rows, outputs, refusing, run_job, write_jsonl, write_parquet
from tests.support.examples import examples
from tests.support.s3_emulator import S3Emulator


class Parted(Job):
    """Has an extra output."""

    version = "1"
    sides = ("refused",)

    def process(self, batch: pa.Table) -> dict[str, pa.Table]:
        return {"main": batch, "refused": batch}


class Copy(Job):
    """Gives back what it reads."""

    version = "1"
    columns = ("id", "n")

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Touch(FileJob):
    """Gives a row a file."""

    version = "1"

    def process_file(self, file: Any) -> Any:
        yield {"size": file.size}


def plan(root: Path) -> list[dict[str, Any]]:
    """Returns the rows of a ledger's plan, in order."""
    parts = sorted((root / "_curate" / "plan").glob("*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


class TestNames:
    def test_outputs_are_named_after_inputs_without_their_suffix(self, tmp_path: Path) -> None:
        for name in ("2023/RC_2023-01.jsonl.gz", "RC_2022.jsonl", "deep/er/x.y.jsonl"):
            write_jsonl(tmp_path / "in" / name, numbered(0, 1))
        write_parquet(tmp_path / "in" / "p.parquet", numbered(0, 1))
        run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert sorted(outputs(tmp_path / "out")) == [
            "2023/RC_2023-01.parquet",
            "RC_2022.parquet",
            "deep/er/x.y.parquet",
            "p.parquet",
        ]

    @pytest.mark.parametrize("root", ["s3://bucket/out", "gs://bucket", "s3://bucket/größe/x", "/data", "memory://b"])
    @given(
        st.lists(st.text("aß語", min_size=1, max_size=400).map(lambda text: f"{text}.jsonl"), min_size=1, max_size=5),
        st.integers(970, 1030),
        st.lists(st.sampled_from(["_side/a/", "_side/longer/"]), max_size=2),
    )
    @settings(max_examples=examples(40), deadline=None)
    def test_a_name_that_a_bucket_does_not_take_is_refused_when_the_plan_is_made(
        self, root: str, names: list[str], exact: int, folders: list[str]
    ) -> None:
        """By its bytes, and that of an extra output, too; those of the disk say themselves what they take."""
        names.append("y" * exact)
        rule = Sharding("copy", root, ".parquet", 1 << 20, lambda _: None, tuple(folders))
        folder = max([*folders, ""], key=len)
        rows = RowBuffer(SCHEMA)
        for number, name in enumerate(names):
            rows.add(shard_row(whole(name, f"memory://in/{number}", 1, "1")))
        keys = [f"{root}/{folder}{name}.parquet".partition("://")[2].partition("/")[2].encode() for name in names]
        long = [number for number, key in enumerate(keys) if len(key) > 1024]
        if long and root[:2] in ("s3", "gs"):
            message = (
                rf"would have {len(keys[long[0]]):,} bytes, and the store takes 1,024: .* 'memory://in/{long[0]}'$"
            )
            with pytest.raises(ConfigError, match=message):
                refuse_too_long(rule, rows.table())
        else:
            refuse_too_long(rule, rows.table())

    def test_a_run_whose_output_would_have_one_writes_nothing(self, s3_emulator: S3Emulator) -> None:
        """Each shard of it was tried four times."""
        for name in ("y" * 1010, "a"):
            s3_emulator.put(f"s3://bucket/in/{name}.jsonl", b'{"id": "1", "n": 1}\n')
        with refusing("would have 1,034 bytes, and the store takes 1,024: outputs are named after inputs; choose a sh"):
            run_job(Copy(), "s3://bucket/in", "s3://bucket/a/longer/prefix")
        assert not s3_emulator.objects("s3://bucket/a/")
        with refusing("the name of an extra output would have 1,034 bytes, and the store takes 1,024"):
            run_job(Parted(), "s3://bucket/in", "s3://bucket/a")
        assert not s3_emulator.objects("s3://bucket/a/")

    def test_names_may_hold_spaces_percents_and_any_language(self, tmp_path: Path) -> None:
        names = ["a b", "100%25", "größe", "语料", "it's", "q?x=1&y", "#1", "[1]", "{a,b}"]
        for name in names:
            write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(0, 1))
        summary = run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        assert sorted(outputs(tmp_path / "out")) == sorted(f"{name}.parquet" for name in names)

    @pytest.mark.parametrize(
        ("first", "second"),
        [("x.jsonl", "x.jsonl.gz"), ("x.jsonl", "x.parquet"), ("d/x.jsonl.gz", "d/x.jsonl")],
    )
    def test_two_inputs_with_one_output_are_refused(self, tmp_path: Path, first: str, second: str) -> None:
        """Naming both, and the output. Nothing is written."""
        for name in (first, second):
            write = write_parquet if name.endswith("parquet") else write_jsonl
            write(tmp_path / "in" / name, numbered(0, 1))
        with refusing("would both be written to the output ") as caught:
            run_job(Copy(), tmp_path / "in", tmp_path / "out")
        for said in (f"{tmp_path}/in/{first}", f"{tmp_path}/in/{second}", "without the suffix; rename one of them, or"):
            assert said in str(caught.value)
        assert not (tmp_path / "out").exists()

    def test_files_of_one_name_in_two_directories_need_a_directory_above_both(self, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            write_jsonl(tmp_path / "in" / folder / "x.jsonl", numbered(0, 1))
        with refusing("pass a directory above both"):
            run_job(Copy(), [tmp_path / "in" / "a", tmp_path / "in" / "b"], tmp_path / "out")
        run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert sorted(outputs(tmp_path / "out")) == ["a/x.parquet", "b/x.parquet"]

    def test_a_new_input_may_not_take_the_name_of_one_that_is_planned(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "x.jsonl", numbered(0, 1))
        run_job(Copy(), tmp_path / "in", tmp_path / "out")
        before = everything(tmp_path / "out")
        write_jsonl(tmp_path / "in" / "x.jsonl.gz", numbered(1, 2))
        with refusing("would both be written to the output 'x.parquet'") as caught:
            run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert "without the suffix; rename one of them, or run two jobs" in str(caught.value)
        assert everything(tmp_path / "out") == before

    @pytest.mark.parametrize("others", [0, 1])
    def test_one_that_takes_the_place_of_another_is_told_how(self, tmp_path: Path, others: int) -> None:
        """As after a suffix was put right: each way that is named works."""
        for name in ["x", "y"][: 1 + others]:
            write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(0, 1))
        run_job(Copy(), tmp_path / "in", tmp_path / "out")
        (tmp_path / "in" / "x.jsonl").unlink()
        write_jsonl(tmp_path / "in" / "x.jsonl.gz", numbered(1, 2))
        ways = ["take it out with drop_removed=True, or "] if others else [""]
        says = f"if the other takes its place, {ways[0]}start over with overwrite=True"
        with refusing(says) as caught:
            run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert "if it, or a checkpoint, was moved, move it back" in str(caught.value)
        way = {"drop_removed": True} if others else {"overwrite": True, "yes": True}
        run_job(Copy(), tmp_path / "in", tmp_path / "out", **way)
        assert [row["n"] for row in output_rows(tmp_path / "out")] == [1, 0][: 1 + others]

    def test_an_output_cannot_be_a_directory_of_others(self, tmp_path: Path) -> None:
        """Locally, one of the two could not be written."""
        write_jsonl(tmp_path / "in" / "x.jsonl", numbered(0, 1))
        write_parquet(tmp_path / "in" / "x.parquet" / "part.parquet", numbered(0, 1))
        with refusing("would be named 'x.parquet', which is a directory of other outputs; rename that input"):
            run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_files_of_a_file_job_keep_their_suffix(self, tmp_path: Path) -> None:
        for name in ("x.pdf", "x.tar", "x"):
            write_jsonl(tmp_path / "in" / name, b"1")
        run_job(Touch(), tmp_path / "in", tmp_path / "out")
        assert sorted(outputs(tmp_path / "out")) == ["x.parquet", "x.pdf.parquet", "x.tar.parquet"]

    def test_an_output_that_readers_pass_over_is_warned_of(self, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "in" / "_x.jsonl", numbered(0, 1))
        with capture_logs() as logs:
            run_job(Copy(), path, tmp_path / "out")
        assert [event["example"] for event in logs if "begin with '_'" in event["event"]] == ["_x.parquet"]

    @given(st.lists(st.tuples(*[st.sampled_from(["a", "b", "a.parquet", "b.parquet"])] * 2), max_size=6))
    def test_collisions_are_found_in_any_order(self, paths: list[tuple[str, str]]) -> None:
        """Against the definition: names that are equal, or of which one is a directory of the other."""
        ids = ["/".join(path) if path[1] != "b" else path[0] for path in paths]
        files = [f"{name}.parquet" for name in ids]
        clash = len(set(files)) < len(files) or any(other.startswith(f"{file}/") for file in files for other in files)
        shards = [whole(name, f"/in/{k}", 1, "g") for k, name in enumerate(ids)]
        for order in (shards, shards[::-1]):
            if clash:
                with refusing(";"):
                    refuse_collisions(ShardPlan.of([]), order, ".parquet")
            else:
                refuse_collisions(ShardPlan.of([]), order, ".parquet")


class TestFormats:
    def test_an_unreadable_format_is_refused_with_what_can_be_read(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 1))
        write_jsonl(tmp_path / "in" / "README.md", b"# hello")
        with refusing(f"cannot tell how to read '{tmp_path}/in/README.md': expected a name ending in .jsonl") as caught:
            run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert "rename it, or leave it out with a glob such as 'data/*.jsonl'" in str(caught.value)
        assert not (tmp_path / "out").exists()

    def test_formats_may_be_mixed(self, tmp_path: Path) -> None:
        """Each has its own schema; the outputs have one."""
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
        write_jsonl(tmp_path / "in" / "b.csv", b"n,id\n2,r2\n3,r3\n")
        write_parquet(tmp_path / "in" / "c.parquet", numbered(4, 6))
        assert run_job(Copy(), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
        assert output_rows(tmp_path / "out") == [{"id": f"r{k}", "n": k} for k in range(6)]


class TestSplitting:
    def test_large_jsonl_is_split_by_bytes_and_large_parquet_by_row_groups(self, tmp_path: Path) -> None:
        rows = numbered(0, 300)
        write_jsonl(tmp_path / "in" / "big.jsonl", rows)
        write_parquet(tmp_path / "in" / "wide.parquet", rows, row_group_size=25, compression="none")
        write_jsonl(tmp_path / "in" / "small.jsonl", rows[:2])
        summary = run_job(Copy(shard_bytes=2000), tmp_path / "in", tmp_path / "out")
        assert summary.state is RunState.COMPLETE
        found = plan(tmp_path / "out")
        assert {row["kind"] for row in found if row["uri"].endswith("big.jsonl")} == {"bytes"}
        assert {row["kind"] for row in found if row["uri"].endswith("wide.parquet")} == {"row_groups"}
        assert all(row["size_bytes"] <= 2000 for row in found)
        tables = outputs(tmp_path / "out")
        for stem in ("big", "wide"):
            parts = [name for name in tables if name.startswith(f"{stem}.part-")]
            assert parts == [f"{stem}.part-{k:05d}-of-{len(parts):05d}.parquet" for k in range(len(parts))]
            assert len(parts) > 3
            assert [row for name in parts for row in tables[name].to_pylist()] == [
                {"id": row["id"], "n": row["n"]} for row in rows
            ]

    @settings(max_examples=examples(25), deadline=None)
    @given(
        lengths=st.lists(st.integers(0, 200), min_size=1, max_size=40),
        shard_bytes=st.integers(20, 2000),
        end=st.sampled_from([b"\n", b"", b"\r\n", b"\n\n"]),
    )
    def test_the_parts_are_the_whole(
        self, tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_bytes: int, end: bytes
    ) -> None:
        """Wherever the bytes are cut: within a line, a character, or at its end; a part may have no line at all."""
        root = tmp_path_factory.mktemp("split")
        lines = [orjson.dumps({"id": "ü" * length, "n": k}) for k, length in enumerate(lengths)]
        newline = b"\r\n" if end == b"\r\n" else b"\n"
        write_jsonl(root / "in" / "x.jsonl", newline.join(lines) + end)
        summary = run_job(Copy(shard_bytes=shard_bytes), root / "in", root / "out")
        assert summary.state is RunState.COMPLETE
        assert summary.books.rows_in == len(lengths)
        assert output_rows(root / "out") == [{"id": "ü" * length, "n": k} for k, length in enumerate(lengths)]

    @pytest.mark.parametrize("name", ["big.jsonl.gz", "big.csv", "big.txt"])
    def test_what_cannot_be_split_is_one_shard_with_a_warning(self, tmp_path: Path, name: str) -> None:
        lines = b"".join(b"%d,r%d\n" % (k, k * 7919) for k in range(2000))
        if name.endswith("gz"):
            lines = b"".join(orjson.dumps(row) + b"\n" for row in numbered(0, 2000))
        write_jsonl(tmp_path / "in" / name, b"n,id\n" + lines if name.endswith("csv") else lines)
        write_jsonl(tmp_path / "in" / f"more-{name}", b"")
        job = type("Any", (Job,), {"__module__": __name__, "version": "1", "process": lambda self, b: b})  # noqa: ARG005
        with capture_logs() as logs:
            summary = run_job(job(shard_bytes=1000), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.total, summary.books.rows_in) == (RunState.COMPLETE, 2, 2000)
        [warning] = [event for event in logs if "cannot be split" in event["event"]]
        assert (warning["inputs"], warning["largest"]) == (1, f"{tmp_path}/in/{name}")

    def test_many_of_them_are_one_warning(self, tmp_path: Path) -> None:
        for k in range(5):
            write_jsonl(tmp_path / "in" / f"{k}.jsonl.gz", numbered(0, 200))
        with capture_logs() as logs:
            run_job(Copy(shard_bytes=100), tmp_path / "in", tmp_path / "out")
        assert [event["inputs"] for event in logs if "cannot be split" in event["event"]] == [5]

    def test_one_row_group_is_one_shard_without_a_part_in_its_name(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "in" / "x.parquet", numbered(0, 500))
        run_job(Copy(shard_bytes=100), tmp_path / "in", tmp_path / "out")
        assert list(outputs(tmp_path / "out")) == ["x.parquet"]

    def test_a_large_file_with_a_broken_footer_fails_alone(self, tmp_path: Path) -> None:
        """Planning looks into it before any shard runs; it is no reason to refuse the others."""
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
        write_jsonl(tmp_path / "in" / "x.parquet", b"PAR1" + bytes(5000) + b"PAR1")
        summary = run_job(Copy(shard_bytes=1000), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.done, summary.failed) == (RunState.FAILED, 1, 1)
        assert "CorruptInput" in summary.failures[0].error

    def test_shard_bytes_is_identity(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
        run_job(Copy(shard_bytes=1000), tmp_path / "in", tmp_path / "out")
        with refusing("shard_bytes: made with 1000, you asked for 2000"):
            run_job(Copy(shard_bytes=2000), tmp_path / "in", tmp_path / "out")


class TestGrowth:
    def test_inputs_named_in_another_way_are_not_planned_twice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Relative, with dots, by glob, by directory above, file by file; and in another order."""
        for name in ("2022/a.jsonl", "2023/b.jsonl"):
            write_jsonl(tmp_path / "in" / name, numbered(0, 2))
        run_job(Copy(), tmp_path / "in", tmp_path / "out")
        before = plan(tmp_path / "out")
        monkeypatch.chdir(tmp_path)
        for source in (
            "in",
            "./in/",
            "out/../in/**",
            "in/*/*.jsonl",
            "in/{2023,2022}/",
            f"file://{tmp_path}/in",
            ["in/2023/b.jsonl", "in/2022/a.jsonl"],
            ["in/2023", "in/2022"],
            ["in", "in/**/*.jsonl"],
        ):
            summary = run_job(Copy(), source, tmp_path / "out")
            assert (summary.state, summary.total, summary.skipped) == (RunState.COMPLETE, 2, 2), source
        assert plan(tmp_path / "out") == before

    def test_new_inputs_are_appended_and_old_ones_keep_their_rank(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "b.jsonl", numbered(0, 2))
        run_job(Copy(), tmp_path / "in", tmp_path / "out")
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(2, 4))
        summary = run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert (summary.total, summary.skipped, summary.done) == (2, 1, 2)
        assert [row["id"] for row in plan(tmp_path / "out")] == ["b", "a"]

    def test_an_input_that_was_mended_before_it_was_done_is_read_as_it_is_now(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
        write_jsonl(tmp_path / "in" / "b.jsonl.gz", numbered(2, 4))
        whole_file = (tmp_path / "in" / "b.jsonl.gz").read_bytes()
        (tmp_path / "in" / "b.jsonl.gz").write_bytes(whole_file[:-9])
        assert run_job(Copy(), tmp_path / "in", tmp_path / "out").failed == 1
        (tmp_path / "in" / "b.jsonl.gz").write_bytes(whole_file)
        summary = run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.total, summary.skipped) == (RunState.COMPLETE, 2, 1)
        assert len(output_rows(tmp_path / "out")) == 4

    def test_an_input_that_changed_after_it_was_done_is_stale_and_kept(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 2))
        run_job(Copy(), tmp_path / "in", tmp_path / "out")
        write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 5))
        with capture_logs() as logs:
            summary = run_job(Copy(), tmp_path / "in", tmp_path / "out")
        assert (summary.state, summary.stale, summary.dispatched) == (RunState.COMPLETE, 1, 0)
        assert any("out of date" in event["event"] for event in logs)
        assert len(output_rows(tmp_path / "out")) == 2
