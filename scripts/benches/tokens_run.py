"""One contender of `scripts/bench tokenize`, by the Python that has what it needs.

    python tokens_run.py plain|curate|datatrove|dolma SOURCE OUTPUT TOKENIZER END

It imports what it needs, prints "ready", waits for a line on standard input, runs in one process on one core, and
prints `null`: whoever started it knows what it took.
"""

import gzip
import os
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
BATCH = 1024


def datatrove(source: str, output: str, tokenizer: str, end: str) -> Callable[[], None]:
    from datatrove.executor.local import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-not-found]
    from datatrove.pipeline.tokens import DocumentTokenizer  # type: ignore[import-not-found]
    from loguru import logger  # type: ignore[import-not-found, unused-ignore]

    logger.remove()
    steps = [
        JsonlReader(source),
        DocumentTokenizer(output, tokenizer_name_or_path=tokenizer, eos_token=end, shuffle_documents=False),
    ]
    return lambda: LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=f"{output}-logs").run()


def dolma(source: str, output: str, tokenizer: str, end: str) -> Callable[[], None]:
    from dolma.tokenizer.executor import tokenize_in_parallel  # type: ignore[import-not-found]
    from tokenizers import Tokenizer

    id = Tokenizer.from_file(tokenizer).token_to_id(end)
    return lambda: tokenize_in_parallel(
        sources=[f"{source}/*"],
        destination=output,
        num_writers=1,
        num_readers=1,
        tokenizer_name_or_path=tokenizer,
        eos_token_id=id,
        pad_token_id=id,
        dtype="uint16",
        seed=0,
    )


def plain(source: str, output: str, tokenizer: str, end: str) -> Callable[[], None]:
    """Batch by batch."""
    import numpy as np
    import orjson
    from tokenizers import Tokenizer

    def run() -> None:
        vocabulary = Tokenizer.from_file(tokenizer)
        id = vocabulary.token_to_id(end)
        with open(output, "wb") as out:
            for path in sorted(Path(source).iterdir()):
                with gzip.open(path) as lines:
                    while batch := [orjson.loads(line)["text"] for line in islice(lines, BATCH)]:
                        for one in vocabulary.encode_batch(batch, add_special_tokens=False):
                            out.write(np.array([*one.ids, id], np.uint16).tobytes())

    return run


def curate(source: str, output: str, tokenizer: str, end: str) -> Callable[[], None]:
    from curate.jobs.tokens import Tokenize

    def run(source: str = source, output: str = output) -> None:
        job = Tokenize(tokenizer=tokenizer, end_token=end, format="memmap")
        job.run(input=source, output=output, backend="inline")

    # What a process imports when it first runs a job.
    run(f"{source}/../few", f"{output}-few")
    return run


def main(kind: str, source: str, output: str, tokenizer: str, end: str) -> None:
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    makes = {"plain loop": plain, "curate": curate, "datatrove": datatrove, "dolma": dolma}
    run = makes[kind](source, output, tokenizer, end)
    print("ready", flush=True)  # noqa: T201 - the protocol of this program
    sys.stdin.readline()
    run()
    print("null")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
