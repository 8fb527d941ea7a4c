"""One listing of an output prefix, sorted into what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger import layout
from curate.ledger.listing import generation_hash, match_outputs, sort_listing
from curate.ledger.manifest import ShardPlan, shards_table
from curate.storage.protocol import Object
from curate.stores.open import open_store
from tests.ledger.test_manifest import NAMES, ODD_NAMES
from tests.support.ledgers import make_ledger, make_shard

ROOT = "gs://bucket/some out%20put/ü"


def listing_of(*names: str) -> list[Object]:
    return [Object(f"{ROOT}/{name}", 10 + number, f"g{number}") for number, name in enumerate(names)]


def plan_of(*ids: str) -> ShardPlan:
    return ShardPlan.of([shards_table([make_shard(one) for one in ids])])


def test_everything_has_its_place() -> None:
    """Outputs and what else lies there on one side, the parts of the ledger on the other."""
    run = "20240101T000000.000Z-abc123"
    ledger = [
        "_curate/job.json",
        "_curate/summary.json",
        "_curate/plan/00000.parquet",
        "_curate/plan/00001.parquet",
        f"_curate/runs/{run}/run.json",
        f"_curate/runs/{run}/heartbeat.json",
        f"_curate/runs/{run}/events-000001.jsonl.zst",
        f"_curate/runs/{run}/events-000002.jsonl.zst",
        "_curate/accepted/d1",
        "_curate/quarantine/0123.jsonl.zst",
        "_curate/schema/output.arrow",
        "_curate/tmp/x/y",
    ]
    found = sort_listing(
        listing_of("2023/a.parquet", *ledger, "b.parquet", "_curate_not/x", "c/_curate/job.json"), ROOT
    )
    assert found.objects["name"].to_pylist() == ["2023/a.parquet", "b.parquet", "_curate_not/x", "c/_curate/job.json"]
    assert found.objects["size"].to_pylist() == [10, 23, 24, 25]
    assert found.objects["generation"].to_pylist() == ["g0", "g13", "g14", "g15"]
    assert found.generations.tolist() == [generation_hash(one) for one in ("g0", "g13", "g14", "g15")]
    assert [found.object(ROOT, found.row(name)).size for name in ("b.parquet", "2023/a.parquet")] == [23, 10]
    assert found.without([1, 3]).objects["name"].to_pylist() == ["2023/a.parquet", "_curate_not/x"]
    assert found.bytes == 10 + 23 + 24 + 25
    assert found.has_job
    assert found.summary == Object(f"{ROOT}/_curate/summary.json", 12, "g2")
    assert list(found.plan_parts) == [layout.plan_part(0), layout.plan_part(1)]
    assert found.run_ids == [run]
    assert found.segments == [layout.events_segment(run, 1), layout.events_segment(run, 2)]
    assert found.accepted == {"d1"}


@pytest.mark.parametrize(
    "name",
    [
        "_curate/plan/00000.parquet.crc",
        "_curate/plan/old/00000.parquet",
        "_curate/plan/_SUCCESS",
        "_curate/runs/r/events-000001.jsonl.zst.tmp",
        "_curate/runs/r/logs/run.json",
        "_curate/runs/run.json",
        "_curate/job.json.bak",
    ],
)
def test_what_only_looks_like_the_ledger_is_left_out(name: str) -> None:
    """A copy that someone put beside it is no part of the plan, no run and no job."""
    found = sort_listing(listing_of(name), ROOT)
    assert (list(found.plan_parts), found.run_ids, found.segments, found.has_job) == ([], [], [], False)
    assert len(found.objects) == 0


@given(there=st.sets(st.integers(0, 30)), asked=st.lists(st.integers(0, 30), unique=True))
def test_files_of_dropped_rows_are_found_by_name(there: set[int], asked: list[int]) -> None:
    """Of those that are asked for, the ones that are there, in the order in which they are asked for."""
    names = {number: layout.samples(f"{number:016x}") for number in range(31)}
    found = sort_listing(listing_of("a.parquet", *(names[one] for one in sorted(there))), ROOT)
    assert found.objects["name"].to_pylist() == ["a.parquet"]
    assert found.samples["name"].to_pylist() == [names[one] for one in sorted(there)]
    assert found.samples_named([names[one] for one in asked]) == [names[one] for one in asked if one in there]


def test_nothing_is_a_listing_too() -> None:
    """An output prefix that does not exist yet."""
    found = sort_listing([], ROOT)
    assert (len(found.objects), found.bytes, found.has_job, found.summary) == (0, 0, False, None)
    matched = match_outputs(plan_of("a", "b"), found, ".parquet")
    assert (matched.done.tolist(), matched.position.tolist(), matched.count) == ([False, False], [-1, -1], 0)
    assert match_outputs(plan_of(), found, ".parquet").count == 0


OUTPUT_NAMES = NAMES.filter(lambda name: not name.startswith("_curate/"))
"""No input below a folder that is hidden is listed, so that no shard is called like a part of the ledger."""


@given(
    ids=st.lists(OUTPUT_NAMES, max_size=12, unique=True),
    there=st.lists(OUTPUT_NAMES, max_size=12, unique=True),
    suffix=st.sampled_from([".parquet", ".jsonl.zst"]),
)
def test_a_shard_is_done_if_and_only_if_its_output_is_there(ids: list[str], there: list[str], suffix: str) -> None:
    """Matched by the whole name; what matches no shard is foreign, unless it is hidden."""
    names = [*(name + suffix for name in there), "x.parquet.bak", "_SUCCESS", ".hidden/y.parquet"]
    found = sort_listing(listing_of(*names), ROOT)
    matched = match_outputs(plan_of(*ids), found, suffix)
    assert matched.done.tolist() == [one + suffix in names for one in ids]
    assert matched.position.tolist() == [names.index(one + suffix) if one + suffix in names else -1 for one in ids]
    assert matched.count == sum(matched.done.tolist())
    expected = {one + suffix for one in ids}
    assert matched.foreign == [n for n in names if n not in expected and not re.search(layout.HIDDEN, n)]


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_odd_names_survive_a_real_store(kind: str, tmp_path: Path) -> None:
    """Unicode, percent signs, spaces: listed and matched as they were written."""
    root = f"{tmp_path}/out put" if kind == "local" else f"memory://{tmp_path.name.lower().replace('_', '-')}/out put"
    ledger = make_ledger(root)
    ids = [name for name in ODD_NAMES if len(name) < 200]
    for one in ids:
        ledger.store.publish(ledger.uri(f"{one}.parquet"), one.encode())
    matched = match_outputs(plan_of(*ids, "absent"), ledger.list(), ".parquet")
    assert matched.done.tolist() == [True] * len(ids) + [False]
    assert matched.foreign == []


def test_a_file_whose_name_is_no_unicode_is_foreign(tmp_path: Path) -> None:
    """Somebody's file under the output does not stop the job, or its status."""
    (tmp_path / "a.parquet").touch()
    Path(f"{tmp_path}/\udcff.txt").touch()
    found = sort_listing(open_store(str(tmp_path)).list(f"{tmp_path}/"), str(tmp_path))
    matched = match_outputs(plan_of("a"), found, ".parquet")
    assert matched.done.tolist() == [True]
    assert matched.foreign == ["\\udcff.txt"]
