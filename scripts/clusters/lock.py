"""The versions that requirements.lock requires on nodes, and the tag of the image with them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from .problems import Refused, shown

_RAY = re.compile(r"^ray==([0-9][0-9a-z.]*)", re.MULTILINE)


@dataclass(frozen=True)
class Lock:
    """The locked dependencies."""

    ray: str
    """Version of Ray."""
    sha256: str
    """Digest of the lock file."""

    def tag(self, python: str) -> str:
        """Returns the tag of the image with these dependencies: any change of the lock is another image.

        >>> Lock("2.60.0", "0123456789abcdef" * 4).tag("3.11")
        '2.60.0-py311-0123456789ab'
        """
        return f"{self.ray}-py{python.replace('.', '')}-{self.sha256[:12]}"


def read_lock(path: Path) -> Lock:
    """Returns what a lock file says. Raises Refused where it names no version of Ray."""
    content = path.read_bytes()
    found = _RAY.search(content.decode())
    if found is None:
        raise Refused(f"{shown(path)} pins no version of Ray (expected a line `ray==…`): make it with scripts/lock")
    return Lock(found[1], hashlib.sha256(content).hexdigest())
