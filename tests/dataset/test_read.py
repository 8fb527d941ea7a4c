"""What the functions that make a dataset take, what rows come of it, and what they refuse."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError, CurateError, SchemaMismatch
from curate.formats.read.json_values import readable
from tests.job.inline import run_job
from tests.support.writes import failed_write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


# Files that differ

WIDER = {
    pa.int8(): [pa.int8(), pa.int16(), pa.int64(), pa.float64()],
    pa.uint8(): [pa.uint8(), pa.uint32(), pa.int16(), pa.int64(), pa.float64()],
    pa.int64(): [pa.int64(), pa.float64()],
    pa.float32(): [pa.float32(), pa.float64()],
    pa.string(): [pa.string(), pa.large_string()],
    pa.dictionary(pa.int8(), pa.string()): [pa.string()],
    pa.null(): [pa.int8(), pa.string(), pa.list_(pa.int64())],
    pa.list_(pa.int8()): [pa.list_(pa.int8()), pa.list_(pa.int64())],
}
VALUES = {
    pa.int8(): st.integers(-128, 127),
    pa.uint8(): st.integers(0, 255),
    pa.int64(): st.integers(-(2**50), 2**50),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.string(): st.text(max_size=4),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from("abc"),
    pa.null(): st.none(),
    pa.list_(pa.int8()): st.lists(st.integers(-128, 127), max_size=3),
}


@st.composite
def differing(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.Table]]:
    """Returns a schema, and tables that each have some of its columns, of types that fit, in any order."""
    columns = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        held = draw(st.sampled_from([pa.int64(), pa.float64(), pa.string(), pa.list_(pa.int64())]))
        columns.append((name, held, [one for one, wider in WIDER.items() if held in wider]))
    tables = []
    for _ in range(draw(st.integers(0, 3))):
        rows = draw(st.integers(0, 4))
        there = draw(st.permutations(columns))[: draw(st.integers(1, len(columns)))]
        made = {}
        for name, _, fitting in there:
            type = draw(st.sampled_from(fitting))
            values = draw(st.lists(st.none() | VALUES[type], min_size=rows, max_size=rows))
            made[name] = pa.array(values, type)
        tables.append(pa.table(made))
    return pa.schema([(name, held) for name, held, _ in columns]), tables


@pytest.mark.quick(1)
@pytest.mark.parametrize("declared", [True, False])
@given(differing())
def test_files_are_unified(tmp_path_factory: pytest.TempPathFactory, declared: bool, found: Any) -> None:
    """Missing columns are null, types are widened: as in plain Python, whether it is declared or the first's."""
    schema, tables = found
    folder = tmp_path_factory.mktemp("in")
    first = [] if declared else [schema.empty_table()]
    for number, table in enumerate([*first, *tables] or [schema.empty_table()]):
        pq.write_table(table, folder / f"{number}.parquet")
    read = curate.read_parquet(folder, schema=schema if declared else None)
    expected = [{name: row.get(name) for name in schema.names} for table in tables for row in table.to_pylist()]
    assert read.schema() == schema
    assert read.to_arrow().schema == schema
    assert read.take_all() == expected
    last = schema.names[-1]
    assert read.select_columns(last).take_all() == [{last: row[last]} for row in expected]
    assert read.count() == len(expected)


