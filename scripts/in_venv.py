"""Imported first by the Python scripts beside it: a script that was started by any other Python goes on in `.venv`.

So each runs as it is, from any folder, with nothing activated; venv.sh makes `.venv` where there is none. This file
runs on the system's own Python, which may be old and has none of what curate needs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def _is_a_script() -> bool:
    """Returns whether a script of this folder is what runs, and not, such as, a test that imports one."""
    return Path(sys.argv[0]).resolve().parent == FOLDER


def _has_curate() -> bool:
    """Returns whether this Python has what scripts need: that of `.venv`, or one with this checkout installed."""
    if Path(sys.prefix).parent == FOLDER.parent:
        return True
    try:
        from importlib.metadata import PackageNotFoundError, distribution
    except ImportError:
        return False
    try:
        # pip notes there which folder it installed.
        origin = distribution("curate").read_text("direct_url.json")
    except PackageNotFoundError:
        return False
    return origin is not None and json.loads(origin).get("url") == FOLDER.parent.as_uri()


if _is_a_script() and not _has_curate():
    program = 'source "$0" && exec "$root/.venv/bin/python" "$@"'
    os.execvp("bash", ["bash", "-c", program, str(FOLDER / "venv.sh"), *sys.argv])
