"""`curate replay`: one shard, here, with the job's own code; nothing is published unless that is asked for."""

from __future__ import annotations

import datetime
import io
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import FileJob
from curate.ledger.summary import RunState
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from tests.cli.running import Curate, curate
from tests.e2e.jobs.choosy import Choosy
from tests.job.inline import everything, output_rows, outputs, run_job, write_jsonl
from tests.support.fakes import FakeClock

__all__ = ["curate"]

GOOD = [{"id": "a", "text": "fine"}, {"id": "b", "text": "boring"}, {"id": "c", "text": "long enough"}]
BAD = [{"id": "x", "text": "fine"}, {"id": "y", "text": "fine"}, {"id": "z", "text": "poison"}]


class Letters(FileJob):
    """Counts a file's letters, with a secret it must not tell."""

    version = "1"
    key: str = param(secret=True, help="a key")

    def process_file(self, file: Any) -> Any:
        data = file.open().read()
        if b"?" in data:
            raise ValueError(f"the key {self.key} does not open {data!r}")
        yield {"letters": len(data)}


class Leaving(Job):
    """Ends its process at every batch."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        del batch
        raise SystemExit(3)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Inputs of which the second has failed, and the output."""
    source, output = tmp_path / "in", tmp_path / "out"
    write_jsonl(source / "good.jsonl", GOOD)
    write_jsonl(source / "bad.jsonl", BAD)
    run_job(Choosy(), source, output, clock=FakeClock())
    return source, output


def test_a_shard_that_failed_fails_again(places: tuple[Path, Path], curate: Curate) -> None:
    """Exit code 1, and the traceback from the job's first line on; the ledger is as it was."""
    before = everything(places[1])
    shown = curate("replay", str(places[1]), "--shard", "bad")
    assert shown.code == 1
    assert re.search(r"bad  failed after \d+\.\d s: user error", shown.out)
    traceback = shown.out[shown.out.index("Traceback") :]
    assert traceback.splitlines()[1].strip().startswith('File "')
    assert "choosy.py" in traceback.splitlines()[1]
    assert traceback.strip().splitlines()[-2].endswith("ValueError: cannot measure 'poison'")
    assert everything(places[1]) == before


def test_a_mended_input_is_tried_as_it_is(places: tuple[Path, Path], curate: Curate) -> None:
    """Before it is retried: books and first rows; and still nothing is published."""
    write_jsonl(places[0] / "bad.jsonl", [*BAD[:2], {"id": "z", "text": "boring"}])
    before = everything(places[1])
    shown = curate("replay", str(places[1]), "--shard", "bad")
    assert shown.code == 0, shown.err
    for words in ("nothing is published", "3 in + 0 created = 2 out + 1 dropped", "1 boring", "characters = 14"):
        assert words in shown.out
    assert "the input was replaced after the plan was made" in shown.out
    assert [line.split() for line in shown.out.splitlines() if "fine" in line] == [
        ["x", "fine", "4"],
        ["y", "fine", "4"],
    ]
    assert f"curate retry {places[1]}" in shown.out
    assert everything(places[1]) == before


def test_json(places: tuple[Path, Path], curate: Curate) -> None:
    """One object, whatever the job prints."""
    done = curate("replay", str(places[1]), "--shard", "good", "--json", "-n", "1")
    assert done.code == 0
    assert done.json["rows"]["out"] == 2
    assert done.json["first_rows"] == [{"id": "a", "text": "fine", "length": 4}]
    assert (done.json["state"], done.json["published"], done.json["existed"]) == ("done", False, False)
    failed = curate("replay", str(places[1]), "--shard", "bad", "--json")
    assert (failed.code, failed.json["state"], failed.json["failure"]["kind"]) == (1, "failed", "user_error")
    assert "ValueError: cannot measure 'poison'" in failed.json["failure"]["traceback"]


def test_publish(places: tuple[Path, Path], curate: Curate) -> None:
    """As a run publishes: the same bytes, and never over an output that is there."""
    (output,) = places[1].glob("good.*")
    data = output.read_bytes()
    output.unlink()
    published = curate("replay", str(places[1]), "--shard", "good", "--publish", "--json")
    assert (published.code, published.json["published"], published.json["existed"]) == (0, True, False)
    assert output.read_bytes() == data
    before = everything(places[1])
    again = curate("replay", str(places[1]), "--shard", "good", "--publish")
    assert again.code == 0
    assert "its output existed before" in again.out
    assert everything(places[1]) == before
    assert run_job(Choosy(), places[0], places[1], clock=FakeClock()).skipped == 1


