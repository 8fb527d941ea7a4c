"""Checks that workers run the driver's version of curate: in each worker before its first task, and in each actor.

Ray itself refuses nodes of another Ray or Python. Of a package that is installed on nodes it knows nothing: one that
was set up last month imports last month's curate.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Callable
from pathlib import Path

import curate
from curate.errors import ConfigError

_REFUSED = re.compile(r"ImportError: (workers on \S+ (?:cannot )?import curate.*)")


@functools.cache
def check_of_workers() -> Callable[[], None]:
    """Returns what raises ImportError, with one line on why, in a process that imports another curate than this one.

    It travels as code: what is stale cannot be asked whether it is. So it imports what it needs, and nothing of ours.
    """
    ours = Path(curate.__file__).parent
    version, digest, host, folder = curate.__version__, digest_of(ours), platform.node(), str(ours)
    passed: list[bool] = []

    def check() -> None:
        import hashlib
        import platform
        from pathlib import Path

        if passed:
            return
        here = platform.node()
        try:
            import curate
        except ImportError as error:
            raise ImportError(f"workers on {here} cannot import curate: {error}", name="curate") from None
        found = Path(curate.__file__).parent
        # One and the same folder may be changed while a job runs, by whoever works on it.
        if (here, str(found)) != (host, folder):
            sums = hashlib.sha256()
            for path in sorted(found.rglob("*.py")):
                sums.update(path.relative_to(found).as_posix().encode() + b"\0" + path.read_bytes())
            there = sums.hexdigest()[:12]
            if there != digest:
                raise ImportError(
                    f"workers on {here} import curate {curate.__version__} (code {there}) from {found}, and the driver "
                    f"runs {version} (code {digest}) from {folder} on {host}",
                    name="curate",
                )
        passed.append(True)

    return check


def digest_of(folder: Path) -> str:
    """Returns a digest of the code below a folder: of the names and contents of its Python files."""
    sums = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        sums.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return sums.hexdigest()[:12]


def refuse_other_code(error: BaseException) -> None:
    """Raises ConfigError if an error of Ray's is that of a check: of it there is the text only, if it is an actor's."""
    found = _REFUSED.search(str(error))
    if found is not None:
        raise ConfigError(
            f"{found[1]}; install the same curate on all nodes, or ship it with the job (ray job submit --working-dir)"
        )
