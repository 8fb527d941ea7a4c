"""Training loops that are killed and resumed from their last state: every sample once, in the order of one that was
never disturbed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curate.training import TokenShards
from tests.training.corpora import LENGTH, as_datatrove, as_megatron, as_npy, as_parquet, numbered

BATCH = 8
RANKS = (1, 2, 4, 8)


def loop(
    path: Path, world: int, state: dict[str, Any] | None, steps: int, epochs: int, **how: Any
) -> list[tuple[list[int], str]]:
    """Returns what ranks that run in step are handed at each of some steps, in the order of ranks, and the state then
    of one of them, as it was saved."""
    ranks = [TokenShards(str(path), LENGTH, BATCH, 7, rank, world, **how) for rank in range(world)]
    for one in ranks:
        if state is not None:
            one.load_state_dict(state)
    found: list[tuple[list[int], str]] = []
    while len(found) < steps and ranks[0].epoch < epochs:
        iterations = [iter(one) for one in ranks]
        for batches in zip(*iterations, strict=True):
            saved = json.dumps(ranks[len(found) % world].state_dict())
            assert {json.dumps(one.state_dict()) for one in ranks} == {saved}
            found.append(([int(row[0]) for batch in batches for row in batch], saved))
            if len(found) == steps:
                break
    return found


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("make", "drop_last", "kills", "epochs"),
    [
        (as_npy, True, 100, 8),
        (as_npy, False, 100, 8),
        (as_megatron, False, 6, 2),
        (as_datatrove, False, 6, 2),
        (as_parquet, True, 6, 2),
    ],
)
def test_killed_at_random_batches(tmp_path: Path, make: Any, drop_last: bool, kills: int, epochs: int) -> None:
    """Ranks 1, 2, 4 and 8, changed in between; what was handed out after the last state that was saved is handed out
    again. Each epoch has every sample once."""
    samples = 203
    path = make(tmp_path, [numbered(150), numbered(samples - 150, 150)])
    how: dict[str, Any] = {"drop_last": drop_last, "shuffle_bytes": 300}
    undisturbed = [batch for batch, _ in loop(path, 1, None, 10**6, epochs, **how)]
    chance = random.Random(f"{make.__name__} {drop_last}")
    done: list[list[int]] = []
    state = None
    for _ in range(kills):
        # Killed after a batch and before its state is saved: that batch is lost, and comes again.
        steps = chance.randint(1, 2 * len(undisturbed) // kills)
        life = loop(path, chance.choice(RANKS), state, steps, epochs, **how)[: steps - chance.randint(0, 1)]
        done += [batch for batch, _ in life]
        state = json.loads(life[-1][1]) if life else state
    done += [batch for batch, _ in loop(path, 2, state, 10**6, epochs, **how)]
    assert done == undisturbed
    per_epoch = samples // BATCH * BATCH if drop_last else samples
    places = [number for batch in done for number in batch]
    assert len(places) == epochs * per_epoch
    for at in range(0, len(places), per_epoch):
        assert len(set(places[at : at + per_epoch])) == per_epoch


PROGRAM = """
import json, os, sys
from curate.training import TokenShards

path, saved, first_rank, ranks = sys.argv[1], sys.argv[2], 0, int(sys.argv[3])
shards = [TokenShards(path, 4, 8, 7, rank, ranks) for rank in range(ranks)]
if os.path.exists(saved):
    for one in shards:
        one.load_state_dict(json.load(open(saved)))
for batches in zip(*shards):
    with open(saved + ".new", "w") as file:
        json.dump(shards[-1].state_dict(), file)
    os.replace(saved + ".new", saved)
    print(json.dumps([int(row[0]) for batch in batches for row in batch]), flush=True)
    # What starts this says when to go on.
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_processes_that_are_killed(tmp_path: Path) -> None:
    """SIGKILL at some batches, the state in a file: one epoch, without a sample lost or doubled."""
    path = as_npy(tmp_path / "corpus", [numbered(200)])
    undisturbed = [batch[:, 0].tolist() for batch in TokenShards(str(path), LENGTH, BATCH, 7)]
    found: list[list[int]] = []
    for ranks, batches in [(1, 3), (4, 1), (8, 7), (2, 100)]:
        command = [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "state.json"), str(ranks)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(batches):
                line = process.stdout.readline()
                if not line:
                    break
                found.append(json.loads(line))
                if _ < batches - 1:
                    process.stdin.write("\n")
                    process.stdin.flush()
            else:
                process.send_signal(signal.SIGKILL)
    assert found == undisturbed


def test_a_state_is_taken_by_another_number_of_ranks(tmp_path: Path) -> None:
    """In three lines, as the README of a training loop would say it."""
    path = as_npy(tmp_path, [numbered(64)])
    one = TokenShards(str(path), LENGTH, BATCH, seed=7)
    batches = iter(one)
    next(batches)
    two = TokenShards(str(path), LENGTH, BATCH, seed=7, rank=1, world_size=2)
    two.load_state_dict(one.state_dict())
    assert np.array_equal(next(iter(two)), next(batches)[4:])


def test_a_batch_size_of_numpy_is_in_a_state_as_any_other(tmp_path: Path) -> None:
    path = str(as_npy(tmp_path, [numbered(64)]))
    one, two = TokenShards(path, LENGTH, np.int64(BATCH), seed=7), TokenShards(path, LENGTH, BATCH, seed=7)
    next(iter(one))
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert np.array_equal(list(one), list(two))
