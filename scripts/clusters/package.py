"""What `ray job submit` would upload of a folder: the same rules, by the same code, before anything is sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from curate.units import format_bytes

from .problems import Refused

EXCLUDES = ("/tests", "/infra")
"""What no job needs, beside what .gitignore names."""
LIMIT_MIB = 25
_SHOWN = 5


@dataclass(frozen=True)
class Package:
    """The files of a folder that are sent."""

    sizes: dict[str, int]
    """Bytes by relative path."""

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())

    def largest(self) -> list[tuple[str, int]]:
        """Returns the largest files, and folders of many files, of the top two levels."""
        parts: dict[str, int] = {}
        for path, size in self.sizes.items():
            words = path.split("/")
            name = path if len(words) <= 2 else f"{words[0]}/{words[1]}/"
            parts[name] = parts.get(name, 0) + size
        return sorted(parts.items(), key=lambda one: (-one[1], one[0]))[:_SHOWN]


def package(folder: Path, excludes: Sequence[str] = EXCLUDES) -> Package:
    """Returns what Ray would send of a folder: less `.git`, `.venv`, what .gitignore and .rayignore name, excludes."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env import packaging

    sizes: dict[str, int] = {}

    def note(path: Path) -> None:
        if path.is_file():
            sizes[str(path.relative_to(folder))] = path.stat().st_size

    folder = folder.resolve()
    patterns = [*get_runtime_env_default_excludes(), *excludes]
    chosen = [packaging._get_excludes(folder, patterns)]
    # Ray logs each .gitignore that it reads.
    quiet = logging.getLogger(f"{__name__}.quiet")
    quiet.setLevel(logging.ERROR)
    packaging._dir_travel(folder, chosen, note, include_gitignore=True, logger=quiet)
    return Package(sizes)


def limited(found: Package, limit_mib: float, script: str | None) -> None:
    """Raises Refused where more would be sent than the limit, or the script would not be."""
    limit = int(limit_mib * 2**20)
    if found.size_bytes > limit:
        largest = ", ".join(f"{name} ({format_bytes(size)})" for name, size in found.largest())
        raise Refused(
            f"the job would take {format_bytes(found.size_bytes)} with it, and the limit is {format_bytes(limit)}; the "
            f"largest are {largest}: name them in .gitignore or with --exclude, keep data in the bucket, or raise "
            "--limit-mib"
        )
    if script is not None and script not in found.sizes:
        raise Refused(f"{script} would not be sent: it is not there, or .gitignore, .rayignore or --exclude names it")
