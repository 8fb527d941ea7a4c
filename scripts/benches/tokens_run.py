"""A rival of `scripts/bench tokenize`: datatrove's or dolma's tokenizer, by the Python of its own virtual environment.

    python tokens_run.py datatrove|dolma SOURCE OUTPUT TOKENIZER END

It imports what it needs, prints "ready", waits for a line on standard input, runs in one process on one core, and
prints the seconds of CPU, user and system, as JSON.
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"


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


def spent_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def main(kind: str, source: str, output: str, tokenizer: str, end: str) -> None:
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    run = {"datatrove": datatrove, "dolma": dolma}[kind](source, output, tokenizer, end)
    print("ready", flush=True)  # noqa: T201 - the protocol of this program
    sys.stdin.readline()
    before = spent_s()
    run()
    print(json.dumps(spent_s() - before))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
