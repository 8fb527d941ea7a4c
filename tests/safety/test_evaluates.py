"""Nothing that is read from storage is unpickled or evaluated: what the code calls, and what would run, planted."""

from __future__ import annotations

import ast
import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.arrow.order import Order, SortKey
from curate.errors import ConfigError, CurateError
from curate.exchange.run_file import RunFile, RunWriter
from curate.job.job import Job
from curate.ledger import layout
from curate.stores.open import open_store
from tests.cli.running import Curate
from tests.cli.running import curate as curate_
from tests.job.inline import run_job, write_jsonl

__all__ = ["curate_"]

ROOT = Path(curate.__file__).parent
RUNS_CODE = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "dill.loads",
    "marshal.loads",
    "marshal.load",
    "shelve.open",
    "joblib.load",
    "yaml.load",
    "yaml.unsafe_load",
    "torch.load",
    "eval",
    "exec",
    "compile",
    "__import__",
    "importlib.import_module",
    "import_module",
    "exec_module",
    "np.load",
    "numpy.load",
    "read_pickle",
}
ALLOWED = {
    ("backends/make.py", "importlib.import_module"): "Ray, by its name, in a thread",
    ("backends/ray/backend.py", "pickle.loads"): "between driver and workers, by Ray, whose cluster takes a token",
    ("backends/ray/calls.py", "pickle.loads"): "the board of a pool in the cluster's own key-value store",
    ("arrow/recast.py", "eval"): "dictionaries of so many columns, whatever their names are",
    ("dataclass.py", "exec"): "an `__init__` of the names of a class's fields, when it is called first",
    ("code/loaded.py", "compile"): "a module that this process has imported, compiled again to compare, and not run",
    ("code/names.py", "compile"): "a statement of a module of the user's, to see which names it reads; not run",
    ("local/wire.py", "pickle.loads"): "between driver and workers, over sockets that no other process has",
    ("local/worker.py", "pickle.loads"): "the program and its payloads, from a folder of this user alone",
    ("local/actor.py", "pickle.loads"): "the program of a pool, from such a folder",
    ("local/calls.py", "pickle.loads"): "the board of a pool, which the driver wrote there",
    ("local/blocks.py", "pickle.loads"): "a block that a worker wrote into such a folder",
    ("local/worker.py", "importlib.import_module"): "modules that another worker of the run has imported",
    ("local/server.py", "importlib.import_module"): "modules that the driver has imported, before workers are",
    ("pipeline/sandbox.py", "pickle.loads"): "a pipe to a child process that this one has started",
    ("pipeline/sandbox_process.py", "pickle.loads"): "the other end of that pipe",
    ("pipeline/remote_error.py", "pickle.loads"): "an exception on its way from that child, or just pickled here",
    ("testing/contract.py", "pickle.loads"): "a store that the test itself has pickled",
    ("testing/__init__.py", "import_module"): "a table of curate's own names",
    ("__init__.py", "import_module"): "a table of curate's own names",
    ("job/locate.py", "importlib.import_module"): "the job's own file on this machine, as the user's Python finds it",
    ("job/locate.py", "exec_module"): "the same; `curate retry` says which file, --job another one",
}


def called(file: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls in a file with what they call, as it is written."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.slow
def test_what_runs_code_is_called_nowhere_but_where_no_stored_byte_gets() -> None:
    """Each place is on the list with its reason, and nothing is on the list that is not there."""
    found = set()
    for file in sorted(ROOT.rglob("*.py")):
        name = str(file.relative_to(ROOT))
        for what, call in called(file):
            assert not any(keyword.arg == "allow_pickle" for keyword in call.keywords), name
            last = what.rpartition(".")[2]
            if what in RUNS_CODE or last in ("exec_module", "read_pickle", "Unpickler"):
                found.add((name, "exec_module" if last == "exec_module" else what))
    assert found == ALLOWED.keys()


@pytest.mark.slow
def test_the_walk_sees_what_it_is_to_see() -> None:
    """An aliased module is not used to get round it: pickle is imported by its own name wherever it is."""
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None)
                assert module not in ("pickle", "marshal", "shelve", "dill"), file
                assert not [one for one in node.names if one.name == "pickle" and one.asname], file


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class Boom(pa.ExtensionType):
    """An extension type that says so when it is made from stored bytes, and carries a pickle there."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        super().__init__(pa.string(), "curate.tests.boom")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.payload

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Boom:
        del storage
        return cls(serialized)


class Same(Job):
    """Returns what it is given."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


