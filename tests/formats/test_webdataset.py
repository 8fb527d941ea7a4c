"""WebDataset archives: files of a tar that are called alike are a row; what is written, readers of tar read."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError, CorruptInput, CurateError
from curate.formats.encoding import Format, ReadAs, detect
from curate.formats.file_slice import FileSlice
from curate.formats.read import gathered
from curate.formats.rows import sample_schema
from curate.objects.bad_line import RejectedRow
from curate.objects.quarantine import read_quarantine
from curate.objects.record import OutputFormat, read_record
from curate.observe.job import find_job
from curate.observe.preview import preview
from curate.observe.verify import verify
from curate.pipeline.shard_books import OTHER_KEYS
from tests.support.fake_store import FakeStore
from tests.support.reading import rows_of
from tests.support.writes import file_of, slices


def archive(files: dict[str, bytes] | list[tuple[str, bytes]], **options: Any) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(mode="w", fileobj=stream, **options) as tar:
        for name, data in files.items() if isinstance(files, dict) else files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def image(format: str, mode: str = "RGB") -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new(mode, (4, 3), 200).save(stream, format)
    return stream.getvalue()


def read_file(data: bytes, how: ReadAs | None = None, name: str = "a.tar") -> tuple[list[Any], list[RejectedRow]]:
    store: Any = FakeStore()
    object, encoding = store.put(name, data), detect(name, how)
    schema = sample_schema(FileSlice(store, object, encoding))
    return rows_of(store, object, encoding, schema, 3)


def written(table: pa.Table, cuts: int = 10_000, codec: str = "none") -> bytes:
    return file_of(slices(table, cuts), OutputFormat.WEBDATASET, codec)


FILES = {
    "d.x/1.txt": "é".encode(),
    "d.x/1.cls": b"7",
    "d.x/1.json": b'{"a": [1, 2], "b": null}',
    "d.x/1.seg.png": b"no image",
    "README": b"of no sample",
    "d.x/.hidden": b"neither",
    "d.x/2.txt": b"",
    "d.x/2.json": b'{"a": [], "b": "x"}',
}


def test_what_is_read() -> None:
    """Files are decoded by their suffix, and those that a sample lacks are null; other files are of no sample."""
    keys = [{"__key__": "d.x/1"}, {"__key__": "d.x/2"}]
    rows, bad = read_file(archive(FILES))  # as a job reads it, which has images as bytes
    assert rows == [
        {**keys[0], "txt": "é", "cls": 7, "json": {"a": [1, 2], "b": None}, "seg.png": b"no image"},
        {**keys[1], "txt": "", "cls": None, "json": {"a": [], "b": "x"}, "seg.png": None},
    ]
    assert bad == []
    rows, _ = read_file(archive(FILES), ReadAs(Format.WEBDATASET, decoder=False, suffixes=("txt", ".cls", "*.png")))
    assert rows == [
        {**keys[0], "txt": "é".encode(), "cls": b"7", "seg.png": b"no image"},
        {**keys[1], "txt": b"", "cls": None, "seg.png": None},
    ]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("packed", ["a.tar", "a.tar.gz", "a.tar.zst"])
def test_of_every_kind_of_archive(format: int, packed: str) -> None:
    """Names that are long, or not of ASCII; links and folders are of no sample; compressed as a whole."""
    key = "folder/" * 12 + "x" * 90 if format == tarfile.USTAR_FORMAT else "ö" + "folder/" * 40 + "x" * 200
    data = archive({f"{key}.txt": b"a" * 600}, format=format)
    if packed.endswith("gz"):
        data = gzip.compress(data)
    elif packed.endswith("zst"):
        data = pa.Codec("zstd").compress(data, asbytes=True)
    assert read_file(data, name=packed) == ([{"__key__": key, "txt": "a" * 600}], [])


def test_a_file_that_only_later_samples_have_is_not_passed_over(tmp_path: Path) -> None:
    """A bad row says to name it; what is named is a column, whether there is one or not."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.tar").write_bytes(archive({"1.txt": b"one"}))
    (folder / "b.tar").write_bytes(archive({"2.txt": b"two", "2.cls": b"7", "3.txt": b"three"}))
    ended = curate.read_webdataset(folder).write_parquet(tmp_path / "out", backend="inline")
    assert (ended.books.rows_out, ended.books.quarantined) == (2, 1)
    named = curate.read_webdataset(folder, suffixes=["cls", ".json", "*xt"])
    assert [tuple(row[name] for name in ("__key__", "txt", "cls", "json")) for row in named.take_all()] == [
        ("1", "one", None, None),
        ("2", "two", 7, None),
        ("3", "three", None, None),
    ]


