"""FileJob: a file as it is, whatever it holds; the rows that it makes are created."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.errors import CorruptInput
from curate.job.shapes import FileJob
from curate.ledger.summary import RunState
from tests.job.inline import failures, output_rows, outputs, run_job, write_jsonl

MEMBERS = pa.schema([("name", pa.string()), ("size", pa.int64()), ("comment", pa.string())])


class Members(FileJob):
    """Lists what is in archives."""

    version = "1"
    output_schema = MEMBERS

    def process_file(self, file: Any) -> Iterator[Any]:
        with file.open() as stream:
            if file.uri.endswith(".zip"):
                try:
                    archive = zipfile.ZipFile(stream)
                except zipfile.BadZipFile as error:
                    raise CorruptInput(f"{file.uri}: {error}") from error
                for info in archive.infolist():
                    yield {"name": info.filename, "size": info.file_size}
                return
            with tarfile.open(fileobj=stream, mode="r|*") as tar:
                for member in tar:
                    self.count("members")
                    yield {"name": member.name, "size": member.size, "comment": "from tar"}


def make_tar(path: Path, **members: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def make_zip(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_each_file_is_one_shard_and_its_rows_are_created(tmp_path: Path) -> None:
    """The output is named after the whole file name: `a.tar` and `a.zip` may lie together."""
    make_tar(tmp_path / "in" / "a.tar", one=b"1", three=b"333")
    make_zip(tmp_path / "in" / "a.zip", two=b"22")
    summary = run_job(Members(), tmp_path / "in", tmp_path / "out")
    assert summary.state is RunState.COMPLETE
    assert summary.books.rows() == {"in": 0, "created": 3, "out": 3, "dropped": {}, "quarantined": 0}
    assert summary.books.counters == {"members": 2}
    found = outputs(tmp_path / "out")
    assert {name: table.num_rows for name, table in found.items()} == {"a.tar.parquet": 2, "a.zip.parquet": 1}
    assert all(table.schema == MEMBERS for table in found.values())
    assert found["a.zip.parquet"].to_pylist() == [{"name": "two", "size": 2, "comment": None}]


def test_a_file_that_is_broken_fails_alone_and_once(tmp_path: Path) -> None:
    """Where `process_file` says so by CorruptInput; any other exception is tried again."""
    make_zip_dir = tmp_path / "in"
    make_tar(make_zip_dir / "good.tar", one=b"1")
    (make_zip_dir / "bad.zip").write_bytes(b"no zip at all")
    (make_zip_dir / "bad.tar").write_bytes(b"no tar at all")
    summary = run_job(Members(), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.done, summary.failed) == (RunState.FAILED, 1, 2)
    tries = [event["shard"] for event in failures(tmp_path / "out")]
    assert (tries.count("bad.zip"), tries.count("bad.tar")) == (1, 4)


def test_an_input_that_is_gone_fails_alone_and_once(tmp_path: Path) -> None:
    class Deleting(FileJob):
        version = "1"
        output_schema = pa.schema([("n", pa.int64())])

        def process_file(self, file: Any) -> Iterator[Any]:
            (tmp_path / "in" / "b.bin").unlink(missing_ok=True)
            with file.open() as stream:
                yield {"n": len(stream.read())}

    for name in "abc":
        write_jsonl(tmp_path / "in" / f"{name}.bin", b"123")
    summary = run_job(Deleting(), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.done, summary.failed, summary.attempts) == (RunState.FAILED, 2, 1, 3)
    assert "CorruptInput" in summary.failures[0].error


def test_the_file_has_uri_size_generation_and_a_seekable_stream(tmp_path: Path) -> None:
    class Facts(FileJob):
        version = "1"

        def process_file(self, file: Any) -> Iterator[Any]:
            with file.open() as stream:
                stream.seek(-2, 2)
                yield {"uri": file.uri, "size": file.size, "generation": file.generation, "end": stream.read()}

    path = write_jsonl(tmp_path / "in" / "a.bin", b"0123456789")
    run_job(Facts(), tmp_path / "in", tmp_path / "out")
    status = path.stat()
    assert output_rows(tmp_path / "out") == [
        {"uri": str(path), "size": 10, "generation": f"{status.st_mtime_ns}-10", "end": b"89"}
    ]


class Mixed(FileJob):
    """Yields what the test asks for, for each file."""

    version = "1"
    batch_size = 2
    what: str = ""

    def process_file(self, file: Any) -> Any:
        del file
        return {
            "": lambda: iter([{"a": 1}, {"a": 2}, {"a": 3}]),
            "tables between": lambda: [{"a": 1}, pa.table({"a": [2, 3]}), {"a": 4}, pa.record_batch({"a": [5]})],
            "lists of tables": lambda: [[pa.table({"a": [1]}), pa.table({"a": [2]})]],
            "nothing": lambda: None,
            "one dict": lambda: {"a": 1},
            "text": lambda: "text",
            "numbers": lambda: [1],
            "other keys": lambda: [{"a": 1}, {"a": 2, "bb": 3}],
            "fewer keys": lambda: [{"a": 1, "bb": 2}, {"a": 2}],
            "no fit": lambda: [{"a": 1}, {"a": "x"}],
            "huge": lambda: [{"a": 2**80}],
        }[self.what]()


@pytest.mark.parametrize(
    ("what", "values"), [("", [1, 2, 3]), ("tables between", [1, 2, 3, 4, 5]), ("lists of tables", [1, 2])]
)
def test_tables_and_rows_may_be_mixed_and_keep_their_order(tmp_path: Path, what: str, values: list[int]) -> None:
    write_jsonl(tmp_path / "in" / "a.bin", b"")
    assert run_job(Mixed(what=what), tmp_path / "in", tmp_path / "out").state is RunState.COMPLETE
    assert [row["a"] for row in output_rows(tmp_path / "out")] == values


def test_files_may_give_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.bin", b"")
    summary = run_job(Mixed(what="nothing"), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.books.rows_out) == (RunState.COMPLETE, 0)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("one dict", "Mixed.process_file returned dict, expected tables and dictionaries, each with `yield`"),
        ("text", "Mixed.process_file returned str, expected tables and dictionaries"),
        ("numbers", "Mixed.process_file returned int, expected a pyarrow.Table"),
        ("other keys", "returned a row with the key 'bb'; the file's first row has 'a'; declare output_schema"),
        ("fewer keys", "returned a row with no key 'bb'; the file's first row has 'a', 'bb'; declare output_schema"),
        ("no fit", "returned column 'a' values that do not fit one type: 1 (row 0 of the batch) and 'x' (row 1)"),
        ("huge", f"returned column 'a' a value that Arrow has no type for: {2**80} (row 0 of the batch)"),
    ],
)
def test_anything_else_is_named(tmp_path: Path, what: str, message: str) -> None:
    """Above all keys that come and go: which rows share a table must not decide what becomes of them."""
    write_jsonl(tmp_path / "in" / "a.bin", b"")
    summary = run_job(Mixed(what=what), tmp_path / "in", tmp_path / "out")
    assert summary.state is RunState.FAILED
    assert message in summary.failures[0].error


def test_with_a_schema_missing_keys_are_null_and_unexpected_ones_are_named(tmp_path: Path) -> None:
    class Declared(Mixed):
        output_schema = pa.schema([("bb", pa.int8()), ("a", pa.int64())])

    write_jsonl(tmp_path / "in" / "a.bin", b"")
    run_job(Declared(what="fewer keys"), tmp_path / "in", tmp_path / "fewer")
    assert output_rows(tmp_path / "fewer") == [{"bb": 2, "a": 1}, {"bb": None, "a": 2}]

    class Slip(Mixed):
        output_schema = pa.schema([("bbb", pa.int8()), ("a", pa.int64())])

    summary = run_job(Slip(what="fewer keys"), tmp_path / "in", tmp_path / "slip")
    assert "the key 'bb'; did you mean 'bbb'?; output_schema has 'bbb', 'a'" in summary.failures[0].error
    assert summary.attempts == 4


def test_file_jobs_read_from_memory_and_write_jsonl(tmp_path: Path) -> None:
    """The store does not matter, nor does the format of the output."""
    del tmp_path
    from curate.stores.memory import clear
    from curate.stores.open import open_store

    store = open_store("memory://files/in/a.tar")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    store.publish("memory://files/in/a.tar", buffer.getvalue())
    summary = run_job(Members(format="jsonl"), "memory://files/in", "memory://files/out")
    assert summary.state is RunState.COMPLETE
    assert {item.uri for item in store.list("memory://files/out/a")} == {"memory://files/out/a.tar.jsonl.zst"}
    clear("files")
