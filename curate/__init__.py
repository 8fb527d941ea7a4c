"""Idempotent data-curation jobs on Ray: run it, kill it, run it again.

Names are imported when they are first used, so that `curate status` starts without pulling in what jobs need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curate.arrow.expressions import col, lit
    from curate.chain.chain import Chain
    from curate.chain.steps import Step
    from curate.dataset.dataset import Dataset
    from curate.dataset.execute import Options
    from curate.dataset.grouped import GroupedData
    from curate.dataset.read.files import (
        read_binary_files,
        read_csv,
        read_datasource,
        read_images,
        read_json,
        read_numpy,
        read_parquet,
        read_text,
        read_tfrecords,
        read_webdataset,
    )
    from curate.dataset.read.huggingface import read_huggingface
    from curate.dataset.read.libraries import from_duckdb, from_huggingface, from_polars
    from curate.dataset.read.memory import from_arrow, from_items, from_numpy, from_pandas, range
    from curate.errors import BadRow, ConfigError, CorruptInput, CurateError, RetryLater, WriteFailed
    from curate.job.asset import Asset
    from curate.job.job import Job
    from curate.job.params import param
    from curate.job.shapes import FileJob, RowsJob, TextJob
    from curate.ledger.summary import RunState, Summary
    from curate.pipeline.step import ActorPool
    from curate.sources.datasource import Datasource, SourceShard
    from curate.stage.datasink import Datasink

__version__ = "0.1.0"

_HOME = {
    # writing a job
    "Job": "curate.job",
    "TextJob": "curate.job",
    "RowsJob": "curate.job",
    "FileJob": "curate.job",
    "param": "curate.job",
    "Asset": "curate.job",
    # jobs that feed each other
    "Chain": "curate.chain.chain",
    "Step": "curate.chain.steps",
    # rows without a job
    "Dataset": "curate.dataset.dataset",
    "GroupedData": "curate.dataset.grouped",
    "ActorPool": "curate.pipeline.step",
    "Options": "curate.dataset.execute",
    "read_parquet": "curate.dataset.read.files",
    "read_json": "curate.dataset.read.files",
    "read_csv": "curate.dataset.read.files",
    "read_text": "curate.dataset.read.files",
    "read_binary_files": "curate.dataset.read.files",
    "read_images": "curate.dataset.read.files",
    "read_webdataset": "curate.dataset.read.files",
    "read_tfrecords": "curate.dataset.read.files",
    "read_numpy": "curate.dataset.read.files",
    "read_datasource": "curate.dataset.read.files",
    "Datasource": "curate.sources.datasource",
    "Datasink": "curate.stage.datasink",
    "SourceShard": "curate.sources.datasource",
    "from_items": "curate.dataset.read.memory",
    "from_arrow": "curate.dataset.read.memory",
    "from_pandas": "curate.dataset.read.memory",
    "from_numpy": "curate.dataset.read.memory",
    "from_polars": "curate.dataset.read.libraries",
    "from_duckdb": "curate.dataset.read.libraries",
    "from_huggingface": "curate.dataset.read.libraries",
    "read_huggingface": "curate.dataset.read.huggingface",
    "range": "curate.dataset.read.memory",
    "col": "curate.arrow.expressions",
    "lit": "curate.arrow.expressions",
    # what a run returns
    "Summary": "curate.ledger.summary",
    "RunState": "curate.ledger.summary",
    # what it raises
    "CurateError": "curate.errors",
    "ConfigError": "curate.errors",
    "WriteFailed": "curate.errors",
    # what a job raises about its input, or about what it needs
    "CorruptInput": "curate.errors",
    "BadRow": "curate.errors",
    "RetryLater": "curate.errors",
}

_ROOMS = ("testing", "training")
"""What is used as `curate.training.TokenShards`, and costs nothing before."""

__all__ = [
    "ActorPool",
    "Asset",
    "BadRow",
    "Chain",
    "ConfigError",
    "CorruptInput",
    "CurateError",
    "Dataset",
    "Datasink",
    "Datasource",
    "FileJob",
    "GroupedData",
    "Job",
    "Options",
    "RetryLater",
    "RowsJob",
    "RunState",
    "SourceShard",
    "Step",
    "Summary",
    "TextJob",
    "WriteFailed",
    "col",
    "from_arrow",
    "from_duckdb",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "lit",
    "param",
    "range",
    "read_binary_files",
    "read_csv",
    "read_datasource",
    "read_huggingface",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_text",
    "read_tfrecords",
    "read_webdataset",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"curate.{name}")
    if name not in _HOME:
        from curate.operators.ray_data import FUNCTIONS, FUNCTIONS_OF_OTHERS

        instead = FUNCTIONS.get(name) or FUNCTIONS_OF_OTHERS.get(name, "")
        raise AttributeError(f"module 'curate' has no attribute {name!r}{': ' * bool(instead)}{instead}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
