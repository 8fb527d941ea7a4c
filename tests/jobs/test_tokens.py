"""The job that turns texts into tokens, beside a plain loop over the package `tokenizers`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import curate
from curate.errors import ConfigError
from curate.testing.local import LocalRun, run_local
from jobs.tokens import Tokenize
from tests.job.inline import refusing, run_job, write_jsonl
from tests.support.examples import examples
from tests.support.tiny_tokenizers import END, PAD, byte_level, lossy, wide, without_unknown, word_piece

TEXTS = [
    "the quick brown fox",
    "",
    "日本語 и русский 🎉",
    f"says {END} in the middle",
    "dog " * 100,
    "tab\tand\nline\x00 zero",
]
ROWS = [{"id": k, "text": text} for k, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(byte_level(tmp_path_factory.mktemp("bpe") / "tokenizer.json"))


def plain(path: str) -> Tokenizer:
    """The tokenizer as the job has it."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def counters(ran: LocalRun) -> dict[str, Any]:
    return dict(ran.summary.books.counters)


class TestDocuments:
    def test_tokens_are_those_of_a_plain_loop(self, bpe: str) -> None:
        """Truncation and padding of the file are off, and a name of a special token in a text is text."""
        ran = run_local(Tokenize(tokenizer=bpe, end_token=END), ROWS)
        tokenizer = plain(bpe)
        expected = [[*tokenizer.encode(text, add_special_tokens=False).ids, 0] for text in TEXTS]
        assert [row["tokens"] for row in ran.rows] == expected
        assert [row["id"] for row in ran.rows] == list(range(len(TEXTS)))
        assert ran.table.schema.field("tokens").type == pa.list_(pa.uint16())
        assert counters(ran) == {"documents": 6, "tokens": sum(map(len, expected)), "empty documents": 1}
        assert [tokenizer.decode(row["tokens"][:-1], skip_special_tokens=False) for row in ran.rows] == TEXTS

    @settings(max_examples=examples(30))
    @given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), min_size=1, max_size=8))
    def test_tokens_decoded_are_the_texts(self, bpe: str, texts: list[str]) -> None:
        job = Tokenize(tokenizer=bpe)
        job.setup()
        table = job.process(pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())}))
        tokenizer = plain(bpe)
        assert [tokenizer.decode(one, skip_special_tokens=False) for one in table["tokens"].to_pylist()] == texts

    def test_names_of_special_tokens_in_texts_may_be_taken_for_them(self, bpe: str) -> None:
        ran = run_local(Tokenize(tokenizer=bpe, specials_in_text=True), [{"id": 0, "text": f"a{END}b"}])
        assert 0 in ran.rows[0]["tokens"]

    def test_tokens_around_documents(self, tmp_path: Path) -> None:
        """By name; and those of the template only if they are asked for."""
        path = str(word_piece(tmp_path / "tokenizer.json"))
        bare = run_local(Tokenize(tokenizer=path), [{"id": 0, "text": "the fox"}]).rows[0]["tokens"]
        named = run_local(
            Tokenize(tokenizer=path, begin_token="[CLS]", end_token="[SEP]"), [{"id": 0, "text": "the fox"}]
        )
        template = run_local(Tokenize(tokenizer=path, template=True), [{"id": 0, "text": "the fox"}])
        assert named.rows[0]["tokens"] == template.rows[0]["tokens"] == [1, *bare, 2]

    def test_columns_and_text_that_are_kept(self, bpe: str) -> None:
        rows = [{"id": "a", "text": "the dog", "url": "u"}]
        ran = run_local(Tokenize(tokenizer=bpe, keep_columns=["url"], keep_text=True), rows)
        assert ran.table.column_names == ["id", "text", "url", "tokens"]


