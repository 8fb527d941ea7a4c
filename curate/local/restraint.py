"""When a further worker is worth its start: once tasks have waited for it as long as its imports take.

The first task of a program, as a rule the look for the schema of the output, says how many modules it had to import,
and how long that took. Where these are many, another worker takes seconds of a CPU to start, and the first one may have
done all the rest by then: with a model of scikit-learn, 1,500 modules and 1.3 s, it does the 20,000 comments of the
demo in half of that time. Measured there, of the CPU that the inline backend takes: 1.7 times if all are forked at
once, 1.3 times so. Others are forked once tasks have waited, all together, for as long as the imports took: at worst,
that costs twice of what it would if one knew the future. Where there is little to import, as for most jobs, nobody
waits.

A further worker imports these modules before it is given a task: else it would take one of the last and keep the job
waiting for its imports, while others have nothing to do. It does so by itself, and not the server for all: that could
neither end workers nor watch over memory meanwhile, the imports may start threads, and what they read of variables such
as OMP_NUM_THREADS is a worker's.
"""

from __future__ import annotations

LEAST_MODULES = 100
"""Fewer are not worth waiting for."""


class Restraint:
    """How long workers of one program wait to be forked."""

    def __init__(self) -> None:
        self._due_s = 0.0
        """Seconds that tasks are still to wait, all together."""
        self._looked_s = 0.0
        self._waiting = 0
        """Tasks that waited then."""

    def imported(self, modules: int, seconds: float) -> bool:
        """Takes note of what a task had to import, when nothing else had begun, and of how long it took until then;
        returns whether that is much."""
        if modules < LEAST_MODULES:
            return False
        self._due_s, self._waiting = max(0.0, self._due_s) + seconds, 0
        return True

    def left_s(self, now_s: float, waiting: int) -> float:
        """Returns for how long no worker is to be forked for that many tasks that wait; 0 if one is to be now.

        >>> restraint = Restraint()
        >>> restraint.imported(1500, 1.5)
        True
        >>> restraint.left_s(10.0, 2)
        0.75
        >>> restraint.left_s(10.5, 1)
        0.5
        >>> restraint.left_s(11.0, 1)
        0.0
        """
        self._due_s -= (now_s - self._looked_s) * self._waiting
        self._looked_s, self._waiting = now_s, waiting
        return max(0.0, self._due_s / max(1, waiting))
