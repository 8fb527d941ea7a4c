"""Files of dropped rows, and which of them are read of a large job."""

from __future__ import annotations

import pytest

from curate.errors import CorruptInput
from curate.ledger.compression import compress
from curate.objects.samples import (
    MOST_FILES,
    MOST_SAMPLED,
    SHARDS_OF_REASON,
    DroppedRow,
    DroppingShards,
    decode_samples,
    encode_samples,
    lowest,
)

ROWS = [
    DroppedRow("b", 2**64 - 1, '{"t":"\\u2028<b>"}', {"t": 5_000}, 3, "s/1", "0a1b"),
    DroppedRow("a", 0, "{}", shard="s"),
    DroppedRow("a", 0, "{}", shard="r"),
]


def test_rows_come_back_in_order() -> None:
    assert decode_samples(encode_samples(ROWS), "uri") == [ROWS[2], ROWS[1], ROWS[0]]
    assert encode_samples(ROWS) == encode_samples(ROWS[::-1])


@pytest.mark.parametrize(
    "data",
    [b"no zstd", compress(b"no json\n"), compress(b"[]\n"), compress(b'{"reason":1,"row":"","hash":"0","shard":""}\n')],
)
def test_what_is_no_such_file_is_refused_with_its_name(data: bytes) -> None:
    with pytest.raises(CorruptInput, match=r"^here: not a file of sampled rows"):
        decode_samples(data, "here")


def test_the_lowest_of_each_stage_and_reason_are_chosen() -> None:
    rows = [DroppedRow("a", number // 2, str(number), shard=f"s{number % 2}") for number in range(100)]
    chosen = lowest([*reversed(rows), DroppedRow("a", 5, "other", stage="0a")])
    assert [row.hash for row in chosen["", "a"]] == list(range(MOST_SAMPLED))
    assert all(row.shard == "s0" for row in chosen["", "a"])
    assert [row.row for row in chosen["0a", "a"]] == ["other"]


def test_rare_reasons_are_read_first() -> None:
    """Of many shards, some; all of those that alone know a reason; the same in whatever order events come."""
    there, back = DroppingShards(), DroppingShards()
    told = [(rank, {"usual": 5} | ({"rare": 1} if rank % 4_000 == 7 else {})) for rank in range(10_000)]
    for rank, dropped in told:
        there.note(rank, dropped)
    for rank, dropped in [*reversed(told), *told[:50]]:
        back.note(rank, dropped)
    assert there.chosen() == back.chosen()
    assert {7, 4_007, 8_007} <= set(there.chosen())
    assert len(there.chosen()) <= SHARDS_OF_REASON + 3


def test_however_many_reasons_there_are_few_files_are_read() -> None:
    shards = DroppingShards()
    for rank in range(5_000):
        shards.note(rank, {f"reason {rank % 200}": 1})
    assert len(set(shards.chosen())) == len(shards.chosen()) == MOST_FILES