def test_keys_that_the_first_samples_have_not_are_counted(tmp_path: Path) -> None:
    """And named, as those of JSON lines: a sample once, whichever of its files have them."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.tar").write_bytes(archive({"1.json": b'{"a": 1}', "1.x.json": b'{"c": [{"d": 1}]}'}))
    more = {
        "2.json": b'{"a": 1, "b": 2}',
        "2.x.json": b'{"c": [{"e": 1}]}',
        "3.json": b'{"a": 3}',
        "4.json": b'{"f": 4}',
    }
    (folder / "2.tar").write_bytes(archive(more))
    ds = curate.read_webdataset(folder)
    with structlog.testing.capture_logs() as logs:
        assert [row["json"] for row in ds.take_all()] == [{"a": 1}, {"a": 1}, {"a": 3}, {"a": None}]
    assert [one["keys"] for one in logs if "keys" in one] == [["json.b", "x.json.c[].e"]]
    assert ds.write_parquet(tmp_path / "out", backend="inline").books.counters == {OTHER_KEYS: 2}
    bare = curate.read_webdataset(folder, decoder=None)
    assert bare.write_parquet(tmp_path / "bare", backend="inline").books.counters == {}


def test_json_of_several_types_is_its_text() -> None:
    """As in JSON lines; and what is written again is the same JSON."""
    files = {"1.json": b'{"a": 1}', "2.json": b'"x"', "3.json": b"[1, null]", "4.txt": b""}
    rows, bad = read_file(archive(files))
    assert [row["json"] for row in rows] == ['{"a":1}', '"x"', "[1,null]", None]
    assert bad == []
    _, bad = read_file(archive({f"{number}.json": b"1" for number in range(1000)} | {"a.json": b'"x"'}))
    assert [(one.line, one.raw, one.reason) for one in bad] == [
        (1001, "a", "column 'json' is not an integer: found string")
    ]


def test_images_are_pixels(tmp_path: Path) -> None:
    """In RGB, whatever their mode; png stays what it was, when written again."""
    (tmp_path / "a.tar").write_bytes(
        archive({"1.png": image("png"), "2.png": image("png", "L"), "2.jpg": image("jpeg")})
    )
    ds = curate.read_webdataset(tmp_path / "a.tar")
    rows = ds.take_all()
    assert [np.array(row["png"]).shape for row in rows] == [(3, 4, 3)] * 2
    assert np.array(rows[1]["png"]).min() == 200
    assert rows[0]["jpg"] is None
    ds.write_webdataset(tmp_path / "out", backend="inline")
    again = curate.read_webdataset(tmp_path / "out").take_all()
    assert [row["png"] for row in again] == [row["png"] for row in rows]
    tensors = curate.from_arrow(
        pa.table({"png": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype="u1").reshape(2, 3, 4))})
    )
    tensors.write_webdataset(tmp_path / "grey", backend="inline")
    rows = curate.read_webdataset(tmp_path / "grey").take_all()
    assert [row["__key__"] for row in rows] == ["000000000", "000000001"]
    assert np.array(rows[1]["png"])[:, :, 0].tolist() == np.arange(12, 24).reshape(3, 4).tolist()


@pytest.mark.parametrize("type", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_sample_of_a_link_is_a_bad_row(type: bytes) -> None:
    """tar packs a file that it meets a second time as a link to the first: that sample was lost without a word."""
    stream = io.BytesIO()
    with tarfile.open(mode="w", fileobj=stream) as tar:
        file, link, folder = tarfile.TarInfo("a.txt"), tarfile.TarInfo("b.txt"), tarfile.TarInfo("folder")
        file.size, link.type, link.linkname, folder.type = 1, type, "a.txt", tarfile.DIRTYPE
        for one in (folder, file, link):
            tar.addfile(one, io.BytesIO(b"x"))
    rows, bad = read_file(stream.getvalue())
    assert [row["txt"] for row in rows] == ["x"]
    assert [(one.line, one.raw, one.reason) for one in bad] == [
        (2, "b", "'txt' is a link, without the file: pack files in its place, as tar -h does")
    ]


def test_broken_samples_are_bad_rows_with_their_place() -> None:
    good = [(f"{number}.txt", b"x") for number in range(3)]
    files = [
        *good,
        ("a.txt", b"\xff"),
        ("b.cls", b"one"),
        ("b.txt", b""),
        ("c.json", b"{"),
        ("d.txt", b"1"),
        ("d.txt", b"2"),
        ("0.cls", b"1"),
        ("e.txt", b"end"),
    ]
    rows, bad = read_file(archive(files))
    assert [row["__key__"] for row in rows] == ["0", "1", "2", "e"]
    assert [(one.line, one.raw, one.reason) for one in bad] == [
        (4, "a.txt", "'txt' is not what its name says: UnicodeDecodeError"),
        (5, "b.cls", "'cls' is not what its name says: ValueError"),
        (6, "c.json", "'json' is not what its name says: JSONDecodeError"),
        (7, "d", "it has two files called 'txt'"),
        (8, "0", "its files are not next to each other in the archive"),
    ]
    _, bad = read_file(archive([("1.png", image("png")), ("2.png", b"none")]), ReadAs(Format.WEBDATASET))
    assert [(one.line, one.raw) for one in bad] == [(2, "2.png")]
    _, bad = read_file(archive([("é.txt", b"x")], encoding="latin-1", format=tarfile.GNU_FORMAT))
    assert [one.reason for one in bad] == ["its name is not UTF-8"]
    _, bad = read_file(archive([("1.json", b'{"a": 1}'), ("2.json", b'{"a": 2}')]))
    assert bad == []


def test_images_of_which_no_good_one_is_left_to_build() -> None:
    """The only one is broken: one bad row; or as many good ones as a table has end the archive, or bad ones follow."""
    images, how = [(f"{number}.png", image("png")) for number in range(4)], ReadAs(Format.WEBDATASET)
    assert [(one.line, one.raw) for one in read_file(archive([("a.png", b"none")]), how)[1]] == [(1, "a.png")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "_BLOCK_ROWS", 2)
        rows, bad = read_file(archive(images), how)
        assert ([row["__key__"] for row in rows], bad) == (["0", "1", "2", "3"], [])
        rows, bad = read_file(archive([*images, ("a.png", b"none")]), how)
        assert (len(rows), [(one.line, one.raw) for one in bad]) == (4, [(5, "a.png")])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (archive(FILES)[:700], "unexpected end of data"),
        (archive(FILES)[:1024], "no end of the archive"),
        (archive(FILES)[:1030], "truncated header"),
        (archive(FILES)[:1024] + b"x" * 512, "bad checksum|invalid header"),
        (b"{}\n" * 500, "invalid header|bad checksum"),
        (b"short", "truncated header"),
        (gzip.compress(archive(FILES))[:-4], "not a whole gzip stream"),
        (
            archive(FILES) + archive({"3.txt": b"x"}),
            "another archive begins behind its end; unpack both, and pack them as one",
        ),
        (gzip.compress(archive(FILES)) + gzip.compress(archive(FILES)), "another archive begins behind its end"),
    ],
)
def test_an_archive_that_is_not_whole_is_refused(data: bytes, reason: str) -> None:
    """Also where Python's own reader takes a broken header for the end, and rows would be lost without a word."""
    with pytest.raises(CorruptInput, match=reason):
        read_file(data, name="a.tar.gz" if data.startswith(b"\x1f\x8b") else "a.tar")