class TestDiffering:
    @pytest.fixture
    def folder(self, folder: Path) -> Path:
        pq.write_table(pa.table({"n": [1], "s": ["a"]}), folder / "0.parquet")
        return folder

    def refused(self, folder: Path, **options: Any) -> str:
        with pytest.raises(SchemaMismatch) as caught:
            curate.read_parquet(folder, **options).take_all()
        return str(caught.value)

    def test_another_type_is_refused_with_both(self, folder: Path) -> None:
        """Both schemas, both files, and what to do."""
        pq.write_table(pa.table({"n": ["x"], "s": ["a"]}), folder / "1.parquet")
        said = self.refused(folder)
        assert f"{folder}/1.parquet: column 'n' is string, expected int64. This file has (n: string, s: string)" in said
        assert f"and {folder}/0.parquet has (n: int64, s: string); no type holds both of 'n': rewrite" in said
        assert curate.read_parquet(folder, columns=["s"]).count() == 2

    def test_a_struct_of_other_fields_is_refused_with_what_helps(self, folder: Path) -> None:
        """Declaring it does not: no type holds both."""
        for number, value in enumerate(({"a": 1}, {"a": 1, "b": 2})):
            pq.write_table(pa.table({"v": [value], "s": ["a"]}), folder / f"{number}.parquet")
        helps = "no type holds both of 'v': rewrite the files, or select other columns with columns="
        assert self.refused(folder).endswith(helps)
        with pytest.raises(ConfigError, match=helps):
            curate.read_parquet(folder, schema=pq.read_schema(folder / "1.parquet")).take_all()
        assert curate.read_parquet(folder, columns=["s"]).count() == 2

    def test_what_a_wider_type_holds_is_declared(self, folder: Path) -> None:
        """As the message says."""
        pq.write_table(pa.table({"n": [1.5], "s": ["a"]}), folder / "1.parquet")
        assert "; declare all columns with schema=" in self.refused(folder)
        wide = curate.read_parquet(folder, schema=pa.schema([("n", pa.float64()), ("s", pa.string())]))
        assert sorted(row["n"] for row in wide.take_all()) == [1.0, 1.5]

    def test_a_column_of_its_own_is_refused(self, folder: Path) -> None:
        """Where all are read; not where columns are named, or declared."""
        pq.write_table(pa.table({"n": [2], "s": ["b"], "score": [0.5]}), folder / "1.parquet")
        assert "column 'score' is in this file only" in self.refused(folder)
        assert curate.read_parquet(folder, columns=["n"]).take_all() == [{"n": 1}, {"n": 2}]
        schema = pa.schema([("score", pa.float64()), ("n", pa.int64())])
        assert curate.read_parquet(folder, schema=schema).take_all() == [
            {"score": None, "n": 1},
            {"score": 0.5, "n": 2},
        ]

    def test_a_write_unifies_as_well(self, folder: Path, tmp_path: Path) -> None:
        """It is read in the same way, and what cannot be is a failed shard."""
        pq.write_table(pa.table({"n": pa.array([2], pa.int8())}), folder / "1.parquet")
        assert curate.read_parquet(folder).write_parquet(tmp_path / "out", backend="inline").state == "complete"
        assert curate.read_parquet(tmp_path / "out").take_all() == [{"n": 1, "s": "a"}, {"n": 2, "s": None}]
        pq.write_table(pa.table({"n": ["x"]}), folder / "2.parquet")
        summary = failed_write(curate.read_parquet(folder).write_parquet, tmp_path / "other", backend="inline")
        assert (summary.failed, summary.done) == (1, 2)

    def test_a_filter_over_a_missing_column(self, folder: Path) -> None:
        """It is null there, and no file is left out for that."""
        pq.write_table(pa.table({"n": [2]}), folder / "1.parquet")
        assert curate.read_parquet(folder, filter=pc.field("s").is_null()).take_all() == [{"n": 2, "s": None}]
        assert curate.read_parquet(folder, filter=pc.field("s") == "a").take_all() == [{"n": 1, "s": "a"}]

    def test_csv_by_name(self, tmp_path: Path) -> None:
        """In any order; a column that is missing is null, one too many is refused."""
        (tmp_path / "0.csv").write_text("n,s\n1,a\n")
        (tmp_path / "1.csv").write_text("s,n\nb,2\n")
        (tmp_path / "2.csv").write_text("n\n3\n")
        found = curate.read_csv(tmp_path)
        assert found.take_all() == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}, {"n": 3, "s": None}]
        (tmp_path / "3.csv").write_text("n,s,x\n4,d,5\n")
        with pytest.raises(SchemaMismatch, match=r"3.csv: column 'x' is in this file only"):
            curate.read_csv(tmp_path).take_all()

    def test_csv_without_any_column_of_the_schema(self, tmp_path: Path) -> None:
        """Its rows are there, and null; a blank file has none."""
        (tmp_path / "0.csv").write_text("x\n1\n2\n")
        (tmp_path / "1.csv").write_text("")
        (tmp_path / "2.csv").write_text("n\n3\n")
        found = curate.read_csv(tmp_path, schema=pa.schema([("n", pa.int64())]))
        assert [row["n"] for row in found.take_all()] == [None, None, 3]

    def test_json_keys(self, tmp_path: Path) -> None:
        """Missing ones are null; a declared schema says which there are."""
        (tmp_path / "0.jsonl").write_text('{"n": 1}\n')
        (tmp_path / "1.jsonl").write_text('{"m": 2.5}\n')
        assert curate.read_json(tmp_path).take_all() == [{"n": 1, "m": None}, {"n": None, "m": 2.5}]
        schema = pa.schema([("m", pa.float32()), ("n", pa.float64())])
        found = curate.read_json(tmp_path, schema=schema)
        assert found.schema() == schema
        assert found.take_all() == [{"m": None, "n": 1.0}, {"m": 2.5, "n": None}]


