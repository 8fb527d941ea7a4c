"""Files of rows that were set aside are read as untrusted: what is none of a row is told, and ends no reader."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pytest

from curate.errors import CorruptInput
from curate.objects.compress import Compressor
from curate.objects.quarantine import Quarantined, read_quarantine
from curate.storage.protocol import Store
from curate.stores.memory import MemoryStore

ROW = {"line": 3, "reason": "bad", "row": "text", "at": "row 3"}


def written(store: Store, value: Any) -> Any:
    """Returns a file of one row, in the place of the last one."""
    store.delete("memory://set-aside/0.jsonl.zst")
    sink = io.BytesIO()
    compressor = Compressor(sink, "zstd")
    compressor.write(orjson.dumps(value) + b"\n")
    compressor.close()
    return store.publish("memory://set-aside/0.jsonl.zst", sink.getvalue()).object


@pytest.mark.parametrize("field", ROW)
@pytest.mark.parametrize("value", [None, True, 1.5, [], {}, ["x"]])
def test_a_field_of_another_type(field: str, value: Any) -> None:
    store = MemoryStore()
    with pytest.raises(CorruptInput, match="not a file of quarantined rows"):
        list(read_quarantine(store, written(store, ROW | {field: value})))


def test_what_is_no_base64() -> None:
    store = MemoryStore()
    sound = written(store, {"line": 1, "reason": "bad", "row_base64": "/w=="})
    assert list(read_quarantine(store, sound)) == [Quarantined(1, "bad", "/w==", is_base64=True)]
    with pytest.raises(CorruptInput, match="not a file of quarantined rows"):
        list(read_quarantine(store, written(store, {"line": 1, "reason": "bad", "row_base64": "/"})))
