"""Classifies an exception of a shard: its kind, its place in user code, and the text for the ledger.

The type decides. If user code wrapped an error (`raise X from error`), the causes count too, but only those that mean
that a service is unavailable: such an error must lead neither to quarantine nor to a permanent failure, whatever the
outer type. `__context__` does not count. An exception group has a kind only if all its errors have that kind.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import pyarrow as pa

from curate import jobs
from curate.errors import (
    ConfigError,
    CurateError,
    DiskFull,
    JobReplacedError,
    RetryLater,
    SchemaMismatch,
    ShardError,
    StorageError,
    TransientStorageError,
    add_hint,
)
from curate.keywords import either_way
from curate.log import redacted
from curate.runtime.lost_gpu import lost_gpu
from curate.runtime.process_guard import spoil
from curate.tasks.failure import Failure, FailureKind, Refusal

MAX_TRACEBACK = 8000
"""Characters of a traceback that travel to the driver: its beginning, with the frames where the message is what is
long, and its end, where the error is."""
MAX_ERROR = 1000
MOST_COLUMNS = 20
"""Columns that are named where one is asked for that a table does not have."""
PASSING = frozenset(
    {
        FailureKind.RETRY_LATER,
        FailureKind.THROTTLED,
        FailureKind.STORAGE,
        FailureKind.DISK_FULL,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.CRASHED,
    },
)
"""Kinds that say nothing about the data: the same rows may do well another time."""
LONGEST_WAIT_S = 86_400.0
"""Seconds that `RetryLater` can make a shard wait: a run that ends late beats one that never ends."""
SWITCH = "CURATE_TRACEBACK"
"""The environment variable that, as `full`, shows frames of curate before those of user code."""
_HOME = Path(__file__).parent.parent
_SAYING = [_HOME / room for room in ("arrow", "operators", "streaming")]
"""Where expressions are computed, what user code returned is refused, and errors of other processes are passed on."""
_MOST_LINKS = 20
"""Causes that are followed; a chain that is longer goes in a circle, or nobody reads it."""


class ForeignOutputError(ShardError):
    """An output with the right name and the record of another job."""


def failure_of(error: BaseException) -> Failure:
    """Returns what an exception means for the shard at hand. Never raises, whatever the exception's own methods do."""
    return Failure(
        kind_of(error),
        summary_of(error),
        # Before it is cut: half of a secret is not known for one.
        _ends_of(redacted(_traceback_of(error))),
        frame=frame_of(error),
        after_s=_wait_of(error),
        reason=_reason_of(error),
        tries=_noted(error, "curate_tries", 1),
        refused=_refused_by(error),
        node=socket.gethostname(),
        pid=os.getpid(),
        peak_bytes=_peak_bytes(),
    )


def kind_of(error: BaseException) -> FailureKind:
    """Returns the kind of an exception: by its type, else by a cause that is passing, else `USER_ERROR`.

    A `MemoryError` is what a kill by the system would have been a moment later: the shard needs more memory. Whatever
    is raised where a GPU has failed for good is `CRASHED`: no rows do well in this process any more, and nothing else
    is to run there.
    """
    for link in _causes(error):
        kind = _own_kind(link)
        if kind in PASSING or (link is error and kind is not FailureKind.USER_ERROR):
            return kind
    return FailureKind.USER_ERROR


def summary_of(error: BaseException) -> str:
    """Returns type and message, bounded."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the exception is user code, and so is what it says of itself
        message = "<its message cannot be shown>"
    return redacted(f"{type(error).__name__}: {message}{_to_install(error)}{_to_have_room(error)}{_hinted(error)}")[
        :MAX_ERROR
    ]


def ended_by(error: BaseException) -> str:
    """Returns what ended a run, in a line: the beginning of an error, and the end of one that quotes a traceback.

    >>> ended_by(ValueError("no actor:\\nTraceback\\nKeyError: 1"))
    'ValueError: no actor: KeyError: 1'
    """
    lines = [one.strip() for one in redacted(f"{type(error).__name__}: {error}").splitlines() if one.strip()]
    return ": ".join(dict.fromkeys([lines[0].removesuffix(":"), lines[-1].removesuffix(":")]))[:MAX_ERROR]


def _to_install(error: BaseException) -> str:
    """Returns what to do about a module that is not there; empty for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    files = [Path(code.co_filename) for code, _ in _frames(error.__traceback__)]
    brought = [file.stem for file in files if file.parent == jobs.FOLDER]
    extra = "embed" if "embed" in brought else "jobs"
    return "; install it where workers run" + (f": pip install 'curate[{extra}]'" if brought else "")


