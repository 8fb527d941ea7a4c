"""Names from inputs and from ledgers do not lead out of the output prefix: nothing else is read, written or removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.errors import ConfigError, CurateError
from curate.job.job import Job
from curate.ledger import layout, validation
from curate.ledger.manifest import SCHEMA, shards_table
from curate.stores.memory import clear
from curate.stores.open import open_store
from tests.cli.running import Curate
from tests.cli.running import curate as curate_
from tests.job.inline import everything, run_job, write_jsonl
from tests.support.examples import examples
from tests.support.gcs_emulator import GcsEmulator
from tests.support.ledgers import make_job, make_shard

__all__ = ["curate_"]

LINE = b'{"text": "x"}\n'
OUT_OF_IT = ["../x", "a/../../x", "..", "a/..", "./x", "a//x", "/etc/x", "a\x00b", "a\nb", "a\x1b]0;b", "\x7f"]
WITHIN = ["a..b", "a b", "%2e%2e/x", "a\\..\\x", "C:x", "gs:x", "‥/x", "．．/x", "~root/x", "$HOME/x", "é" * 60]


class Same(Job):
    """Returns what it is given."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


@pytest.fixture(params=["memory", "gs"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket in which objects can be called anything."""
    if request.param == "memory":
        yield "memory://names"
        clear("names")
        return
    with GcsEmulator().here(monkeypatch):
        yield "gs://bucket"


@pytest.mark.parametrize("name", ["a//x", "/etc/x", "a\nb", "a\x1b]0;b"])
def test_inputs_that_lead_out_are_refused_before_anything_is_written(name: str, bucket: str, tmp_path: Path) -> None:
    """Object stores take any name: the job says which one it is, and has not written a byte."""
    store = open_store(bucket)
    for key in ("ok.jsonl", f"{name}.jsonl"):
        store.publish(f"{bucket}/in/{key}", LINE)
    output = tmp_path / "deep" / "out"
    with pytest.raises(ConfigError, match=re.escape(repr(f"{bucket}/in/{name}.jsonl"))):
        run_job(Same(), f"{bucket}/in/", output)
    assert everything(tmp_path) == {}


@pytest.mark.parametrize("name", WITHIN)
def test_odd_names_stay_below_the_output(name: str, bucket: str, tmp_path: Path) -> None:
    """What only looks like a way out is a name: its output lies below the prefix, literally."""
    open_store(bucket).publish(f"{bucket}/in/{name}.jsonl", LINE)
    output = tmp_path / "deep" / "out"
    run_job(Same(), f"{bucket}/in/", output)
    written = [one for one in everything(output) if not one.startswith("_curate/")]
    assert [str(one) for one in written] == [f"{name}.parquet"]
    assert [str(one.relative_to(tmp_path)) for one in tmp_path.glob("*/*")] == ["deep/out"]
    assert [one.name for one in tmp_path.iterdir()] == ["deep"]


def test_a_name_that_no_disk_holds_fails_alone(bucket: str, tmp_path: Path) -> None:
    """A name of 400 bytes fits into a bucket and not on a disk: that shard fails, saying so, the others are done."""
    store = open_store(bucket)
    for key in ("ok", "n" * 400):
        store.publish(f"{bucket}/in/{key}.jsonl", LINE)
    summary = run_job(Same(), f"{bucket}/in/", tmp_path / "out")
    assert (summary.done, summary.failed) == (1, 1)
    assert "the name is too long: 408 bytes" in summary.failures[0].error


@pytest.mark.parametrize("name", ["_curate", "_side", "..", "a/..", "a/../..", "."])
def test_inputs_cannot_take_the_jobs_own_folders(name: str, bucket: str, tmp_path: Path) -> None:
    """Nor lead out by dots: names with a part that begins with '_' or '.' are never inputs."""
    store = open_store(bucket)
    store.publish(f"{bucket}/in/ok.jsonl", LINE)
    store.publish(f"{bucket}/in/{name}/plan/00001.jsonl", LINE)
    assert run_job(Same(), f"{bucket}/in/", tmp_path / "out").total == 1


@hypothesis.given(
    st.text(max_size=12) | st.lists(st.sampled_from(["..", ".", "", "a", "_curate", "_side"])).map("/".join)
)
@hypothesis.settings(max_examples=examples(300))
def test_a_name_is_refused_if_and_only_if_the_system_would_take_it_elsewhere(name: str) -> None:
    """Against what POSIX makes of a path, as an oracle."""
    name = name.encode(errors="ignore").decode()
    there = os.path.normpath(f"/out/{name}")
    own = there.split("/")[2:3]
    leads_out = there != f"/out/{name}" or (own in (["_curate"], ["_side"]) and "/" in name)
    odd = re.search(r"[\x00-\x1f\x7f]", name) is not None
    assert (validation.paths_outside(pa.array([name])) is not None) == (leads_out or odd)


# A ledger by somebody else


COMMANDS = ("status", "failures", "verify", "head", "quarantine", "logs")


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path]:
    """An output beside which there is something precious, a job of its own."""
    output, precious = tmp_path / "shared" / "out", tmp_path / "shared" / "precious"
    make_job(str(precious), total=1, done=1)
    (precious / "secret.parquet").write_bytes(b"secret")
    make_job(str(output), total=2, done=2)
    return output, precious


def rewrite(path: Path, **values: Any) -> None:
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | values))


@pytest.mark.parametrize("name", [*OUT_OF_IT, "_curate/plan/00001", "_side/x"])
def test_plans_that_lead_out_are_refused(name: str, hostile: tuple[Path, Path], curate_: Curate) -> None:
    """Every command says which name it is, and nothing beside the output was changed."""
    output, precious = hostile
    before = everything(precious)
    pq.write_table(shards_table([make_shard(name)]).table(), output / layout.plan_part(1))
    for command in COMMANDS:
        shown = curate_(command, str(output))
        assert shown.code == 2
        assert "cannot be the name of an output" in shown.err
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"another identity|cannot be the name of an output"):
            run_job(Same(), precious, output, overwrite=overwrite, confirm=lambda _: True)
    assert everything(precious) == before


@pytest.mark.parametrize("plan", [pa.table({"z": [1]}), shards_table([make_shard("../precious/a")]).table()])
def test_what_is_advised_where_a_part_is_no_plan_works(plan: pa.Table, tmp_path: Path) -> None:
    """An overwrite would remove by what it says, and is advised for when it is gone."""
    source, output = tmp_path / "in", tmp_path / "out"
    write_jsonl(source / "a.jsonl", [{"n": 1}])
    run_job(Same(), source, output)
    part = output / layout.plan_part(1)
    pq.write_table(plan, part)
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"or see where this file is from, remove it, and start over"):
            run_job(Same(), source, output, overwrite=overwrite, confirm=lambda _: True)
    part.unlink()
    assert run_job(Same(), source, output, overwrite=True, confirm=lambda _: True).state == "complete"


@pytest.mark.parametrize("key", ["../../../precious", "..", "/etc", "a/b", 7, None])
def test_keys_of_stages_that_lead_out_are_refused(key: Any, hostile: tuple[Path, Path], curate_: Curate) -> None:
    """A stage is a folder below the output, and nothing else is looked at for one."""
    output, _ = hostile
    stages = [{"key": key, "name": "sort: map", "reads": []}, {"key": "", "name": "write", "reads": ["0a"]}]
    rewrite(output / layout.JOB, stages=stages)
    for command in COMMANDS:
        shown = curate_(command, str(output))
        assert "precious" not in shown.out
        assert (shown.code, "is not valid" in shown.err) == (2, True)


@pytest.mark.parametrize("field", ["suffix", "inputs", "sides", "identity"])
def test_names_in_job_json_that_lead_out_are_refused(field: str, hostile: tuple[Path, Path], curate_: Curate) -> None:
    """Each of them begins with what would lead to what is precious."""
    output, _ = hostile
    value: Any = "/../../precious/secret.parquet"
    given = {"sides": [value], "identity": {"sides": {value: None}}}
    rewrite(output / layout.JOB, **{field: given.get(field, value)})
    for command in COMMANDS:
        shown = curate_(command, str(output))
        assert (shown.code, "is not valid" in shown.err) == (2, True)


def test_quarantine_that_leads_out_is_not_read() -> None:
    """An output's record, and a summary, name only files of the job's own quarantine."""
    for name in ("_curate/quarantine/../../../x", "/etc/passwd", "_curate/job.json", "../x", 7, ""):
        assert not validation.quarantine(name)
    assert validation.quarantine("_curate/quarantine/0123456789abcdef.jsonl.zst")


@pytest.mark.parametrize("folder", ["_curate/quarantine", "_curate/stages", "_curate/linked", "linked"])
def test_overwrite_removes_nothing_behind_a_link(folder: str, tmp_path: Path) -> None:
    """A folder of the output that is a link to elsewhere: refused before anything is removed, or left alone."""
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    precious, output = tmp_path / "precious", tmp_path / "out"
    run_job(Same(), tmp_path / "in", output)
    precious.mkdir()
    (precious / "a.jsonl.zst").write_bytes(b"mine")
    (output / folder).symlink_to(precious)
    before = everything(output)
    refused = ""
    try:
        run_job(Same(), tmp_path / "in", output, overwrite=True, confirm=lambda _: True)
    except CurateError as error:
        refused = str(error)
    assert not refused or (f"{output / folder} is a link" in refused and everything(output) == before)
    assert bool(refused) == folder.startswith("_curate/")
    assert everything(precious) == {"a.jsonl.zst": b"mine"}


def test_the_plans_schema_is_what_is_checked() -> None:
    """Were a column of names added to plans, this says that it is to be thought of."""
    assert [field.name for field in SCHEMA if pa.types.is_string(field.type)] == ["id", "uri", "kind", "generation"]
