"""What verifying tells to remove is what the next run makes again: after both, nothing is off any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import curate
from curate.cli.verify import show_verified
from curate.clock import SystemClock
from curate.errors import StorageError
from curate.ledger import layout
from curate.ledger.compression import compress
from curate.observe.verify import DAMAGED, INCOMPLETE, OK, verify
from curate.storage.faults import Fault
from curate.testing.stores import faulty_stores
from tests.job.inline import everything, write_jsonl
from tests.resume.test_removal import Parted, rows, run_job, write_bytes

QUARANTINE = f"{layout.QUARANTINE}*.zst"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job of three shards, each with an extra output and rows set aside."""
    for name in "abc":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", rows(name))
    run_job(Parted(), tmp_path / "in", tmp_path / "out")
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def copied(path: Path) -> None:
    """Makes an output a copy of another one."""
    path.write_bytes((path.parent / "c.parquet").read_bytes())


def other_rows(path: Path) -> None:
    path.write_bytes(compress(b"{}"))


def other_totals(path: Path) -> None:
    summary = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps(summary | {"counters": {}}))


def another(path: Path) -> None:
    write_bytes(path.parent / "0123456789abcdef.jsonl.zst", b"x")


def follow(out: Path, source: Path) -> None:
    """Does what verifying tells to do."""
    report = verify(str(out))
    assert report.state == DAMAGED
    for name in dict.fromkeys(name for one in report.findings for name in one.remove):
        (out / name).unlink()
    run_job(Parted(), source, out)


@pytest.mark.parametrize("change", [cut, Path.unlink, copied])
@pytest.mark.parametrize("name", ["a.parquet", "_side/copy/a.parquet"])
def test_an_output(folder: Path, name: str, change: Callable[[Path], None]) -> None:
    """Also an extra one: nothing is made as long as the main one is there, nor in the place of a broken one."""
    out, before = folder / "out", (folder / "out" / "_side/copy/a.parquet").read_bytes()
    change(out / name)
    follow(out, folder / "in")
    assert verify(str(out)).state == OK
    assert (out / "_side/copy/a.parquet").read_bytes() == before


@pytest.mark.parametrize("change", [cut, Path.unlink, other_rows, another])
def test_rows_that_were_set_aside(folder: Path, change: Callable[[Path], None]) -> None:
    out = folder / "out"
    files = sorted(one.name for one in out.glob(QUARANTINE))
    change(next(iter(sorted(out.glob(QUARANTINE)))))
    follow(out, folder / "in")
    assert verify(str(out)).state == OK
    assert sorted(one.name for one in out.glob(QUARANTINE)) == files


def test_totals(folder: Path) -> None:
    """Those of a job of one stage are counted anew."""
    other_totals(folder / "out" / layout.SUMMARY)
    follow(folder / "out", folder / "in")
    assert verify(str(folder / "out")).state == OK


def test_totals_of_stages_that_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody can count them anew."""
    out = tmp_path / "out"
    curate.range(10).sort("id").write_parquet(out, backend="inline")
    summary = orjson.loads((out / layout.SUMMARY).read_bytes())
    (out / layout.SUMMARY).write_bytes(orjson.dumps(summary | {"counters": {"a": 1}}))
    show_verified(str(out), SystemClock(), as_json=False)
    assert capsys.readouterr().out.splitlines()[-1].startswith("next      start over (--overwrite, overwrite=True)")
    curate.range(10).sort("id").write_parquet(out, backend="inline", overwrite=True, yes=True)
    assert verify(str(out)).state == OK


@pytest.mark.parametrize("exchanges", [1, 2])
@pytest.mark.parametrize("change", [cut, Path.unlink, other_rows])
def test_rows_that_stages_set_aside_which_are_gone(
    change: Callable[[Path], None], exchanges: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the summary names their files, and nothing else has these rows."""
    write_jsonl(tmp_path / "in" / "a.jsonl", b'{"n": 1}\nno JSON\n')
    out = tmp_path / "out"

    def write(**how: bool) -> None:
        ds = curate.read_json(tmp_path / "in").using(max_bad_rows=1).sort("n")
        (ds if exchanges == 1 else ds.sort("n", descending=True)).write_parquet(out, backend="inline", **how)

    write()
    assert verify(str(out)).state == OK
    (file,) = out.glob(QUARANTINE)
    before = file.read_bytes()
    change(file)
    report = verify(str(out))
    assert [(one.kind, one.object) for one in report.findings] == [("quarantine", str(file.relative_to(out)))]
    assert report.state == DAMAGED
    show_verified(str(out), SystemClock(), as_json=False)
    assert capsys.readouterr().out.splitlines()[-1].startswith("next      start over (--overwrite, overwrite=True)")
    write(overwrite=True, yes=True)
    assert (verify(str(out)).state, file.read_bytes()) == (OK, before)


def test_rows_that_a_stage_set_aside_before_the_job_was_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied beside the output before there is one, and before a summary names them."""
    # A run that ended in this process could be one that goes on in it.
    monkeypatch.setattr("curate.driver.rivals.BETWEEN_LOOKS_S", 0.0)
    write_jsonl(tmp_path / "in" / "a.jsonl", b'{"n": 1}\nno JSON\n')
    out = tmp_path / "out"

    def write() -> None:
        curate.read_json(tmp_path / "in").using(max_bad_rows=1).sort("n").write_parquet(out, backend="inline")

    for name in (layout.plan_part(0), layout.SUMMARY):
        fault = Fault("publish", name=f"out/{name}", times=100, error=StorageError("as scripted"))
        with faulty_stores(fault), pytest.raises(StorageError):
            write()
        assert list(out.glob(QUARANTINE))
        assert (verify(str(out)).state, verify(str(out)).findings) == (INCOMPLETE, [])
    write()
    assert verify(str(out)).state == OK
    assert list(out.glob(QUARANTINE))


def test_what_is_left_of_a_shard_that_was_taken_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, source = folder / "out", folder / "in"
    left = {name: data for name, data in everything(out).items() if name.endswith("a.parquet")}
    (source / "a.jsonl").unlink()
    run_job(Parted(), source, out, drop_removed=True)
    for name, data in left.items():
        write_bytes(out / name, data)
    show_verified(str(out), SystemClock(), as_json=False)
    assert "next      run the job again, which removes the rest of shards" in capsys.readouterr().out
    follow(out, source)
    assert verify(str(out)).state == OK


@pytest.mark.parametrize("change", [cut, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"?" * 99)])
@pytest.mark.parametrize("kept", ["samples/*.zst", "schema/input-*.arrow"])
def test_what_is_kept_beside_outputs(tmp_path: Path, kept: str, change: Callable[[Path], None]) -> None:
    """No output is off with it, but the next run reads the columns of inputs, and a page the rows that were dropped."""
    curate.from_items([{"n": n} for n in range(20)]).write_parquet(tmp_path / "in", backend="inline")
    ds, out = curate.read_parquet(tmp_path / "in").filter(lambda row: row["n"] > 5), tmp_path / "out"
    ds.write_parquet(out, backend="inline")
    assert verify(str(out)).state == OK
    (path,) = (out / layout.LEDGER).glob(kept)
    change(path)
    (found,) = verify(str(out)).findings
    assert (found.kind, found.object) == ("beside", str(path.relative_to(out)))
    path.unlink()
    ds.write_parquet(out, backend="inline")
    assert verify(str(out)).state == OK
