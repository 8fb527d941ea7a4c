"""Idempotent data-curation jobs on Ray: run it, kill it, run it again.

Names are imported when they are first used, so that `curate status` starts without pulling in what jobs need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curate.dataset.lazy.api import Dataset
    from curate.dataset.lazy.execution import Options
    from curate.dataset.lazy.reading import (
        from_arrow,
        from_items,
        from_numpy,
        from_pandas,
        range,
        read_binary_files,
        read_csv,
        read_images,
        read_json,
        read_parquet,
        read_text,
    )
    from curate.dataset.pipeline import ActorPool
    from curate.errors import BadRow, ConfigError, CorruptInput, CurateError, RetryLater
    from curate.job import Asset, FileJob, Job, TextJob, param
    from curate.tasks.summary import RunState, Summary

__version__ = "0.1.0"

_HOME = {
    # writing a job
    "Job": "curate.job",
    "TextJob": "curate.job",
    "FileJob": "curate.job",
    "param": "curate.job",
    "Asset": "curate.job",
    # rows without a job
    "Dataset": "curate.dataset.lazy.api",
    "ActorPool": "curate.dataset.pipeline",
    "Options": "curate.dataset.lazy.execution",
    "read_parquet": "curate.dataset.lazy.reading",
    "read_json": "curate.dataset.lazy.reading",
    "read_csv": "curate.dataset.lazy.reading",
    "read_text": "curate.dataset.lazy.reading",
    "read_binary_files": "curate.dataset.lazy.reading",
    "read_images": "curate.dataset.lazy.reading",
    "from_items": "curate.dataset.lazy.reading",
    "from_arrow": "curate.dataset.lazy.reading",
    "from_pandas": "curate.dataset.lazy.reading",
    "from_numpy": "curate.dataset.lazy.reading",
    "range": "curate.dataset.lazy.reading",
    # what a run returns
    "Summary": "curate.tasks.summary",
    "RunState": "curate.tasks.summary",
    # what it raises
    "CurateError": "curate.errors",
    "ConfigError": "curate.errors",
    # what a job raises about its input, or about what it needs
    "CorruptInput": "curate.errors",
    "BadRow": "curate.errors",
    "RetryLater": "curate.errors",
}

__all__ = [
    "ActorPool",
    "Asset",
    "BadRow",
    "ConfigError",
    "CorruptInput",
    "CurateError",
    "Dataset",
    "FileJob",
    "Job",
    "Options",
    "RetryLater",
    "RunState",
    "Summary",
    "TextJob",
    "from_arrow",
    "from_items",
    "from_numpy",
    "from_pandas",
    "param",
    "range",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_parquet",
    "read_text",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'curate' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
