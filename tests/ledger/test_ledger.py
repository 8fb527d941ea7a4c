"""The ledger: create-only, so that who loses a race adopts the winner's; and what is damaged says so."""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from curate.errors import ConfigError, ObjectNotFound
from curate.ledger import layout
from curate.ledger.compression import compress, decompress
from curate.ledger.ledger import INPUTS, READERS, Ledger, inputs_name
from curate.ledger.manifest import ShardPlan, shards_table
from curate.ledger.packed import PackedTable
from curate.storage.protocol import Object
from curate.stores import memory
from tests.support.ledgers import make_job, make_ledger, make_shard
from tests.support.sweeps import Mode


@pytest.fixture(params=["memory", "local"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield f"{tmp_path}/out put"
        return
    bucket = f"ledger-{uuid.uuid4().hex}"
    yield f"memory://{bucket}/out put"
    memory.clear(bucket)


@pytest.fixture
def ledger(root: str) -> Ledger:
    return make_ledger(root)


def part_of(*ids: str) -> PackedTable:
    return shards_table([make_shard(one) for one in ids])


def put(ledger: Ledger, name: str, data: bytes) -> None:
    ledger.store.replace(ledger.uri(name), data)


# Races


def test_the_first_creator_wins_and_the_second_adopts(ledger: Ledger) -> None:
    """Both go on with the same value; nothing is overwritten."""
    assert ledger.create_json("_curate/x.json", {"seed": 1}) == {"seed": 1}
    assert make_ledger(ledger.root).create_json("_curate/x.json", {"seed": 2}) == {"seed": 1}
    assert ledger.read_json("_curate/x.json") == {"seed": 1}


def test_the_same_value_twice_is_one_value(ledger: Ledger) -> None:
    """A call that is repeated after its answer was lost succeeds."""
    assert ledger.create_json("_curate/x.json", {"a": [1, 2]}) == ledger.create_json("_curate/x.json", {"a": [1, 2]})


def test_the_first_schema_holds(ledger: Ledger) -> None:
    """It is made only if there is none, and who made another in the meantime takes the stored one."""
    first, second = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string())])
    assert ledger.read_schema("output") is None

    def make() -> pa.Schema:
        make_ledger(ledger.root).create_schema("output", lambda: first)
        return second

    assert ledger.create_schema("output", make).equals(first)

    def never() -> pa.Schema:
        raise AssertionError("there is a schema")

    assert ledger.create_schema("output", never).equals(first)


def test_a_lost_race_for_the_plan_is_told(ledger: Ledger) -> None:
    """Two drivers append their own next part: one of them has to plan again, with the winner's."""
    mine, theirs = ledger.list(), ledger.list()
    assert ledger.append_plan(part_of("a", "b"), theirs) is True
    assert ledger.append_plan(part_of("c"), mine) is False
    assert ledger.read_plan(ledger.list()).ids.to_pylist() == ["a", "b"]
    assert ledger.append_plan(part_of("c"), ledger.list()) is True
    assert ledger.read_plan(ledger.list()).ids.to_pylist() == ["a", "b", "c"]


def test_two_drivers_that_plan_the_same_are_both_right(ledger: Ledger) -> None:
    """The same inputs give the same bytes."""
    mine, theirs = ledger.list(), ledger.list()
    assert ledger.append_plan(part_of("a"), theirs) is True
    assert ledger.append_plan(part_of("a"), mine) is True


# The plan


def test_parts_are_read_in_order_of_their_number(ledger: Ledger) -> None:
    """Also beyond five digits; ranks depend on it."""
    for number in (0, 1, 2, 99_999, 100_000):
        listing = ledger.list()
        listing.plan_parts = {name: Object(name, 0, "") for name in [layout.plan_part(number - 1)]} if number else {}
        assert ledger.append_plan(part_of(f"s{number}"), listing)
    assert ledger.read_plan(ledger.list()).ids.to_pylist() == ["s0", "s1", "s2", "s99999", "s100000"]


def test_a_missing_part_does_not_make_a_plan_that_cannot_grow(ledger: Ledger) -> None:
    """The next part is numbered after the last one: after their count it would be taken, now and ever after."""
    for name in "abc":
        ledger.append_plan(part_of(name), ledger.list())
    ledger.store.delete(ledger.uri(layout.plan_part(1)))
    listing = ledger.list()
    assert ledger.next_part(listing) == layout.plan_part(3)
    assert ledger.append_plan(part_of("d"), listing) is True
    assert ledger.read_plan(ledger.list()).ids.to_pylist() == ["a", "c", "d"]