class TestPacked:
    def test_sequences_are_slices_of_all_tokens(self, bpe: str) -> None:
        whole = run_local(Tokenize(tokenizer=bpe, end_token=END), ROWS)
        tokens = [token for row in whole.rows for token in row["tokens"]]
        ran = run_local(Tokenize(tokenizer=bpe, end_token=END, pack=16, batch_size=2), ROWS)
        found = [row["tokens"] for row in ran.rows]
        assert {len(one) for one in found} == {16}
        padding = sum(row["padding"] for row in ran.rows)
        assert [token for one in found for token in one] == tokens + [0] * padding
        assert all(sum(row["document_lengths"]) + row["padding"] == 16 for row in ran.rows)
        assert counters(ran)["padding"] == padding > 0
        assert counters(ran)["tokens"] == len(tokens)
        assert ran.summary.books.balanced()

    def test_the_tail_of_a_shard_may_be_dropped_and_is_counted(self, bpe: str) -> None:
        ran = run_local(Tokenize(tokenizer=bpe, end_token=END, pack=16, tail="drop"), ROWS)
        told = counters(ran)
        assert len(ran.rows) * 16 + told["tokens dropped from the end of shards"] == told["tokens"]
        assert "padding" not in told

    @pytest.mark.parametrize("tail", ["pad", "drop"])
    @pytest.mark.parametrize("length", [5, 16, 40])
    def test_each_document_is_cut_where_a_sequence_ends_within_it(self, bpe: str, tail: Any, length: int) -> None:
        whole = run_local(Tokenize(tokenizer=bpe, end_token=END), ROWS)
        ends = list(itertools.accumulate(len(row["tokens"]) for row in whole.rows))
        ran = run_local(Tokenize(tokenizer=bpe, end_token=END, pack=length, tail=tail), ROWS)
        cuts = sum(at not in ends for at in range(length, ends[-1], length))
        assert counters(ran).get("cuts in documents", 0) == cuts

    def test_a_document_longer_than_a_sequence(self, bpe: str) -> None:
        """Refused with both numbers, unless it is to be cut or dropped; either is counted."""
        common = {"tokenizer": bpe, "end_token": END, "pack": 32, "pack_by": "best-fit"}
        failed = run_local(Tokenize(**common), ROWS).summary
        assert failed.state == "failed"
        assert "the document with id 2 has 33 tokens, and --pack is 32" in failed.failures[0].error
        cut = run_local(Tokenize(**common, long="cut"), ROWS)
        assert counters(cut)["cuts in documents"] > 0
        dropped = run_local(Tokenize(**common, long="drop"), ROWS)
        assert dropped.summary.books.dropped["longer than a sequence"] >= 1
        lengths = sorted(one for row in dropped.rows for one in row["document_lengths"])
        whole = [len(row["tokens"]) for row in run_local(Tokenize(tokenizer=bpe, end_token=END), ROWS).rows]
        assert lengths == sorted(one for one in whole if one <= 32)

    def test_fewer_rows_than_documents_are_in_the_books(self, bpe: str) -> None:
        ran = run_local(Tokenize(tokenizer=bpe, end_token=END, pack=1000), ROWS)
        assert (len(ran.rows), ran.summary.books.dropped) == (1, {"packed into sequences": 5})
        assert ran.summary.books.balanced()

    def test_only_empty_documents_without_an_end(self, bpe: str) -> None:
        ran = run_local(Tokenize(tokenizer=bpe, pad_token=PAD, pack=8), [{"id": 0, "text": ""}])
        assert ran.rows == []
        assert counters(ran) == {"documents": 1, "tokens": 0, "empty documents": 1}