class TestDeclared:
    def test_nothing_is_read_for_it(self, tmp_path: Path) -> None:
        """Lines that would not tell a schema are looked at when rows are asked for."""
        (tmp_path / "0.jsonl").write_text("no json\n")
        found = curate.read_json(tmp_path, schema=pa.schema([("n", pa.int64())]))
        assert found.schema().names == ["n"]
        assert found.take_all() == []

    @pytest.mark.parametrize(
        ("schema", "message"),
        [
            ({"n": "int64"}, "expected a pyarrow.Schema with a column"),
            (pa.schema([]), "expected a pyarrow.Schema with a column"),
            (pa.schema([("n", pa.int8()), ("n", pa.int8())]), "column 'n' occurs 2 times"),
            (
                pa.schema([("n", pa.month_day_nano_interval())]),
                "column 'n' is month_day_nano.*, which jsonl cannot hold",
            ),
        ],
    )
    def test_what_is_no_schema_is_refused(self, tmp_path: Path, schema: Any, message: str) -> None:
        """When the plan is made."""
        (tmp_path / "0.jsonl").write_text('{"n": 1}\n')
        assert not readable(pa.month_day_nano_interval())
        with pytest.raises(ConfigError, match=rf"read_json\(schema=.*{message}"):
            curate.read_json(tmp_path, schema=schema)

    def test_the_first_footer_is_held_against_it(self, tmp_path: Path) -> None:
        """It is read anyhow."""
        pq.write_table(pa.table({"n": ["a"]}), tmp_path / "0.parquet")
        with pytest.raises(ConfigError, match=r"column 'n' is string, expected int64.*declared is \(n: int64\)"):
            curate.read_parquet(tmp_path, schema=pa.schema([("n", pa.int64())]))

    def test_another_schema_is_another_output(self, tmp_path: Path) -> None:
        """It is part of the identity, as everything is that decides bytes."""
        (tmp_path / "0.jsonl").write_text('{"n": 1}\n')
        for number, type in enumerate([pa.int64(), pa.int64(), pa.float64()]):
            found = curate.read_json(tmp_path / "0.jsonl", schema=pa.schema([("n", type)]))
            if number < 2:
                assert found.write_parquet(tmp_path / "out", backend="inline").state == "complete"
        with pytest.raises(ConfigError, match="identity"):
            found.write_parquet(tmp_path / "out", backend="inline")


# Text and CSV


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6), max_size=12),
    st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-32", "utf-8-sig"]),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_text_of_any_encoding(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], encoding: str, drop: bool, end: str, last: bool
) -> None:
    """Gives the lines that were written, blank ones on request."""
    folder = tmp_path_factory.mktemp("in")
    if lines and lines[0].startswith("\ufeff"):
        lines[0] = "x"
    data = "".join(line + end for line in lines)
    if lines and not last:
        data = data.removesuffix(end)
        lines = lines if lines[-1] else lines[:-1]
    (folder / "a.txt").write_bytes(data.encode(encoding))
    expected = [line for line in lines if line and not line.isspace()] if drop else lines
    found = curate.read_text(folder, encoding=encoding, drop_empty_lines=drop)
    assert [row["text"] for row in found.take_all()] == expected


class TestText:
    def test_a_line_of_another_encoding_is_a_bad_row(self, tmp_path: Path) -> None:
        """Alone; in Latin-1 every byte is a letter."""
        (tmp_path / "a.log").write_bytes(b"one\n\xe9\ntwo")
        assert [row["text"] for row in curate.read_text(tmp_path).take_all()] == ["one", "two"]
        found = curate.read_text(tmp_path, encoding="latin-1")
        assert [row["text"] for row in found.take_all()] == ["one", "é", "two"]

    def test_what_cannot_be_read_on_is_corrupt(self, tmp_path: Path) -> None:
        """A lone surrogate: where the next line begins, nobody knows."""
        (tmp_path / "a.txt").write_bytes("one\n".encode("utf-16-le") + b"\x00\xd8x\x00")
        with pytest.raises(curate.CorruptInput, match=r"a.txt: is not text of the encoding utf-16-le"):
            curate.read_text(tmp_path, encoding="utf-16-le").take_all()

    @pytest.mark.parametrize("encoding", ["utf-9", "base64", "rot13"])
    def test_no_encoding_of_text(self, tmp_path: Path, encoding: str) -> None:
        """Refused when the plan is made."""
        (tmp_path / "a.txt").write_text("x")
        with pytest.raises(ConfigError, match=f"encoding='{encoding}'"):
            curate.read_text(tmp_path, encoding=encoding)

    def test_a_write_reads_as_it_was_told(self, folder: Path, tmp_path: Path) -> None:
        """Encoding and blank lines, not what the suffix says."""
        (folder / "a.txt").write_bytes("é\n\nx\n".encode("latin-1"))
        found = curate.read_text(folder, encoding="latin-1", drop_empty_lines=False)
        assert found.write_json(tmp_path / "out", backend="inline").state == "complete"
        assert curate.read_json(tmp_path / "out").take_all() == [{"text": "é"}, {"text": ""}, {"text": "x"}]


class Rows(curate.Job):
    """Copies rows."""

    version = "1"

    def process(self, batch: Any) -> Any:
        return batch


