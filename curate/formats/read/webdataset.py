"""WebDataset: a row for each sample of a tar archive: its key, and its files as columns called after their suffixes.

As `ray.data` decodes them: `txt` and `text` are text, `cls` and `cls2` numbers, `json` what it says, and images pixels
(in RGB, as `read_images` has them). Any other file is bytes, and all of them are without a decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from curate.arrow.types import is_binary, is_text
from curate.errors import ConfigError
from curate.formats.encoding import Format, ReadAs
from curate.formats.file_slice import FileSlice
from curate.formats.read.gathered import Build, Gathered
from curate.formats.read.images import TooWide, decoded_image, image_type
from curate.formats.read.json_schema import infer_schema, missing_column
from curate.formats.read.json_values import JSON_TEXT, columns_of, other_keys, readable
from curate.imports import need
from curate.objects.bad_line import OnBadRow, OnOtherKeys
from curate.objects.lines import json_of
from curate.objects.tar import Sample, samples

KEY = "__key__"
"""The column of what the files of a sample share of their names."""
IMAGES = frozenset({"jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm"})
TEXTS = frozenset({"txt", "text"})
NUMBERS = frozenset({"cls", "cls2"})
_RGB = ReadAs(Format.IMAGE)
_SAMPLED = 1000
_SAMPLED_BYTES = 8 << 20


def kind_of(part: str) -> str:
    """Returns what a file of a sample is, by the end of its name.

    >>> kind_of("seg.PNG")
    'png'
    """
    return part.rpartition(".")[2].lower()


def check_decoder(decoder: Any, suffixes: Any) -> tuple[str, ...] | None:
    """Returns the suffixes. Raises ConfigError for functions, which `ray.data` takes, and other values."""
    if decoder is not None and not isinstance(decoder, bool):
        raise ConfigError(
            f"read_webdataset(decoder={decoder!r:.60}): expected True, or None for bytes; decode them in a function, "
            "with map or map_batches"
        )
    if suffixes is None:
        return None
    if isinstance(suffixes, str) or callable(suffixes) or not all(isinstance(one, str) for one in suffixes):
        raise ConfigError(
            f"read_webdataset(suffixes={suffixes!r:.60}): expected a list of suffixes such as ['jpg', 'json'], or of "
            "patterns such as '*.png'"
        )
    return tuple(suffixes)


def _chosen(how: ReadAs | None) -> Callable[[str], bool]:
    """Returns whether a file of a sample is read: all of them, unless suffixes or patterns say which."""
    wanted = None if how is None else how.suffixes
    if wanted is None:
        return lambda _: True
    return lambda part: any(
        fnmatchcase(f".{part}", one) if "*" in one or "?" in one else part == one.removeprefix(".") for one in wanted
    )


def _literal(how: ReadAs | None) -> list[str]:
    """Returns the files of a sample that are named, and not by a pattern: they are columns, even if none is there."""
    named = (how.suffixes or ()) if how is not None else ()
    return [one.removeprefix(".") for one in named if "*" not in one and "?" not in one]


def _decodes(how: ReadAs | None) -> bool:
    return how is None or how.decoder


def sample_webdataset(file: FileSlice, wanted: Mapping[str, pa.DataType | None] | None) -> pa.Schema:
    """Returns the schema of the first samples: of 8 MiB, or of a thousand; an empty one if there is none.

    Raises CorruptInput; ConfigError for a wanted column that none of them has, and for images without pillow.
    """
    how = file.how
    found: dict[str, pa.Field] = {}
    objects: list[dict[str, Any]] = []
    looked = 0
    with file.open() as source:
        for sample in samples(source, _chosen(how)):
            found.setdefault(KEY, pa.field(KEY, pa.string()))
            for part in sample.files:
                found.setdefault(part, pa.field(part, _type(part, how)))
            if _decodes(how):
                objects.append({part: _loaded(data) for part, data in sample.files.items() if kind_of(part) == "json"})
            looked += sum(map(len, sample.files.values()))
            if sample.number >= _SAMPLED or looked >= _SAMPLED_BYTES:
                break
    for field in infer_schema(file.uri, objects, None):
        found[field.name] = field
    for part in _literal(how) if found else ():
        if kind_of(part) == "json" and _decodes(how):
            found.setdefault(part, pa.field(part, pa.string(), metadata=JSON_TEXT))
        found.setdefault(part, pa.field(part, _type(part, how)))
    if wanted is None:
        return pa.schema(list(found.values()))
    for name, type in wanted.items():
        if name not in found:
            raise missing_column(file.uri, name, found)
        if type is not None and not readable(type):
            raise ConfigError(f"column {name!r} is declared as {type}, which cannot be read from a file of a sample")
    return pa.schema([found[name] if type is None else pa.field(name, type) for name, type in wanted.items()])


def _type(part: str, how: ReadAs | None) -> pa.DataType:
    kind = kind_of(part)
    if not _decodes(how):
        return pa.binary()
    # A job, which is told nothing, has images as they are.
    if kind in IMAGES and how is not None:
        instead = "; or read its bytes with decoder=None"
        need("PIL", f"read_webdataset needs pillow for {part!r}", "images", instead)
        return image_type(_RGB)
    return pa.string() if kind in TEXTS else pa.int64() if kind in NUMBERS else pa.binary()


def _loaded(data: bytes) -> Any:
    try:
        return json_of(data)
    except orjson.JSONDecodeError:
        return None


def read_webdataset(
    file: FileSlice, schema: pa.Schema, on_bad_row: OnBadRow, on_other_keys: OnOtherKeys | None = None
) -> Iterator[pa.Table]:
    """Yields the samples, a block at a time. A sample with a file that cannot be decoded, or does not fit the schema,
    is a bad row; so is one with a file that has no column, if all files are read. Raises CorruptInput for an archive
    that is not whole. `on_other_keys` is told of samples with keys in their JSON that no column holds."""
    chosen = _chosen(how := file.how)
    all_read = file.encoding.all_read and (how is None or how.suffixes is None)
    parts = [(field.name, _decoder(field)) for field in schema if field.name != KEY]
    names = [name for name, _ in parts]
    documents = [field for field in schema if kind_of(field.name) == "json" and not is_binary(field.type)]
    columns = columns_of(pa.schema(documents), typed := file.encoding.typed_of(schema.names))

    def look(rows: Sequence[Sequence[Any]]) -> None:
        found = (dict(zip(schema.names, values, strict=True)) for values in rows)
        others = other_keys(columns, [{column.name: one[column.name] for column in columns} for one in found])
        if on_other_keys is not None and others[0]:
            on_other_keys(*others)

    gathered = Gathered(schema, [_build(field, typed) for field in schema], on_bad_row, look if columns else None)
    at = schema.names.index(KEY) if KEY in schema.names else None
    with file.open() as source:
        for sample in samples(source, lambda part: all_read or (part in names and chosen(part))):
            try:
                values = _values(sample, parts)
            except _Misfit as misfit:
                taken = gathered.reject(sample.number, str(misfit), misfit.args[1])
            else:
                if at is not None:
                    values.insert(at, sample.key)
                size = sum(map(len, sample.files.values()))
                taken = gathered.add(sample.number, sample.key, values, size)
            yield from taken
    yield from gathered.rest()


class _Misfit(Exception):
    """A file of a sample cannot be decoded; the arguments are the reason, and the name of the file."""

    def __str__(self) -> str:
        return str(self.args[0])


def _values(sample: Sample, parts: Sequence[tuple[str, Callable[[bytes], Any]]]) -> list[Any]:
    if sample.broken:
        raise _Misfit(sample.broken, sample.key)
    if more := sample.files.keys() - {name for name, _ in parts}:
        part = min(more)
        reason = f"it has a file {part!r}, unlike the first samples: name all files with suffixes=[...]"
        raise _Misfit(reason, f"{sample.key}.{part}")
    values = []
    for name, decode in parts:
        data = sample.files.get(name)
        try:
            values.append(None if data is None else decode(data))
        except TooWide as error:
            raise _Misfit(f"{name!r}: {error}", f"{sample.key}.{name}") from None
        except Exception as error:  # noqa: BLE001 - decoders of images raise whatever a broken file leads them into
            reason = f"{name!r} is not what its name says: {type(error).__name__}"
            raise _Misfit(reason, f"{sample.key}.{name}") from None
    return values


def _decoder(field: pa.Field) -> Callable[[bytes], Any]:
    """Returns what makes the bytes of a file the value of a column."""
    kind = kind_of(field.name)
    if is_binary(field.type):
        return bytes
    if field.type == image_type(_RGB) and kind in IMAGES:
        return partial(decoded_image, how=_RGB)
    if kind in NUMBERS:
        return lambda data: int(data.decode())
    return json_of if kind == "json" else bytes.decode


def _build(field: pa.Field, typed: frozenset[str]) -> Build:
    """Returns what makes the values of a column an array."""
    if is_binary(field.type):
        return lambda values, _: pa.array(values, field.type)
    if field.type == image_type(_RGB) and kind_of(field.name) in IMAGES:
        return lambda values, _: pa.concat_arrays([pa.nulls(1, field.type) if one is None else one for one in values])
    if field.name == KEY or (is_text(field.type) and kind_of(field.name) != "json"):
        return lambda values, _: pa.array(values, field.type)
    (column,) = columns_of(pa.schema([field]), typed)
    return lambda values, misfits: column.build(list(values), misfits)