def _to_have_room(error: BaseException) -> str:
    """Returns what to do about memory that was not there; empty for any other error."""
    if not isinstance(error, MemoryError):
        return ""
    what = "" if error.args else "there was too little"  # Python's own says nothing
    return f"{what}; where a task asks for more with {either_way('memory')}, fewer run on a machine at once"


def asked_for_column(error: KeyError, given: pa.Table, more: str) -> None:
    """Notes which columns a table has, if `error` is that of a column that it has not; `more`: how to have others."""
    if str(error.args[:1]).endswith("does not exist in schema',)"):
        names = ", ".join(map(repr, given.column_names[:MOST_COLUMNS]))
        left = ", ..." * (given.num_columns > MOST_COLUMNS)
        add_hint(error, f"the batch has {names or 'no column'}{left}{more}")


def _hinted(error: BaseException) -> str:
    """Returns what may be wrong, where that is known."""
    return str(_noted(error, "curate_hint", ""))


def _noted(error: BaseException, name: str, default: Any) -> Any:
    """Returns what curate has noted on an exception: not what a `__getattr__` of its class makes up for any name."""
    return object.__getattribute__(error, "__dict__").get(name, default)


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - it asks the exception, and those that it came of, for notes
        return "".join([*traceback.format_tb(error.__traceback__), summary_of(error), "\n"])


def frame_of(error: BaseException) -> str:
    """Returns the innermost frame in user code, such as "jobs/toxicity.py:41 in process"; empty if there is none.

    Where curate itself raised, because of an error in user code, it is that error's.
    """
    for link in _causes(error, hidden=True):
        found = ""
        for code, line in _frames(link.__traceback__):
            if is_users(code.co_filename):
                found = f"{_short(code.co_filename)}:{line} in {code.co_name}"
        if found:
            return found
    return ""


def _own_kind(error: BaseException) -> FailureKind:
    if isinstance(error, BaseExceptionGroup):
        kinds = {kind_of(one) for one in error.exceptions}
        return kinds.pop() if len(kinds) == 1 else FailureKind.USER_ERROR
    if isinstance(error, SchemaMismatch) and error.returned:
        return FailureKind.USER_ERROR
    # From the special to the general.
    for type_, kind in (
        (RetryLater, FailureKind.RETRY_LATER),
        (MemoryError, FailureKind.OUT_OF_MEMORY),
        (ForeignOutputError, FailureKind.FOREIGN),
        (ShardError, FailureKind.CORRUPT),
        (ConfigError, FailureKind.MISCONFIGURED),
        (JobReplacedError, FailureKind.MISCONFIGURED),
        (ModuleNotFoundError, FailureKind.MISCONFIGURED),
        (TransientStorageError, FailureKind.THROTTLED),
        (DiskFull, FailureKind.DISK_FULL),
        (StorageError, FailureKind.STORAGE),
    ):
        if isinstance(error, type_):
            return kind
    if answers := lost_gpu():
        spoil(f"the state of its GPU, which answers {answers} to everything from then on")
        return FailureKind.CRASHED
    return FailureKind.USER_ERROR


def _refused_by(error: BaseException) -> Refusal | None:
    """Returns what a store refused that it may refuse to every shard."""
    if kind_of(error) is not FailureKind.STORAGE:
        return None
    refusals = [link.refused for link in _causes(error) if isinstance(link, StorageError) and link.refused]
    return Refusal(refusals[0]) if refusals else None


