"""The rival of `scripts/bench recipe`: FineWeb's steps by datatrove, run by the Python of its own environment.

    python datatrove_recipe.py warc|rows SOURCE OUTPUT WORKERS DOMAINS

The steps are those of datatrove's example of FineWeb, but for the language of a text, which asks for a model that
would be downloaded. It imports what it needs, splits a text once, prints "ready", waits for a line on standard input,
runs, and prints the seconds of each pipeline as JSON. Its pools fork, so they start without any import.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from datatrove.data import Document  # type: ignore[import-not-found]
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
from datatrove_run import minhash, run, written  # type: ignore[import-not-found]
from loguru import logger  # type: ignore[import-not-found, unused-ignore]


def stages(begin: str, source: str, output: str, folder: Path, workers: int, domains: list[str]) -> Any:
    """Filters; then the stages of MinHash, the last of which also replaces addresses in the documents that are left."""
    filtered = str(folder / "filtered")
    urls = URLFilter(extra_domains=domains, use_integrated_lists=False)
    first: list[Any] = [ParquetReader(source), urls]
    if begin == "warc":
        # Its way out of pages that hang is an alarm of a second by the clock, which a busy machine rings.
        first = [WarcReader(source), urls, Trafilatura(favour_precision=True, timeout=10)]
    rules = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False)]
    GopherQualityFilter().filter(Document(text="this is the first text", id="0"))
    near = minhash(filtered, output, folder, workers)
    (*steps, writer), tasks = near["filter"]
    near["filter"] = ([*steps, PIIFormatter(), writer], tasks)
    return {"filters": ([*first, *rules, FineWebQualityFilter(), written(filtered)], workers), **near}


def main(begin: str, source: str, output: str, workers: int, domains: str) -> None:
    logger.remove()
    folder = Path(tempfile.mkdtemp(dir=Path(output).parent))
    made = stages(begin, source, output, folder, workers, Path(domains).read_text().split())
    run(made, folder, workers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
