"""A job whose shards run into trouble on the way, each in its own, and come to the same bytes in the end."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from curate.errors import RetryLater
from curate.job.params import param
from tests.e2e.jobs.curation import Curation, _first_time

TROUBLES = ("raise", "later", "slow", "talk", "kill", "exit", "hang")
"""What may happen to a shard. The last three end or stop the worker process: not for the inline backend."""
SLOW_S = 1.5


class Mayhem(Curation):
    """Do what Curation does, after one trouble or two for some of the shards."""

    version = "1"
    luck: str = param("", identity=False, help="folder in which each trouble that was had is noted; none: no trouble")
    troubles: list[str] = param([], identity=False, help=f"kinds of trouble: {', '.join(TROUBLES)}")
    seed: int = param(0, identity=False, help="which shards have which trouble")

    def process(self, batch: pa.Table) -> Iterator[pa.Table]:
        if self.luck and self.troubles:
            first = batch["id"][0].as_py()
            rng = random.Random(f"{self.seed}/{batch['file'][0].as_py()}/{first}")
            if rng.random() < 0.3:
                kind = rng.choice(self.troubles)
                # Twice at most: a shard may die three times.
                for turn in range(rng.choice((1, 1, 2))):
                    if _first_time(f"{self.luck}/{rng.randrange(1 << 48):012x}-{turn}"):
                        self._have(kind)
        yield from super().process(batch)

    def _have(self, kind: str) -> None:
        if kind == "raise":
            raise RuntimeError(f"trouble at {time.time()}")
        if kind == "later":
            raise RetryLater(0.2, "the service is down")
        if kind == "slow":
            time.sleep(SLOW_S)
        if kind == "talk":
            for number in range(5000):
                print("talk", number, file=sys.stderr if number % 2 else sys.stdout)
                self.log.info("talk", number=number)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            os._exit(3)
        if kind == "hang":
            time.sleep(3600)


if __name__ == "__main__":
    Mayhem.main()