class TestRefused:
    @pytest.mark.parametrize(
        ("parameters", "why"),
        [
            ({"end_token": "<|endofttext|>"}, "the tokenizer has no such token; did you mean '<|endoftext|>'?"),
            ({"begin_token": "[CLS]"}, "its special tokens are <|endoftext|>, <pad>"),
            ({"pack": 16}, "give --pad-token, or leave the tail out with --tail drop"),
            ({"pack": 16, "pack_by": "best-fit", "tail": "drop"}, "need a token of padding; give --pad-token"),
            ({"pack": 1, "end_token": END}, "--pack 1: expected 2 or more"),
            ({"format": "memmap"}, "only --end-token says where one ends; give it, such as <|endoftext|>"),
            ({"pack": 16, "end_token": END, "keep_text": True}, "a sequence is of several documents"),
            ({"format": "megatron", "keep_columns": ["url"]}, "megatron has tokens alone"),
            (
                {"format": "datatrove", "keep_positions": True},
                "leave out --keep-text, --keep-columns and --keep-positions",
            ),
            ({"pack": 16, "end_token": END, "keep_positions": True}, "a sequence is of several documents"),
            ({"id_column": "tokens"}, "a column 'tokens' of its own"),
            ({"max_unknown": 2.0}, "--max-unknown 2 is no share"),
        ],
    )
    def test_parameters(self, bpe: str, parameters: dict[str, Any], why: str, tmp_path: Path) -> None:
        source = write_jsonl(tmp_path / "in.jsonl", ROWS)
        with refusing(why):
            run_job(Tokenize(tokenizer=bpe, **parameters), source, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_ids_above_the_width(self, tmp_path: Path) -> None:
        """With both numbers; without a width the integers are those that fit."""
        path = str(wide(tmp_path / "tokenizer.json", 70_000))
        source = write_jsonl(tmp_path / "in.jsonl", [{"id": 0, "text": "a z"}])
        with refusing("--width uint16 has ids up to 65,535, and the largest id of the tokenizer is 70,000"):
            run_job(Tokenize(tokenizer=path, width="uint16"), source, tmp_path / "out")
        ran = run_local(Tokenize(tokenizer=path), [{"id": 0, "text": "a z"}])
        assert ran.rows[0]["tokens"] == [1, 70_000]
        assert ran.table.schema.field("tokens").type == pa.list_(pa.uint32())

    @pytest.mark.parametrize(("largest", "type"), [(65_535, pa.uint16()), (65_536, pa.uint32())])
    def test_the_narrowest_width_that_fits(self, tmp_path: Path, largest: int, type: pa.DataType) -> None:
        ran = run_local(Tokenize(tokenizer=str(wide(tmp_path / "t.json", largest))), [{"id": 0, "text": "z"}])
        assert ran.rows[0]["tokens"] == [largest]
        assert ran.table.schema.field("tokens").type == pa.list_(type)

    @pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"model": {"type": "BPE"}}', b"[1, 2]"])
    def test_a_file_that_is_no_tokenizer(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(data)
        source = write_jsonl(tmp_path / "in.jsonl", ROWS)
        with refusing("is not a tokenizer.json"):
            run_job(Tokenize(tokenizer=str(tmp_path / "tokenizer.json")), source, tmp_path / "out")

    def test_a_tokenizer_that_drops_characters(self, tmp_path: Path) -> None:
        """Which nothing would show: no unknown token stands for them."""
        path = str(lossy(tmp_path / "tokenizer.json"))
        source = write_jsonl(tmp_path / "in.jsonl", [{"id": 0, "text": "дом"}])
        with refusing("drops characters that it does not know"):
            run_job(Tokenize(tokenizer=path), source, tmp_path / "out")
        ran = run_local(Tokenize(tokenizer=path, max_unknown=1.0), [{"id": 0, "text": "дом"}])
        assert ran.rows[0]["tokens"] == []

    def test_a_tokenizer_that_fails_at_what_it_does_not_know(self, tmp_path: Path) -> None:
        """It is refused before anything runs; if it is wanted, rows that it fails at are set aside, and no others."""
        file = tmp_path / "tokenizer.json"
        path = str(without_unknown(file, "WordLevel", None, byte_fallback=False, byte_level=False))
        texts = ["a b", "a é", "b", "字", ""]
        rows = [{"id": k, "text": text} for k, text in enumerate(texts)]
        source = write_jsonl(tmp_path / "in.jsonl", rows)
        with refusing("fails at what it does not know"):
            run_job(Tokenize(tokenizer=str(path)), source, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        ran = run_local(Tokenize(tokenizer=str(path), max_unknown=1.0, max_bad_rows=2), rows)
        assert ran.summary.state == "complete"
        assert [(row["id"], row["tokens"]) for row in ran.rows] == [(0, [0, 1]), (2, [1]), (4, [])]
        assert ran.summary.books.quarantined == 2

    def test_a_tokenizer_that_does_not_know_the_language(self, tmp_path: Path) -> None:
        """A shard of which too many tokens are unknown fails, with the numbers; fewer are counted."""
        path = str(word_piece(tmp_path / "tokenizer.json"))
        rows = [{"id": k, "text": "the fox " * 9 + "дом"} for k in range(4)]
        failed = run_local(Tokenize(tokenizer=path, max_unknown=0.01), rows).summary
        assert failed.state == "failed"
        ran = run_local(Tokenize(tokenizer=path, max_unknown=0.2), rows)
        assert counters(ran)["unknown tokens"] == 4

    @pytest.mark.parametrize("known", [0, 1, 4])
    def test_unknown_tokens_of_documents_that_are_dropped_do_not_count(self, known: int, tmp_path: Path) -> None:
        """For being longer than a sequence; the share is that of the tokens that are kept."""
        path = str(word_piece(tmp_path / "tokenizer.json"))
        rows = [{"id": 0, "text": "дом " * 30}, *({"id": k + 1, "text": "the fox дом"} for k in range(known))]
        job = Tokenize(tokenizer=path, pack=8, pack_by="best-fit", long="drop", pad_token="[SEP]", max_unknown=0.5)
        ran = run_local(job, rows)
        assert ran.summary.state == "complete"
        assert counters(ran).get("unknown tokens", 0) == known
        assert counters(ran).get("documents", 0) == known

    def test_texts_that_are_none(self, bpe: str) -> None:
        """Bytes that are not UTF-8, half of a pair of surrogates and null are set aside; their neighbours stay."""
        lines = [b'{"id": 1, "text": "\xff"}', b'{"id": 2, "text": "\\ud800"}', b'{"id": 3, "text": null}']
        data = b"\n".join([b'{"id": 0, "text": "the"}', *lines, b'{"id": 4, "text": "dog"}'])
        ran = run_local(Tokenize(tokenizer=bpe), files={"a.jsonl": data})
        assert [row["id"] for row in ran.rows] == [0, 4]
        assert len(ran.quarantine) == 3

    @pytest.mark.slow
    def test_names_of_the_standard_library_stay_its_own(self, bpe: str, tmp_path: Path) -> None:
        """As a program its folder comes first where modules are looked for."""
        source = write_jsonl(tmp_path / "in.jsonl", ROWS)
        argv = ["jobs/tokens.py", "--input", str(source), "--output", str(tmp_path / "out"), "--backend", "inline"]
        ended = subprocess.run(
            [sys.executable, *argv, "--tokenizer", bpe, "--json"], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["counters"]["documents"] == len(ROWS)


def written(tmp_path: Path, bpe: str, **parameters: Any) -> Path:
    """Writes two shards, and returns where they are."""
    for number in range(2):
        rows = [{"id": k, "text": TEXTS[(k + number) % 6]} for k in range(20)]
        (tmp_path / f"in-{number}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    out = tmp_path / "out"
    summary = run_job(Tokenize(tokenizer=bpe, end_token=END, **parameters), str(tmp_path / "in-*.jsonl"), str(out))
    assert summary.state == "complete"
    return out


def expected(bpe: str, number: int) -> list[list[int]]:
    tokenizer = plain(bpe)
    return [[*tokenizer.encode(TEXTS[(k + number) % 6], add_special_tokens=False).ids, 0] for k in range(20)]


class TestAttributes:
    """Tokens beside the rows that they are of."""

    @pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
    def test_rows_get_their_own(self, bpe: str, tmp_path: Path, kind: str) -> None:
        """Joined by place, with rows in between that cannot be read; then a filter by the number of tokens."""
        rows = [{"id": k, "text": TEXTS[k % 6].replace("\n", " ")} for k in range(40)]
        (tmp_path / "in").mkdir()
        for number in range(2):
            path = tmp_path / "in" / f"{number}.{kind}"
            some = rows[number * 20 : number * 20 + 20]
            if kind == "jsonl":
                path.write_bytes(b"".join(orjson.dumps(row) + b"\n" + b"{\n" * (row["id"] % 7 == 3) for row in some))
            elif kind == "csv":
                pa.csv.write_csv(pa.Table.from_pylist(some), path)
            else:
                pq.write_table(pa.Table.from_pylist(some), path, row_group_size=7)
        read = {"jsonl": curate.read_json, "csv": curate.read_csv, "parquet": curate.read_parquet}[kind]
        job = Tokenize(tokenizer=bpe, end_token=END, attributes=True, max_bad_rows="50%")
        assert run_job(job, tmp_path / "in", tmp_path / "out").state == "complete"
        assert curate.read_parquet(tmp_path / "out").columns() == ["id", "tokens", "curate_position"]
        found = read(tmp_path / "in").using(max_bad_rows="50%").with_attributes(tmp_path / "out").take_all()
        wanted = [[*plain(bpe).encode(row["text"], add_special_tokens=False).ids, 0] for row in rows]
        assert [row["id"] for row in found] == [row["id"] for row in rows]
        assert [row["tokens"] for row in found] == wanted

    @pytest.mark.parametrize(
        ("parameters", "said"),
        [({"pack": 8}, "of several documents"), ({"format": "megatron"}, "megatron has no places")],
    )
    def test_sequences_have_no_place(self, bpe: str, parameters: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=f"attributes are tokens of each row beside its place .* {said}"):
            run_local(Tokenize(tokenizer=bpe, end_token=END, attributes=True, **parameters), ROWS)


class TestFormats:
    def test_memory_maps(self, bpe: str, tmp_path: Path) -> None:
        """Numpy maps a file of its own format: all tokens of the shard, one document after the other."""
        out = written(tmp_path, bpe, format="memmap")
        for number in range(2):
            found = np.load(out / f"in-{number}.npy", mmap_mode="r")
            assert isinstance(found, np.memmap)
            assert found.dtype == np.uint16
            assert found.tolist() == [token for one in expected(bpe, number) for token in one]

    def test_megatron(self, bpe: str, tmp_path: Path) -> None:
        """Read by numpy as Megatron-LM's `indexed_dataset.py` says."""
        out = written(tmp_path, bpe, format="megatron")
        for number in range(2):
            index = (out / f"in-{number}.idx").read_bytes()
            tokens = np.memmap(out / f"in-{number}.bin", mode="r")
            assert index[:9] == b"MMIDIDX\x00\x00"
            assert int.from_bytes(index[9:17], "little") == 1
            assert index[17] == 8  # uint16
            sequences = int.from_bytes(index[18:26], "little")
            documents = int.from_bytes(index[26:34], "little")
            lengths = np.frombuffer(index, np.int32, sequences, 34)
            pointers = np.frombuffer(index, np.int64, sequences, 34 + 4 * sequences)
            begins = np.frombuffer(index, np.int64, documents, 34 + 12 * sequences)
            found = [
                np.frombuffer(tokens, np.uint16, length, pointer).tolist()
                for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True)
            ]
            assert found == expected(bpe, number)
            assert begins.tolist() == list(range(sequences + 1))

    def test_megatron_has_signed_integers_alone_beside_uint16(self, tmp_path: Path) -> None:
        path = str(wide(tmp_path / "tokenizer.json", 70_000))
        source = write_jsonl(tmp_path / "in.jsonl", [{"id": 0, "text": "a z"}])
        run_job(Tokenize(tokenizer=path, format="megatron"), source, tmp_path / "out")
        assert (tmp_path / "out" / "in.idx").read_bytes()[17] == 4  # int32
        assert np.fromfile(tmp_path / "out" / "in.bin", np.int32, 2).tolist() == [1, 70_000]

    @pytest.mark.parametrize("width", ["uint16", "uint32"])
    def test_datatrove(self, bpe: str, tmp_path: Path, width: str) -> None:
        """Read by numpy as datatrove's `TokenizedFile` writes it: each byte of `.ds` is one of a token, and each of
        `.ds.index` one of a document's end; only `.ds.metadata`, whose first line is read as text, has more."""
        out = written(tmp_path, bpe, format="datatrove", width=width)
        for number in range(2):
            tokens = np.fromfile(out / f"in-{number}.ds", np.dtype(width).newbyteorder("<"))
            ends = np.fromfile(out / f"in-{number}.ds.index", "<u8").astype(np.int64)
            assert [part.tolist() for part in np.split(tokens, ends[:-1])] == expected(bpe, number)
            assert (out / f"in-{number}.ds").stat().st_size == ends[-1] * np.dtype(width).itemsize
            name, total, _, *_ = (out / f"in-{number}.ds.metadata").read_text("utf-8").splitlines()
            assert (name.partition("|")[2], int(total)) == (str(np.dtype(width).itemsize), ends[-1])

    def test_mds(self, bpe: str, tmp_path: Path) -> None:
        """Read as mosaicml-streaming says: a sample by its offsets, and the index names all shards."""
        out = written(tmp_path, bpe, format="mds")
        index = json.loads((out / "index.json").read_text())
        assert [one["raw_data"]["basename"] for one in index["shards"]] == ["in-0.mds", "in-1.mds"]
        for number, shard in enumerate(index["shards"]):
            data = (out / shard["raw_data"]["basename"]).read_bytes()
            assert (shard["raw_data"]["bytes"], shard["samples"]) == (len(data), 20)
            assert shard["column_names"] == ["id", "tokens"]
            assert shard["column_encodings"] == ["int64", "ndarray:uint16"]
            offsets = np.frombuffer(data, np.uint32, 21, 4).tolist()
            found = []
            for begin, end in itertools.pairwise(offsets):
                sample = data[begin:end]
                size = int.from_bytes(sample[:4], "little")
                array = sample[12:]
                assert len(array) == size
                assert array[0] >> 2 == 1  # one dimension
                width = 1 << (array[0] & 3)
                length = int.from_bytes(array[1 : 1 + width], "little")
                found.append(np.frombuffer(array, np.uint16, length, 1 + width).tolist())
            assert found == expected(bpe, number)