class TestCsv:
    @pytest.mark.parametrize("delimiter", [";", "\t", "|"])
    def test_delimiters(self, folder: Path, tmp_path: Path, delimiter: str) -> None:
        """Also in a file called .tsv, and in a write."""
        (folder / "a.tsv").write_text(f'n{delimiter}s\n1{delimiter}"a{delimiter}b"\n2{delimiter},\n')
        found = curate.read_csv(folder, delimiter=delimiter)
        assert found.take_all() == [{"n": 1, "s": f"a{delimiter}b"}, {"n": 2, "s": ","}]
        found.write_parquet(tmp_path / "out", backend="inline")
        assert curate.read_parquet(tmp_path / "out").take_all() == found.take_all()

    @pytest.mark.parametrize("name", ["a.tsv", "a.TSV.gz"])
    @pytest.mark.parametrize("backend", ["inline", "local"])
    def test_tabs_separate_what_is_called_so(self, folder: Path, tmp_path: Path, name: str, backend: str) -> None:
        """Unless another delimiter is given; beside files that are separated by commas, too."""
        data = b"n\ts\n1\ta,b\n"
        (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        (folder / "b.csv").write_text("n,s\n2,c\n")
        found = curate.read_csv(folder)
        assert found.take_all() == [{"n": 1, "s": "a,b"}, {"n": 2, "s": "c"}]
        found.write_parquet(tmp_path / "out", backend=backend)
        assert curate.read_parquet(tmp_path / "out").take_all() == found.take_all()
        with pytest.raises(ConfigError, match="with another identity"):
            curate.read_csv(folder, delimiter=",").write_parquet(tmp_path / "out", backend="inline")

    @pytest.mark.parametrize(
        ("name", "header"), [("a.csv", "n;s"), ("a.csv", "n\ts"), ("a.csv", "n|s"), ("a.tsv", "n,s"), ("a.tsv", "n;s")]
    )
    def test_another_delimiter_is_told_unless_one_is_given(
        self, folder: Path, tmp_path: Path, name: str, header: str
    ) -> None:
        """Texts with line ends would be torn, and no row refused. A file of one column is one if somebody says so."""
        found, expected = header[1], "\t" if name.endswith("tsv") else ","
        (folder / name).write_text(f'{header}\n1{found}"a\nb"\n')
        says = re.escape(f"its header, {header!r}, seems to be separated by {found!r}, not {expected!r}; write it")
        for refused in (lambda: curate.read_csv(folder).take_all(), lambda: run_job(Rows(), folder, tmp_path / "out")):
            with pytest.raises(ConfigError, match=says):
                refused()
        assert curate.read_csv(folder, delimiter=found).take_all() == [{"n": 1, "s": "a\nb"}]
        assert curate.read_csv(folder, delimiter="\x01", column_names=["x"]).count() == 3

    @pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "é", 1])
    def test_no_delimiter(self, tmp_path: Path, delimiter: Any) -> None:
        """Refused when the plan is made."""
        (tmp_path / "a.csv").write_text("n\n1\n")
        with pytest.raises(ConfigError, match=r"delimiter=.*expected one ASCII character"):
            curate.read_csv(tmp_path, delimiter=delimiter)


# Files as rows


