"""TokenShards over each layout and store: what a training loop gets, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate
from curate.errors import ConfigError, CorruptInput
from curate.training import TokenShards
from curate.training.reader import LOCAL_GAP_BYTES
from tests.training.corpora import LENGTH, as_datatrove, as_megatron, as_npy, as_parquet, numbered

Make = Callable[..., Path]
SHARDS = [numbered(37), np.append(numbered(20, 37), [9, 9, 9]).astype(np.uint16), numbered(4, 57)]
"""61 samples; behind the second shard's, three tokens that make none."""


def flat(lists: Iterable[Iterable[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def read(path: object, batch_size: int = 4, **how: Any) -> list[list[int]]:
    """Returns the numbers of the samples of each batch of an epoch, after a look at all of their tokens."""
    found = []
    for batch in TokenShards(str(path), LENGTH, batch_size, **how):
        assert (batch == batch[:, :1] + 7 * np.arange(LENGTH)).all()
        found.append(batch[:, 0].tolist())
    return found


@pytest.fixture(params=[as_npy, as_megatron, as_datatrove, as_parquet], ids=["npy", "megatron", "datatrove", "parquet"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same tokens in each layout."""
    made: Path = request.param(tmp_path / "corpus", SHARDS)
    return made


class TestBatches:
    def test_datatrove_of_either_width_and_without_tokens(self, tmp_path: Path) -> None:
        """Shards without documents have files of no bytes; what else lies beside them is left alone."""
        path = as_datatrove(tmp_path, [numbered(8), numbered(0), numbered(8, 8, dtype=np.uint32)])
        (path / "all.ds.metadata").write_text("name|2\n64\n64T")
        (path / "part-00000.ds.loss").write_bytes(b"\1" * 32)
        assert flat(read(path, shuffle_bytes=0)) == list(range(16))
        assert TokenShards(str(path), LENGTH, 4, dtype=None)._corpus.dtype == np.uint32

    def test_in_the_order_of_the_corpus(self, tmp_path: Path) -> None:
        """With shuffle_bytes=0; a batch may begin in one file and end in another."""
        for make in (as_npy, as_megatron, as_datatrove):
            path = make(tmp_path / make.__name__, SHARDS)
            assert flat(read(path, shuffle_bytes=0)) == list(range(60))
            assert flat(read(path, shuffle_bytes=0, drop_last=False)) == list(range(61))

    def test_every_sample_of_an_epoch_once(self, corpus: Path) -> None:
        """Shuffled, in each layout."""
        shards = TokenShards(str(corpus), LENGTH, 4, seed=3, drop_last=False)
        found = [row[0] for batch in shards for row in batch.tolist()]
        assert len(found) == shards.samples == len(set(found))
        assert found != sorted(found)
        tokens = sum(map(len, SHARDS))
        assert shards.samples * LENGTH + shards.tokens_left_out == tokens

    def test_a_row_group_is_cut_by_itself(self, tmp_path: Path) -> None:
        """What remains at its end is left out, and counted."""
        shards = TokenShards(str(as_parquet(tmp_path, [numbered(10)], group_rows=4)), 5, 1, shuffle_bytes=0)
        # Row groups of two documents of three tokens.
        assert (shards.samples, shards.tokens_left_out) == (6, 10)
        assert [batch[0].tolist() for batch in shards] == [numbered(10)[at : at + 5].tolist() for at in range(0, 36, 6)]

    def test_packed_rows_are_samples(self, tmp_path: Path) -> None:
        """Of Parquet."""
        path = as_parquet(tmp_path, [numbered(37), numbered(24, 37)], row_tokens=LENGTH, packed=True)
        assert sorted(flat(read(path, drop_last=False))) == list(range(61))

    def test_small_windows(self, corpus: Path) -> None:
        """A window that is smaller than a batch, and one chunk alone."""
        found = read(corpus, shuffle_bytes=1)
        assert len(flat(found)) == len(set(flat(found)))

    def test_ranks_have_parts_of_the_same_batches(self, corpus: Path) -> None:
        """In the order of ranks they are the batch of one rank alone; of a last one that is not full, too."""
        whole = read(corpus, 8, seed=5, drop_last=False)
        for world in (2, 4, 8):
            parts = [read(corpus, 8, seed=5, rank=rank, world_size=world, drop_last=False) for rank in range(world)]
            assert [flat(some) for some in zip(*parts, strict=True)] == whole

    def test_epochs_differ_and_come_again(self, corpus: Path) -> None:
        """Each iteration is the next epoch; the same for each object."""
        one, other = (TokenShards(str(corpus), LENGTH, 4, seed=1) for _ in range(2))
        first, second = ([batch.tolist() for batch in one] for _ in range(2))
        assert first != second
        assert [[batch.tolist() for batch in other] for _ in range(2)] == [first, second]
        assert (one.epoch, one.position) == (2, 0)

    @pytest.mark.parametrize(
        ("stored", "wanted", "found"),
        [
            (np.uint16, np.int64, np.int64),
            (np.uint16, None, np.uint16),
            (np.uint32, "int32", np.int32),
            (np.uint8, "int16", np.int16),
        ],
    )
    def test_types(self, tmp_path: Path, stored: Any, wanted: Any, found: Any) -> None:
        """As asked for, or as stored; each batch may be changed."""
        path = as_npy(tmp_path, [numbered(8, dtype=stored)])
        (batch,) = TokenShards(str(path), LENGTH, 8, dtype=wanted, shuffle_bytes=0)
        assert batch.dtype == found
        assert batch.flags.writeable
        assert batch[:, 0].tolist() == list(range(8))

    def test_narrow_and_wide_shards_together(self, tmp_path: Path) -> None:
        """A corpus of both has the wider type."""
        path = as_npy(tmp_path, [numbered(4), numbered(4, 70_000, np.uint32)])
        shards = TokenShards(str(path), LENGTH, 8, dtype=None, shuffle_bytes=0)
        (batch,) = shards
        assert batch.dtype == np.uint32
        assert batch[:, 0].tolist() == [0, 1, 2, 3, 70_000, 70_001, 70_002, 70_003]

    def test_large_samples_are_read_one_by_one(self, tmp_path: Path) -> None:
        """A rank that needs few samples of a chunk leaves out what lies between."""
        length = LOCAL_GAP_BYTES
        tokens = np.repeat(np.arange(40, dtype=np.uint16), length)
        path = as_npy(tmp_path, [tokens])
        found = [
            batch[:, -1].tolist()
            for rank in range(4)
            for batch in TokenShards(str(path), length, 4, 0, rank, 4, dtype=None)
        ]
        assert sorted(flat(found)) == list(range(40))


class TestDocumentLengths:
    """For masks, where packed Parquet has them."""

    @pytest.fixture
    def packed(self, tmp_path: Path) -> Path:
        """Sequences whose documents say by their lengths which sequence they are of: of some, padding follows."""
        for part, first in enumerate((0, 20)):
            numbers = range(first, first + 20)
            tokens = pa.array(numbered(20, first).reshape(-1, LENGTH).tolist(), pa.list_(pa.uint16()))
            lengths = pa.array([documents_of(number) for number in numbers], pa.list_(pa.int32()))
            table = pa.table({"tokens": tokens, "document_lengths": lengths})
            pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=6)
        return tmp_path

    def test_each_row_has_its_own(self, packed: Path) -> None:
        """In the order, and with the states, that there are without; for any number of ranks."""
        plain, asked = (
            TokenShards(str(packed), LENGTH, 8, seed=4, shuffle_bytes=300, document_lengths=asked)
            for asked in (False, True)
        )
        for batch, found in zip(plain, asked, strict=True):
            assert np.array_equal(found["tokens"], batch)
            assert [one.tolist() for one in found["document_lengths"]] == [documents_of(row[0]) for row in batch]
            assert {one.dtype for one in found["document_lengths"]} == {np.dtype(np.int32)}
            assert asked.state_dict() == plain.state_dict()
        for rank in range(4):
            shards = TokenShards(str(packed), LENGTH, 8, 4, rank, 4, document_lengths=True)
            shards.load_state_dict({**shards.state_dict(), "position": 16})
            for found in shards:
                assert len(found["tokens"]) == len(found["document_lengths"]) == 2
                of = [documents_of(row[0]) for row in found["tokens"]]
                assert [one.tolist() for one in found["document_lengths"]] == of

    @pytest.mark.parametrize("make", [as_npy, as_megatron, as_datatrove, as_parquet])
    def test_a_corpus_without(self, tmp_path: Path, make: Make) -> None:
        """Refused, with what makes them."""
        path = make(tmp_path, SHARDS)
        with pytest.raises(ConfigError, match=r"has no column 'document_lengths'.*jobs/tokens.py with pack="):
            TokenShards(str(path), LENGTH, 4, document_lengths=True)

    @pytest.mark.parametrize(
        ("lengths", "told"),
        [
            (pa.array([[3, 2]] * 4), "4 tokens whose documents have 5"),
            (pa.array([[4, -1]] * 4), "4 tokens whose documents have 3"),
            (pa.array([None, [4], [4], [4]]), "is list<.*>; expected lists of whole numbers, and no null"),
            (pa.array([[None], [4], [4], [4]], pa.list_(pa.int32())), "null"),
            (pa.array(["4"] * 4), "is string; expected lists of whole numbers"),
        ],
    )
    def test_lengths_that_cannot_be(self, tmp_path: Path, lengths: pa.Array, told: str) -> None:
        """Found where they are asked for alone."""
        tokens = pa.array(numbered(4).reshape(-1, LENGTH).tolist(), pa.list_(pa.uint16()))
        pq.write_table(pa.table({"tokens": tokens, "document_lengths": lengths}), tmp_path / "a.parquet")
        assert sorted(flat(read(tmp_path))) == [0, 1, 2, 3]
        with pytest.raises(CorruptInput, match=told):
            list(TokenShards(str(tmp_path), LENGTH, 4, document_lengths=True))


def documents_of(number: int) -> list[int]:
    """Returns the lengths of the documents in a sequence: one, two or three of them, or nothing but padding."""
    return [[4], [1, 3], [2, 1, 1], [1, 2], []][int(number) % 5]


def test_what_jobs_and_shuffles_wrote(tmp_path: Path) -> None:
    """`write_parquet` of a shuffled dataset of packed rows; the ledger beside it is no data."""
    rows = [{"tokens": list(range(number, number + LENGTH)), "document_lengths": [LENGTH]} for number in range(50)]
    shuffled = curate.from_items(rows).random_shuffle(seed=1)
    shuffled.write_parquet(str(tmp_path / "out"), backend="inline")
    batches = list(TokenShards(str(tmp_path / "out"), LENGTH, 5, seed=1))
    assert sorted(row[0] for batch in batches for row in batch.tolist()) == list(range(50))


class TestIterations:
    def test_an_older_iteration_does_not_go_on(self, corpus: Path) -> None:
        """It would count its batches again."""
        shards = TokenShards(str(corpus), LENGTH, 4)
        older = iter(shards)
        next(older)
        next(iter(shards))
        with pytest.raises(RuntimeError, match="iterate over these TokenShards anew"):
            next(older)

    def test_a_state_ends_iterations(self, corpus: Path) -> None:
        """What is read ahead belongs to another place."""
        shards = TokenShards(str(corpus), LENGTH, 4)
        older = iter(shards)
        next(older)
        shards.load_state_dict(shards.state_dict())
        with pytest.raises(RuntimeError, match="iterate over these TokenShards anew"):
            next(older)

    def test_left_early_it_goes_on_there(self, corpus: Path) -> None:
        """A batch that was handed out is not handed out again."""
        shards = TokenShards(str(corpus), LENGTH, 4, seed=9)
        whole = read(corpus, seed=9)
        found = []
        for number, batch in enumerate(shards):
            found.append(batch[:, 0].tolist())
            if number == 2:
                break
        assert found + [batch[:, 0].tolist() for batch in shards] == whole


class TestRefused:
    def refused(self, path: object, told: str, *args: Any, **how: Any) -> None:
        with pytest.raises((ConfigError, CorruptInput), match=told):
            TokenShards(str(path), *(args or (LENGTH, 4)), **how)

    def test_no_tokens(self, tmp_path: Path) -> None:
        """Nothing there; texts; a column of texts; several layouts."""
        self.refused(tmp_path / "none", "does not exist")
        pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
        self.refused(tmp_path, "no column 'tokens' of tokens, only text")
        self.refused(tmp_path, "column 'text' is string; expected lists of whole numbers", column="text")
        (tmp_path / "b.jsonl").write_text("{}\n")
        self.refused(tmp_path, "not a corpus of tokens of one kind: it has 1 parquet, such as a.parquet; 1 of no such")
        self.refused(tmp_path / "*.jsonl", "expected the output of a job that makes tokens|Expected the output")

    @pytest.mark.parametrize("write", [as_npy, as_megatron, as_datatrove])
    def test_a_column_of_what_has_none(self, write: Callable[..., Any], tmp_path: Path) -> None:
        write(tmp_path, [numbered(64)])
        self.refused(tmp_path, "column='text' has no effect: .* is tokens alone; leave column= out", column="text")

    def test_packed_rows_of_another_length(self, tmp_path: Path) -> None:
        """Both lengths are named."""
        path = as_parquet(tmp_path, [numbered(8)], row_tokens=8, packed=True)
        self.refused(path, "packed sequences of 8 tokens, but sequence_length is 4; pass sequence_length=8")

    def test_packed_rows_of_several_lengths(self, tmp_path: Path) -> None:
        """They were not packed by a job of curate's."""
        rows = pa.array([[1, 2, 3], [4]], pa.list_(pa.uint16()))
        lengths = pa.array([[3], [1]], pa.list_(pa.int32()))
        pq.write_table(pa.table({"tokens": rows, "document_lengths": lengths}), tmp_path / "a.parquet")
        shards = TokenShards(str(tmp_path), 2, 2)
        with pytest.raises(CorruptInput, match="packed sequences of 2 tokens and of others"):
            list(shards)

    def test_null_tokens(self, tmp_path: Path) -> None:
        """Statistics count them as empty lists: they are found when they are read."""
        pq.write_table(pa.table({"tokens": pa.array([[1, None, 3]], pa.list_(pa.uint16()))}), tmp_path / "a.parquet")
        shards = TokenShards(str(tmp_path), 2, 1)
        with pytest.raises(CorruptInput, match="1 null tokens"):
            list(shards)

    def test_without_statistics_tokens_are_counted(self, tmp_path: Path) -> None:
        """It takes a read of the column."""
        rows = pa.array([[0, 7], [], [14, 21], [5]], pa.list_(pa.uint16()))
        pq.write_table(pa.table({"tokens": rows}), tmp_path / "a.parquet", write_statistics=False)
        shards = TokenShards(str(tmp_path), LENGTH, 1)
        assert (shards.samples, shards.tokens_left_out) == (1, 1)
        assert read(tmp_path, 1) == [[0]]

    def test_a_corpus_without_a_batch(self, tmp_path: Path) -> None:
        """Empty files, and fewer samples than a batch has."""
        path = as_npy(tmp_path / "empty", [numbered(0)])
        self.refused(path, "0 tokens, which make 0 sequences of 4, but a batch has 4")
        path = as_npy(tmp_path / "small", [numbered(3)])
        self.refused(path, "12 tokens, which make 3 sequences")
        assert read(path, drop_last=False, shuffle_bytes=0) == [[0, 1, 2]]
        path = as_npy(tmp_path / "some", [numbered(0), numbered(4), numbered(0)])
        assert sorted(read(path)[0]) == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("args", "how", "told"),
        [
            ((LENGTH, 4, 0, 4, 4), {}, "rank is 4, expected a number below world_size"),
            ((LENGTH, 6, 0, 0, 4), {}, "4 ranks cannot share equally"),
            ((0, 4), {}, "sequence_length is 0"),
            ((LENGTH, 4, -1), {}, "seed is -1"),
            ((LENGTH, 4), {"shuffle_bytes": -1}, "shuffle_bytes is -1"),
            ((LENGTH, 4), {"dtype": "int8"}, "dtype is int8, but the tokens are stored as uint16"),
            ((LENGTH, 4), {"dtype": "int16"}, "and some do not fit"),
            ((LENGTH, 4), {"dtype": "float32"}, "dtype is float32"),
            ((LENGTH, 4), {"dtype": "word"}, "dtype is 'word', expected a type of numpy"),
        ],
    )
    def test_arguments(self, tmp_path: Path, args: Sequence[Any], how: dict[str, Any], told: str) -> None:
        """Each is named with its value."""
        self.refused(as_npy(tmp_path, SHARDS), told, *args, **how)

    def test_an_output_that_is_not_complete(self, tmp_path: Path) -> None:
        """The job has to end first, or what there is, is asked for."""
        source = as_parquet(
            tmp_path / "in", [numbered(8), numbered(8, 8)], row_tokens=LENGTH, group_rows=4, packed=True
        )
        Copy().run(input=str(source), output=str(tmp_path / "out"), backend="inline")
        assert sorted(flat(read(tmp_path / "out"))) == list(range(16))
        (gone, _) = sorted((tmp_path / "out").glob("*.parquet"))
        gone.unlink()
        self.refused(tmp_path / "out", "lacks 1 of the 2 outputs")
        assert sorted(flat(read(tmp_path / "out", allow_incomplete_input=True))) == list(range(8, 16))

    @pytest.mark.parametrize("make", [as_npy, as_megatron, as_datatrove, as_parquet])
    def test_a_file_that_changes_while_it_is_read(self, tmp_path: Path, make: Make) -> None:
        """Replaced by one of the same size: its generation tells. And one that is gone."""
        path = make(tmp_path, [numbered(8), numbered(8, 8)])
        shards = TokenShards(str(path), LENGTH, 4)
        file = max(one for one in path.iterdir() if one.suffix not in (".idx", ".index"))
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(CorruptInput, match=f"{file.name}.*removed"):
            list(shards)
        file.with_name("new").write_bytes(content[::-1])
        file.with_name("new").rename(file)
        with pytest.raises(CorruptInput, match=f"{file.name}.*replaced"):
            list(shards)

    def test_files_that_are_cut(self, tmp_path: Path) -> None:
        """Seen before the first batch."""
        (tmp_path / "npy").mkdir()
        np.save(tmp_path / "npy" / "a.npy", numbered(8))
        whole = (tmp_path / "npy" / "a.npy").read_bytes()
        (tmp_path / "npy" / "a.npy").write_bytes(whole[:-2])
        self.refused(tmp_path / "npy", "its tokens take 192: it was cut off")
        path = as_megatron(tmp_path / "megatron", [numbered(8)])
        file = path / "part-00000.bin"
        file.write_bytes(file.read_bytes()[:-2])
        self.refused(path, "62 bytes, but its tokens take 64")
        index = path / "part-00000.idx"
        index.write_bytes(index.read_bytes()[:-50])
        self.refused(path, "it was cut off")
        index.write_bytes(b"MMIDIDX\0")
        self.refused(path, "not an index of Megatron")

    def test_half_of_a_pair(self, tmp_path: Path) -> None:
        """A .bin without an .idx was not published whole."""
        path = as_megatron(tmp_path, [numbered(8), numbered(8)])
        (path / "part-00001.idx").unlink()
        self.refused(path, "a .bin without its .idx, or the other way around: part-00001")

    def test_datatrove_that_is_cut_or_of_another_shard(self, tmp_path: Path) -> None:
        """The last entry of the index is to be the number of tokens; its width follows from that, and no other fits."""
        for name, cut in ((".ds", -1), (".ds", -2), (".ds.index", -8), (".ds.index", -3)):
            path = as_datatrove(tmp_path / f"{name}{cut}", [numbered(8)])
            file = path / f"part-00000{name}"
            file.write_bytes(file.read_bytes()[:cut])
            self.refused(path, "it was cut off|one of both files was cut off")
        (path / "part-00000.ds.index").unlink()
        self.refused(path, "a .ds without its .ds.index, or the other way around: part-00000")

    def test_arrays_that_are_no_tokens(self, tmp_path: Path) -> None:
        """Fractions, and images."""
        np.save(tmp_path / "a.npy", np.zeros(8))
        self.refused(tmp_path, "has values of float64; expected tokens")
        np.save(tmp_path / "a.npy", np.zeros((8, 2, 2), np.uint8))
        self.refused(tmp_path, "3 dimensions; expected tokens one after another")
        np.save(tmp_path / "a.npy", np.zeros((8, 2), np.uint8))
        self.refused(tmp_path, "packed sequences of 2 tokens, but sequence_length is 4")

    def test_a_state_of_another_corpus(self, tmp_path: Path) -> None:
        """Other names, other sizes, or other tokens of the same number: both fingerprints are named."""
        shards = [numbered(8), numbered(8, 8)]
        state = TokenShards(str(as_npy(tmp_path / "a", shards)), LENGTH, 4).state_dict()
        others = [as_npy(tmp_path / "b", [*shards, numbered(1)]), as_npy(tmp_path / "c", shards[::-1])]
        others.append(as_npy(tmp_path / "d", shards))
        (tmp_path / "d" / "part-00000.npy").rename(tmp_path / "d" / "other.npy")
        for path in others:
            other = TokenShards(str(path), LENGTH, 4)
            here = other.state_dict()["corpus"]
            with pytest.raises(ConfigError, match=f"corpus: {state['corpus']!r} in the state, {here!r} here"):
                other.load_state_dict(state)

    def test_a_state_is_json_of_200_bytes(self, corpus: Path) -> None:
        """Of a small corpus it is smaller."""
        shards = TokenShards(str(corpus), LENGTH, 4, seed=2**64 - 1)
        assert len(json.dumps(shards.state_dict())) <= 200


class Copy(curate.Job):
    """Copies rows."""

    version = "1"

    def process(self, batch: pa.Table) -> pa.Table:
        return batch


LISTS = pa.list_(pa.uint16())
BEFORE = {
    "tokens.x": pa.array([[7], [7]], LISTS),
    "tokens.list.element": pa.array([7, 7]),
    "tokens.": pa.array([{"a": 7, "tokens": [7]}, None]),
    "a": pa.array(
        [[("tokens", [{"b": 7, "c": 7}])], []], pa.map_(pa.string(), pa.list_(pa.struct({"b": "i8", "c": "i8"})))
    ),
    "b": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [2]), pa.array([[7, 7]] * 2, pa.list_(pa.int8(), 2))
    ),
    "c": pa.array(["tokens"] * 2).dictionary_encode(),
}


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("names", [*([name] for name in BEFORE), [*BEFORE]])
def test_the_columns_before_the_tokens_are_others(names: list[str], statistics: bool, tmp_path: Path) -> None:
    """Whatever they are called, and of whatever they are made."""
    table = pa.table({**{name: BEFORE[name] for name in names}, "tokens": pa.array([[1, 2, 3], [4]], LISTS)})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=statistics)
    assert [one.tolist() for one in TokenShards(str(tmp_path), 4, 1)] == [[[1, 2, 3, 4]]]


def test_a_column_whose_name_has_a_dot(tmp_path: Path) -> None:
    others = pa.array([{"tokens": [7, 7]}, {"tokens": []}], pa.struct([("tokens", pa.list_(pa.uint16()))]))
    rows = pa.array([[1, 2, 3], [4]], pa.list_(pa.uint16()))
    pq.write_table(pa.table({"my": others, "text.tokens": rows}), tmp_path / "a.parquet")
    shards = TokenShards(str(tmp_path), 4, 1, column="text.tokens")
    assert [one.tolist() for one in shards] == [[[1, 2, 3, 4]]]