@pytest.mark.parametrize("names", [["0001", "0002"], [".hidden.txt"], ["a.b/README"]])
def test_an_archive_of_files_that_are_of_no_sample_is_refused(names: list[str]) -> None:
    """It was read as one without rows. Beside samples they are passed over, as other readers do."""
    with pytest.raises(
        CorruptInput, match=rf"^a\.tar: none of its files is of a sample, .* called '{names[0]}'; a name"
    ):
        read_file(archive([(name, b"x") for name in names]))
    rows, bad = read_file(archive([*((name, b"x") for name in names), ("1.txt", b"y")]))
    assert (rows, bad) == ([{"__key__": "1", "txt": "y"}], [])
    assert read_file(archive([])) == ([], [])


def test_what_fills_the_last_blocks_of_an_archive_may_be_anything() -> None:
    whole = read_file(archive(FILES))
    assert read_file(archive(FILES) + b"left from before" * 64) == whole
    least = archive(FILES).rstrip(b"\0")
    assert read_file(least + bytes(-len(least) % 512 + 1024)) == whole


@pytest.mark.parametrize("chosen", [None, ["json"]])
def test_wherever_an_archive_ends_too_early_it_is_refused(chosen: list[str] | None) -> None:
    """In a header, in the bytes of a file that is read, of one that is not, and in what fills its last block."""
    data = archive([("1.json", b'{"a": "' + b"x" * 600 + b'"}'), ("1.txt", b"y" * 600)])
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    for cut in range(1, end + 512, 31):
        with pytest.raises(CorruptInput, match=r"^a\.tar: not a whole tar archive: "):
            read_file(data[:cut], ReadAs(Format.WEBDATASET, suffixes=chosen and tuple(chosen)))