def test_many_parts_are_one_read_each(ledger: Ledger) -> None:
    """A plan that grew a hundred times costs a hundred small reads."""
    listing = ledger.list()
    for number in range(100):
        assert ledger.append_plan(part_of(f"s{number}"), listing)
    before = ledger.store.calls.copy()
    assert len(ledger.read_plan(listing)) == 100
    assert ledger.store.calls.since(before).as_dict() == {"list": 0, "get": 100, "put": 0, "delete": 0}


MERGED = [layout.plan_part(number) for number in range(10)]


@pytest.fixture
def grown(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger whose plan has grown ten times; what is merged is what a run merges behind each part that it adds."""
    monkeypatch.setattr("curate.ledger.ledger.MERGED_PARTS", 4)
    for number in range(10):
        listing = ledger.list()
        assert ledger.append_plan(part_of(f"s{number}", "again"), listing)
        ledger.merge_plan(listing)
    return ledger


def ids_of(ledger: Ledger) -> list[str]:
    found: list[str] = ledger.read_plan(ledger.list()).ids.to_pylist()
    return found


WHOLE = ["s0", "again", *(f"s{number}" for number in range(1, 10))]


def test_merged_parts_are_one_read(grown: Ledger) -> None:
    """With the parts behind them, which are few; all parts stay, and say the same without it."""
    listing = grown.list()
    assert [layout.last_merged(name) for name in listing.merged_parts] == [4, 9]
    before = grown.store.calls.copy()
    assert ids_of(grown) == WHOLE
    assert grown.store.calls.since(before).as_dict() == {"list": 1, "get": 1, "put": 0, "delete": 0}
    assert list(listing.plan_parts) == MERGED
    grown.merge_plan(listing)
    assert grown.list().merged_parts == listing.merged_parts
    listing.merged_parts = []
    assert grown.read_plan(listing).ids.to_pylist() == WHOLE


@pytest.mark.parametrize("data", [b"", b"x" * 100], ids=["empty", "damaged"])
def test_a_merged_file_that_cannot_be_read_is_not_needed(grown: Ledger, data: bytes) -> None:
    for name in grown.list().merged_parts:
        grown.store.delete(grown.uri(name))
        grown.store.publish(grown.uri(name), data)
    assert ids_of(grown) == WHOLE


def test_what_is_merged_of_another_plan_counts_for_nothing(grown: Ledger) -> None:
    """One of a job that was overwritten, written late; and one of more parts than there are."""
    for name in MERGED:
        grown.store.delete(grown.uri(name))
    assert ids_of(grown) == []
    for number in range(10):
        assert ids_of(grown) == [f"other {one}" for one in range(number)]
        assert grown.append_plan(part_of(f"other {number}"), grown.list())
    assert ids_of(grown) == [f"other {number}" for number in range(10)]


def test_a_plan_that_lacks_a_part_is_not_merged(grown: Ledger) -> None:
    """Nor read from what was merged before: whoever removed the part wants its shards planned anew."""
    grown.store.delete(grown.uri(MERGED[3]))
    merged = grown.list().merged_parts
    grown.merge_plan(grown.list())
    assert grown.list().merged_parts == merged
    assert ids_of(grown) == [one for one in WHOLE if one != "s3"]


def test_a_part_of_many_rows_comes_back(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written and read some rows at a time."""
    listing = ledger.list()
    monkeypatch.setattr("curate.ledger.ledger.PART_ROWS", 3)
    part = part_of(*(f"s{number}" for number in range(10)))
    assert ledger.append_plan(part, listing)
    data = ledger.store.read(ledger.uri(layout.plan_part(0)))
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups == 4
    assert ledger.read_plan(listing).table.table().equals(part.table())


def test_texts_of_all_rows_together_are_not_larger_than_plans_are(ledger: Ledger) -> None:
    """Also where each row group of a part is small enough for itself."""
    long = part_of("s").table().set_column(1, "uri", pa.array(["gs://b/" + "x" * 500_000]))
    sink = io.BytesIO()
    pq.write_table(pa.concat_tables([long] * 400), sink, compression="zstd", row_group_size=20)
    put(ledger, layout.plan_part(0), sink.getvalue())
    with pytest.raises(ConfigError, match="bytes of text: a plan cannot be that large"):
        ledger.read_plan(ledger.list())


@pytest.mark.parametrize("data", [b"", b"junk", b"PAR1junkPAR1"])
def test_a_damaged_part_is_named(ledger: Ledger, data: bytes) -> None:
    """With what is wrong and what can be done."""
    put(ledger, layout.plan_part(0), data)
    with pytest.raises(ConfigError, match=r"plan/00000\.parquet is not a part of a plan .* the ledger is damaged"):
        ledger.read_plan(ledger.list())


@pytest.mark.ci(1)
@pytest.mark.slow
def test_a_part_with_another_byte_is_refused_or_means_the_same(ledger: Ledger, mode: Mode) -> None:
    """Whichever it is: a shard of another name would be made once more, under that name, and its output left over."""
    made = part_of("2020/RC-01", "2020/RC-02", "2021/RC-01")
    kept = ShardPlan.of([made]).shards(range(3))
    assert ledger.append_plan(made, ledger.list())
    name = layout.plan_part(0)
    data, listing, refused = ledger.store.read(ledger.uri(name)), ledger.list(), 0
    tried = range(0, len(data), 7 if mode is Mode.QUICK else 1)
    for at in tried:
        ledger.store.replace(ledger.uri(name), data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            found = ledger.read_plan(listing)
        except ConfigError:
            refused += 1
            continue
        assert found.shards(range(len(found))) == kept, f"byte {at:,} of {len(data):,}"
    assert refused > len(tried) // 4


def test_a_list_of_inputs_with_another_byte_is_refused(ledger: Ledger) -> None:
    """It is named by its content: one that is read as something else would be taken for inputs that changed."""
    sink = io.BytesIO()
    pq.write_table(pa.table([["gs://b/a"], [7], ["1"]], schema=INPUTS), sink, compression="none")
    data = sink.getvalue()
    name, at = inputs_name(data), data.index(b"gs://b/a")
    put(ledger, name, data)
    assert ledger.read_inputs(name)["uri"].to_pylist() == ["gs://b/a"]
    put(ledger, name, data[:at] + b"gs://b/z" + data[at + 8 :])
    with pytest.raises(ConfigError, match=r"its bytes are not those that were written\); the ledger is damaged"):
        ledger.read_inputs(name)


def test_a_part_of_other_columns_is_refused(ledger: Ledger) -> None:
    """Not read as if it had none of those that are missing."""
    ledger.append_plan(PackedTable.of(pa.table({"id": ["a"], "uri": ["b"]})), ledger.list())
    with pytest.raises(ConfigError, match=r"columns \['id', 'uri'\], expected \['id', 'uri', 'kind'"):
        ledger.read_plan(ledger.list())


def test_a_part_that_vanished_is_not_skipped(ledger: Ledger) -> None:
    """Without it shards would be missing."""
    listing = ledger.list()
    ledger.append_plan(part_of("a"), listing)
    ledger.store.delete(ledger.uri(layout.plan_part(0)))
    with pytest.raises(ObjectNotFound, match=r"00000\.parquet"):
        ledger.read_plan(listing)


@pytest.mark.parametrize("has_job", [False, True])
def test_a_listing_of_what_has_no_job_ends(has_job: bool, root: str) -> None:
    """A bucket that is named by mistake may have any number of objects. A job is found behind all of its own."""
    taken = 0

    class Full:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def list(self, prefix: str) -> Iterator[Object]:
            nonlocal taken
            for number in range(9000):
                taken += 1
                yield Object(f"{prefix}A{number:04}", 1, "1")
            yield from self.inner.list(prefix)

    ledger = make_ledger(root)
    if has_job:
        put(ledger, layout.JOB, b"{}")
    ledger.store = Full(ledger.store)
    found = ledger.list(3000)
    assert (found.has_job, len(found.objects), taken) == ((True, 9000, 9000) if has_job else (False, 3000, 3000))
    assert len(ledger.list().objects) == 9000


# What is damaged


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe{}", b'{"a": 1', b"not json"])
def test_damaged_json_is_named(ledger: Ledger, data: bytes) -> None:
    """No traceback of a parser: the object, what it is not, and what can be done."""
    put(ledger, layout.JOB, data)
    with pytest.raises(ConfigError, match=r"_curate/job\.json is not JSON .* the ledger is damaged: choose another"):
        ledger.read_job()


@pytest.mark.parametrize(("data", "found"), [(b"[]", "list"), (b"3", "int"), (b"null", "NoneType"), (b'"a"', "str")])
def test_json_of_another_kind_is_named(ledger: Ledger, data: bytes, found: str) -> None:
    """Everything in a ledger is an object."""
    put(ledger, layout.JOB, data)
    with pytest.raises(ConfigError, match=rf"job\.json holds {found}, expected an object"):
        ledger.read_job()


@pytest.mark.parametrize("version", [b"0", b"2", b'"1"', b"null"])
def test_another_format_version_is_refused(ledger: Ledger, version: bytes) -> None:
    """A newer curate may mean something else by the same names."""
    put(ledger, layout.JOB, b'{"format_version": ' + version + b"}")
    with pytest.raises(ConfigError, match=r"format version .*, this curate reads 1; use the curate that wrote it"):
        ledger.read_job()


@pytest.mark.parametrize(
    ("data", "lacks"),
    [
        (b'{"format_version": 1, "job": "x", "identity": {}}', "fingerprint, parameters, code_digest, suffix"),
        # As of a document that another one lies in the place of: no version of curate wrote that.
        (b"{}", "format_version, job, fingerprint, identity, parameters, code_digest, suffix"),
    ],
)
def test_a_job_without_its_fields_is_refused(ledger: Ledger, data: bytes, lacks: str) -> None:
    """Not by a KeyError later on."""
    put(ledger, layout.JOB, data)
    with pytest.raises(ConfigError, match=f"lacks {lacks}; the ledger is damaged"):
        ledger.read_job()


def test_a_whole_job_is_read(ledger: Ledger) -> None:
    """As `make_job`, like every driver, writes it."""
    make_job(ledger.root, total=1, done=0)
    assert ledger.read_job()["job"] == "toxicity"


@pytest.mark.parametrize("data", [b"", b"junk", b"\xff\xff\xff\xff\x10\x00\x00\x00junk"])
def test_a_damaged_schema_is_named(ledger: Ledger, data: bytes) -> None:
    """An Arrow message that was cut, or is none."""
    put(ledger, f"{layout.SCHEMAS}output.arrow", data)
    with pytest.raises(ConfigError, match=r"_curate/schema/output\.arrow is not an Arrow schema"):
        ledger.read_schema("output")


# Events


def test_events_are_read_in_order_and_lazily(ledger: Ledger) -> None:
    """A job of a year has thousands of segments: no more of them are held than a few reads ahead."""
    names = [layout.events_segment("r", number) for number in range(1, 201)]
    for number, name in enumerate(names):
        put(ledger, name, compress(b'{"index": %d}\n{"index": %d}\n' % (2 * number, 2 * number + 1)))
    before = ledger.store.calls.copy()
    events = ledger.events(names)
    assert next(events) == {"index": 0, "run_id": "r"}
    assert ledger.store.calls.since(before).get <= 2 * READERS + 1
    assert [event["index"] for event in events] == list(range(1, 400))
    assert ledger.store.calls.since(before).get == 200


def test_what_cannot_be_read_of_the_events_is_left_out(ledger: Ledger) -> None:
    """Events decide nothing: a damaged segment, or one that was cleaned away, costs reading outputs, not the run."""
    segments = {
        1: compress(b'{"index": 1}\n'),
        2: b"junk",
        3: compress(b'{"index": 3}\n' * 1000)[:-5],
        4: compress(b'{"index": 4}\n{"ind'),
        5: b"",
        7: compress(b'{"index": 7}\n'),
    }
    for number, data in segments.items():
        put(ledger, layout.events_segment("r", number), data)
    with structlog.testing.capture_logs() as logs:
        events = list(ledger.events(layout.events_segment("r", number) for number in range(1, 8)))
    assert [event["index"] for event in events] == [1, 4, 7]
    assert [entry["segment"] for entry in logs] == [
        ledger.uri(layout.events_segment("r", number)) for number in (2, 3, 4)
    ]


@pytest.mark.parametrize("data", [b"", b"x", b"line\n" * 100_000])
def test_compression_gives_back_what_it_got(data: bytes) -> None:
    """One frame, whatever it holds."""
    assert decompress(compress(data)) == data
    assert compress(data) == compress(data)


# Layout


def test_everything_of_the_ledger_is_hidden_from_readers(ledger: Ledger) -> None:
    """Arrow, Spark, DuckDB and the next job take the output prefix for a plain dataset."""
    run = "20240101T000000.000Z-abc123"
    names = [layout.JOB, layout.SUMMARY, layout.plan_part(7), layout.run_file(run, "run.json")]
    names += [layout.events_segment(run, 1), layout.QUARANTINE + "x", layout.SCHEMAS + "x", layout.ACCEPTED + "x"]
    assert all(re.search(layout.HIDDEN, name) and name.startswith(layout.LEDGER + "/") for name in names)
    assert ledger.uri(layout.JOB) == f"{ledger.root}/_curate/job.json"


def test_a_slash_at_the_end_of_the_root_does_not_matter(root: str) -> None:
    """One spelling of every name."""
    assert make_ledger(root + "/").uri("a") == make_ledger(root).uri("a")
