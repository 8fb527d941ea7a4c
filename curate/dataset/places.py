"""Where the stages of a job lie: below its output, or where only this machine reads (see `curate.tasks.layout`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import suppress

from curate.errors import ConfigError
from curate.storage import beneath, private
from curate.tasks import layout

SCRATCH = private.SCRATCH


def scratch_root() -> str:
    """Returns where files are kept that only this machine reads: $CURATE_SCRATCH, else a folder of this user's in that
    of the system for temporaries. It exists then. Raises ConfigError if others could put something there.
    """
    return private.private(private.place(SCRATCH), SCRATCH)


def stages_root(output: str, *, alone: bool) -> str:
    """Returns the folder of a job's stages; `alone`: all tasks run on this machine."""
    return scratch_of(output) if alone and may_be_scratch(output) else f"{output}/{layout.STAGES.rstrip('/')}"


def may_be_scratch(output: str) -> bool:
    """Returns whether a job's stages may lie where only one machine reads."""
    return output.startswith("gs://")


def scratch_of(output: str) -> str:
    """Returns where the stages of a job lie, if they lie where only this machine reads."""
    return f"{private.place(SCRATCH)}/{hashlib.sha256(output.encode()).hexdigest()[:16]}"


def has_scratch(output: str) -> bool:
    """Returns whether there are stages of a job where only this machine reads. Raises ConfigError if others could have
    put something there."""
    return may_be_scratch(output) and private.is_private(scratch_of(output), SCRATCH)


def refuse_planted(output: str) -> None:
    """Raises ConfigError if others could have put something where the stages of a job lie that only this machine reads,
    or there is a link in it. Makes nothing."""
    if has_scratch(output):
        beneath.refuse_links(private.place(SCRATCH), [scratch_of(output)], [])


def make_scratch(output: str) -> None:
    """Makes the folder of a job's stages where only this machine reads. Raises ConfigError as `refuse_planted`."""
    private.private(scratch_of(output), SCRATCH)


def stages_roots(output: str, stages: set[str]) -> Iterator[str]:
    """Yields the folders in which there are stages of a job; `stages`: those in its output's own store."""
    if stages:
        yield stages_root(output, alone=False)
    if has_scratch(output):
        yield scratch_of(output)


def remove_stages(root: str, kept: Collection[str] = ()) -> None:
    """Removes the stages in a local folder of a job's stages, but for those of these keys, and the folder once it is
    empty. What has no name of curate's stays, and nothing is removed through a link."""
    above, _, name = root.rpartition("/")

    def is_ours(one: str) -> bool:
        own = one.removeprefix(f"{name}/")
        return own != one and (not own or (layout.is_of_stage(own) and own.partition("/")[0] not in kept))

    def leads(one: str) -> bool:
        own = one.removeprefix(f"{name}/")
        return own != one and layout.may_hold_runs(own) and own.partition("/")[0] not in kept

    with suppress(ConfigError):  # a link in the place of one of these folders: what is behind it is not the job's
        beneath.remove(beneath.root_of(root), above, is_ours, leads=leads)


def stages_in(output: str, stages: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Yields the folders in which there are stages of a job, each with the keys of those."""
    for root in stages_roots(output, stages):
        if root == stages_root(output, alone=False):
            yield root, stages
        else:
            with os.scandir(root) as entries:
                yield root, {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
