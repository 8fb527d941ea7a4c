"""The built-in jobs, to run (`curate run toxicity`) and to subclass:

    from curate.jobs.toxicity import Toxicity

Each file is also a program. They are in `jobs/` at the top of the repository; a wheel has them beside this file.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

FOLDER = _HERE / "jobs" if (_HERE / "jobs").is_dir() else _HERE.parent / "jobs"
"""Where their files are."""

__path__ = [str(FOLDER)]


def is_job(module: str) -> bool:
    """Returns whether a module is one of these jobs, by its name.

    >>> is_job("curate.jobs.toxicity"), is_job("curate.job"), is_job("jobs.toxicity")
    (True, False, False)
    """
    return module.startswith(f"{__name__}.")
