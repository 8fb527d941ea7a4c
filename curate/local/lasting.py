"""Workers that wait for the next stage, and for the next run of this process, as Ray's do.

A worker that is forked anew touches all of its memory for the first time. That is a third of the CPU of a sort where
the kernel has pages at hand, and as much as all the rest where a virtual machine gives free pages back to its host.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from curate.local.backend import LocalBackend
from curate.local.crew import Crew
from curate.runtime.protocol import PoolSpec, Program

_lock = threading.Lock()
_waiting: tuple[int, Crew] | None = None
"""The process whose workers they are, and these."""


class LastingBackend(LocalBackend):
    """A local backend that leaves its workers to the next one of this process."""

    def load(
        self, program: Program, pools: Sequence[PoolSpec] = (), *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Takes the workers that wait, if tasks are of the same kind and no pool has to be heard of; else these end."""
        crew = _taken()
        if crew is not None and (pools or not self.adopt(crew)):
            crew.processes.close()
        super().load(program, pools, stopped=stopped)

    def close(self) -> None:
        """Ends workers that are at work, or have pools, and removes what they made. All others wait for the next run;
        they end with this process."""
        global _waiting
        crew = self.leave()
        if crew is None:
            return
        with _lock:
            before, _waiting = _waiting, (os.getpid(), crew)
        if before is not None and before[0] == os.getpid():
            before[1].processes.close()


def _taken() -> Crew | None:
    global _waiting
    with _lock:
        found, _waiting = _waiting, None
    # To a fork of that process nobody answers.
    return found[1] if found is not None and found[0] == os.getpid() else None
