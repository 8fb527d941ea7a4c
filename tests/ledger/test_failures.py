"""Failures: alike or not, counted exactly, and never more of them written down than a run can hold."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger import failures
from curate.ledger.failures import (
    KEPT_TRACEBACKS,
    Signature,
    Signatures,
    Tracebacks,
    failure_event,
    group_failed,
    group_tries,
    pattern,
    signature,
)
from curate.tasks.events import Launch, Outcome, TaskId
from curate.tasks.failure import Failure, FailureKind, ShardRecord
from tests.support.ledgers import make_shard

COPY_FAILED, FAILED, RETRY = Outcome.COPY_FAILED, Outcome.FAILED, Outcome.RETRY

WORD = st.sampled_from(["row", "column", "cannot", "parse", "value", "of", "the", "is", "large", "(see", "below)"])
WORDS = st.lists(WORD, min_size=1, max_size=5)
VALUES = {
    "number": st.one_of(
        st.integers().map(str),
        st.floats(allow_nan=False, allow_infinity=False).map(str),
        st.integers(min_value=0, max_value=2**64).map(hex),
        st.uuids().map(str),
        st.binary(min_size=8, max_size=8).map(lambda data: f"0{data.hex()}f"),
    ),
    "quoted": st.one_of(
        st.text(max_size=20).map(repr),
        st.text(max_size=20).map(orjson.dumps).map(bytes.decode),
        st.binary(max_size=8).map(repr),
    ),
    "path": st.one_of(
        st.from_regex(r"gs://[a-z]{3,8}(/[a-zA-Z0-9_.-]{1,12}){1,4}", fullmatch=True),
        st.from_regex(r"(/[a-zA-Z0-9_-]{1,12}){1,4}\.jsonl\.gz", fullmatch=True),
    ),
}


class TestSignature:
    @given(st.lists(st.tuples(WORDS, st.sampled_from(sorted(VALUES))), min_size=1, max_size=4), st.data())
    def test_what_differs_from_shard_to_shard_does_not_count(self, parts: Any, data: st.DataObject) -> None:
        """Numbers, hashes, quoted text and paths: two messages that differ in nothing else are alike."""

        def message() -> str:
            return " ".join(f"{' '.join(words)} {data.draw(VALUES[kind])}" for words, kind in parts)

        assert pattern(message()) == pattern(message())

    @given(st.text())
    def test_any_text_has_a_pattern_and_it_is_bounded(self, text: str) -> None:
        """Exceptions quote whatever they choked on."""
        found = pattern(text)
        assert len(found) <= failures.MOST_PATTERN
        assert not re.search(r"[1-9]", found)

    @given(WORDS, WORDS)
    def test_other_words_are_another_failure(self, one: list[str], other: list[str]) -> None:
        """What is no value counts, to the letter."""
        assert (pattern(" ".join(one)) == pattern(" ".join(other))) == (one == other)

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("can't read the user's file", "can't read the user's file"),
            (r"bad value 'it\'s 3 o\'clock' here", "bad value '…' here"),
            ("cannot parse 'a text that was cut off at a thou", "cannot parse '…'"),
            ("either/or is no path? it is taken for one", "/… is no path? it is taken for one"),
            ("at 0xDEADbeef, 1e-7, -3.5 and 12%", "at 0, 0, 0 and 0%"),
            ("sha256 of 9f86d081884c7d65 is deadbeef", "sha0 of 0 is deadbeef"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("", ""),
        ],
    )
    def test_examples(self, message: str, expected: str) -> None:
        """An apostrophe opens no quote; a quote that is cut off ends with the message."""
        assert pattern(message) == expected

    def test_type_message_and_frame(self) -> None:
        """The three together: the same error raised elsewhere is another failure."""
        assert signature("KeyError: 'a'", "x.py:1 in f") == Signature("KeyError", "'…'", "x.py:1 in f")
        assert signature("KeyError: 'b'", "x.py:2 in f") != signature("KeyError: 'a'", "x.py:1 in f")
        assert signature("out of memory: node 17 ran full").error == "out of memory"
        assert signature("no colon here at all, 5 words").error == ""

    def test_signatures_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Messages that differ in every word do not fill the memory: beyond a thousand the message is left out."""
        monkeypatch.setattr(failures, "MOST_SIGNATURES", 5)
        found = Signatures()
        made = {found.of({"error": f"ValueError: {'x' * n}", "frame": "a.py:1 in f"}) for n in range(1, 100)}
        assert len(made) == 6
        assert Signature("ValueError", "", "a.py:1 in f") in made
        assert found.of({"error": "ValueError: xx", "frame": "a.py:1 in f"}).message == "xx"


def event(rank: int, outcome: str, error: str = "ValueError: bad", time: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "index": rank,
        "shard": f"s{rank}",
        "outcome": outcome,
        "error": error,
        "frame": "a.py:1 in f",
        "time": time,
        "kind": "user_error",
        "traceback": "Traceback",
        **more,
    }


