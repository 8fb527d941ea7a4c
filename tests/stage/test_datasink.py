"""A class of the user's makes the bytes of outputs; names, records, resume, books and identity stay curate's."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import curate
from curate.clock import SystemClock
from curate.dataset.dataset import Dataset
from curate.errors import ConfigError
from curate.graph.entry import run
from curate.objects.record import OutputFormat
from curate.observe.job import find_job, read_status
from curate.observe.preview import preview
from curate.observe.verify import verify
from curate.plan.stages import stage_of
from curate.resume.options import RunOptions
from curate.stage.datasink import SinkFile, SinkWriter
from tests.sources.test_datasource import Numbers
from tests.support.harness import Place, outputs
from tests.support.writes import files


class Texts(curate.Datasink):
    """A line a number; `kill` is the number that kills the process."""

    suffix = ".texts"

    def __init__(self, end: str = "\n", kill: int = -1) -> None:
        self.end = end
        self.kill = kill

    def identity(self) -> Any:
        return {"end": self.end}

    def open(self, file: SinkFile, schema: pa.Schema) -> SinkWriter:
        if schema.names != ["n"]:
            raise ConfigError(f"Texts has a place for 'n' alone, found {schema.names}")
        return Writer(self, file)


class Plain(Texts):
    """Texts whose readers stop at a line END."""

    suffix = ".plain"
    ignores_rest = True


class Writer:
    def __init__(self, sink: Texts, file: SinkFile) -> None:
        self.sink = sink
        self.file = file

    def write(self, table: pa.Table) -> None:
        for n in table["n"].to_pylist():
            if n == self.sink.kill:
                signal.raise_signal(signal.SIGKILL)
            self.file.write(f"{n}{self.sink.end}".encode())

    def close(self) -> None:
        self.file.write(b"END")


def numbers(folder: Path, files: int = 4) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (folder / f"{number}.jsonl").write_text("".join(f'{{"n": {number * 10 + k}}}\n' for k in range(10)))
    return curate.read_json(folder)


def text(number: int) -> bytes:
    return b"".join(b"%d\n" % (number * 10 + k) for k in range(10)) + b"END"


def test_written(tmp_path: Path) -> None:
    """An output for each input, called after it; readers of the codec find the sink's bytes and nothing else."""
    ds = numbers(tmp_path / "in")
    ended = ds.filter(curate.col("n") >= 0, reason="x").write_datasink(tmp_path / "z", Texts(), backend="inline")
    assert (ended.state, ended.books.rows_in, ended.books.rows_out) == ("complete", 40, 40)
    assert list(files(tmp_path / "z")) == [f"{number}.texts.zst" for number in range(4)]
    for number, data in enumerate(files(tmp_path / "z").values()):
        assert pa.CompressedInputStream(pa.BufferReader(data), "zstd").read() == text(number)
    ds.write_datasink(tmp_path / "g", Texts(), codec="gzip", backend="inline")
    assert [gzip.decompress(data) for data in files(tmp_path / "g").values()] == [text(number) for number in range(4)]
    ds.write_datasink(tmp_path / "p", Plain(), backend="inline")
    assert list(files(tmp_path / "p")) == [f"{number}.plain" for number in range(4)]
    assert [data.partition(b"END")[0] + b"END" for data in files(tmp_path / "p").values()] == [*map(text, range(4))]


@pytest.mark.parametrize("sink", [Texts(), Plain()], ids=["compressed", "as they are"])
def test_looked_at(tmp_path: Path, sink: Texts) -> None:
    """`status`, `verify` and a rerun know them; a byte that changed is found; rows are for readers of the format."""
    ds, out = numbers(tmp_path / "in"), tmp_path / "out"
    ds.write_datasink(out, sink, backend="inline")
    assert read_status(str(out), SystemClock().now()).state == "complete"
    assert verify(str(out)).state == "ok"
    assert ds.write_datasink(out, sink, backend="inline").dispatched == 0
    found = find_job(str(out))
    with pytest.raises(ConfigError, match=r"written by a curate\.Datasink"):
        preview(found.ledger.store, found.output(0), *found.written_as)
    name, data = next(iter(files(out).items()))
    (out / name).write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    assert [(one.kind, one.object) for one in verify(str(out)).findings] == [("damaged", name)]
    (out / name).unlink()
    assert ds.write_datasink(out, sink, backend="inline").dispatched == 1
    assert files(out)[name] == data


SCRIPT = """
import sys
from pathlib import Path
from tests.stage.test_datasink import Texts, numbers
numbers(Path(sys.argv[1])).write_datasink(sys.argv[2], Texts(kill=int(sys.argv[3])), backend="inline")
"""


@pytest.mark.slow
def test_killed_and_run_again(tmp_path: Path) -> None:
    """In the middle of an output: what is published stays, and the bytes are those of a run that nobody killed."""
    out = tmp_path / "out"
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "in"), str(out), "25"], check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    there = files(out)
    assert there
    assert "2.texts.zst" not in there
    ds = curate.read_json(tmp_path / "in")
    assert ds.write_datasink(out, Texts(), backend="inline").dispatched == 4 - len(there)
    ds.write_datasink(tmp_path / "whole", Texts(), backend="inline")
    assert files(out) == files(tmp_path / "whole")


