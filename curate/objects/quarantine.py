"""Quarantine files: JSON lines with line, reason and row, named by the hash of their compressed bytes."""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from curate.dataclass import dataclass, replace
from curate.errors import CorruptInput
from curate.objects.bad_line import RejectedRow
from curate.objects.compress import Compressor
from curate.objects.lines import line_blocks
from curate.storage.protocol import Object, Store


def content_hash() -> Any:
    """Returns the hash, of nothing yet, that names a file by its compressed bytes."""
    return hashlib.blake2b(digest_size=8)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One row that was set aside."""

    line: int
    """Where it was in its input, from 1; 0 if that is not known."""
    reason: str
    row: str
    """The row as it was read; in base64 if it is no UTF-8."""
    is_base64: bool = False
    at: str = ""
    """Where it was, in words, if `line` alone does not say that."""


def read_quarantine(store: Store, object: Object) -> Iterator[Quarantined]:
    """Yields the rows of a file of quarantined rows, in order, a block at a time. Raises CorruptInput, also for a file
    without any row: none is written."""
    empty = True
    for lines in line_blocks(store, object, "zstd") if object.size else ():
        for line in lines:
            try:
                value = orjson.loads(line)
                coded = "row" not in value
                row = Quarantined(
                    *(
                        value["line"],
                        value["reason"],
                        value["row_base64" if coded else "row"],
                        coded,
                        value.get("at", ""),
                    )
                )
                if type(row.line) is not int or not all(isinstance(one, str) for one in (row.reason, row.row, row.at)):
                    raise TypeError("a field has another type")
                if coded:
                    base64.b64decode(row.row, validate=True)
                empty = False
                yield row
            except (ValueError, TypeError, KeyError) as error:
                raise CorruptInput(f"{object.uri}: not a file of quarantined rows: {error!r}") from error
    if empty:
        raise CorruptInput(f"{object.uri}: not a file of quarantined rows: it has none, and at least one was set aside")


class QuarantineWriter:
    """Collects bad rows into a zstd stream, in memory.

    The same rows in the same order give the same bytes, and so the same name.
    """

    def __init__(self) -> None:
        self.count = 0
        self.reasons: Counter[str] = Counter()
        self.first: RejectedRow | None = None
        """The first row, without what it has."""
        self._file = io.BytesIO()
        self._compressor = Compressor(self._file, "zstd")

    def add(self, row: RejectedRow) -> None:
        """Takes one row. A row that is not UTF-8 is kept as base64, in `row_base64`."""
        self.first = self.first or replace(row, raw=b"")
        line: dict[str, Any] = {"line": row.line, **({"at": row.at} if row.at else {}), "reason": row.reason}
        if isinstance(row.raw, str):
            line["row"] = row.raw
        else:
            try:
                line["row"] = row.raw.decode()
            except UnicodeDecodeError:
                line["row_base64"] = base64.b64encode(row.raw).decode()
        self._compressor.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self.count += 1
        self.reasons[row.reason] += 1

    def finish(self) -> tuple[str, bytes]:
        """Returns the content hash (16 hex digits) and the compressed lines.

        Raises ValueError if no row was added: there is nothing to publish.
        """
        if not self.count:
            raise ValueError("no bad row was added: nothing to publish")
        self._compressor.close()
        data, digest = self._file.getvalue(), content_hash()
        digest.update(data)
        return digest.hexdigest(), data
