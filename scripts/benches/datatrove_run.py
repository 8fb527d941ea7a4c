"""The rival of `scripts/bench dedup`: datatrove's deduplication, by the Python of its own virtual environment.

    python datatrove_run.py minhash|exact SOURCE OUTPUT WORKERS

It imports what it needs, loads its tokenizer, prints "ready", waits for a line on standard input, runs, and prints the
seconds of each stage as JSON. So neither the start of Python nor imports count; its pools fork, and start without any.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datatrove.data import Document  # type: ignore[import-not-found]
from datatrove.executor.local import LocalPipelineExecutor  # type: ignore[import-not-found]
from datatrove.pipeline.dedup import (  # type: ignore[import-not-found]
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.exact_dedup import ExactDedupConfig  # type: ignore[import-not-found]
from datatrove.pipeline.dedup.minhash import MinhashConfig  # type: ignore[import-not-found]
from datatrove.pipeline.readers import ParquetReader  # type: ignore[import-not-found]
from datatrove.pipeline.writers.parquet import ParquetWriter  # type: ignore[import-not-found]
from loguru import logger  # type: ignore[import-not-found, unused-ignore]

NGRAM, BANDS, ROWS = 5, 14, 8
"""Words of a shingle, and the bands and rows of a signature: those that curate has unless told otherwise."""
Stages = dict[str, tuple[list[Any], int]]
"""By name: the steps of each pipeline, and how many tasks it has."""


def text_of(document: Document) -> str:
    return str(document.text)


def minhash(source: str, output: str, folder: Path, workers: int) -> Stages:
    """Signatures; pairs of a band; clusters, which is one task whatever there is; and the documents that are left."""
    config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    signatures, bands, dropped = (str(folder / name) for name in ("signatures", "bands", "dropped"))
    signature = MinhashDedupSignature(signatures, config=config)
    signature.get_shingles("its tokenizer is loaded by the first text that there is")
    return {
        "signatures": ([ParquetReader(source), signature], workers),
        "bands": ([MinhashDedupBuckets(signatures, bands, config=config)], BANDS),
        "clusters": ([MinhashDedupCluster(bands, dropped, config=config)], 1),
        "filter": ([ParquetReader(source), MinhashDedupFilter(dropped), written(output)], workers),
    }


def exact(source: str, output: str, folder: Path, workers: int) -> Stages:
    """Hashes of whole texts; those that come again; and the documents that are left."""
    config = ExactDedupConfig(content_getter=text_of)
    hashes, dropped = str(folder / "hashes"), str(folder / "dropped")
    return {
        "hashes": ([ParquetReader(source), ExactDedupSignature(hashes, config, finder_workers=workers)], workers),
        "duplicates": ([ExactFindDedups(hashes, dropped, config)], workers),
        "filter": ([ParquetReader(source), ExactDedupFilter(dropped, config), written(output)], workers),
    }


def written(output: str) -> ParquetWriter:
    return ParquetWriter(output, compression="zstd")


def main(kind: str, source: str, output: str, workers: int) -> None:
    logger.remove()
    folder = Path(tempfile.mkdtemp(dir=Path(output).parent))
    run({"minhash": minhash, "exact": exact}[kind](source, output, folder, workers), folder, workers)


def run(stages: Stages, folder: Path, workers: int) -> None:
    """Runs pipelines once it is told to, prints the seconds of each, and removes the folder that they worked in."""
    print("ready", flush=True)  # noqa: T201 - the protocol of this program
    sys.stdin.readline()
    seconds = {}
    for name, (steps, tasks) in stages.items():
        started = time.perf_counter()
        logs = str(folder / f"logs-{name}")
        LocalPipelineExecutor(steps, tasks=tasks, workers=workers, logging_dir=logs, start_method="fork").run()
        seconds[name] = time.perf_counter() - started
    print(json.dumps(seconds), flush=True)  # noqa: T201 - the protocol of this program
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