def test_after_exchanges(tmp_path: Path) -> None:
    """Its stages are run files, and checkpoints Parquet; in folders of values, too; with a limit, and a seed that the
    first run chooses."""
    ds = numbers(tmp_path / "in")
    sorted_ = ds.checkpoint(tmp_path / "kept").sort("n", descending=True)
    assert sorted_.write_datasink(tmp_path / "out", Texts(), codec="gzip", backend="inline").state == "complete"
    [data] = files(tmp_path / "out").values()
    assert gzip.decompress(data).split() == [*(b"%d" % n for n in range(39, -1, -1)), b"END"]
    assert (tmp_path / "kept" / "0.parquet").exists()
    for number, made in enumerate((ds.random_shuffle(), ds.limit(15))):
        out = tmp_path / f"out{number}"
        assert made.write_datasink(out, Plain(), backend="inline").state == "complete"
        assert made.write_datasink(out, Plain(), backend="inline").dispatched == 0
        assert all(name.endswith(".plain") for name in files(out))
    parted = ds.with_column("k", curate.col("n") >= 20)
    parted.write_datasink(tmp_path / "parts", Plain(), partition_cols=["k"], backend="inline")
    assert len([*(tmp_path / "parts").glob("k=*/part-*.plain")]) == 2


def test_identity(tmp_path: Path) -> None:
    """What the sink says it is, its class and suffix; nothing else of it."""
    ds, out = numbers(tmp_path / "in"), tmp_path / "out"
    ds.write_datasink(out, Texts(), backend="inline")
    with pytest.raises(ConfigError, match="identity"):
        ds.write_datasink(out, Texts(end="\r\n"), backend="inline")
    with pytest.raises(ConfigError, match="already contains output of 'write_datasink'"):
        ds.write_parquet(out, backend="inline")
    assert ds.write_datasink(out, Texts(kill=7), backend="inline").dispatched == 0


def test_another_format_takes_its_place(tmp_path: Path) -> None:
    """With `overwrite`: its outputs are removed, by the suffix that they were written with."""
    ds, out = numbers(tmp_path / "in"), tmp_path / "out"
    ds.write_datasink(out, Texts(), backend="inline")
    spec = stage_of(ds._plan, OutputFormat.PARQUET, None)
    how: dict[str, Any] = {"backend": "inline", "overwrite": True, "confirm": lambda _: True}
    assert run(spec, RunOptions(inputs=spec.inputs, output=str(out), **how)).state == "complete"
    assert list(files(out)) == [f"{number}.parquet" for number in range(4)]


class Bad(Texts):
    def __init__(self, suffix: Any = ".bad", own: Any = None) -> None:
        super().__init__()
        self.suffix = suffix  # type: ignore[misc]
        self.own = own

    def identity(self) -> Any:
        return self.own


@pytest.mark.parametrize(
    ("sink", "codec", "said"),
    [
        ("x", None, r"takes a curate\.Datasink, found str"),
        (Bad(suffix="bad"), None, "expected a suffix of names"),
        (Bad(suffix="./bad"), None, "expected a suffix of names"),
        (Bad(own=object()), None, "expected JSON values"),
        (Texts(), "none", "say ignores_rest = True"),
        (Texts(), "snappy", "snappy"),
    ],
)
def test_refused(tmp_path: Path, sink: Any, codec: str | None, said: str) -> None:
    """A sink that does not say what it has to."""
    with pytest.raises(ConfigError, match=said):
        curate.range(1).write_datasink(tmp_path / "out", sink, codec=codec, backend="inline")
    assert not (tmp_path / "out").exists()


def test_a_schema_without_a_place(tmp_path: Path) -> None:
    """Is refused before anything runs, or is written."""
    with pytest.raises(ConfigError, match=r"'n' alone, found \['id'\]"):
        curate.range(1).write_datasink(tmp_path / "out", Texts(), backend="inline")
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.usefixtures("on_ray")
def test_the_same_bytes_on_ray(tmp_path: Path) -> None:
    """Of a user's source and a user's sink: named after shards, after an exchange, and in folders of values."""
    ds = curate.read_datasource(Numbers())
    writes: dict[str, Any] = {
        "shards": ds.write_datasink,
        "sorted": ds.random_shuffle(seed=3).write_datasink,
        "folders": ds.with_column("odd", pc.bit_wise_and(pc.field("n"), 1)).write_datasink,
    }
    for name, write in writes.items():
        more = {"partition_cols": ["odd"]} if name == "folders" else {}
        for backend in ("inline", "ray"):
            ended = write(tmp_path / backend / name, Texts(), backend=backend, **more)
            assert (ended.state, ended.books.rows_out) == ("complete", 12)
    made = [outputs(Place(str(tmp_path)).objects(backend)) for backend in ("inline", "ray")]
    named = {key: value for key, value in made[0].items() if "_curate" not in key}
    assert named == {key: value for key, value in made[1].items() if "_curate" not in key}
    assert {key.partition("/")[0] for key in named} == writes.keys()
    assert ds.using(backend="ray").take_all() == ds.take_all()