def test_a_file_that_no_row_can_hold_is_refused() -> None:
    header = tarfile.TarInfo("1.bin")
    header.size = 3 << 30
    with pytest.raises(CorruptInput, match=r"^a\.tar: 1\.bin has 3,221,225,472 bytes, more than 2,147,483,647"):
        read_file(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))


def test_a_header_of_gigabytes_is_refused() -> None:
    """Python's own reader would hold all of it."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 3 << 30
    data = gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(4 << 20))
    with pytest.raises(CorruptInput, match="a header of 3,221,225,472 bytes, more than 1,048,576"):
        read_file(data, name="a.tar.gz")


@given(st.integers(0, 6000), st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), max_size=4))
def test_spoiled_archives_end_in_bad_rows_or_an_error_of_curate(cut: int, changes: Any) -> None:
    data = bytearray(archive(FILES, format=tarfile.PAX_FORMAT))[:7000]
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(CurateError):
        read_file(bytes(data[: len(data) - cut] if cut % 2 else data))


TABLE = pa.table(
    {
        "__key__": ["a/1", "a/2", "x" * 120],
        "txt": ["é", None, ""],
        "cls": pa.array([1, -5, None]),
        "json": [{"n": 0.5, "l": ["x"]}, None, {"n": None, "l": []}],
        "bin": [b"\xff\x00", b"", None],
    }
)


def test_what_is_written_is_read() -> None:
    """Value and type. Bytes depend on the rows alone: neither time nor user; and carry the record."""
    data = written(TABLE)
    assert data == written(TABLE, cuts=1)
    assert read_file(data) == (TABLE.to_pylist(), [])
    assert read_file(written(TABLE, codec="gzip"), name="a.tar.gz") == (TABLE.to_pylist(), [])
    assert read_file(written(TABLE.slice(0, 0))) == ([], [])
    store: Any = FakeStore()
    for codec in ("none", "gzip"):
        object = store.put("a.tar", written(TABLE, codec=codec))
        assert read_record(store, object, OutputFormat.WEBDATASET, codec) == {"shard": "a"}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in tar} == {(0, 0, 0, "", 0o644)}
    texts = pa.table({"json": ["a", '{"b": 1}']})
    assert [row["json"] for row in read_file(written(texts))[0]] == ["a", '{"b": 1}']


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"v": [1]}), r"column 'v' is int64, which a file called \.v cannot store"),
        (pa.table({"png": [[0.5]]}), "column 'png' is list<item: double>, which"),
        (pa.table({"a/b": ["x"]}), "cannot be called after the column 'a/b'"),
        (pa.table({"__url__": ["x"]}), "cannot be called after the column '__url__'"),
        (pa.table({"__key__": [1], "txt": ["x"]}), "column '__key__' is int64, expected text"),
        (pa.table({"__key__": ["a.b"], "txt": ["x"]}), "has 'a.b', which cannot be the name of a sample"),
        (pa.table({"__key__": pa.array([None], pa.string()), "txt": ["x"]}), "has None, which cannot be"),
        (pa.table({"__key__": ["a", "a"], "txt": ["x", "y"]}), "has 'a' twice in one output"),
        (pa.table({"__key__": ["a"], "txt": pa.array([None], pa.string())}), "the row 'a' has no value but its key"),
        (pa.table({"png": pa.array([[[1, 2], [3]]], pa.list_(pa.list_(pa.uint8())))}), "'png' has pixels that are not"),
    ],
)
def test_what_is_not_written(table: pa.Table, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        written(table)


def test_arguments() -> None:
    for options in ({"decoder": len}, {"decoder": "PIL"}, {"suffixes": "jpg"}, {"suffixes": len}, {"suffixes": [1]}):
        with pytest.raises(ConfigError, match=r"read_webdataset\((decoder|suffixes)=.*: expected"):
            curate.read_webdataset("x.tar", **options)  # type: ignore[arg-type]


def test_as_a_job(tmp_path: Path) -> None:
    """Read, written, looked at, run again; bad rows are in quarantine with their place; a changed byte is found."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.tar").write_bytes(archive({"1.txt": b"one", "2.txt": b"\xff", "3.txt": b"three"}))
    (folder / "b.tar.gz").write_bytes(gzip.compress(archive({"1.txt": b"four"})))
    ds = curate.read_webdataset(folder, include_paths=True)
    assert ds.schema().names == ["__key__", "txt", "path"]
    ended = ds.write_webdataset(out, backend="inline")
    assert (ended.state, ended.books.rows_in, ended.books.rows_out, ended.books.quarantined) == ("complete", 4, 3, 1)
    assert sorted(path.name for path in out.glob("*.tar")) == ["a.tar", "b.tar"]
    read_again = curate.read_webdataset(out).select_columns(["__key__", "txt"])
    assert [tuple(row.values()) for row in read_again.take_all()] == [("1", "one"), ("3", "three"), ("1", "four")]
    assert verify(str(out)).state == "ok"
    assert ds.write_webdataset(out, backend="inline").dispatched == 0
    with pytest.raises(ConfigError, match="suffixes"):
        curate.read_webdataset(folder, suffixes=["txt"], include_paths=True).write_webdataset(out, backend="inline")
    job = find_job(str(out))
    lines = preview(job.ledger.store, job.output(0), *job.written_as, ["txt"])
    assert orjson.loads(next(lines)) == {"txt": "one"}
    [name] = job.listing.quarantine
    [row] = read_quarantine(job.ledger.store, job.ledger.store.stat(job.ledger.uri(name)))
    assert (row.line, row.row) == (2, "2.txt")
    data = bytearray((out / "a.tar").read_bytes())
    data[512] ^= 1
    (out / "a.tar").write_bytes(data)
    assert [one.kind for one in verify(str(out)).findings] == ["damaged"]