class TestOneTry:
    def test_it_has_everything(self) -> None:
        """Input and slice, kind, error, frame, traceback, where it ran, memory, time, log."""
        failure = Failure(
            FailureKind.USER_ERROR, "ValueError: x", "Traceback...", "a.py:1 in f", 0.0, "node-1", 42, 1000
        )
        launch = Launch(TaskId(7), (3,), 2)
        made = failure_event("run-1", 12.34567, make_shard("a/b"), launch, ShardRecord(3, 1.5, failure), RETRY)
        assert made == {
            "time": 12.346,
            "run_id": "run-1",
            "shard": "a/b",
            "index": 3,
            "attempt": 2,
            "task": 7,
            "outcome": "retry",
            "input": "/in/a/b.jsonl",
            "slice": {"kind": "whole", "start": 0, "stop": 0},
            "kind": "user_error",
            "error": "ValueError: x",
            "frame": "a.py:1 in f",
            "traceback": "Traceback...",
            "node": "node-1",
            "pid": 42,
            "peak_bytes": 1000,
            "seconds": 1.5,
            "log": "_curate/runs/run-1/logs/node-1-42",
        }
        assert orjson.loads(orjson.dumps(made)) == made


class TestTracebacks:
    def test_the_first_hundred_of_a_signature_are_kept(self) -> None:
        """Of the others, one that has it is named; another signature has a hundred of its own."""
        tracebacks = Tracebacks()
        written = [tracebacks.bounded(event(n, FAILED, f"ValueError: bad row {n}")) for n in range(250)]
        other = [tracebacks.bounded(event(n, FAILED, f"KeyError: {n}")) for n in range(101)]
        assert [bool(one["traceback"]) for one in written] == [True] * KEPT_TRACEBACKS + [False] * 150
        assert {one.get("as") for one in written[KEPT_TRACEBACKS:]} == {"s0"}
        assert sum(bool(one["traceback"]) for one in other) == KEPT_TRACEBACKS
        assert [one["error"] for one in written] == [f"ValueError: bad row {n}" for n in range(250)]

    def test_what_has_no_traceback_uses_up_nothing(self) -> None:
        """A lost node leaves none, and says nothing of another failure that is alike."""
        tracebacks = Tracebacks()
        lost = [tracebacks.bounded(event(n, RETRY, "lost: node died", traceback="")) for n in range(300)]
        assert not any("as" in one for one in lost)
        assert tracebacks.bounded(event(1, RETRY, "lost: node died"))["traceback"]


ERRORS = ("ValueError: bad row 1", "ValueError: bad row 2", "KeyError: 'x'")
TRIES = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from((FAILED, RETRY, COPY_FAILED)),
        st.sampled_from(ERRORS),
    ),
    max_size=30,
)


class TestGroups:
    @given(TRIES, st.lists(st.booleans(), min_size=5, max_size=5))
    def test_failed_shards_are_counted_where_they_failed_at_last(
        self, tries: list[tuple[int, str, str]], failed: list[bool]
    ) -> None:
        """Each shard that is failed now is in one group, with all its tries up to the last time it was given up."""
        made = [event(rank, outcome, error, float(n)) for n, (rank, outcome, error) in enumerate(tries)]
        groups = group_failed(reversed(made), np.array(failed))
        shards: Counter[tuple[str, str]] = Counter()
        attempts: Counter[tuple[str, str]] = Counter()
        for rank in (rank for rank in range(5) if failed[rank]):
            last = max(
                (n for n, one in enumerate(made) if one["index"] == rank and one["outcome"] == FAILED),
                default=-1,
            )
            if last >= 0:
                found = signature(made[last]["error"])
                shards[found.error, found.message] += 1
                attempts[found.error, found.message] += sum(one["index"] == rank for one in made[: last + 1])
        assert {(one.signature.error, one.signature.message): one.shards for one in groups} == dict(shards)
        assert {(one.signature.error, one.signature.message): one.attempts for one in groups} == dict(attempts)
        assert [one.shards for one in groups] == sorted((one.shards for one in groups), reverse=True)

    @given(TRIES)
    def test_all_tries_are_counted_where_they_failed(self, tries: list[tuple[int, str, str]]) -> None:
        """Each try is in the group of its own signature; a shard in as many as it had kinds of failures."""
        made = [event(rank, outcome, error, float(n)) for n, (rank, outcome, error) in enumerate(tries)]
        groups = group_tries(reversed(made))
        by_type: dict[str, list[dict[str, Any]]] = {}
        for one in made:
            by_type.setdefault(signature(one["error"]).error, []).append(one)
        assert {group.signature.error: (group.shards, group.attempts, group.first, group.last) for group in groups} == {
            name: (len({one["index"] for one in ones}), len(ones), ones[0]["time"], ones[-1]["time"])
            for name, ones in by_type.items()
        }
        for group in groups:
            assert group.example["time"] == group.last

    def test_the_example_is_the_newest_that_can_be_shown(self) -> None:
        """One whose traceback was left out is no example while there is one that has it."""
        made = [event(n, FAILED, time=float(n), traceback="" if n > 2 else "Traceback") for n in range(6)]
        (group,) = group_tries(reversed(made))
        assert (group.example["index"], group.last) == (2, 5.0)

    def test_a_rank_that_the_plan_does_not_know_is_left_out(self) -> None:
        """A part of the plan may not be listed yet."""
        assert group_failed([event(7, FAILED)], np.array([True] * 3)) == []

    def test_a_million_failures_are_grouped_in_bounded_memory(self) -> None:
        """What is kept is one number a shard and one example a group."""
        rng = random.Random(1)
        size = 20_000
        stream = (event(n, FAILED, f"ValueError: bad row {rng.random()}") for n in range(size))
        (group,) = group_failed(stream, np.ones(size, dtype=bool))
        assert (group.shards, group.kinds) == (size, {"user_error": size})
