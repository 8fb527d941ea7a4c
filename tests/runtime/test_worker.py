"""What a task said is passed on, however it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from curate.runtime.worker import in_batches
from curate.tasks.failure import Failure, FailureKind, ShardRecord


@pytest.mark.parametrize("ended", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_was_said_before_the_end_is_passed_on(ended: BaseException) -> None:
    """Shards that are done would count as tried twice: once more when their outputs are found."""

    def task() -> Iterator[int]:
        yield from (1, 2)
        raise ended

    batches, got = in_batches(task(), math.inf), []
    with pytest.raises(type(ended)):
        got.extend(batches)
    assert got == [[1, 2]]


def test_whoever_stops_to_listen_is_told_nothing_more() -> None:
    def task() -> Iterator[int]:
        yield from (1, 2)

    batches = in_batches(task(), 0.0)
    assert next(batches) == [1]
    batches.close()


def test_a_failure_is_passed_on_at_once() -> None:
    """A shard that failed leaves no output: of a worker that dies right after, nobody could tell that it had ended, and
    it would be taken for the one that the worker died of."""
    failed = ShardRecord(1, 0.1, Failure(FailureKind.USER_ERROR, "ValueError: no"))
    done = [ShardRecord(0, 0.1), ShardRecord(2, 0.1)]
    assert list(in_batches([done[0], failed, done[1]], math.inf)) == [[done[0], failed], [done[1]]]
