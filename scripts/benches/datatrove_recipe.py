"""The rival of `scripts/bench recipe`: FineWeb's steps by datatrove, run by the Python of its own environment.

    python datatrove_recipe.py warc|rows SOURCE OUTPUT WORKERS DOMAINS

The steps are those of datatrove's example of FineWeb, but for the language of a text, which asks for a model that
would be downloaded. It imports what it needs, splits a text once, prints "ready", waits for a line on standard input,
runs, and prints the seconds of each pipeline as JSON. Its pools fork, so they start without any import.
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
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig  # type: ignore[import-not-found]
from datatrove.pipeline.extractors import Trafilatura  # type: ignore[import-not-found]
from datatrove.pipeline.filters import (  # type: ignore[import-not-found]
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    URLFilter,
)
from datatrove.pipeline.formatters import PIIFormatter  # type: ignore[import-not-found]
from datatrove.pipeline.readers import ParquetReader, WarcReader  # type: ignore[import-not-found]
from datatrove.pipeline.writers.parquet import ParquetWriter  # type: ignore[import-not-found]
from loguru import logger  # type: ignore[import-not-found, unused-ignore]

NGRAM, BANDS, ROWS = 5, 14, 8
Stages = dict[str, tuple[list[Any], int]]
"""By name: the steps of each pipeline, and how many tasks it has."""


def stages(begin: str, source: str, output: str, folder: Path, workers: int, domains: list[str]) -> Stages:
    """Filters; signatures; pairs of a band; clusters; and the documents that are left, without addresses."""
    filtered, signatures, bands, dropped = (str(folder / one) for one in ("filtered", "signatures", "bands", "dropped"))
    config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    urls = URLFilter(extra_domains=domains, use_integrated_lists=False)
    first: list[Any] = [ParquetReader(source), urls]
    if begin == "warc":
        # Its way out of pages that hang is an alarm of a second by the clock, which a busy machine rings.
        first = [WarcReader(source), urls, Trafilatura(favour_precision=True, timeout=10)]
    rules = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False)]
    signature = MinhashDedupSignature(signatures, config=config)
    signature.get_shingles("its tokenizer is loaded by the first text that there is")
    GopherQualityFilter().filter(Document(text="this is the first text", id="0"))
    return {
        "filters": ([*first, *rules, FineWebQualityFilter(), written(filtered)], workers),
        "signatures": ([ParquetReader(filtered), signature], workers),
        "bands": ([MinhashDedupBuckets(signatures, bands, config=config)], BANDS),
        "clusters": ([MinhashDedupCluster(bands, dropped, config=config)], 1),
        "rest": ([ParquetReader(filtered), MinhashDedupFilter(dropped), PIIFormatter(), written(output)], workers),
    }


def written(output: str) -> ParquetWriter:
    return ParquetWriter(output, compression="zstd")


def main(begin: str, source: str, output: str, workers: int, domains: str) -> None:
    logger.remove()
    folder = Path(tempfile.mkdtemp(dir=Path(output).parent))
    made = stages(begin, source, output, folder, workers, Path(domains).read_text().split())
    print("ready", flush=True)  # noqa: T201 - the protocol of this program
    sys.stdin.readline()
    seconds = {}
    for name, (steps, tasks) in made.items():
        started = time.perf_counter()
        logs = str(folder / f"logs-{name}")
        LocalPipelineExecutor(steps, tasks=tasks, workers=workers, logging_dir=logs, start_method="fork").run()
        seconds[name] = time.perf_counter() - started
    print(json.dumps(seconds), flush=True)  # noqa: T201 - the protocol of this program
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
