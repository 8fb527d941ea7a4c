"""Bad input: refused before anything is dispatched, or the shard or the row fails alone. Nothing is lost silently."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.errors import ConfigError, CurateError, PermissionDenied
from curate.job.job import Job
from curate.job.shapes import TextJob
from curate.ledger.summary import RunState
from curate.stores.memory import clear
from curate.stores.open import open_store
from tests.job.inline import (
    everything,
    numbered,
    output_rows,
    outputs,
    quarantined,
    refusing,
    run_job,
    write_jsonl,
    write_parquet,
)
from tests.support.gcs_emulator import GcsEmulator


class Copy(TextJob):
    """Gives back id and text."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


class Hooked(Copy):
    """Calls what the test gives before each batch."""

    name = "copy"

    def process(self, batch: pa.Table) -> pa.Table:
        HOOK[0]()
        return batch


HOOK: list[Callable[[], None]] = [lambda: None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three good inputs."""
    for k, name in enumerate("abc"):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(2 * k, 2 * k + 2))
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


class TestRefusedBeforeDispatch:
    """Exit 2: the message names the thing and the next step, and nothing is left under the output."""

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{}/nowhere", "no input: '{}/nowhere' does not exist"),
            ("{}/nowhere.jsonl", "check the path"),
            ("{}/in/*.parquet", "'{}/in/*.parquet' matches no object"),
            ("memory://nobody/x", "'memory://nobody/x' does not exist"),
        ],
    )
    def test_no_input_matches(self, tmp_path: Path, source: Path, out: Path, text: str, message: str) -> None:
        """Not even beside others that do."""
        with refusing(message.format(tmp_path)):
            run_job(Copy(), [source, text.format(tmp_path)], out)
        assert not out.exists()

    def test_an_empty_directory(self, tmp_path: Path, out: Path) -> None:
        (tmp_path / "empty").mkdir()
        with refusing("/empty' is a folder without files"):
            run_job(Copy(), tmp_path / "empty", out)
        assert not out.exists()

    @pytest.mark.parametrize("below", ["", "deep", "deep/er"])
    def test_an_output_at_a_file_or_below_one(self, source: Path, out: Path, below: str) -> None:
        out.write_text("mine")
        with refusing(f"cannot be a folder, for {out} is a file; choose another one"):
            run_job(Copy(), source, out / below)
        assert out.read_text() == "mine"

    @pytest.mark.parametrize("text", ["{}", "{}/", "{}/**", "{}/**/*.jsonl", "{}/../in"])
    @pytest.mark.parametrize("below", ["out", "x/y/out"])
    def test_output_inside_input(self, source: Path, text: str, below: str) -> None:
        with refusing("a rerun would read its own results; choose an output outside the input"):
            run_job(Copy(), text.format(source), source / below)
        assert not (source / below).exists()

    @pytest.mark.parametrize("text", ["{}/a.jsonl", "{}/sub", "{}/sub/*.jsonl"])
    def test_input_inside_output(self, tmp_path: Path, text: str) -> None:
        for name in ("a", "sub/b"):
            write_jsonl(tmp_path / "data" / f"{name}.jsonl", numbered(0, 1))
        with refusing("choose another output"):
            run_job(Copy(), text.format(tmp_path / "data"), tmp_path / "data")
        assert not (tmp_path / "data" / "_curate").exists()

    def test_two_inputs_to_one_output(self, source: Path, out: Path) -> None:
        write_jsonl(source / "a.jsonl.gz", numbered(0, 1))
        with refusing("would both be written to the output 'a.parquet'"):
            run_job(Copy(), source, out)
        assert not out.exists()

    @pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.parquet", "x.csv"])
    def test_a_missing_column(self, tmp_path: Path, out: Path, name: str) -> None:
        path = tmp_path / "data" / name
        if name.endswith("parquet"):
            write_parquet(path, [{"id": "a", "body": "x"}])
        else:
            write_jsonl(path, b"id,body\na,x\n" if name.endswith("csv") else [{"id": "a", "body": "x"}])
        with refusing(f"no column 'bodi' in {path}; did you mean 'body'?; it has 'id', 'body'"):
            run_job(Copy(text_column="bodi"), tmp_path / "data", out)
        assert not out.exists()

    def test_a_column_that_other_inputs_lack_fails_their_shards(self, tmp_path: Path, out: Path) -> None:
        """Only the first input is looked into before; the books show the rest."""
        write_parquet(tmp_path / "in" / "a.parquet", [{"id": "a", "text": "x"}])
        write_parquet(tmp_path / "in" / "b.parquet", [{"id": "a", "txt": "x"}])
        summary = run_job(Copy(), tmp_path / "in", out)
        assert (summary.state, summary.done, summary.failed) == (RunState.FAILED, 1, 1)
        assert "no column 'text'; did you mean 'txt'?; it has 'id', 'txt'" in summary.failures[0].error

    @pytest.mark.parametrize("name", ["x.md", "x", "x.parquet.gz", "x.jsonl.lz4", "x.json.zip"])
    def test_an_unreadable_format(self, source: Path, out: Path, name: str) -> None:
        path = write_jsonl(source / name, b"?")
        with refusing(f"cannot tell how to read '{path}': expected a name ending in .jsonl"):
            run_job(Copy(), source, out)
        assert not out.exists()

    @pytest.mark.parametrize("text", ["out", "./out", "../out", "out/"])
    def test_a_relative_output_under_ray_job_submit(
        self, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        """It would be written into a copy of the working directory, and vanish with it."""
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
        with refusing(f"output '{text}' is relative, and this runs under `ray job submit`") as caught:
            run_job(Copy(), source, text)
        assert "give an absolute path on shared storage, or gs://..." in str(caught.value)
        assert [path.name for path in tmp_path.rglob("*") if path.name in ("out", "_curate")] == []
        assert run_job(Copy(), "../in", tmp_path / "out").state is RunState.COMPLETE, (
            "a relative input is shipped along"
        )

    def test_an_output_that_is_a_file(self, tmp_path: Path, source: Path) -> None:
        (tmp_path / "out").write_bytes(b"mine")
        with pytest.raises(CurateError, match=str(tmp_path / "out")):
            run_job(Copy(), source, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"mine"

    @pytest.mark.parametrize("output", ["swift://b/out", "gs:/b/out", "", "gs://B/out"])
    def test_an_output_that_no_store_can_hold(self, source: Path, output: str) -> None:
        with pytest.raises(ConfigError, match=r"expected|did you mean"):
            run_job(Copy(), source, output)

    def test_several_reasons_leave_nothing_at_all(self, tmp_path: Path, source: Path) -> None:
        """Not even under CURATE_HOME."""
        home = Path(os.environ["CURATE_HOME"])
        before = everything(tmp_path)
        for given in ({"text_column": "x"}, {"id_column": "x"}, {"keep_columns": ["x"]}):
            with pytest.raises(ConfigError):
                run_job(Copy(**given), source, tmp_path / "out")
        assert everything(tmp_path) == before
        assert list(home.rglob("*")) == []


class TestNoPermission:
    """Over GCS, where it is an answer of the server; locally, tests may run as a user who may do everything."""

    @pytest.fixture
    def emulator(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsEmulator]:
        with GcsEmulator().here(monkeypatch) as running:
            running.put("gs://bucket/in/a.jsonl", b'{"id":"a","text":"x"}\n')
            yield running

    @pytest.mark.parametrize(
        ("operation", "name", "named"),
        [
            ("list", "in", "gs://bucket/in"),
            ("get", "in/a", "gs://bucket/in/a.jsonl"),
            ("list", "out", "gs://bucket/out"),
            ("put", "out", "gs://bucket/out/_curate/"),
        ],
    )
    def test_it_is_refused_and_leaves_nothing(
        self, emulator: GcsEmulator, operation: str, name: str, named: str
    ) -> None:
        """To list or read an input; to list or write the output. The message says what to do."""
        before = emulator.objects()
        emulator.fail(operation=operation, name=name, times=10**6, status=403)
        with pytest.raises(PermissionDenied) as caught:
            run_job(Copy(), "gs://bucket/in", "gs://bucket/out")
        assert named in str(caught.value)
        assert "gcloud auth application-default login" in str(caught.value)
        assert emulator.objects() == before

    def test_once_it_is_granted_the_job_runs(self, emulator: GcsEmulator) -> None:
        emulator.fail(operation="put", name="out", times=10**6, status=403)
        with pytest.raises(PermissionDenied):
            run_job(Copy(), "gs://bucket/in", "gs://bucket/out")
        emulator.heal()
        assert run_job(Copy(), "gs://bucket/in", "gs://bucket/out").state is RunState.COMPLETE

    def test_levels_above_the_input_need_not_be_readable(self, emulator: GcsEmulator) -> None:
        """They are only asked whether the input is part of a job's output."""
        emulator.put("gs://bucket/deep/down/in/a.jsonl", b'{"id":"a","text":"x"}\n')
        emulator.fail(operation="get", name="deep/_curate", times=10**6, status=403)
        emulator.fail(operation="get", name="down/_curate", times=10**6, status=403)
        assert run_job(Copy(), "gs://bucket/deep/down/in", "gs://bucket/out").state is RunState.COMPLETE


class TestIncompleteInput:
    """Jobs chain: an output is an input, if its job is complete."""

    @pytest.fixture
    def first(self, source: Path, tmp_path: Path) -> Path:
        """The output of a job that is two thirds done."""
        run_job(Copy(), source, tmp_path / "first", limit=2)
        return tmp_path / "first"

    @pytest.mark.parametrize("text", ["{}", "{}/", "{}/*.parquet", "{}/**", "{}/a.parquet", "{}/../first/[ab]*"])
    def test_it_is_refused_however_it_is_named(self, first: Path, out: Path, text: str) -> None:
        with refusing(f"input '{first}' is the output of an incomplete job; finish that job first") as caught:
            run_job(Copy(), text.format(first), out)
        assert f"(curate status {first}), or read the existing outputs with allow_incomplete_input=True" in str(
            caught.value
        )
        assert not out.exists()

    def test_a_directory_within_it_is_part_of_it(self, tmp_path: Path, out: Path) -> None:
        write_jsonl(tmp_path / "in" / "2022" / "a.jsonl", numbered(0, 1))
        write_jsonl(tmp_path / "in" / "2023" / "b.jsonl", numbered(0, 1))
        run_job(Copy(), tmp_path / "in", tmp_path / "first", limit=1)
        with refusing("is the output of an incomplete job"):
            run_job(Copy(), tmp_path / "first" / "2022", out)

    def test_it_can_be_allowed_and_grows(self, source: Path, first: Path, out: Path) -> None:
        summary = run_job(Copy(), first, out, allow_incomplete_input=True)
        assert (summary.state, summary.total) == (RunState.COMPLETE, 2)
        run_job(Copy(), source, first)
        summary = run_job(Copy(), first, out)
        assert (summary.state, summary.total, summary.skipped) == (RunState.COMPLETE, 3, 2)
        assert output_rows(out) == [{"id": f"r{k}", "text": f"text {k}"} for k in range(6)]

    def test_a_failed_shard_makes_a_job_incomplete(self, source: Path, out: Path, tmp_path: Path) -> None:
        (source / "b.jsonl.gz").unlink(missing_ok=True)
        write_jsonl(source / "z.jsonl.gz", numbered(0, 2)).write_bytes(b"no gzip")
        assert run_job(Copy(), source, tmp_path / "first").state is RunState.FAILED
        with refusing("is the output of an incomplete job"):
            run_job(Copy(), tmp_path / "first", out)

    def test_a_complete_one_is_read_without_its_ledger(self, source: Path, first: Path, out: Path) -> None:
        write_jsonl(source / "d.jsonl", [{"id": "r6", "text": None}])
        run_job(Copy(), source, first)
        assert quarantined(first)
        for text in (f"{first}", f"{first}/**", f"{first}/**/*"):
            summary = run_job(Copy(), text, out)
            assert (summary.state, summary.total) == (RunState.COMPLETE, 4)
        assert all("_curate" not in name for name in outputs(out))

    def test_in_memory_and_over_gs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with GcsEmulator().here(monkeypatch):
            for root in ("memory://chain", "gs://bucket"):
                store = open_store(root)
                for name in ("a", "b"):
                    store.publish(f"{root}/in/{name}.jsonl", b'{"id":"a","text":"x"}\n')
                run_job(Copy(), f"{root}/in", f"{root}/first", limit=1)
                with refusing(f"input '{root}/first' is the output of an incomplete job"):
                    run_job(Copy(), f"{root}/first", f"{root}/out")
                run_job(Copy(), f"{root}/in", f"{root}/first")
                assert run_job(Copy(), f"{root}/first/**", f"{root}/out").done == 2
        clear("chain")


def truncated_gzip() -> bytes:
    return gzip.compress(b"".join(orjson.dumps(row) + b"\n" for row in numbered(0, 500)), mtime=0)[:-30]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
"""What lies where Git LFS has not fetched a file."""


class TestBrokenShards:
    """One shard fails, once; the others finish; exit 1; nothing of it is published."""

    @pytest.mark.parametrize(
        ("name", "data", "error"),
        [
            ("0.jsonl.gz", truncated_gzip(), "not a whole gzip stream"),
            ("0.jsonl.gz", truncated_gzip()[:5], "not a whole gzip stream"),
            (
                "0.jsonl.gz",
                b'{"id":"a","text":"x"}\n',
                "begin as one; if it is not compressed, name it without its last",
            ),
            ("0.jsonl.zst", b"(\xb5/\xfd and no more", "not a whole zstd stream"),
            ("0.parquet", b"PAR1" + bytes(100), "not a whole Parquet file"),
            ("0.parquet", b"", "not a whole Parquet file"),
            ("0.parquet", POINTER, "git lfs pull"),
            ("0.jsonl.gz", POINTER, "git lfs pull"),
            ("0.jsonl.zst", POINTER, "git lfs pull"),
        ],
    )
    def test_what_cannot_be_read(self, source: Path, out: Path, name: str, data: bytes, error: str) -> None:
        """Even as the very first input: neither schema nor plan hang on it."""
        path = source / name
        path.write_bytes(data)
        summary = run_job(Copy(), source, out)
        assert (summary.state.exit_code, summary.done, summary.failed, summary.attempts) == (1, 3, 1, 4)
        assert summary.failures[0].error.startswith("CorruptInput")
        assert str(path) in summary.failures[0].error
        assert error in summary.failures[0].error
        assert sorted(outputs(out)) == ["a.parquet", "b.parquet", "c.parquet"]

    @pytest.mark.parametrize("change", ["delete", "replace"])
    def test_an_input_deleted_or_replaced_after_planning(self, source: Path, out: Path, change: str) -> None:
        def act() -> None:
            if change == "delete":
                (source / "c.jsonl").unlink(missing_ok=True)
            else:
                write_jsonl(source / "c.jsonl", numbered(50, 60))

        HOOK[0] = act
        summary = run_job(Hooked(), source, out)
        assert (summary.state.exit_code, summary.done, summary.failed, summary.attempts) == (1, 2, 1, 3)
        assert "after the plan was made" in summary.failures[0].error
        HOOK[0] = lambda: None
        if change == "replace":
            assert run_job(Hooked(), source, out).state is RunState.COMPLETE

    def test_all_inputs_broken(self, tmp_path: Path, out: Path) -> None:
        for name in ("a.jsonl.gz", "b.jsonl.gz"):
            write_jsonl(tmp_path / "in" / name, b"x").write_bytes(b"no gzip")
        summary = run_job(Copy(), tmp_path / "in", out)
        assert (summary.state, summary.done, summary.failed) == (RunState.FAILED, 0, 2)
        assert outputs(out) == {}

    def test_mended_it_is_run_again_alone(self, source: Path, out: Path) -> None:
        (source / "b.jsonl").unlink()
        write_jsonl(source / "b.jsonl.gz", numbered(2, 4))
        good = (source / "b.jsonl.gz").read_bytes()
        (source / "b.jsonl.gz").write_bytes(good[:-5])
        run_job(Copy(), source, out)
        (source / "b.jsonl.gz").write_bytes(good)
        summary = run_job(Copy(), source, out)
        assert (summary.state, summary.skipped, summary.attempts) == (RunState.COMPLETE, 2, 1)
        assert summary.books.rows_in == 6


class TestBadRows:
    """The row goes to quarantine with reason and line; the rest of the shard is processed."""

    def test_up_to_the_budget(self, source: Path, out: Path) -> None:
        bad = [b'{"id":', b'{"id":"x","text":"\xff"}', b'{"id":"x","text":null}', b'{"id":"x","text":{}}']
        lines = [orjson.dumps(row) for row in numbered(0, 20)]
        for k, line in enumerate(bad):
            lines.insert(5 * k + 2, line)
        write_jsonl(source / "d.jsonl", b"\n".join(lines))
        summary = run_job(Copy(), source, out)
        assert summary.state is RunState.COMPLETE
        assert summary.books.rows() == {"in": 30, "created": 0, "out": 26, "dropped": {}, "quarantined": 4}
        found = quarantined(out)
        assert [row["line"] for row in found] == [3, 8, 13, 18]
        assert [row["reason"].partition(":")[0] for row in found] == [
            "malformed JSON",
            "invalid UTF-8",
            "column 'text' is null",
            "column 'text' is not a string",
        ]

    @pytest.mark.parametrize(
        ("bad", "good", "given", "complete"),
        [
            (10, 90, {}, True),
            (11, 89, {}, False),
            (30, 29_970, {}, True),
            (31, 29_969, {}, False),
            (3, 97, {"max_bad_rows": 3}, True),
            (4, 96, {"max_bad_rows": 3}, False),
            (5, 95, {"max_bad_rows": "5%"}, True),
            (6, 94, {"max_bad_rows": "5%"}, False),
            (1, 99, {"max_bad_rows": 0}, False),
        ],
    )
    def test_the_budget(
        self, tmp_path: Path, out: Path, bad: int, good: int, given: dict[str, Any], complete: bool
    ) -> None:
        """0.1 % of a shard's rows, at least 10; or N; or P%. Beyond it the shard fails, once, and lists the reasons."""
        line = b'{"id":"a","text":"x"}\n'
        write_jsonl(tmp_path / "in" / "a.jsonl", line * good + b'{"id":"a"}\n' * (bad - 1) + b"{\n")
        summary = run_job(Copy(**given), tmp_path / "in", out)
        assert summary.attempts == 1
        assert (summary.state is RunState.COMPLETE) is complete
        if not complete:
            error = summary.failures[0].error
            assert error.startswith("TooManyBadRows")
            assert "malformed JSON" in error or bad == 4
            assert outputs(out) == {}
            assert quarantined(out) == []

    def test_a_budget_that_was_raised_finishes_the_job(self, tmp_path: Path, out: Path) -> None:
        """It is no part of the identity."""
        write_jsonl(tmp_path / "in" / "a.jsonl", b"{\n" * 11 + b'{"id":"a","text":"x"}\n')
        assert run_job(Copy(), tmp_path / "in", out).state is RunState.FAILED
        assert run_job(Copy(max_bad_rows=11), tmp_path / "in", out).state is RunState.COMPLETE


class _Unpicky(Job):
    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


def test_an_empty_input_gives_an_empty_output_with_the_right_schema(tmp_path: Path, out: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", numbered(0, 1))
    write_jsonl(tmp_path / "in" / "b.jsonl", b"")
    write_jsonl(tmp_path / "in" / "c.jsonl.gz", b"")
    assert run_job(_Unpicky(), tmp_path / "in", out).state is RunState.COMPLETE
    found = outputs(out)
    assert [len(table) for table in found.values()] == [1, 0, 0]
    assert len({table.schema for table in found.values()}) == 1


class All(Job):
    """Gives back all columns."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


WHOLE = {
    "a.parquet": lambda: _parquet(pa.table({"id": ["x"] * 50})),
    "a.jsonl.gz": lambda: gzip.compress(b'{"id": "x"}\n' * 50),
    "a.csv.gz": lambda: gzip.compress(b"id,n\n" + b"x,1\n" * 50),
    "a.jsonl.zst": lambda: pa.Codec("zstd").compress(b'{"id": "x"}\n' * 50, asbytes=True),
}


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.quick(4)
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("left", ["first bytes", "half", "all but the end"])
def test_where_no_input_can_be_read_each_fails(name: str, left: str, files: int, tmp_path: Path) -> None:
    """A file that is cut fails its shard as corrupt, also where none tells which columns there are: nobody takes it for
    one without rows."""
    data = WHOLE[name]()
    size = {"first bytes": 4, "half": len(data) // 2, "all but the end": len(data) - 1}[left]
    (tmp_path / "in").mkdir()
    for number in range(files):
        (tmp_path / "in" / f"{number}-{name}").write_bytes(data[:size])
    summary = run_job(All(), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.failed, summary.done) == (RunState.FAILED, files, 0)
    assert all("CorruptInput" in failure.error for failure in summary.failures)
