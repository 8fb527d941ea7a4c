"""Stores that fail as scripted, for the duration of a block."""

from __future__ import annotations

from collections.abc import Iterator

from curate.around import contextmanager
from curate.clock import Clock
from curate.requests.retry import Retry
from curate.storage.faults import Fault, Faults
from curate.stores.faulty import QUICK, FaultyStore
from curate.stores.open import wrap_stores


@contextmanager
def faulty_stores(
    *scripted: Fault, rate: float = 0.0, seed: int = 0, retry: Retry | None = QUICK, clock: Clock | None = None
) -> Iterator[Faults]:
    """Adds faults to every store that this process opens within the block, for example to test a whole job.

    Yields the shared `Faults`. For processes that a test starts, set `CURATE_TESTING_FAULTS` in their environment
    instead: `seed=7,rate=0.01` (see `parse_faults`). Each process counts separately.

    >>> from curate.stores.open import open_store
    >>> with faulty_stores(Fault("stat"), rate=0.01, seed=7) as faults:
    ...     published = open_store("memory://doc").publish("memory://doc/x", b"data")
    ...     found = open_store("memory://doc").stat("memory://doc/x")
    >>> faults.fired
    Counter({'stat': 1})
    """
    faults = Faults(scripted, rate, seed)
    with wrap_stores(lambda store: FaultyStore(store, faults=faults, retry=retry, clock=clock)):
        yield faults
