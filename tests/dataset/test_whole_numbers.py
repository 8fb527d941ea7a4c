"""Every place that takes a whole number takes one of numpy, keeps it as Python has it, and refuses what is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import curate
from curate.arrow.hashing import digest_rows, random_keys, salted
from curate.dedup.contamination import Decontamination
from curate.dedup.evaluation import Compared, EvaluationSet
from curate.dedup.near import NearDedup
from curate.dedup.spans import SpanDedup
from curate.errors import ConfigError
from curate.mixture.mixture import Mixture, Source
from curate.operators.parts import SplitOff
from curate.streaming.epochs import Division
from curate.training import TokenShards
from curate.training.state import Batches, Reading, check_share

ROWS = curate.range(4)
COMPARED = Compared((EvaluationSet("one", cast("Any", None), ("text",)),))
READING, DIVISION = Reading(1, "corpus", 8, 1, 0), Division(lambda: "rows", 64, 2, False)
SOURCES = (Source("a", 1),)


def resumed_reading(name: str, n: Any) -> Any:
    """Returns where a training loop goes on."""
    return READING.resumed(READING.state(0, 0) | {name: n}, Batches(8, 1, True))


def resumed_share(name: str, n: Any) -> Any:
    """Returns where a share goes on."""
    return DIVISION.resumed(0, DIVISION.state(0, 0, 0, None) | {name: n})


def same(batch: Any) -> Any:
    """Returns a batch as it is."""
    return batch


def batches(**given: Any) -> Any:
    """Returns all batches."""
    return list(ROWS.iter_batches(**({"batch_size": 2} | given)))


PLACES: dict[str, Callable[[Any], Any]] = {
    "range": lambda n: curate.range(n)._plan,
    "limit": lambda n: ROWS.limit(n)._plan,
    "take": ROWS.take,
    "to_pandas": lambda n: curate.range(1).to_pandas(limit=n),
    "take_batch": ROWS.take_batch,
    "split": lambda n: [one.take_all() for one in ROWS.split(n)],
    "streaming_split": lambda n: [one.state_dict() for one in ROWS.streaming_split(n)],
    "split_at_indices": lambda n: [one.take_all() for one in ROWS.split_at_indices([n])],
    "train_test_split": lambda n: [one.take_all() for one in ROWS.train_test_split(n)],
    "its seed": lambda n: [one.take_all() for one in ROWS.train_test_split(0.5, shuffle=True, seed=n)],
    "random_sample": lambda n: ROWS.random_sample(0.5, seed=n)._plan,
    "streaming_train_test_split": lambda n: ROWS.streaming_train_test_split(0.5, seed=n)[0]._plan,
    "random_shuffle": lambda n: ROWS.random_shuffle(seed=1, num_shards=n)._plan,
    "seed of a shuffle": lambda n: ROWS.random_shuffle(seed=n)._plan,
    "repartition": lambda n: ROWS.repartition(n)._plan,
    "map_batches": lambda n: ROWS.map_batches(same, batch_size=n)._plan,
    "std": lambda n: ROWS.groupby("id").std("id", ddof=n)._plan,
    "batch_size": lambda n: batches(batch_size=n),
    "prefetch_batches": lambda n: batches(prefetch_batches=n),
    "buffer": lambda n: batches(local_shuffle_buffer_size=n, local_shuffle_seed=1),
    "seed of a buffer": lambda n: batches(local_shuffle_buffer_size=2, local_shuffle_seed=n),
    "block_bytes": lambda n: curate.Options(block_bytes=n),
    "memory_budget": lambda n: curate.Options(memory_budget=n),
    "size": lambda n: curate.ActorPool(size=n),
    "min_size": lambda n: curate.ActorPool(min_size=n),
    "max_size": lambda n: curate.ActorPool(max_size=n),
    "max_in_flight": lambda n: curate.ActorPool(max_in_flight=n),
    "ngram": lambda n: NearDedup("text", "id", ngram=n),
    "bands": lambda n: NearDedup("text", "id", bands=n),
    "rows": lambda n: NearDedup("text", "id", rows=n),
    "seed of minhashes": lambda n: NearDedup("text", "id", seed=n),
    "sentences": lambda n: SpanDedup("text", sentences=n),
    "min_unit_words": lambda n: SpanDedup("text", min_unit_words=n),
    "min_words": lambda n: SpanDedup("text", min_words=n),
    "n": lambda n: Compared(COMPARED.sets, n=n),
    "max_documents": lambda n: Decontamination("text", COMPARED, max_documents=n),
    "margin": lambda n: Decontamination("text", COMPARED, margin=n),
    "words left": lambda n: Decontamination("text", COMPARED, min_words=n),
    "budget": lambda n: Mixture(SOURCES, n),
    "seed of a mixture": lambda n: Mixture(SOURCES, 1, seed=n),
    "max_epochs": lambda n: Source("a", 1, n),
    "seed of parts": lambda n: SplitOff((("a", 0.5),), "id", seed=n),
    "keys": lambda n: random_keys(n, "shard", 0, 4),
    "salt": lambda n: salted("split", n),
    "digests": lambda n: digest_rows(ROWS.to_arrow(), ["id"], n),
    "training batch": lambda n: check_share(n, 0, 1),
    "rank": lambda n: check_share(4, n, 4),
    "ranks": lambda n: check_share(4, 0, n),
    "epoch": lambda n: resumed_reading("epoch", n),
    "position": lambda n: resumed_reading("position", n),
    "epoch of a share": lambda n: resumed_share("epoch", n),
    "rows of a share": lambda n: resumed_share("rows", n),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_number_of_numpy_is_the_number(place: str) -> None:
    """What is made of it is the same to the letter, and so is its identity."""
    for kind in (np.int64, np.uint8, np.int32):
        assert repr(PLACES[place](kind(2))) == repr(PLACES[place](2))


@pytest.mark.ci(60)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", [True, np.True_, "2", -1, np.int64(-1), 10**30, [2]], ids=repr)
def test_what_is_no_such_number_is_refused(place: str, wrong: Any) -> None:
    """With one message, which shows it and says what was expected."""
    told = r"expected a whole number, at (least \d|most [\d,]+)$"
    if place == "train_test_split" and not hasattr(wrong, "__index__"):
        told = "is not a fraction; expected a number between 0 and 1$"
    with pytest.raises(ConfigError, match=told):
        PLACES[place](wrong)


@pytest.mark.parametrize("name", ["sequence_length", "batch_size", "seed", "rank", "world_size", "shuffle_bytes"])
def test_tokens_are_read_with_numbers_of_numpy(tmp_path: Path, name: str) -> None:
    """Their state is JSON."""
    np.save(tmp_path / "0.npy", np.arange(64, dtype=np.uint16))
    least = {"sequence_length": 4, "batch_size": 2, "world_size": 2}
    given = least | {"seed": 1, "rank": 1, "shuffle_bytes": 8}
    plain = TokenShards(str(tmp_path), **given)
    assert repr(TokenShards(str(tmp_path), **given | {name: np.int64(given[name])}).state_dict()) == repr(
        plain.state_dict()
    )
    with pytest.raises(ConfigError, match=rf"^{name} is 1.5, expected a whole number, at least [01]$"):
        TokenShards(str(tmp_path), **given | {name: 1.5})
