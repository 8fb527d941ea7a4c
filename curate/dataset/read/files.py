"""The functions that make a Dataset of files. Names are those of ray.data.

Only a listing is read here, and for the schema one footer, or the beginnings of some files that spell values out.

All files have the schema of the first one that has rows, of which others may widen types, and in JSON lines and
TFRecords add columns (see `curate.sources.columns`); or the one that is declared. A file that differs is brought to
it when it is read: a column that it lacks is null, integers and floats are widened, a column of nothing but nulls fits
any type. What cannot be held is refused then, with both schemas and both files: another type, and a column that only
this file has, where all columns are read. `schema=` says in advance what is to come.

With `include_paths`, the last column is `path`: the file that a row is from. With `partitioning="hive"` folders like
`year=2024`, anywhere in a path, are columns behind those of the files: 32-bit numbers where all their values are such,
else texts, or as `schema` declares them; null where a file has no such folder. A column that the first file has inside
is read from the files. `partitioning=None` leaves folders out.

Large files are split, at row groups or lines, into shards of at most 256 MiB; small ones share a task. A file that two
paths name (`[d, d]`, or a directory and a glob of its files) is read once, and a warning says so; for its rows twice,
union the dataset with itself. A link to a file is another file.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from curate.arrow.expressions import refuse_unknown
from curate.dataclass import replace
from curate.dataset.dataset import Dataset
from curate.dataset.read.memory import refuse_twice
from curate.errors import ConfigError
from curate.exchange.kinds.base import key_columns
from curate.formats.encoding import Format, ReadAs
from curate.formats.read.images import check_image
from curate.formats.read.webdataset import check_decoder
from curate.keywords import shows_keywords
from curate.operators.arguments import answers, path_texts
from curate.plan.nodes import Scan
from curate.sources.datasource import Datasource, user_source
from curate.sources.files import files

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ReadOptions(TypedDict, total=False):
    """What all readers of files can be given."""

    include_paths: bool
    partitioning: str | None
    num_cpus: float | None
    allow_incomplete_input: bool


READ_DEFAULTS = {"include_paths": False, "partitioning": None, "allow_incomplete_input": False}
FOLDERS_ARE_COLUMNS = READ_DEFAULTS | {"partitioning": "hive"}


@answers
@shows_keywords(ReadOptions, FOLDERS_ARE_COLUMNS)
def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,
    schema: pa.Schema | None = None,
    **options: Unpack[ReadOptions],
) -> Dataset:
    """Returns the rows of Parquet files, directories or globs, in the order of the paths and of the names below them.

    Lists them and reads one footer, whose schema applies to all files, unless `schema` declares it. `columns` are the
    columns to keep, `filter` is an expression that rows must fulfil; both are pushed into the read. Files that differ
    are unified as far as Arrow can: a column that a file lacks is null, a narrower number is widened. `num_cpus` is per
    reading task (default 1).

    With `include_paths`, the last column is `path`: the file that a row is from. Folders like `year=2024` become the
    last columns, unless `partitioning` is None; a column that the first file has keeps the values in the files. The
    output of a job must be complete, except with `allow_incomplete_input`.

    Raises ConfigError for a path that matches nothing, an incomplete output of a job, files of another format, an
    unknown column, or a schema that does not fit the first file. Reading raises SchemaMismatch, with both schemas, for
    a file that cannot be unified.

    >>> import pyarrow.compute as pc
    >>> import tempfile, pathlib, pyarrow as pa, pyarrow.parquet as pq
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.parquet"
    >>> pq.write_table(pa.table({"n": [1, 2], "text": ["a", "b"]}), path)
    >>> curate.read_parquet(path, columns=["text"], filter=pc.field("n") > 1).take_all()
    [{'text': 'b'}]
    >>> (path.parent / "year=2024").mkdir()
    >>> _ = path.rename(path.parent / "year=2024" / "a.parquet")
    >>> curate.read_parquet(path.parent).take(1)
    [{'n': 1, 'text': 'a', 'year': 2024}]
    """
    how = ReadAs(Format.PARQUET, schema)
    names = None if columns is None else key_columns("read_parquet(columns=...)", columns)
    # A function of rows is given all columns.
    read = {"columns": None if callable(filter) else names}
    found = _files("read_parquet", paths, how, FOLDERS_ARE_COLUMNS | options | read)
    if filter is not None:
        found = found.filter(filter)
    return found if names is None else chosen(found, "read_parquet(columns=...)", names)


def chosen(found: Dataset, asker: str, columns: str | Sequence[str]) -> Dataset:
    """Returns these columns of files, of which a reader was asked."""
    names = key_columns(asker, columns)
    refuse_unknown(asker, names, found.schema().names)
    return found.select_columns(names)


@answers
@shows_keywords(ReadOptions, FOLDERS_ARE_COLUMNS)
def read_json(paths: Paths, *, schema: pa.Schema | None = None, **options: Unpack[ReadOptions]) -> Dataset:
    """Returns the rows of files of JSON lines, or of one JSON array of objects each, plain or compressed (gz, zst, bz2,
    xz).

    Unless `schema` declares it, the schema is what the beginnings of up to nine files from all over the inputs have
    together, columns of the first one before: numbers are floats if any of them is one, or "NaN", "Infinity" or
    "-Infinity". Other keys are left out, which is counted and logged, and missing ones are null. A column of texts
    with a few numbers or booleans is one of texts; one of any other values of several types has their JSON text, and so
    has one of whole numbers that no one type holds with all digits. A line or array element that does not fit is a bad
    row: up to 0.1 % of a file (at least 10) are skipped with a warning, or quarantined by a write; a file of which no
    row has the types of its columns is refused. The values of all columns are checked, even of those that
    `select_columns` leaves out; to ignore a column, declare a `schema` without it. Declared columns that the first rows
    do not have are told in a warning, with those that they have. An array is one shard of any size. `include_paths`,
    `partitioning`, `num_cpus` and errors are as for `read_parquet`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = path.write_text('{"n": 1}\\n{"n": null}\\n')
    >>> curate.read_json(path).take_all()
    [{'n': 1}, {'n': None}]
    """
    how = ReadAs(Format.JSONL, schema)
    return _files("read_json", paths, how, FOLDERS_ARE_COLUMNS | options)


@answers
@shows_keywords(ReadOptions, FOLDERS_ARE_COLUMNS)
def read_csv(
    paths: Paths,
    *,
    delimiter: str | None = None,
    column_names: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    **options: Unpack[ReadOptions],
) -> Dataset:
    """Returns the rows of CSV files with a header, plain or compressed.

    `delimiter` is one character, by default the comma, and the tab in files called `.tsv`. For files without a header,
    `column_names` names the columns, and the first line is a row. Columns are matched by name: a column that a file
    lacks is null; one that only a later file has is refused, as in Parquet. Empty values and what stands for none (NA,
    NaN, null, ...) are null, but in texts, which have them as they stand. With a `schema`, files are read as
    `write_csv` writes them: NaN is a number, and a text that is empty and not quoted is null. Schema, bad rows, all
    other arguments and errors are as for `read_json`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("n;text\\n1;a\\n")
    >>> curate.read_csv(path, delimiter=";").take_all()
    [{'n': 1, 'text': 'a'}]
    >>> _ = path.write_text("1;a\\n2;b\\n")
    >>> curate.read_csv(path, delimiter=";", column_names=["n", "text"]).take_all()
    [{'n': 1, 'text': 'a'}, {'n': 2, 'text': 'b'}]
    """
    given = "," if delimiter is None else delimiter
    if not isinstance(given, str) or len(given) != 1 or given in '"\r\n' or ord(given) > 127:
        raise ConfigError(f"read_csv(delimiter={delimiter!r}): expected one ASCII character, not a quote or a line end")
    names = None if column_names is None else _names_of(column_names)
    how = ReadAs(Format.CSV, schema, delimiter=delimiter, column_names=names)
    return _files("read_csv", paths, how, FOLDERS_ARE_COLUMNS | options)


@answers
@shows_keywords(ReadOptions, READ_DEFAULTS)
def read_text(
    paths: Paths, *, encoding: str = "utf-8", drop_empty_lines: bool = True, **options: Unpack[ReadOptions]
) -> Dataset:
    """Returns the lines of text files, plain or compressed, as the column `text`, without their line ends.

    Blank lines are skipped, unless `drop_empty_lines` is false. A line that `encoding` cannot decode is a bad row, as
    for `read_json`. Files may have any name that does not mean another format. All other arguments are as for
    `read_parquet`. Raises ConfigError for a path that matches nothing, files of another format, and an encoding that
    Python does not know.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_text("one\\n\\ntwo\\n")
    >>> curate.read_text(path).take_all()
    [{'text': 'one'}, {'text': 'two'}]
    """
    try:
        # Not codecs.lookup alone: that knows base64, too.
        "a".encode(encoding)
    except LookupError as error:
        raise ConfigError(
            f"read_text(encoding={encoding!r}): expected an encoding that Python knows, such as 'latin-1': {error}"
        ) from error
    found = codecs.lookup(encoding).name
    how = ReadAs(Format.TEXT, text_encoding=found, drop_empty_lines=bool(drop_empty_lines))
    return _files("read_text", paths, how, options)


@answers
@shows_keywords(ReadOptions, READ_DEFAULTS)
def read_binary_files(paths: Paths, **options: Unpack[ReadOptions]) -> Dataset:
    """Returns one row per file, with any name: its stored bytes as the column `bytes`.

    With `include_paths`, also its path as the column `path`. A file is a shard: a batch has one row, and a write makes
    one output per file. A file has at most 2 GiB and is in memory as a whole. `num_cpus` is as for `read_parquet`.
    Raises ConfigError for a path that matches nothing.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.bin"
    >>> _ = path.write_bytes(b"\\x00\\x01")
    >>> curate.read_binary_files(path).take_all()
    [{'bytes': b'\\x00\\x01'}]
    """
    how = ReadAs(Format.BINARY)
    return _files("read_binary_files", paths, how, options)


@answers
@shows_keywords(ReadOptions, READ_DEFAULTS)
def read_images(
    paths: Paths, *, size: tuple[int, int] | None = None, mode: str = "RGB", **options: Unpack[ReadOptions]
) -> Dataset:
    """Returns one row per image (png, jpg, gif, bmp, tiff, webp), as the column `image`: numbers from 0 to 255.

    `size` resizes images to (height, width); they are then tensors of height x width x bands (Arrow's
    fixed_shape_tensor). Without it each keeps its size, as a list of rows of pixels, which is slower. `mode` is one of
    pillow's: L (one band, no last dimension), RGB, RGBA, CMYK, YCbCr, HSV, LAB; images of another mode are converted.
    Of a file with several frames or pages (GIF, TIFF, WebP) it is the first one. With `include_paths`, the column
    `path` is the path of the image.

    An image that cannot be read is a bad row: skipped with a warning, or quarantined by a write. A file is a shard, as
    for `read_binary_files`. Needs pillow: `pip install 'curate[images]'`. Raises ConfigError for a path that matches
    nothing, other files, another mode or size, and if pillow is not installed.

    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.png"
    >>> Image.new("RGB", (4, 3), (255, 0, 0)).save(path)
    >>> batch = curate.read_images(path, size=(2, 2)).take_batch(1)
    >>> batch["image"].combine_chunks().to_numpy_ndarray().shape
    (1, 2, 2, 3)
    """
    check_image(size, mode)
    shape = None if size is None else (int(size[0]), int(size[1]))
    how = ReadAs(Format.IMAGE, image_size=shape, image_mode=mode)
    return _files("read_images", paths, how, options)


@answers
@shows_keywords(ReadOptions, READ_DEFAULTS)
def read_webdataset(
    paths: Paths, *, decoder: bool | None = True, suffixes: Sequence[str] | None = None, **options: Unpack[ReadOptions]
) -> Dataset:
    """Returns a row for each sample of WebDataset archives (`.tar`, compressed or not): its files, and its key.

    Neighbouring files that are called alike up to the first dot are a sample. That part of their names is the column
    `__key__`, and what follows the dot is the column of a file: `0001.jpg` and `0001.json` are `jpg` and `json`. `txt`
    and `text` are text, `cls` and `cls2` integers, `json` what it says, images pixels in RGB, as in `read_images`
    (which needs pillow), and other files bytes; with `decoder=None` all are bytes. `suffixes` are the files to read:
    `["jpg", "*.json"]`. A file that a sample lacks is null.

    The columns are those of the first samples, or `suffixes`. A sample with another file, one that cannot be decoded,
    or one that is apart from the others, is a bad row, as for `read_json`. An archive that does not end as it should is
    refused. It is a shard. All other arguments and errors are as for `read_parquet`.

    >>> import tempfile, pathlib
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "out"
    >>> made = curate.from_items([{"__key__": "a", "txt": "one", "cls": 3}, {"__key__": "b", "txt": "two", "cls": 5}])
    >>> _ = made.write_webdataset(out, backend="inline")
    >>> curate.read_webdataset(out, suffixes=["txt"]).take_all()
    [{'__key__': 'a', 'txt': 'one'}, {'__key__': 'b', 'txt': 'two'}]
    """
    wanted = check_decoder(decoder, suffixes)
    how = ReadAs(Format.WEBDATASET, decoder=bool(decoder), suffixes=wanted)
    return _files("read_webdataset", paths, how, options)


@answers
@shows_keywords(ReadOptions, READ_DEFAULTS)
def read_tfrecords(paths: Paths, *, schema: pa.Schema | None = None, **options: Unpack[ReadOptions]) -> Dataset:
    """Returns a row for each `tf.train.Example` of TFRecord files, plain or compressed, a column a feature.

    A feature has bytes, 32-bit floats or 64-bit integers: one value in each row where the first records have no more,
    else a list. Columns are in the order of their names. `schema` declares them instead, texts for bytes too. A record
    with a wrong checksum, that is no Example, or that does not fit is a bad row, as for `read_json`; so is one with a
    feature that the first records do not have, unless `schema` is declared. Files may have any name that does not mean
    another format. TensorFlow is not needed. A file is a shard. All other arguments and errors are as for
    `read_parquet`.

    >>> import tempfile, pathlib, pyarrow as pa
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "out"
    >>> _ = curate.from_items([{"id": 1, "text": "a"}]).write_tfrecords(out, backend="inline")
    >>> curate.read_tfrecords(out).take_all()
    [{'id': 1, 'text': b'a'}]
    >>> curate.read_tfrecords(out, schema=pa.schema([("text", pa.string())])).take_all()
    [{'text': 'a'}]
    """
    how = ReadAs(Format.TFRECORDS, schema)
    return _files("read_tfrecords", paths, how, options)


@answers
@shows_keywords(ReadOptions, READ_DEFAULTS)
def read_numpy(paths: Paths, **options: Unpack[ReadOptions]) -> Dataset:
    """Returns the entries of arrays that numpy has stored (`.npy`) along their first dimension, as the column `data`.

    Entries with further dimensions are tensors (Arrow's fixed_shape_tensor). All arrays have the type and the shape of
    the first one's entries, but numbers may be narrower. Arrays of Python objects are not loaded. A file is a shard.
    Arguments and errors are as for `read_parquet`.

    >>> import tempfile, pathlib, numpy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.npy"
    >>> numpy.save(path, numpy.array([[1, 2], [3, 4]]))
    >>> curate.read_numpy(path).take_batch(2, batch_format="numpy")["data"].tolist()
    [[1, 2], [3, 4]]
    """
    how = ReadAs(Format.NUMPY)
    return _files("read_numpy", paths, how, options)


@answers
def read_datasource(source: Datasource, *, num_cpus: float | None = None) -> Dataset:
    """Returns the rows of a `curate.Datasource`: a class of yours that lists shards, and reads one as Arrow tables.

    Names, resume, records and books stay curate's: each shard becomes one output, called by its id. A write knows the
    rows by what `identity()`, the schema, and the ids and versions of the shards say; with other ones it is refused.
    `num_cpus` is as for `read_parquet`. Raises ConfigError for what is no Datasource, ids that are there twice, and an
    identity that is not JSON values. Reading raises SchemaMismatch for tables that do not fit the schema.

    >>> import pyarrow as pa
    >>> class Squares(curate.Datasource):
    ...     def identity(self):
    ...         return "squares"
    ...     def schema(self):
    ...         return pa.schema([("square", pa.int64())])
    ...     def shards(self):
    ...         return [curate.SourceShard(f"from-{start}", 16, start) for start in (0, 2)]
    ...     def read(self, shard):
    ...         yield pa.table({"square": [n * n for n in (shard.data, shard.data + 1)]})
    >>> curate.read_datasource(Squares()).take(3)
    [{'square': 0}, {'square': 1}, {'square': 4}]
    """
    return Dataset(Scan(user_source(source, num_cpus)))


def _files(method: str, paths: Paths, how: ReadAs, options: Mapping[str, Any]) -> Dataset:
    texts, given = path_texts(paths, method), {**READ_DEFAULTS, **options}
    how = replace(how, include_paths=bool(given.pop("include_paths")))
    return Dataset(Scan(files(method, how.format, texts, how, **given)))


def _names_of(column_names: Sequence[str]) -> tuple[str, ...]:
    names = () if isinstance(column_names, str) else tuple(column_names)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"read_csv(column_names={column_names!r}): expected a list with one name for each column")
    refuse_twice("read_csv", names)
    return names
