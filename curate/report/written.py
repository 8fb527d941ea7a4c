"""Writes what a report keeps beside it."""

from __future__ import annotations

from curate.dataset.dataset import Dataset
from curate.errors import ConfigError, WriteFailed
from curate.ledger.summary import Summary
from curate.units import shell_word


def written_anew(ds: Dataset, work: str, backend: str | None, unwritten: str) -> Summary:
    """Writes a dataset below `work`, over what an earlier report of other inputs left there.

    Raises ConfigError, with what is `unwritten`, if shards fail.
    """
    try:
        try:
            return ds.write_parquet(work, backend=backend, no_samples=True)
        except ConfigError:
            # Its inputs were frozen, and are others by now: this is nobody's output but the report's.
            return ds.write_parquet(work, backend=backend, no_samples=True, overwrite=True, yes=True)
    except WriteFailed as error:
        raise ConfigError(f"{unwritten}; see: curate failures {shell_word(work)}") from error