def bombs(path: Path) -> dict[str, pa.Table]:
    """Returns tables that carry a pickle where Arrow or pandas might look."""
    payload = pickle.dumps(Bomb(path))
    assert pickle.loads(payload) is None
    assert path.exists(), "the bomb is live"
    path.unlink()
    texts = pa.array(["a", "b"])
    unknown = pa.field("text", pa.string(), metadata={
        b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": payload,
    })  # fmt: skip
    return {
        "python": pa.table([texts], schema=pa.schema([unknown])),
        "own": pa.table({"text": pa.ExtensionArray.from_storage(Boom(payload), texts)}),
        "pandas": pa.table({"text": texts}).replace_schema_metadata({"pandas": payload, "pickle": payload}),
        "rows": pa.table({"text": pa.array([payload, payload], pa.binary())}),
    }


@pytest.mark.parametrize("kind", ["python", "own", "pandas", "rows"])
def test_pickles_in_inputs_stay_bytes(kind: str, tmp_path: Path, curate_: Curate) -> None:
    """Parquet whose schema names extension types, with pickles for parameters, is read as its storage, or refused."""
    mark = tmp_path / "exploded"
    (tmp_path / "in").mkdir()
    pq.write_table(bombs(mark)[kind], tmp_path / "in" / "a.parquet")
    with contextlib.suppress(CurateError):
        run_job(Same(), tmp_path / "in", tmp_path / "out")
    assert curate_("head", str(tmp_path / "out")).code in (0, 2)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", [layout.JOB, layout.SUMMARY, layout.plan_part(0), "_curate/schema/output.arrow", "heartbeat.json"]
)
def test_pickles_in_place_of_ledger_files_are_damage(name: str, tmp_path: Path, curate_: Curate) -> None:
    """Whatever file of the ledger is a pickle, all commands say what is wrong, or pass it over."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    run_job(Same(), tmp_path / "in", tmp_path / "out")
    mark = tmp_path / "exploded"
    path = next((tmp_path / "out").rglob(name.rpartition("/")[2]))
    path.write_bytes(pickle.dumps(Bomb(mark)))
    for command in ("status", "failures", "verify", "head", "quarantine", "logs"):
        assert curate_(command, str(tmp_path / "out")).code in (0, 1, 2)
    with pytest.raises(CurateError) if name != "heartbeat.json" else pytest.MonkeyPatch.context():
        run_job(Same(), tmp_path / "in", tmp_path / "out")
        if name == "_curate/schema/output.arrow":
            raise ConfigError("not read: all outputs were there")
    assert not mark.exists()


def test_run_files_hold_no_types_of_others(tmp_path: Path) -> None:
    """A run file whose schema and rows have an extension type with a pickle is its storage when it is read."""
    mark = tmp_path / "exploded"
    table = bombs(mark)["python"]
    order = Order((SortKey("text"),))
    path = tmp_path / "a.run"
    with path.open("wb") as sink:
        writer = RunWriter(sink, table.schema, order)
        writer.write(table)
        writer.close({"shard": "a"})
    store = open_store(str(path))
    opened = RunFile.open(store, store.stat(str(path)))
    assert opened.read(0, 0, 2)["text"].type == pa.string()
    assert not mark.exists()


def test_text_that_looks_like_code_is_text(tmp_path: Path) -> None:
    """What a ledger says of parameters is shown and compared, never run."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    run_job(Same(), tmp_path / "in", tmp_path / "out")
    job = tmp_path / "out" / layout.JOB
    told = orjson.loads(job.read_bytes())
    mark = tmp_path / "exploded"
    told["identity"]["version"] = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    told["fingerprint"] = "f" * 16
    job.write_bytes(orjson.dumps(told))
    with pytest.raises(ConfigError, match="another identity"):
        run_job(Same(), tmp_path / "in", tmp_path / "out")
    assert not mark.exists()