class TestBinary:
    @given(st.dictionaries(st.sampled_from(["a.bin", "b.png", "c", "d.jsonl.gz", "e.txt"]), st.binary(max_size=50)))
    def test_bytes_as_they_are(self, tmp_path_factory: pytest.TempPathFactory, found: dict[str, bytes]) -> None:
        """Whatever a file is called, in the order of the names; nothing is unpacked."""
        folder = tmp_path_factory.mktemp("in")
        (folder / "z").write_bytes(b"")
        for name, data in found.items():
            (folder / name).write_bytes(data)
        rows = [{"bytes": found.get(name, b""), "path": f"{folder}/{name}"} for name in [*sorted(found), "z"]]
        read = curate.read_binary_files(folder, include_paths=True)
        assert read.take_all() == rows
        assert read.count() == len(rows)
        assert curate.read_binary_files(folder).take_all() == [{"bytes": row["bytes"]} for row in rows]

    def test_a_write_has_an_output_a_file(self, tmp_path: Path) -> None:
        """Named after all of its name, for a.bin and a.txt may lie together; and it is resumed."""
        (tmp_path / "in").mkdir()
        for name in ("a.bin", "a.txt"):
            (tmp_path / "in" / name).write_text(name)
        found = curate.read_binary_files(tmp_path / "in")
        assert found.write_parquet(tmp_path / "out", backend="inline").dispatched == 2
        assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == ["a.bin.parquet", "a.txt.parquet"]
        assert curate.read_parquet(tmp_path / "out").take_all() == [{"bytes": b"a.bin"}, {"bytes": b"a.txt"}]
        assert found.write_parquet(tmp_path / "out", backend="inline").dispatched == 0

    def test_too_large_for_a_value(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Said with what to do, before it is read."""
        monkeypatch.setattr("curate.formats.read.binary.LARGEST_BYTES", 3)
        (tmp_path / "a").write_bytes(b"1234")
        with pytest.raises(curate.CorruptInput, match="has 4 bytes, but a value can have at most 3; leave it out"):
            curate.read_binary_files(tmp_path).take_all()


class TestImages:
    @pytest.fixture
    def pixels(self, folder: Path) -> list[np.ndarray[Any, Any]]:
        """Three images of other sizes, as png files, with their pixels."""
        image = pytest.importorskip("PIL.Image")
        random = np.random.default_rng(0)
        made = []
        for number, shape in enumerate([(4, 5, 3), (1, 1, 3), (7, 2, 3)]):
            made.append(random.integers(0, 256, shape, np.uint8))
            image.fromarray(made[-1]).save(folder / f"{number}.png")
        return made

    @pytest.mark.parametrize("format", ["gif", "tiff", "webp"])
    def test_of_several_frames_it_is_the_first(self, format: str, tmp_path: Path) -> None:
        """One row a file, whatever else is in it."""
        image = pytest.importorskip("PIL.Image")
        first, *others = (image.new("RGB", (2, 2), (shade, shade, shade)) for shade in (0, 255, 255))
        first.save(tmp_path / f"a.{format}", save_all=True, append_images=others)
        assert [np.unique(row["image"]).tolist() for row in curate.read_images(tmp_path).take_all()] == [[0]]

    def test_pixels_are_those_of_the_file(self, folder: Path, pixels: list[np.ndarray[Any, Any]]) -> None:
        """As lists, each of its own size, where no size was asked for."""
        rows = curate.read_images(folder, include_paths=True).take_all()
        assert [row["image"] for row in rows] == [one.tolist() for one in pixels]
        assert [row["path"] for row in rows] == [f"{folder}/{number}.png" for number in range(3)]

    @pytest.mark.parametrize(("mode", "bands"), [("L", ()), ("RGB", (3,)), ("RGBA", (4,)), ("CMYK", (4,))])
    @pytest.mark.usefixtures("pixels")
    def test_one_size_makes_tensors(self, folder: Path, tmp_path: Path, mode: str, bands: tuple[int, ...]) -> None:
        """Height x width x bands, as pillow resizes and converts them; also in batches of user code, and written."""
        image = pytest.importorskip("PIL.Image")
        found = curate.read_images(folder, size=(3, 6), mode=mode)
        expected = np.stack(
            [
                np.asarray(image.open(path).convert(mode).resize((6, 3), image.Resampling.BILINEAR))
                for path in sorted(folder.glob("*.png"))
            ]
        )
        assert expected.shape == (3, 3, 6, *bands)
        batch = found.take_batch(10, batch_format="numpy")["image"]
        assert batch.dtype == np.uint8
        assert (batch == expected).all()
        shapes = found.map_batches(shape_of, batch_format="numpy").take_all()
        assert shapes == [{"shape": [1, 3, 6, *bands]}] * 3
        found.write_parquet(tmp_path / "out", backend="inline")
        read = curate.read_parquet(tmp_path / "out")
        assert read.schema().field("image").type.shape == [3, 6, *bands]
        assert (read.take_batch(10, batch_format="numpy")["image"] == expected).all()

    @pytest.mark.usefixtures("pixels")
    def test_a_broken_image_is_a_bad_row(self, folder: Path, tmp_path: Path) -> None:
        """No image at all, or half of one: it is left out, or set aside by a write, with its path."""
        whole = (folder / "2.png").read_bytes()
        (folder / "3.png").write_bytes(b"no image")
        (folder / "4.jpg").write_bytes(whole[: len(whole) // 2])
        found = curate.read_images(folder, size=(2, 2))
        assert len(found.take_all()) == 3
        summary = found.write_parquet(tmp_path / "out", backend="inline")
        assert summary.state == "complete"
        assert (summary.books.rows_out, summary.books.quarantined) == (3, 2)

    @pytest.mark.parametrize(
        ("numbers", "name", "kept"),
        [
            (np.array([[0, 300]], np.uint16), "png", False),
            (np.array([[0, 255]], np.uint16), "png", True),
            (np.array([[0, -1]], np.int32), "tiff", False),
            (np.array([[0.5, 1.0]], np.float32), "tiff", False),
            (np.array([[np.nan, 1.0]], np.float32), "tiff", False),
            (np.array([[7.0, 1.0]], np.float32), "tiff", True),
        ],
    )
    def test_numbers_that_bytes_do_not_hold_are_not_cut_off(
        self, folder: Path, numbers: Any, name: str, kept: bool
    ) -> None:
        """Pillow made 255 of all above, 0 of all below, and left fractions out: another image, and nothing was said."""
        image = pytest.importorskip("PIL.Image")
        image.fromarray(numbers).save(folder / f"a.{name}")
        expected = [numbers.astype(int).tolist()] if kept else []
        rows = curate.read_images(folder, mode="L").using(max_bad_rows="100%").take_all()
        assert [one["image"] for one in rows] == expected
        if name == "png":
            with tarfile.open(folder / "b.tar", "w") as archive:
                archive.add(folder / "a.png", "1.png")
            rows = curate.read_webdataset(folder / "b.tar").using(max_bad_rows="100%").take_all()
            assert [[[pixel[0] for pixel in line] for line in one["png"]] for one in rows] == expected

    def test_what_is_refused(self, tmp_path: Path) -> None:
        """Another mode, no size, files that are no images."""
        pytest.importorskip("PIL.Image")
        (tmp_path / "a.txt").write_text("x")
        with pytest.raises(ConfigError, match="mode='RBG'; there are L, RGB"):
            curate.read_images(tmp_path, mode="RBG")
        for size in [(0, 1), (1,), (1.5, 2), 7]:
            with pytest.raises(ConfigError, match=r"expected \(height, width\)"):
                curate.read_images(tmp_path, size=size)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"a.txt' should be read as image, but its name says text"):
            curate.read_images(tmp_path)

    def test_without_pillow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It says what to install."""
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=r"pip install 'curate\[images\]'"):
            curate.read_images(tmp_path)


