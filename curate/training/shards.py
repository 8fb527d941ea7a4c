"""Tokens as batches for a training loop."""

from __future__ import annotations

import mmap
from collections.abc import Generator, Iterable, Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from curate.errors import ConfigError
from curate.imports import imported
from curate.streaming.prefetch import Stopped, prefetched
from curate.training.corpus import COLUMN, find_corpus, refuse_without_documents
from curate.training.order import order_of
from curate.training.reader import Samples, read_window
from curate.training.state import Batches, Reading, batches_after, check_share
from curate.units import format_count, whole, whole_seed

SHUFFLE_BYTES = 64 << 20
"""Of sequences of 2,048 tokens, 16,384 are mixed; larger windows cost more time for memory than is spent on reading."""
AHEAD = 1
"""Windows that are read ahead of the one that batches are taken of."""
WORKER_USE = "loader = DataLoader(shards, batch_size=None, num_workers=2)\n    for batch in shards.follow(loader): ..."


class TokenShards:
    """Batches of token sequences for one rank of a training run, resumable at any batch.

    `path` is what a job wrote that makes or shuffles tokens, a folder or a glob, local or on a store: `.npy` arrays,
    `.bin` with `.idx` (Megatron), `.ds` with `.ds.index` (datatrove), or Parquet with a column of lists. The tokens of
    a file (of a row group, in Parquet) are cut into sequences of exactly `sequence_length`, whatever documents they
    belong to; the remainder at the end is left out and counted (`tokens_left_out`). Packed sequences are taken as they
    are.

    Iterating yields the rest of the current epoch, as arrays of shape `(batch_size // world_size, sequence_length)`:
    `batch_size` is that of all ranks together, and rank r gets the r-th part of each global batch. `dtype` is the type
    of the arrays; None: as stored, which for 65,536 ids is a quarter of int64. The last global batch is left out if it
    is not full; with `drop_last=False` its sequences are dealt to the ranks, of which some may get an array of 0 rows.
    When an epoch has ended, the next iteration is the next epoch.

    With `document_lengths=True` a batch is a dictionary instead: `tokens`, that array, and `document_lengths`, for each
    of its rows an array of int32 with the tokens of each document in it, or piece of one, in order; what is not in them
    is padding. Packed Parquet has them (`--pack` of `jobs/tokens.py`). Order and state are the same without.

    The order of an epoch depends on `seed`, the number of the epoch and the corpus alone: it is the same for every
    number of ranks and workers, on any machine and store. Chunks of the corpus (1 MiB; row groups of Parquet) are put
    in random order, and the sequences of `shuffle_bytes` of them at a time, of four at least, are mixed; 0: the order
    of the corpus. A rank has its part of twice so many bytes in memory, because the next ones are read ahead. Of a flat
    file on a disk it reads its own part, of Parquet each row group as a whole.

    After `import torch` this is a torch IterableDataset. With worker processes, iterate over `follow`:

        loader = DataLoader(shards, batch_size=None, num_workers=2)
        for batch in shards.follow(loader):
            train(batch), save(shards.state_dict())

    Raises ConfigError for a path without tokens, the output of a job that is not complete (unless
    `allow_incomplete_input`), packed sequences of another length, `document_lengths` of a corpus without, a
    `batch_size` that the ranks cannot share, a rank that is not below `world_size`, and a corpus without a batch;
    CorruptInput for a file that is damaged, or changes while it is read.

    >>> import numpy, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> numpy.save(f"{folder}/00000.npy", numpy.arange(64, dtype="uint16"))
    >>> shards = TokenShards(folder, sequence_length=4, batch_size=8, seed=1)
    >>> [batch.shape for batch in shards], shards.epoch
    ([(8, 4), (8, 4)], 1)
    """

    def __new__(cls, *_: Any, **__: Any) -> TokenShards:
        _join_torch()
        return super().__new__(cls)

    def __init__(
        self,
        path: str,
        sequence_length: int,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        drop_last: bool = True,
        shuffle_bytes: int = SHUFFLE_BYTES,
        dtype: Any = np.int64,
        column: str = COLUMN,
        document_lengths: bool = False,
        allow_incomplete_input: bool = False,
    ) -> None:
        batch_size, rank, world_size = check_share(batch_size, rank, world_size)
        seed = whole_seed(seed)
        sequence_length = whole("sequence_length", sequence_length, 1)
        shuffle_bytes = whole("shuffle_bytes", shuffle_bytes, 0)
        self._corpus = find_corpus(str(path), sequence_length, column, allow_incomplete_input)
        if document_lengths:
            refuse_without_documents(self._corpus)
        self._documents = document_lengths
        self._dtype = _wide_enough(self._corpus.dtype, dtype)
        chunks = self._corpus.chunks(sequence_length)
        self._order = order_of(chunks, sequence_length * self._corpus.dtype.itemsize, seed, shuffle_bytes)
        self._batches = Batches(chunks.total, batch_size, drop_last)
        self._reading = Reading(seed, self._corpus.fingerprint, sequence_length, batch_size, shuffle_bytes)
        self._rank, self._world_size = rank, world_size
        if not self._batches.count:
            raise ConfigError(
                f"{path!r} has {format_count(int(self._corpus.unit_tokens.sum()), 'token')}, which make "
                f"{format_count(chunks.total, 'sequence')} of {sequence_length:,}, but a batch has {batch_size:,}; "
                "pass a smaller batch_size or sequence_length, or more tokens"
            )
        self._epoch, self._position = 0, 0
        self._latest: object = None
        """The iteration that may go on: an older one would count batches again."""
        self._elsewhere: mmap.mmap | None = mmap.mmap(-1, 1)
        """Shared with processes that are forked: whether one of them iterates over this."""
        self._sent = False
        """Whether it was sent to a process that was started anew."""
        self._counting = False
        """Whether batches were counted in this process."""

    # What there is

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next batch belongs to, from 0 on."""
        return self._epoch

    @property
    def position(self) -> int:
        """Sequences of this epoch that all ranks together have got."""
        return self._position

    @property
    def samples(self) -> int:
        """Sequences of the corpus."""
        return self._batches.samples

    @property
    def batches(self) -> int:
        """Batches of an epoch: the same number for each rank."""
        return self._batches.count

    @property
    def tokens_left_out(self) -> int:
        """Tokens at the ends of files, or row groups, that do not fill a sequence."""
        return int(self._corpus.unit_tokens.sum()) - self.samples * self._reading.sequence_length

    def __repr__(self) -> str:
        share = f", rank {self._rank} of {self._world_size}" if self._world_size > 1 else ""
        return (
            f"TokenShards({self._corpus.path!r}: {format_count(self.samples, 'sequence')} of "
            f"{self._reading.sequence_length:,} tokens, {self.batches:,} batches an epoch{share})"
        )

    # Batches

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of this rank that remain of the epoch; in a worker of a DataLoader, its part of them.

        A batch counts as handed out when it is yielded: `state_dict()` has it then. Raises RuntimeError if another
        iteration has begun meanwhile.
        """
        worker, workers = _worker()
        epoch, first = self._epoch, self._position // self._batches.size
        if workers:
            if self._elsewhere is not None:
                self._elsewhere[0] = 1
            yield from self._made(epoch, first, worker, workers)
            # For the next pass of a worker that lives on.
            self._epoch, self._position = epoch + 1, 0
        else:
            yield from self._counted(self._made(epoch, first, 0, 1), epoch, first)

    def follow(self, loader: Iterable[Any]) -> Generator[Any]:
        """Yields the batches of a torch DataLoader over this, and counts them for `state_dict()`, in this process.

        What workers have read ahead does not count. Stopping early ends them. Raises ConfigError for a loader whose
        batches cannot be counted: of another dataset, with a `batch_size` or `persistent_workers`, or out of order.

        >>> import numpy, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> numpy.save(f"{folder}/00000.npy", numpy.arange(64, dtype="uint16"))
        >>> class Loader:  # as a DataLoader without workers is
        ...     dataset, batch_size, num_workers = TokenShards(folder, sequence_length=4, batch_size=8), None, 0
        ...     def __iter__(self):
        ...         return iter(self.dataset)
        >>> loader = Loader()
        >>> [loader.dataset.position for batch in loader.dataset.follow(loader)]
        [8, 0]
        """
        for wrong, problem in (
            (getattr(loader, "dataset", None) is not self, "dataset: pass a DataLoader over these TokenShards"),
            (getattr(loader, "batch_size", None) is not None, "batch_size: pass batch_size=None, for batches are made"),
            (getattr(loader, "persistent_workers", False), "persistent_workers: leave it out; a pass begins anew"),
            (not getattr(loader, "in_order", True), "in_order=False: leave it out, for a state needs the order"),
        ):
            if wrong:
                raise ConfigError(f"follow() cannot count the batches of this loader by its {problem}")
        epoch, first = self._epoch, self._position // self._batches.size
        if getattr(loader, "num_workers", 0):
            yield from self._counted(iter(loader), epoch, first)
        else:
            yield from loader

    def _counted(self, batches: Iterator[Any], epoch: int, first: int) -> Generator[Any]:
        """Yields batches, each counted before."""
        self._counting = True
        self._latest = mine = object()
        number = first
        try:
            for batch in batches:
                if self._latest is not mine:
                    raise RuntimeError(
                        "another iteration or load_state_dict() has begun since; iterate over these TokenShards anew"
                    )
                number += 1
                self._epoch, self._position = batches_after(epoch, number, self._batches)
                yield batch
        finally:
            if (close := getattr(batches, "close", None)) is not None:
                close()

    def _made(self, epoch: int, first: int, worker: int, workers: int) -> Generator[Any]:
        """Yields the batches of a worker, from the global batch `first` on."""
        numbers = range(first + worker, self._batches.count, workers)

        def windows(stopped: Stopped) -> Generator[Samples]:
            # In turn: who takes a window has done with the one before, and new memory costs as much as reading does.
            rooms = [np.empty((0, self._reading.sequence_length), self._corpus.dtype)] * (AHEAD + 1)
            for window in self._order.windows(epoch, first * self._batches.size):
                places = np.arange(max(window.start, first * self._batches.size), window.stop)
                share = (self._rank, self._world_size, worker, workers, first)
                mine = self._batches.of(places, *share)
                if stopped():
                    return
                if len(mine):
                    room = rooms.pop(0)
                    if len(room) < len(mine):
                        room = np.empty((len(mine), self._reading.sequence_length), self._corpus.dtype)
                    rooms.append(room)
                    yield read_window(self._corpus, window, mine, room, self._documents)

        if not len(numbers):
            return
        read = prefetched(windows, AHEAD)
        try:
            rows = (self._batches.rows(one, self._rank, self._world_size) for one in numbers)
            yield from cut(rows, read, self._reading.sequence_length, self._dtype, self._documents)
        finally:
            read.close()

    # State

    def state_dict(self) -> dict[str, Any]:
        """Returns where this rank is, after the last batch that it was handed: numbers and a fingerprint, JSON values
        of at most 200 bytes, the same for all ranks after the same step.

        Raises ConfigError where batches are made by workers of a DataLoader and are not counted by `follow`.

        >>> import numpy, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> numpy.save(f"{folder}/00000.npy", numpy.arange(64, dtype="uint16"))
        >>> shards = TokenShards(folder, sequence_length=4, batch_size=8)
        >>> batch, state = next(iter(shards)), shards.state_dict()
        >>> state["epoch"], state["position"]
        (0, 8)
        """
        away = self._sent or (self._elsewhere is not None and self._elsewhere[0])
        if _worker()[1] or (away and not self._counting):
            raise ConfigError(
                "worker processes make the batches of these TokenShards, so this process cannot know which were handed "
                f"out; iterate over follow() where the state is read:\n    {WORKER_USE}"
            )
        return self._reading.state(self._epoch, self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a state was read: the next batch is the next global batch's, whatever the number of ranks was.

        Raises ConfigError for a state of another corpus, seed, sequence length, batch size or `shuffle_bytes`.

        >>> import numpy, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> numpy.save(f"{folder}/00000.npy", numpy.arange(64, dtype="uint16"))
        >>> shards, again = (TokenShards(folder, sequence_length=4, batch_size=8) for _ in range(2))
        >>> batch = next(iter(shards))
        >>> again.load_state_dict(shards.state_dict())
        >>> numpy.array_equal(list(shards), list(again))
        True
        """
        self._epoch, self._position = self._reading.resumed(state, self._batches)
        self._latest = object()

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            self._sent = True
        return {**self.__dict__, "_elsewhere": None, "_latest": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def cut(
    rows: Iterable[int], windows: Iterator[Samples], width: int, dtype: Any, documents: bool = False
) -> Generator[Any]:
    """Yields arrays of so many rows each, of the rows of others, as a type; each has memory of its own. `documents`:
    each in a dictionary, with the lengths of documents.

    >>> [one.tolist() for one in cut([2, 1], map(Samples, [np.zeros((1, 1)), np.ones((2, 1))]), 1, int)]
    [[[0], [1]], [[1]]]
    """
    window, table, at = Samples(np.empty((0, 0))), np.empty((0, width), dtype), 0
    for count in rows:
        made, filled = np.empty((count, width), dtype), 0
        lengths: list[Any] = []
        while filled < count:
            if at == len(table):
                # Let go of it first: the next one is as large.
                window, table = Samples(made[:0]), made[:0]
                window, at = next(windows), 0
                table = window.tokens
            taken = min(count - filled, len(table) - at)
            made[filled : filled + taken] = table[at : at + taken]
            if window.documents is not None:
                lengths += window.documents[at : at + taken].tolist()
            filled, at = filled + taken, at + taken
        yield {"tokens": made, "document_lengths": lengths} if documents else made


def _wide_enough(stored: np.dtype[Any], wanted: Any) -> np.dtype[Any]:
    """Returns the type of batches. Raises ConfigError for one that is narrower than the tokens."""
    if wanted is None:
        return stored
    try:
        found: np.dtype[Any] = np.dtype(wanted)
    except TypeError as error:
        raise ConfigError(f"dtype is {wanted!r}, expected a type of numpy, such as 'int64', or None") from error
    # Ids of a whole uint32 are nobody's: torch takes int32.
    wide = np.can_cast(stored, found) or found.itemsize == stored.itemsize >= 4
    if found.kind not in "iu" or not wide:
        raise ConfigError(
            f"dtype is {found}, but the tokens are stored as {stored}, and some do not fit; pass a wider type, or None "
            "for the stored one"
        )
    return found


def _worker() -> tuple[int, int]:
    """Returns the number of this worker of a DataLoader and how many there are; (0, 0) outside of workers."""
    data = imported("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return (0, 0) if info is None else (info.id, info.num_workers)


def _join_torch() -> None:
    """Makes TokenShards a torch IterableDataset, if torch was imported: it takes seconds, and is not imported here."""
    data = imported("torch.utils.data")
    if data is not None and not issubclass(TokenShards, data.IterableDataset):
        data.IterableDataset.register(TokenShards)