def test_an_input_that_was_replaced_is_not_published(places: tuple[Path, Path], curate: Curate) -> None:
    """The plan would not know what the output was made of; `curate retry` plans it again."""
    write_jsonl(places[0] / "bad.jsonl", GOOD)
    refused = curate("replay", str(places[1]), "--shard", "bad", "--publish")
    assert refused.code == 2
    assert f"publish it with: curate retry {places[1]}" in refused.err
    assert set(outputs(places[1])) == {"good.parquet"}


class Kinds(Job):
    """Makes columns of types that a file is not read back with, or that JSON does not have."""

    version = "1"
    output_schema = pa.schema(
        [("kind", pa.dictionary(pa.int32(), pa.string())), ("when", pa.timestamp("us")), ("raw", pa.binary())]
    )

    def process(self, batch: pa.Table) -> pa.Table:
        row = {"kind": "x", "when": datetime.datetime(2024, 1, 1), "raw": b"\xff"}
        return pa.Table.from_pylist([row] * len(batch), schema=self.output_schema)


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_rows_are_those_of_head_whatever_their_types(format: str, tmp_path: Path, curate: Curate) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", GOOD)
    output = str(tmp_path / "out")
    run_job(Kinds(format=format), tmp_path / "in", output)
    shown = curate("replay", output, "--shard", "a", "-n", "2", "--json")
    assert (shown.code, shown.json["rows"]["out"]) == (0, 3)
    head = [orjson.loads(row) for row in curate("head", output, "-n", "2", "--json").out.splitlines()]
    assert shown.json["first_rows"] == head != []


def test_an_input_that_is_gone_is_told_in_a_line(places: tuple[Path, Path], curate: Curate) -> None:
    """No frame of curate's own: what is wrong is the object, which the error names. `--json` has the traceback."""
    (places[0] / "good.jsonl").unlink()
    shown = curate("replay", str(places[1]), "--shard", "good")
    assert shown.code == 1
    assert re.search(r"good  failed after \d+\.\d s: corrupt input", shown.out)
    assert f"CorruptInput: {places[0]}/good.jsonl: the object was removed" in shown.out
    assert "Traceback" not in shown.out
    assert "Traceback" in curate("replay", str(places[1]), "--shard", "good", "--json").json["failure"]["traceback"]


def test_a_file_that_is_gone(places: tuple[Path, Path], curate: Curate) -> None:
    """It fails as it would in a run, and there is nothing for a debugger to stop at."""
    (places[0] / "bad.jsonl").unlink()
    shown = curate("replay", str(places[1]), "--shard", "bad", "--pdb")
    assert shown.code == 1
    assert "corrupt input" in shown.out
    assert "no debugger: it was not the job's own code that raised" in shown.err


def test_the_debugger_stops_where_the_job_raised(
    places: tuple[Path, Path], curate: Curate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the innermost frame of the job's own code."""
    monkeypatch.setattr("sys.stdin", io.StringIO("p text\np self.word\nup\np len(batch)\nq\n"))
    shown = curate("replay", str(places[1]), "--shard", "bad", "--pdb")
    assert shown.code == 1
    talk = shown.out[shown.out.index("ValueError: cannot measure") :]
    assert "measure()" in talk
    assert talk.count("'poison'") >= 3
    assert "process()" in talk
    assert "\n(Pdb) 1\n" in talk


@pytest.mark.parametrize("job", [Choosy(), Leaving()], ids=["now", "always"])
def test_a_job_that_ends_the_process(job: Job, tmp_path: Path, curate: Curate) -> None:
    """On Ray a worker would die of it; here it is told, also where no shard has ever got far enough for a schema."""
    write_jsonl(tmp_path / "in" / "a.jsonl", GOOD)
    run_job(job, tmp_path / "in", tmp_path / "out", clock=FakeClock())
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "a", "text": "exit"}])
    shown = curate("replay", str(tmp_path / "out"), "--shard", "a", "--json")
    assert (shown.code, shown.json["failure"]["kind"], shown.json["failure"]["error"]) == (
        1,
        "crashed",
        "SystemExit: 3",
    )


