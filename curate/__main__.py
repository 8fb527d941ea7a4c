"""`curate`, and `python -m curate`: the commands of `curate`."""

from __future__ import annotations

import sys
from typing import Any


def main() -> Any:
    """Runs the command line. Ctrl-C ends it without a traceback while it imports what it needs, too."""
    try:
        from curate.runtime.interrupts import obeyed_everywhere

        with obeyed_everywhere():
            from curate.cli.main import main as run

            return run()
    except KeyboardInterrupt:
        from curate.errors import EXIT_INTERRUPTED

        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
