"""TokenShards as a torch IterableDataset, in worker processes of a DataLoader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from curate.errors import ConfigError
from curate.training import TokenShards
from tests.training.corpora import LENGTH, as_npy, as_parquet, numbered

needs_torch = pytest.mark.extras


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return str(as_npy(tmp_path, [numbered(50), numbered(33, 50)]))


def shards_of(corpus: str, **how: Any) -> TokenShards:
    return TokenShards(corpus, LENGTH, 8, 7, shuffle_bytes=200, **how)


def loader_of(shards: TokenShards, workers: int, **how: Any) -> Any:
    import torch

    return torch.utils.data.DataLoader(shards, batch_size=None, num_workers=workers, **how)


@pytest.mark.slow
def test_torch_is_not_imported(corpus: str) -> None:
    """Not even where it is installed: it takes seconds."""
    program = f"import sys; from curate.training import TokenShards; next(iter(TokenShards({corpus!r}, 4, 8))); "
    subprocess.run([sys.executable, "-c", f"{program} assert 'torch' not in sys.modules"], check=True)


@needs_torch
def test_it_is_an_iterable_dataset(corpus: str) -> None:
    """Once torch was imported."""
    import torch

    assert isinstance(shards_of(corpus), torch.utils.data.IterableDataset)


@needs_torch
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("workers", "context"), [(0, None), (1, "fork"), (2, "fork"), (3, "fork"), (2, "spawn")])
def test_workers_change_no_order(corpus: str, workers: int, context: str | None, drop_last: bool) -> None:
    """Of two epochs; as tensors."""
    import torch

    plain = shards_of(corpus, drop_last=drop_last)
    shards = shards_of(corpus, drop_last=drop_last)
    loader = loader_of(shards, workers, multiprocessing_context=context)
    for _ in range(2):
        batches = list(shards.follow(loader))
        assert {one.dtype for one in batches} == {torch.int64}
        assert [one.tolist() for one in batches] == [one.tolist() for one in plain]
    assert shards.state_dict() == plain.state_dict()


@needs_torch
def test_the_state_is_of_batches_that_were_handed_out(corpus: str) -> None:
    """Not of what workers have read ahead; taken by another number of workers and ranks."""
    whole = [one.tolist() for one in shards_of(corpus)]
    shards = shards_of(corpus)
    found = []
    for batch in shards.follow(loader_of(shards, 2, prefetch_factor=3)):
        found.append(batch.tolist())
        if len(found) == 3:
            break
    assert shards.position == 24
    for number, workers in ((4, 3), (5, 0), (99, 1)):
        state, shards = shards.state_dict(), shards_of(corpus)
        shards.load_state_dict(state)
        for batch in shards.follow(loader_of(shards, workers)):
            found.append(batch.tolist())
            if len(found) == number:
                break
    assert found == whole


@needs_torch
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_state_that_nobody_counts_is_refused(corpus: str, context: str) -> None:
    """A loop over the loader alone, with workers: the state would stand still."""
    shards = shards_of(corpus)
    assert len(list(loader_of(shards, 1, multiprocessing_context=context))) == 10
    with pytest.raises(ConfigError, match=r"iterate over follow\(\)"):
        shards.state_dict()


@needs_torch
def test_a_loader_without_workers_needs_no_follow(corpus: str) -> None:
    """The batches are made in this process."""
    shards = shards_of(corpus)
    for number, _ in enumerate(loader_of(shards, 0)):
        assert shards.state_dict()["position"] == 8 * (number + 1) % 80


@needs_torch
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"batch_size": 4}, "batch_size: pass batch_size=None"),
        ({"num_workers": 1, "persistent_workers": True}, "persistent_workers: leave it out"),
        ({"num_workers": 1, "in_order": False}, "in_order=False: leave it out"),
    ],
)
def test_loaders_that_cannot_be_counted(corpus: str, how: dict[str, Any], told: str) -> None:
    """Each is refused before a worker starts."""
    import torch

    shards = shards_of(corpus)
    with pytest.raises(ConfigError, match=told):
        next(shards.follow(torch.utils.data.DataLoader(shards, **{"batch_size": None, **how})))
    with pytest.raises(ConfigError, match="dataset: pass a DataLoader over these TokenShards"):
        next(shards.follow(torch.utils.data.DataLoader(shards_of(corpus), batch_size=None)))


@needs_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_document_lengths_are_tensors(tmp_path: Path, workers: int) -> None:
    """One for each sequence, with its tokens."""
    import torch

    path = str(as_parquet(tmp_path, [numbered(50)], row_tokens=LENGTH, packed=True))
    shards = TokenShards(path, LENGTH, 8, 7, document_lengths=True)
    batches = list(shards.follow(loader_of(shards, workers)))
    assert [one["tokens"].tolist() for one in batches] == [one.tolist() for one in TokenShards(path, LENGTH, 8, 7)]
    for one in batches:
        assert [lengths.tolist() for lengths in one["document_lengths"]] == [[LENGTH]] * 8
        assert {lengths.dtype for lengths in one["document_lengths"]} == {torch.int32}
