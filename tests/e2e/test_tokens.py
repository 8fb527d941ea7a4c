"""Outputs of tokens, killed and run again: formats of two files, and of one file that names all others."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from curate.errors import ConfigError
from curate.job.job import Job
from curate.ledger.layout import COMPANIONS
from curate.ledger.side_outputs import companion
from curate.ledger.summary import Summary
from curate.observe.verify import verify
from curate.storage.faults import Fault
from curate.stores import memory
from curate.stores.faulty import FaultyStore
from curate.stores.open import open_store, wrap_stores
from curate.testing.local import run_local
from curate.testing.stores import faulty_stores
from jobs.tokens import Tokenize
from tests.job.inline import run_job
from tests.support.fakes import FakeClock
from tests.support.harness import Place, Zygote, check_same, outputs, totals
from tests.support.sweeps import Sweep
from tests.support.tiny_tokenizers import END, WORDS, byte_level

TOKENS = "jobs/tokens.py"


def corpus(seed: int = 1) -> dict[str, bytes]:
    """Three files of texts, one of them empty."""
    rng = random.Random(seed)
    files = {}
    for number, size in enumerate((40, 0, 25)):
        rows = [{"id": k, "text": " ".join(rng.choices(WORDS, k=rng.randrange(4)))} for k in range(size)]
        files[f"{number}.jsonl"] = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    return files


FORMATS: dict[str, tuple[str, ...]] = {
    "parquet": (),
    "best-fit": ("--pack", "16", "--pack-by", "best-fit", "--long", "cut"),
    "memmap": ("--format", "memmap"),
    "megatron": ("--format", "megatron"),
    "datatrove": ("--format", "datatrove"),
    "mds": ("--format", "mds", "--pack", "16"),
}


def sweeps() -> Iterator[Any]:
    """Yields each format in each place: one of two files on a disk for each change, all others for the night."""
    for kind, place in itertools.product(FORMATS, ("local", "gcs", "s3")):
        often = kind == "megatron" and place == "local"
        if kind != "parquet":
            yield pytest.param(FORMATS[kind], place, marks=[] if often else pytest.mark.nightly, id=f"{kind}-{place}")


@pytest.mark.slow
@pytest.mark.parametrize(("options", "place"), list(sweeps()), indirect=["place"])
def test_killed_at_every_operation_and_run_again(
    place: Place, sweep: Sweep, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The same bytes and books, on workers too; a file that is published last never lies there without the other one;
    and nothing names all outputs before they are there."""
    source = place.write("in", corpus())
    tokenizer = str(byte_level(tmp_path / "tokenizer.json"))
    common = (TOKENS, "--json", "--input", source, "--tokenizer", tokenizer, "--end-token", END, *options)
    with Zygote(tmp_path / "zygote", place.env) as zygote:
        inline = (*common, "--backend", "inline", "--output")
        whole = zygote.run(*inline, f"{place.root}/whole")
        assert whole.code == 0, whole.err
        expected = place.objects("whole")
        operations = zygote.operations(*inline, f"{place.root}/count")
        for number in sweep(operations, 8):
            name, where = f"killed-{number}", f"before operation {number}, {operations[number]}"
            killed = zygote.run(*inline, f"{place.root}/{name}", kill_operation=number, kill_when="before")
            assert killed.code == -9, f"{where}: {killed.code} {killed.err}"
            left = outputs(place.objects(name))
            assert set(left.items()) <= set(outputs(expected).items()), where
            for last, others in COMPANIONS.items():
                stems = [one.removesuffix(last) for one in left if one.endswith(last)]
                assert {stem + other for stem in stems for other in others} <= set(left), where
            if "index.json" in left:
                assert left == outputs(expected), where
            again = zygote.run(*inline, f"{place.root}/{name}")
            assert again.code == 0, f"{where}: {again.err}"
            found = place.objects(name)
            check_same(found, expected, where)
            assert totals(again.json) == totals(whole.json), where
            assert not verify(f"{place.root}/{name}").findings, where
            calls = zygote.run(*inline, f"{place.root}/{name}").json["storage_calls"]
            assert (calls["put"], calls["delete"]) == (0, 0), f"{where}: {calls}"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=[pytest.mark.nightly, pytest.mark.ray_lane])])