def shape_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Gives the shape of a batch's images."""
    return {"shape": [list(batch["image"].shape)]}


# What is in memory


class TestMemory:
    def test_data_frames(self) -> None:
        """Without their indexes; NaN is null; several of one schema come one after the other."""
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"n": [1.5, float("nan")], "s": ["a", None]}, index=[7, 8])
        rows = [{"n": 1.5, "s": "a"}, {"n": None, "s": None}]
        assert curate.from_pandas(frame).take_all() == rows
        assert curate.from_pandas([frame, frame]).take_all() == rows * 2
        for frames, message in [
            ([frame, frame[["n"]]], "tables of two schemas"),
            ([pa.table({"n": [1]})], "takes pandas.DataFrames, found pyarrow.Table"),
            (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "2 columns called 'a'"),
            (pandas.DataFrame({"a": [1, "b"]}), "no common type"),
        ]:
            with pytest.raises(ConfigError, match=message):
                curate.from_pandas(frames)

    def test_arrays(self) -> None:
        """A row for each entry; entries with dimensions are lists."""
        array = np.arange(12).reshape(3, 2, 2)
        assert [row["data"] for row in curate.from_numpy(array).take_all()] == array.tolist()
        assert [row["data"] for row in curate.from_numpy([np.arange(2), np.arange(3)]).take_all()] == [0, 1, 0, 1, 2]
        with pytest.raises(ConfigError, match="at least one dimension"):
            curate.from_numpy(np.array(5))
        with pytest.raises(ConfigError, match="two schemas"):
            curate.from_numpy([np.arange(2), np.array(["a"])])


class TestRefused:
    def test_cpus(self, tmp_path: Path) -> None:
        """Something above nothing; it is what a task holds, also of a write."""
        (tmp_path / "a.txt").write_text("x\n")
        for wrong in (0, -1, True):
            with pytest.raises(ConfigError, match=r"num_cpus=.*above 0"):
                curate.read_text(tmp_path, num_cpus=wrong)
        assert curate.read_text(tmp_path, num_cpus=0.5).take_all() == [{"text": "x"}]

    def test_a_path_that_is_not_there(self, tmp_path: Path) -> None:
        """With the one that may be meant."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "a.txt").write_text("x\n")
        with pytest.raises(ConfigError, match="did you mean 'data'"):
            curate.read_text(tmp_path / "dat")

    @pytest.mark.parametrize(
        ("read", "name", "expected"),
        [
            (
                curate.read_parquet,
                "a.csv",
                r"as parquet, but its name says csv; expected a name ending in .parquet",
            ),
            (curate.read_parquet, "a.parquet.gz", "its name says parquet, gzip"),
            (curate.read_json, "a.dat", "its name says a format that curate cannot read"),
            (curate.read_csv, "a.txt", "its name says text"),
            (curate.read_text, "a.jsonl", "its name says jsonl"),
            (curate.read_text, "a.png", "a format that curate cannot read"),
        ],
    )
    def test_another_format(self, tmp_path: Path, read: Any, name: str, expected: str) -> None:
        """By its name, before it is opened; with a name that would do."""
        (tmp_path / name).write_text("x\n")
        with pytest.raises(ConfigError, match=expected):
            read(tmp_path)

    def test_an_unknown_column(self, tmp_path: Path) -> None:
        """When the plan is made."""
        (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x"}) + "\n")
        stream = io.BytesIO()
        pq.write_table(pa.table({"text": ["x"]}), stream)
        (tmp_path / "a.parquet").write_bytes(stream.getvalue())
        with pytest.raises(
            ConfigError, match=r"read_parquet\(columns=...\): there is no column 'txt'; did you mean 'text'"
        ):
            curate.read_parquet(tmp_path / "a.parquet", columns=["txt"])
        with pytest.raises(ConfigError, match=r"read_parquet\(columns=...\) takes .* a list of names, found \[\]"):
            curate.read_parquet(tmp_path / "a.parquet", columns=[])
        with pytest.raises(ConfigError, match="no column 'txt'; did you mean 'text'"):
            curate.read_parquet(tmp_path / "a.parquet", filter=pc.field("txt") == "x")
        with pytest.raises(ConfigError, match="no column 'txt'; did you mean 'text'"):
            curate.read_json(tmp_path / "a.jsonl").select_columns(["txt"])


class TestNamedTwice:
    """A file that two paths name is read once, consumed and written, and that is said."""

    @pytest.mark.parametrize("again", ["{}", "{}/", "{}/*.parquet", "{}/a.parquet", "{}/../in"])
    def test_it_is_read_once(self, tmp_path: Path, again: str, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "in" / "a.parquet")
        found = curate.read_parquet([tmp_path / "in", again.format(tmp_path / "in")])
        assert "two inputs match the same files; each file is read once" in "".join(capsys.readouterr())
        assert found.count() == len(found.take_all()) == 2
        assert found.write_parquet(tmp_path / "out", backend="inline").books.rows_out == 2


class TestColumnsThatAreNamed:
    """`columns=` selects, be it all columns of the first file: what others have more is nobody's business."""

    @pytest.mark.parametrize("columns", [["a"], ["c"], ["a", "c"], ["c", "a"]])
    def test_a_file_with_more_columns_is_read(self, tmp_path: Path, columns: list[str]) -> None:
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"a": [1], "c": [1]}), tmp_path / "in" / "0.parquet")
        pq.write_table(pa.table({"a": [2], "b": [3], "c": [4]}), tmp_path / "in" / "1.parquet")
        found = curate.read_parquet(tmp_path / "in", columns=columns)
        rows = [{name: row[name] for name in columns} for row in ({"a": 1, "c": 1}, {"a": 2, "c": 4})]
        assert found.take_all() == rows
        assert [list(row) for row in found.take_all()] == [columns] * 2
        assert found.count() == 2
        assert found.write_parquet(tmp_path / "out", backend="inline").books.rows_out == 2
        assert curate.read_parquet(tmp_path / "out").take_all() == rows
        assert found.filter(lambda row: row[columns[0]] > 1).take_all() == rows[1:]
        with pytest.raises(SchemaMismatch, match="'b' is in this file only"):
            curate.read_parquet(tmp_path / "in").take_all()

    @pytest.mark.parametrize("twice_in", ["a", "b"])
    @pytest.mark.parametrize("options", [{"columns": ["y"]}, {"schema": pa.schema([("y", pa.string())])}])
    def test_two_of_one_name_that_are_not_asked_for_do_not_matter(
        self, folder: Path, tmp_path: Path, options: Any, twice_in: str
    ) -> None:
        """In the first file as in another; one that is asked for, by a function of rows too, is refused before anything
        is read."""
        for name in "ab":
            columns = [("x", [1, 2]), ("y", [name, None]), *([("x", [3, 4])] if name == twice_in else [])]
            table = pa.Table.from_arrays([pa.array(values) for _, values in columns], [one for one, _ in columns])
            pq.write_table(table, folder / f"{name}.parquet")
        rows = [{"y": one} for one in ("a", None, "b", None)]
        read = curate.read_parquet(folder, **options)
        assert (read.take_all(), read.count()) == (rows, 4)
        assert curate.read_parquet(folder, filter=pc.field("y") == "b", **options).take_all() == rows[2:3]
        assert read.write_parquet(tmp_path / "out", backend="inline").state == "complete"
        by_function: dict[str, Any] = {"columns": ["y"], "filter": lambda row: row["y"] == "b"}
        for wrong in ({}, {"columns": ["x"]}, by_function) if twice_in == "a" else ():
            with pytest.raises(ConfigError, match=r"^column 'x' is in .*a\.parquet 2 times; write it again, each with"):
                curate.read_parquet(folder, **wrong)

    def test_what_is_no_remedy_is_not_offered(self, tmp_path: Path) -> None:
        """`read_csv` has no columns= to name some with."""
        (tmp_path / "0.csv").write_text("a\n1\n")
        (tmp_path / "1.csv").write_text("a,b\n1,2\n")
        with pytest.raises(SchemaMismatch, match=r"declare all columns with schema=\n"):
            curate.read_csv(tmp_path).take_all()
        assert curate.read_csv(tmp_path, schema=pa.schema([("a", pa.int64())])).count() == 2


