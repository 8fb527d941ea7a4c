"""Records of shards: what a failure says can be written down, whatever it quotes."""

from __future__ import annotations

import pickle

import orjson
import pytest

from curate.tasks.failure import Failure, FailureKind, ShardRecord


@pytest.mark.parametrize("text", ["plain", "naïve 日本 🦊", "", "a\nb"])
def test_text_stays_as_it_is(text: str) -> None:
    """Anything that is Unicode."""
    failure = Failure(FailureKind.USER_ERROR, text, text)
    assert (failure.error, failure.traceback) == (text, text)


def test_what_is_no_unicode_is_escaped() -> None:
    """A file name, or a text cut in half, in an exception: the ledger is JSON, and would refuse it."""
    failure = Failure(FailureKind.USER_ERROR, "ValueError: \udce9", "é \ud83e")
    assert (failure.error, failure.traceback) == ("ValueError: \\udce9", "é \\ud83e")
    assert orjson.loads(orjson.dumps([failure.error, failure.traceback]))


def test_records_travel() -> None:
    """From a worker to the driver, and small: a few hundred bytes."""
    record = ShardRecord(7, 1.5, Failure(FailureKind.CORRUPT, "CorruptInput: truncated", "Traceback"))
    assert pickle.loads(pickle.dumps(record)) == record
    assert len(pickle.dumps(ShardRecord(7, 1.5))) < 300