def test_the_same_bytes_on_workers(local: Place, tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "ray":
        request.getfixturevalue("on_ray")
    source = local.write("in", corpus())
    tokenizer = str(byte_level(tmp_path / "tokenizer.json"))
    common = (TOKENS, "--input", source, "--tokenizer", tokenizer, "--end-token", END)
    with Zygote(tmp_path / "zygote") as zygote:
        for kind, options in FORMATS.items():
            for where in ("inline", backend):
                ended = zygote.run(*common, *options, "--backend", where, "--output", f"{local.root}/{kind}/{where}")
                assert ended.code == 0, ended.err
                # The library says so where it was used before a fork: then its threads are gone.
                assert "TOKENIZERS_PARALLELISM" not in ended.err
            assert outputs(local.objects(f"{kind}/inline")) == outputs(local.objects(f"{kind}/{backend}")), kind


class Shards:
    """A job over some files, whose output stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.source = folder / "in"
        self.source.mkdir()
        for name, data in corpus().items():
            (self.source / name).write_bytes(data)
        self.tokenizer = str(byte_level(folder / "tokenizer.json"))

    def job(self, format: str, **parameters: Any) -> Job:
        return Tokenize(tokenizer=self.tokenizer, end_token=END, format=format, **parameters)

    def run(self, format: str, *, parameters: Any = None, **options: Any) -> Summary:
        return run_job(self.job(format, **(parameters or {})), self.source, self.out, **options)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.out.iterdir() if path.is_file())

    def bytes(self) -> dict[str, bytes]:
        return {name: (self.out / name).read_bytes() for name in self.names()}


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return Shards(tmp_path)


BOTH = ["0.bin", "0.idx", "1.bin", "1.idx", "2.bin", "2.idx"]


class TestTwoFiles:
    def test_the_second_alone_means_done(self, shards: Shards) -> None:
        shards.run("megatron")
        expected = shards.bytes()
        assert shards.names() == BOTH
        (shards.out / "0.idx").unlink()
        assert shards.run("megatron").attempts == 1
        assert shards.bytes() == expected

    def test_a_first_one_without_a_second_is_replaced(self, shards: Shards) -> None:
        """If curate wrote it, for another input; else the shard fails and says whose it is."""
        shards.run("megatron")
        expected = shards.bytes()
        (shards.out / "0.idx").unlink()
        (shards.out / "0.bin").write_bytes(expected["2.bin"])
        assert shards.run("megatron").state == "complete"
        assert shards.bytes() == expected
        (shards.out / "0.idx").unlink()
        (shards.out / "0.bin").write_bytes(b"mine")
        failed = shards.run("megatron")
        assert failed.state == "failed"
        assert "was not written by curate" in failed.failures[0].error
        assert (shards.out / "0.bin").read_bytes() == b"mine"

    def test_both_are_removed_and_made_anew(self, shards: Shards) -> None:
        shards.run("megatron")
        old = shards.bytes()
        (shards.out / "notes.txt").write_bytes(b"mine")
        shards.run("megatron", parameters={"begin_token": END}, overwrite=True, yes=True)
        assert shards.names() == [*BOTH, "notes.txt"]
        assert shards.bytes()["0.bin"] != old["0.bin"]
        shards.run("parquet", overwrite=True, yes=True)
        assert shards.names() == ["0.parquet", "1.parquet", "2.parquet", "notes.txt"]

    def test_both_go_with_their_input(self, shards: Shards) -> None:
        shards.run("megatron")
        (shards.source / "0.jsonl").unlink()
        shards.run("megatron", drop_removed=True, yes=True)
        assert shards.names() == BOTH[2:]

    def test_both_are_replaced_where_their_input_changed(self, shards: Shards) -> None:
        shards.run("megatron")
        (shards.source / "0.jsonl").write_bytes(corpus(seed=2)["0.jsonl"])
        assert shards.run("megatron", redo_stale=True).state == "complete"
        tokens, index = np.memmap(shards.out / "0.bin", mode="r"), (shards.out / "0.idx").read_bytes()
        lengths = np.frombuffer(index, np.int32, 40, 34)
        found = np.frombuffer(tokens, np.uint16, int(lengths.sum())).tolist()
        fresh = run_local(shards.job("parquet"), files={"0.jsonl": corpus(seed=2)["0.jsonl"]})
        assert found == [token for row in fresh.rows for token in row["tokens"]]
        assert not verify(str(shards.out)).findings

    @pytest.mark.parametrize(("damage", "kind"), [("gone", "missing"), ("changed", "damaged"), ("cut", "record")])
    def test_verify_looks_at_both(self, shards: Shards, damage: str, kind: str) -> None:
        shards.run("megatron")
        path = shards.out / "0.bin"
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(b"\xff" * 8 + data[8:] if damage == "changed" else data[:100])
        found = verify(str(shards.out)).findings
        assert [(one.kind, one.object) for one in found] == [(kind, "0.bin")]


class TestStores:
    """Each format in each kind of store."""

    @pytest.fixture(params=["memory", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gs", "s3"))])
    def bucket(self, request: pytest.FixtureRequest) -> str:
        if request.param == "memory":
            return f"memory://{request.node.name.partition('[')[0]}-{time.monotonic_ns()}"
        request.getfixturevalue("emulator" if request.param == "gs" else "s3_emulator")
        return f"{request.param}://bucket"

    @pytest.mark.slow
    def test_the_same_bytes(self, shards: Shards, bucket: str) -> None:
        """As on a disk; the last file alone means done there, too, and files of other bytes without it are replaced."""
        store = open_store(bucket)
        for format in ("parquet", "memmap", "megatron", "datatrove", "mds"):
            shards.out = shards.folder / format
            shards.run(format)
            expected, out = shards.bytes(), f"{bucket}/{format}"

            def stored(out: str = out) -> dict[str, bytes]:
                found = store.list(f"{out}/")
                names = [one.uri.removeprefix(f"{out}/") for one in found]
                return {name: store.read(f"{out}/{name}") for name in names if not name.startswith("_curate/")}

            assert run_job(shards.job(format), shards.source, out).state == "complete"
            assert stored() == expected
            last = {"megatron": "0.idx", "datatrove": "0.ds.metadata"}.get(format)
            if last is not None:
                stem, _, suffix = last.partition(".")
                first = stem + companion(f".{suffix}")[0]
                store.delete(f"{out}/{last}")
                store.replace(f"{out}/{first}", expected[first.replace("0", "2")])
                assert run_job(shards.job(format), shards.source, out).attempts == 1
                assert stored() == expected
            assert run_job(shards.job(format), shards.source, out).attempts == 0
            assert not verify(out).findings

    @pytest.mark.slow
    @pytest.mark.parametrize("format", ["megatron", "datatrove"])
    def test_killed_before_any_change(self, shards: Shards, format: str) -> None:
        """What a kill leaves is what is stored at that moment: runs go on from there to the same bytes, and what lies
        there is never the last file without the others."""
        bucket = f"killed-{time.monotonic_ns()}"
        out, before = f"memory://{bucket}/out", []

        class Watch(Fault):
            def hits(self, operation: str, uri: str) -> bool:
                if operation in ("publish", "replace", "delete") and "/runs/" not in uri and uri.startswith(out):
                    before.append(dict(memory._buckets.get(bucket, {})))
                return False

        def data() -> dict[str, bytes]:
            return {name: one[0] for name, one in memory._buckets[bucket].items() if "_curate/" not in name}

        with faulty_stores(Watch(), retry=None):
            shards.out = out  # type: ignore[assignment]
            assert shards.run(format).state == "complete"
        expected, points = data(), list(before)
        assert len(points) >= len(expected) + 3
        for left in points:
            memory._buckets[bucket] = dict(left)
            there = set(data())
            for last, others in COMPANIONS.items():
                stems = [one.removesuffix(last) for one in there if one.endswith(last)]
                assert {stem + other for stem in stems for other in others} <= there
            assert shards.run(format).state == "complete"
            assert data() == expected
            assert not verify(out).findings


THREE = [f"{number}{suffix}" for number in range(3) for suffix in (".ds", ".ds.index", ".ds.metadata")]


class TestWithoutRecords:
    """Files of datatrove: those of tokens and of ends have no place for a record, so their names say whose they are."""

    def test_the_last_alone_means_done(self, shards: Shards) -> None:
        """Those without it are replaced, whatever they are: they were planned where nobody had such files."""
        shards.run("datatrove")
        expected = shards.bytes()
        assert shards.names() == THREE
        assert not verify(str(shards.out)).findings
        for name in ("0.ds", "0.ds.index", "2.ds"):
            (shards.out / f"{name[0]}.ds.metadata").unlink(missing_ok=True)
            (shards.out / name).write_bytes(b"of an attempt with other inputs")
        assert shards.run("datatrove").attempts == 2
        assert shards.bytes() == expected
        assert shards.run("datatrove").attempts == 0

    def test_names_that_somebody_has(self, shards: Shards) -> None:
        """Refused before anything is planned, in a job that begins and in one that grows."""
        shards.out.mkdir()
        (shards.out / "1.ds").write_bytes(b"mine")
        with pytest.raises(ConfigError, match=r"/1\.ds was not written by curate, but it has the name of an output"):
            shards.run("datatrove")
        assert shards.names() == ["1.ds"]
        (shards.out / "1.ds").rename(shards.out / "3.ds.index")
        shards.run("datatrove")
        (shards.source / "3.jsonl").write_bytes(corpus()["0.jsonl"])
        with pytest.raises(ConfigError, match=r"/3\.ds\.index was not written by curate"):
            shards.run("datatrove")
        assert (shards.out / "3.ds.index").read_bytes() == b"mine"

    def test_all_go_together(self, shards: Shards) -> None:
        """Where the job is made anew, its input changed, or is gone; what else is there stays."""
        shards.run("datatrove")
        (shards.out / "0.ds.metadata").unlink()
        (shards.out / "notes.ds").write_bytes(b"mine")
        old = shards.bytes()
        shards.run("datatrove", parameters={"begin_token": END}, overwrite=True, yes=True)
        assert shards.names() == [*THREE, "notes.ds"]
        assert shards.bytes()["0.ds"] != old["0.ds"]
        (shards.source / "0.jsonl").write_bytes(corpus(seed=2)["0.jsonl"])
        assert shards.run("datatrove", parameters={"begin_token": END}, redo_stale=True).state == "complete"
        (shards.source / "2.jsonl").unlink()
        shards.run("datatrove", parameters={"begin_token": END}, drop_removed=True, yes=True)
        assert shards.names() == [*THREE[:6], "notes.ds"]
        assert {one.kind for one in verify(str(shards.out)).findings} == {"foreign"}
        shards.run("parquet", overwrite=True, yes=True)
        assert shards.names() == ["0.parquet", "1.parquet", "notes.ds"]

    @pytest.mark.parametrize("name", ["0.ds", "0.ds.index"])
    @pytest.mark.parametrize(("damage", "kind"), [("gone", "missing"), ("changed", "damaged"), ("cut", "damaged")])
    def test_verify_looks_at_all(self, shards: Shards, name: str, damage: str, kind: str) -> None:
        shards.run("datatrove")
        path = shards.out / name
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(b"\xff" * 8 + data[8:] if damage == "changed" else data[:-8])
        found = verify(str(shards.out)).findings
        assert [(one.kind, one.object) for one in found] == [(kind, name)]


class TestIndex:
    def test_it_names_what_there_is(self, shards: Shards) -> None:
        """It goes when an output is made again, and comes back when all are there."""
        shards.run("mds")
        assert shards.names() == ["0.mds", "1.mds", "2.mds", "index.json"]
        before = shards.bytes()
        (shards.source / "3.jsonl").write_bytes(corpus()["0.jsonl"])
        (shards.source / "4.jsonl").write_bytes(b'{"id": 1, "text": null}\n' * 100)
        assert shards.run("mds").state == "failed"
        assert shards.names() == ["0.mds", "1.mds", "2.mds", "3.mds"]
        (shards.source / "4.jsonl").write_bytes(b'{"id": 1, "text": "dog"}\n')
        assert shards.run("mds", retry_failed=True, redo_stale=True).state == "complete"
        index = json.loads((shards.out / "index.json").read_bytes())
        assert [one["raw_data"]["basename"] for one in index["shards"]] == [f"{k}.mds" for k in (0, 2, 3, 4)]
        assert [one["samples"] for one in index["shards"]] == [40, 25, 40, 1]
        assert {name: shards.bytes()[name] for name in before if name.endswith(".mds")} == {
            name: data for name, data in before.items() if name.endswith(".mds")
        }

    def test_one_that_is_gone_comes_back(self, shards: Shards) -> None:
        shards.run("mds")
        expected = shards.bytes()
        (shards.out / "index.json").unlink()
        assert shards.run("mds").attempts == 0
        assert shards.bytes() == expected

    @pytest.mark.parametrize("at", ["read", "publish"])
    def test_it_takes_long_to_make(self, shards: Shards, at: str) -> None:
        """Of thousands of outputs in a bucket, as the head of each is read, which is no pause; what is removed
        meanwhile is made again before it is said that all is done."""
        clock, calls = FakeClock(), itertools.count(1)

        class Slow(FaultyStore):
            def _call(self, operation: str, uri: str, *how: Any) -> Any:
                if operation == at and uri.endswith(".mds" if at == "read" else "index.json"):
                    call = next(calls)
                    assert call < 20
                    clock.advance(20)
                    if at == "publish" and call == 1:
                        (shards.out / "0.mds").unlink()
                return super()._call(operation, uri, *how)

        with wrap_stores(Slow):
            assert shards.run("mds", clock=clock).state == "complete"
        assert verify(str(shards.out)).findings == []

    def test_one_of_somebody_else_stays(self, shards: Shards) -> None:
        shards.out.mkdir()
        (shards.out / "index.json").write_bytes(b"{}")
        with pytest.raises(ConfigError, match="not written by curate, but it has the name of the index"):
            shards.run("mds")
        assert shards.names() == ["index.json"]
        assert shards.run("megatron").state == "complete"

    def test_it_is_removed_with_its_outputs(self, shards: Shards) -> None:
        shards.run("mds")
        shards.run("parquet", overwrite=True, yes=True)
        assert shards.names() == ["0.parquet", "1.parquet", "2.parquet"]