def test_a_text_job_reads_archives(tmp_path: Path) -> None:
    class Upper(curate.TextJob):
        version = "1"

        def process(self, batch: pa.Table) -> pa.Table:
            return batch.select(["txt"])

    (tmp_path / "a.tar").write_bytes(archive({"1.txt": b"one"}))
    ended = Upper(text_column="txt", id_column="__key__").run(
        input=str(tmp_path / "a.tar"), output=str(tmp_path / "out"), backend="inline"
    )
    assert ended.state == "complete"
    assert curate.read_parquet(tmp_path / "out").take_all() == [{"txt": "one"}]


def test_other_readers_read_what_is_written(tmp_path: Path) -> None:
    """The record behind the end is nothing to them: tar, Python's own reader, and the package `webdataset`."""
    path = tmp_path / "a.tar"
    path.write_bytes(written(TABLE.select(["__key__", "txt", "cls", "json"])))
    (tmp_path / "b.tar.gz").write_bytes(written(TABLE, codec="gzip"))
    names = ["a/1.txt", "a/1.cls", "a/1.json", "a/2.cls", "x" * 120 + ".txt", "x" * 120 + ".json"]
    for mode in ("r:", "r|", "r|*"):
        with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
            assert tar.getnames() == names
    if shutil.which("tar"):
        listed = subprocess.run(["tar", "tf", str(path)], capture_output=True, text=True, check=True)
        assert (listed.stdout.split(), listed.stderr) == (names, "")
        packed = subprocess.run(["tar", "tzf", str(tmp_path / "b.tar.gz")], capture_output=True, text=True, check=True)
        assert packed.stderr == ""
    import webdataset

    rows = list(webdataset.WebDataset(str(path), shardshuffle=False).decode())
    assert [(row["__key__"], row.get("txt"), row.get("cls"), row.get("json")) for row in rows] == [
        ("a/1", "é", 1, {"n": 0.5, "l": ["x"]}),
        ("a/2", None, -5, None),
        ("x" * 120, "", None, {"n": None, "l": []}),
    ]
    with webdataset.TarWriter(str(tmp_path / "c.tar")) as writer:
        writer.write({"__key__": "k", "txt": "text", "json": {"a": 1}, "cls": 3})
    assert curate.read_webdataset(tmp_path / "c.tar").take_all() == [
        {"__key__": "k", "cls": 3, "json": {"a": 1}, "txt": "text"}
    ]