# CSV without a header


@given(
    st.lists(st.binary(max_size=6).map(lambda one: one.replace(b"\0", b"")), min_size=1, max_size=8),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.sampled_from([",", ";"]),
)
def test_names_that_are_given_are_as_a_header(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], mark: bytes, delimiter: str
) -> None:
    """Whatever the lines are: the same rows as of a file that begins with these names, and the same that are bad."""
    folder = tmp_path_factory.mktemp("in")
    rows = b"\n".join(b"%d%s%s" % (number, delimiter.encode(), line) for number, line in enumerate(lines))
    (folder / "bare.csv").write_bytes(mark + rows)
    (folder / "headed.csv").write_bytes(mark + f'n{delimiter}"a{delimiter}ä"\n'.encode() + rows)
    names = ["n", f"a{delimiter}ä"]
    assert read_all(folder / "bare.csv", delimiter, names) == read_all(folder / "headed.csv", delimiter, None)


def read_all(path: Path, delimiter: str, column_names: list[str] | None) -> Any:
    """Returns the rows, or what was said of the file."""
    try:
        return curate.read_csv(path, delimiter=delimiter, column_names=column_names).take_all()
    except CurateError as error:
        return str(error).replace(str(path), "PATH")


def test_files_without_a_header_are_written_as_they_are_read(tmp_path: Path) -> None:
    """In blocks, with rows longer than one, compressed, empty; each line is a row, the first one, too."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"".join(b"%d,%s\n" % (n, b"x" * 99) for n in range(12_000)))
    (tmp_path / "in" / "b.csv.gz").write_bytes(gzip.compress(b"-1," + b"y" * (2 << 20) + b"\n-2,z"))
    (tmp_path / "in" / "c.csv").touch()
    ds = curate.read_csv(tmp_path / "in", column_names=["n", "text"])
    assert [row["n"] for row in ds.select_columns("n").iter_rows()] == [*range(12_000), -1, -2]
    assert ds.write_parquet(tmp_path / "out", backend="inline").books.rows() == {
        **{"in": 12_002, "created": 0, "out": 12_002},
        **{"dropped": {}, "quarantined": 0},
    }
    assert curate.read_parquet(tmp_path / "out").to_arrow() == ds.to_arrow()
    identity = ds._plan.source.how.identity()
    assert identity["column_names"] == ["n", "text"]
    assert "column_names" not in curate.read_csv(tmp_path / "in")._plan.source.how.identity()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("ab", "expected a list with one name"),
        ([], "expected a list"),
        ([1], "expected a list"),
        (["a", "a"], "2 columns"),
    ],
)
def test_what_names_no_columns_is_refused(folder: Path, names: Any, told: str) -> None:
    """Before a file is looked at."""
    with pytest.raises(ConfigError, match=told):
        curate.read_csv(folder, column_names=names)


class TestOtherTypes:
    """JSON and CSV have their types by the first rows of some files. A row that does not fit is a bad row; a file of
    which none does is no bad row."""

    @pytest.fixture(params=["jsonl", "csv"])
    def folder(self, request: pytest.FixtureRequest, folder: Path) -> Path:
        """A hundred files of three rows, two of them with other numbers."""
        for number in range(100):
            values = [1.5, 2.5, 3.5] if number in (50, 51) else [1, 2, 3]
            lines = [f'{{"x": {one}}}' for one in values] if request.param == "jsonl" else ["x", *map(str, values)]
            (folder / f"{number:03d}.{request.param}").write_text("\n".join(lines) + "\n")
        return folder

    def read(self, folder: Path, **options: Any) -> Any:
        reader = curate.read_json if next(folder.iterdir()).suffix == ".jsonl" else curate.read_csv
        return reader(folder, **options)

    def test_a_file_of_which_no_row_fits_is_refused(self, folder: Path, tmp_path: Path) -> None:
        """However it is consumed or written, in one shard with others too; with what helps, which does."""
        for consume in (
            lambda ds: ds.sum("x"),
            lambda ds: ds.sort("x").take(1),
            lambda ds: ds.write_parquet(tmp_path / "out", backend="inline"),
        ):
            with pytest.raises(CurateError, match="none of the rows of this file fits the types") as caught:
                consume(self.read(folder))
            # CSV does not say what there is instead.
            helps = "float64" if (folder / "000.jsonl").exists() else "string"
            assert f"'x' as {helps}; or leave such rows out with max_bad_rows" in str(caught.value)
        assert self.read(folder, schema=pa.schema([("x", pa.float64())])).sum("x") == 98 * 6 + 2 * 7.5

    def test_they_are_left_out_where_that_is_asked_for(self, folder: Path, tmp_path: Path) -> None:
        """By number or share; and a single row among others is a bad row as ever."""
        for allowed in (3, "100%"):
            ended = self.read(folder).write_parquet(tmp_path / str(allowed), backend="inline", max_bad_rows=allowed)
            assert (ended.state, ended.books.quarantined) == ("complete", 6)
        for number in (50, 51):
            path = next(folder.glob(f"{number:03d}.*"))
            path.write_text(path.read_text().replace("2.5", "2"))
        assert self.read(folder).write_parquet(tmp_path / "some", backend="inline").books.quarantined == 4

    def test_lines_that_are_no_rows_are_bad_rows(self, folder: Path, tmp_path: Path) -> None:
        """Whatever the file: that says nothing of its types."""
        broken = {"050.jsonl": "no JSON\n", "050.csv": 'x\n"1'}
        for number in (50, 51):
            path = next(folder.glob(f"{number:03d}.*"))
            path.write_text(broken[path.name]) if path.name in broken else path.unlink()
        assert self.read(folder).write_parquet(tmp_path / "out", backend="inline").books.quarantined == 1

    @pytest.mark.parametrize("number", [2**63, 2**64 - 1])
    def test_a_type_that_keeps_their_digits_is_named(self, tmp_path: Path, number: int) -> None:
        """Of whole numbers beyond the type of a column, such as ids: floats, which were named, are other numbers."""
        (tmp_path / "0.jsonl").write_text('{"id": 1}\n')
        (tmp_path / "1.jsonl").write_text(f'{{"id": {number}}}\n' * 3)
        with pytest.raises(CurateError, match=r"with 'id' as decimal128\(38, 0\), or float64 if digits may be lost; "):
            curate.read_json(tmp_path).take_all()
        read = curate.read_json(tmp_path, schema=pa.schema([("id", pa.decimal128(38, 0))]))
        assert [int(row["id"]) for row in read.take_all()] == [1, *[number] * 3]
        (tmp_path / "1.jsonl").write_text(f'{{"id": {number}}}\n{{"id": 0.5}}\n' * 3)
        with pytest.raises(CurateError, match="with 'id' as float64 if digits may be lost; "):
            curate.read_json(tmp_path).take_all()