def test_a_job_of_files_with_a_secret(tmp_path: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is read from the environment again, and shown nowhere."""
    monkeypatch.setenv("LETTER_KEY", "hush-hush")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"abc")
    (tmp_path / "in" / "b.txt").write_bytes(b"?")
    run_job(Letters(key="LETTER_KEY"), tmp_path / "in", tmp_path / "out", clock=FakeClock())
    shown = curate("replay", str(tmp_path / "out"), "--shard", "a.txt", "--json")
    assert (shown.code, shown.json["first_rows"]) == (0, [{"letters": 3}])
    failed = curate("replay", str(tmp_path / "out"), "--shard", "b.txt")
    assert failed.code == 1
    assert "does not open b'?'" in failed.out
    assert "hush-hush" not in failed.out + failed.err
    monkeypatch.delenv("LETTER_KEY")
    unset = curate("replay", str(tmp_path / "out"), "--shard", "a.txt")
    assert unset.code == 2
    assert "'LETTER_KEY', which is not set" in unset.err


SCRIPT = """
from curate import Job

class Mine(Job):
    {version}

    def process(self, batch):
        {body}
"""


def load(path: Path) -> Job:
    from curate.job.locate import locate

    return locate({"script": str(path), "module": "", "class": "Mine", "parameters": {}, "settings": {}})


@pytest.mark.parametrize("version", ["version = '1'", "batch_size = 100"])
def test_changed_code_can_be_tried_and_not_published(
    tmp_path: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """That is what replay is for: mend the code, try it on the shard that failed."""
    import sys

    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_jsonl(tmp_path / "in" / "a.jsonl", GOOD)
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(SCRIPT.format(version=version, body="return 1 / 0"))
    second.write_text(SCRIPT.format(version=version, body="return batch"))
    run_job(load(first), tmp_path / "in", tmp_path / "out", clock=FakeClock())
    given = ("replay", str(tmp_path / "out"), "--shard", "a")
    assert curate(*given).code == 1
    mended = curate(*given, "--job", str(second))
    assert mended.code == 0, mended.err
    assert "3 out" in mended.out
    assert ("the result may differ from a run's" in mended.out) == (version == "batch_size = 100")
    refused = curate(*given, "--job", str(second), "--publish")
    assert refused.code == 2
    expected = "the code of 'mine' changed under the same version" if "'1'" in version else "with another identity"
    assert expected in refused.err
    assert output_rows(tmp_path / "out") == []


def test_an_unknown_shard_or_output(places: tuple[Path, Path], curate: Curate, tmp_path: Path) -> None:
    """Said before the job's code is imported."""
    unknown = curate("replay", str(places[1]), "--shard", "goood")
    assert unknown.code == 2
    assert "has no shard 'goood'; did you mean 'good'?" in unknown.err
    nothing = curate("replay", str(tmp_path / "nothing"), "--shard", "bad")
    assert nothing.code == 2
    assert "no curate job" in nothing.err


@pytest.mark.parametrize("at", ["stat job.json", "publish good.parquet"])
def test_nothing_is_published_to_a_job_that_was_overwritten_meanwhile(
    places: tuple[Path, Path], curate: Curate, at: str
) -> None:
    """Nobody sees that a shard is replayed. Its output would be taken for one of the inputs that are there now."""
    source, output = places
    (output / "good.parquet").unlink()
    done: list[str] = []

    class Meanwhile(FaultyStore):
        def _call(self, operation: str, uri: str, *how: Any) -> Any:
            if f"{operation} {Path(uri).name}" == at and not done:
                done.append(uri)
                write_jsonl(source / "good.jsonl", GOOD[:1])
                run_job(Choosy(), source, output, overwrite=True, confirm=lambda _: True, limit=1)
            return super()._call(operation, uri, *how)

    with wrap_stores(Meanwhile):
        refused = curate("replay", str(output), "--shard", "good", "--publish")
    assert done
    assert refused.code == 2
    assert "this is now the output of another job, or of another run of it" in refused.err
    assert "Traceback" not in refused.out + refused.err
    assert not outputs(output)
    write_jsonl(source / "bad.jsonl", BAD[:1])
    assert run_job(Choosy(), source, output).state is RunState.COMPLETE
    assert [row["id"] for row in output_rows(output)] == ["x", "a"]