def _wait_of(error: BaseException) -> float:
    """Returns for how many seconds user code asked to wait; of several errors, the longest."""
    waits = [0.0]
    for link in _causes(error):
        if isinstance(link, RetryLater):
            with contextlib.suppress(TypeError, ValueError):
                # What the user gave, unchecked; for ever is no time to wait.
                waits.append(min(float(link.after_s), LONGEST_WAIT_S))
        elif isinstance(link, BaseExceptionGroup):
            waits += [_wait_of(one) for one in link.exceptions]
    return max(waits)  # NaN is never the larger one


def _reason_of(error: BaseException) -> str:
    """Returns what user code said that it waits for; what it raised, where it said nothing of that."""
    for link in _causes(error):
        if isinstance(link, RetryLater):
            said = str(link.reason) or ("" if link is error else summary_of(error))
            return redacted(said)[:MAX_ERROR]
        if isinstance(link, BaseExceptionGroup):
            return next((said for one in link.exceptions if (said := _reason_of(one))), "")
    return ""


def _causes(error: BaseException, *, hidden: bool = False) -> Iterator[BaseException]:
    """Yields an exception and what it was raised from, on purpose; with `hidden`, also those that it came of where that
    is not shown: a secret was taken out of them."""
    link: BaseException | None = error
    for _ in range(_MOST_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__ or (link.__context__ if hidden else None)


def _frames(trace: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    for frame, line in traceback.walk_tb(trace):
        yield frame.f_code, line


@cache
def _libraries() -> tuple[str, ...]:
    """Returns the folders whose code is not the user's: curate, Python, and what is installed."""
    paths = sysconfig.get_paths()
    installed = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = {Path(__file__).parents[1], *installed}
    return tuple(f"{folder}{os.sep}" for folder in folders)


def is_users(file: str) -> bool:
    """Returns whether a file's code is the user's: not curate's, Python's, or that of an installed package.

    A job that curate brings is the user's.
    """
    if file.startswith(f"{jobs.FOLDER}{os.sep}"):
        return True
    installed = f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file
    # Cython names its sources relative to where a library was built.
    installed = installed or file.endswith((".pyx", ".pxi", ".pxd"))
    return not (installed or file.startswith(("<frozen ", *_libraries())))


def users_frames(error: BaseException) -> TracebackType | None:
    """Returns the traceback of an error from the first frame in user code on: what curate did before is no news. None
    without such a frame."""
    first = error.__traceback__
    while first is not None and not is_users(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first


def show_frames(error: BaseException) -> None:
    """Leaves an error the frames that its reader needs: those of user code. Where curate refuses what user code
    returned, computes an expression, or passes on what another process raised, these are not there any more, and it is
    the last one of curate's, with what it called. All for other errors, and where `SWITCH` says so."""
    # An error whose class takes no attributes refuses to have `__traceback__` set.
    BaseException.with_traceback(error, _shown_frames(error))


def _shown_frames(error: BaseException) -> TracebackType | None:
    if os.environ.get(SWITCH) == "full":
        return error.__traceback__
    if (users := users_frames(error)) is not None:
        return users
    last = one = error.__traceback__
    while one is not None:
        last = one if _HOME in Path(one.tb_frame.f_code.co_filename).parents else last
        one = one.tb_next
    said = isinstance(error, CurateError) or (
        last is not None and Path(last.tb_frame.f_code.co_filename).parent in _SAYING
    )
    return last if said else error.__traceback__


def _short(file: str) -> str:
    """Returns a file's name as its author knows it: below where the program was started, or where Python looks.

    Never with the folder that a working directory was unpacked to: failures are grouped by this.
    """
    path = Path(file)
    if not path.is_absolute():
        return file
    places = [*map(Path, sys.path)]
    with contextlib.suppress(OSError):
        places.append(Path.cwd())
    roots = [place for place in places if place.is_absolute() and len(place.parts) > 1]
    found = [str(path.relative_to(root)) for root in roots if path.is_relative_to(root)]
    return max(found, key=len, default=str(Path(*path.parts[-2:])))


def _ends_of(text: str) -> str:
    if len(text) <= MAX_TRACEBACK:
        return text
    # The note itself takes some of the room.
    part = MAX_TRACEBACK // 2 - 30
    return f"{text[:part]}\n[{len(text) - 2 * part:,} characters are left out]\n{text[-part:]}"


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
