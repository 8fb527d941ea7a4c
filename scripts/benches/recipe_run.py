"""curate in `scripts/bench recipe`: FineWeb's steps, by the Python of an environment that has spaCy.

    python recipe_run.py warc|rows SOURCE OUTPUT WORKERS DOMAINS

Of the recipe `fineweb`, without the language of a text and without the random order, which its rival leaves out. It
imports what it needs, prints "ready", waits for a line on standard input, runs on so many worker processes, and prints
the seconds of each step as JSON.
"""

import json
import sys
import time
from collections.abc import Iterable

from curate.chain.recipe import Part
from curate.job.asset import Asset
from curate.jobs.fineweb import FineWeb

LEFT_OUT = ("languages", "shards")


class Same(FineWeb):  # type: ignore[misc]
    """The steps that both have."""

    def parts(self, begin: str) -> Iterable[Part]:
        yield from (one for one in super().parts(begin) if one.name not in LEFT_OUT)


def main(begin: str, source: str, output: str, workers: int, domains: str) -> None:
    recipe = Same(shards=1, block_domains=Asset(domains), keep_columns=["url"])
    files = f"{source}/*.{'warc.gz' if begin == 'warc' else 'parquet'}"
    chain = recipe.chain(files, output, begin=begin)
    print("ready", flush=True)  # noqa: T201 - the protocol of this program
    sys.stdin.readline()
    seconds, started = {}, time.perf_counter()

    def ended(step: object) -> None:
        nonlocal started
        now = time.perf_counter()
        seconds[str(getattr(step, "name", step))] = now - started
        started = now

    found = chain.run(backend="local", max_in_flight=workers, ended=ended)
    if not found.complete:
        raise SystemExit(f"the chain is {found.state}")
    print(json.dumps(seconds), flush=True)  # noqa: T201 - the protocol of this program


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
