"""A class of the user's lists shards and reads them; all else is as for files: names, order, resume, books."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate.errors import ConfigError, SchemaMismatch
from curate.observe.verify import verify
from curate.plan.rewrites import size_of
from curate.sources.datasource import user_source
from tests.support.writes import failed_write

SCHEMA = pa.schema([("n", pa.int64())])


class Numbers(curate.Datasource):
    """Three numbers a shard; `table` is what there is, `log` the file that each read is noted in."""

    def __init__(self, shards: int = 4, table: str = "t", log: Path | None = None, **stop: str) -> None:
        self.count = shards
        self.table = table
        self.log = log
        self.stop = stop
        self.versions: dict[str, str] = {}

    def identity(self) -> Any:
        return {"table": self.table}

    def schema(self) -> pa.Schema:
        return SCHEMA

    def shards(self) -> Iterable[curate.SourceShard]:
        for number in range(self.count):
            name = f"2024/{number:02d}"
            yield curate.SourceShard(name, 100, number, self.versions.get(name, ""))

    def read(self, shard: curate.SourceShard) -> Iterator[pa.Table]:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{shard.id}\n")
        if shard.id == self.stop.get("kill"):
            signal.raise_signal(signal.SIGKILL)
        if shard.id == self.stop.get("corrupt"):
            raise curate.CorruptInput("cannot be read")
        yield pa.table({"n": pa.array([shard.data * 3], pa.int32())})
        yield pa.table({"n": pa.array([], pa.int32())})
        yield pa.table({"n": [shard.data * 3 + 1, shard.data * 3 + 2]})


def rows(count: int = 12) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob("2024/*"))}


def test_consumed_and_written(tmp_path: Path) -> None:
    """In the order of the shards; an output for each, called by its id; the rows have the schema that was said."""
    ds = curate.read_datasource(Numbers())
    assert ds.schema() == SCHEMA
    assert ds.take_all() == rows()
    assert (ds.num_blocks(), ds.limit(5).count(), ds.sort("n", descending=True).take(1)) == (4, 5, [{"n": 11}])
    ended = ds.filter(curate.col("n") > 0, reason="zero").write_parquet(tmp_path / "out", backend="inline")
    assert (ended.state, ended.books.rows_in, ended.books.dropped) == ("complete", 12, {"zero": 1})
    assert list(files(tmp_path / "out")) == [f"2024/{number:02d}.parquet" for number in range(4)]
    assert curate.read_parquet(tmp_path / "out").take_all() == rows()[1:]
    assert verify(str(tmp_path / "out")).state == "ok"
    assert curate.read_datasource(Numbers(0)).write_parquet(tmp_path / "none", backend="inline").state == "complete"


def test_through_exchanges(tmp_path: Path) -> None:
    """Shards are bundled for map shards by the bytes that they say."""
    source = user_source(Numbers())
    assert size_of(source) == 400
    ds = curate.read_datasource(Numbers()).union(curate.from_items([{"n": 12}]))
    assert ds.sort("n").take_all() == rows(13)
    assert ds.random_shuffle(seed=1).write_json(tmp_path / "out", backend="inline").state == "complete"
    assert curate.read_json(tmp_path / "out").sort("n").take_all() == rows(13)


SCRIPT = """
import sys
from pathlib import Path
import curate
from tests.sources.test_datasource import Numbers
source = Numbers(log=Path(sys.argv[2]), kill="2024/02")
curate.read_datasource(source).write_parquet(sys.argv[1], backend="inline")
"""


@pytest.mark.slow
def test_killed_and_run_again(tmp_path: Path) -> None:
    """Shards that have their output are not read again; the bytes are those of a run that nobody killed."""
    out, log = tmp_path / "out", tmp_path / "log"
    killed = subprocess.run([sys.executable, "-c", SCRIPT, str(out), str(log)], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(files(out)) == ["2024/00.parquet", "2024/01.parquet"]
    log.unlink()
    ds = curate.read_datasource(Numbers(log=log))
    assert ds.write_parquet(out, backend="inline").state == "complete"
    assert log.read_text().split() == ["2024/02", "2024/03"]
    curate.read_datasource(Numbers()).write_parquet(tmp_path / "whole", backend="inline")
    assert files(out) == files(tmp_path / "whole")
    assert ds.write_parquet(out, backend="inline").dispatched == 0


def test_a_shard_that_cannot_be_read(tmp_path: Path) -> None:
    """Fails alone, and is made once it can be."""
    write = curate.read_datasource(Numbers(corrupt="2024/01")).write_parquet
    broken = failed_write(write, tmp_path / "out", backend="inline")
    assert broken.state == "failed"
    assert len(files(tmp_path / "out")) == 3
    assert curate.read_datasource(Numbers()).write_parquet(tmp_path / "out", backend="inline").dispatched == 1


def test_identity(tmp_path: Path) -> None:
    """What the source says it is, its schema, its shards and their versions; nothing else of it."""
    ds = curate.read_datasource(Numbers())
    ds.write_parquet(tmp_path / "out", backend="inline")
    newer = Numbers()
    newer.versions = {"2024/03": "2"}
    for other in (Numbers(table="u"), Numbers(5), newer):
        with pytest.raises(ConfigError, match="identity"):
            curate.read_datasource(other).write_parquet(tmp_path / "out", backend="inline")
    assert curate.read_datasource(Numbers(log=tmp_path)).write_parquet(tmp_path / "out", backend="inline").state


def test_tasks_are_given_no_list_of_shards() -> None:
    """What is sent to a worker has the source, and not all shards."""
    few, many = (len(pickle.dumps(user_source(Numbers(count)).bare())) for count in (1, 1000))
    assert many < few + 100


class Wrong(Numbers):
    def __init__(self, **wrong: Any) -> None:
        super().__init__()
        self.wrong = wrong

    def identity(self) -> Any:
        return self.wrong.get("identity", "x")

    def schema(self) -> pa.Schema:
        return self.wrong.get("schema", SCHEMA)

    def shards(self) -> Iterable[Any]:
        return self.wrong.get("shards", [])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a table", r"takes a curate\.Datasource, found str; write a subclass"),
        (Wrong(identity=object()), "expected JSON values"),
        (Wrong(schema=["n"]), r"expected a pyarrow\.Schema"),
        (Wrong(schema=pa.schema([])), r"expected a pyarrow\.Schema"),
        (Wrong(shards=["a"]), r"returned 'a'; expected curate\.SourceShard"),
        (Wrong(shards=[curate.SourceShard("a", 1), curate.SourceShard("a", 1)]), "has 2 shards called 'a'"),
    ],
)
def test_refused(source: Any, said: str) -> None:
    """A source that does not say what it has to."""
    with pytest.raises(ConfigError, match=said):
        curate.read_datasource(source)


def test_rows_that_do_not_fit() -> None:
    """Are refused, with the source and the shard."""
    ds = curate.read_datasource(Wrong(schema=pa.schema([("n", pa.string())]), shards=[curate.SourceShard("a", 1, 0)]))
    with pytest.raises(SchemaMismatch, match=r"Wrong\.read\('a'\)"):
        ds.take_all()


def test_names_outside_of_the_output(tmp_path: Path) -> None:
    """Are refused, as those of files are."""
    ds = curate.read_datasource(Wrong(shards=[curate.SourceShard("../a", 1, 0)]))
    with pytest.raises(ConfigError, match=r"\.\./a"):
        ds.write_parquet(tmp_path / "out", backend="inline")
