"""Every error curate raises on purpose, in one tree.

A message says what was found, what was expected and what to do next. The class says what happens: a `ConfigError`
refuses the whole job before anything is dispatched (exit 2), the `ShardError`s fail one shard, and a
`TransientStorageError` is retried inside the storage layer and never seen by a job unless its deadline passes.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""Exit codes of all commands: 128 and the number of SIGINT, as shells have it. Those of runs: `RunState.exit_code`."""


MOST_LISTED = 30
"""Names that a message tells of those that there are."""


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception, if it takes one: what it says itself counts for more.

    Of a class whose `__getattr__` or `__setattr__` are its own, such as a frozen dataclass, it may not.
    """
    with contextlib.suppress(Exception):
        error.add_note(note)


def add_hint(error: BaseException, hint: str) -> None:
    """Adds what may be wrong to an exception, which is said behind its message where a run ends, if it takes that."""
    with contextlib.suppress(Exception):
        error.curate_hint = f"; {hint}"  # type: ignore[attr-defined]


class CurateError(Exception):
    """Root of all errors that curate raises on purpose.

    >>> try:
    ...     curate.range(3).select_columns(["nr"])
    ... except curate.CurateError as error:
    ...     print(type(error).__name__)
    ConfigError
    """


class ConfigError(CurateError):
    """The job cannot run with these arguments; nothing was dispatched. Exit code 2.

    >>> curate.range(3).select_columns(["nr"])
    Traceback (most recent call last):
    curate.errors.ConfigError: select_columns('nr'): there is no column 'nr'; there are 'id'
    """

    column: str | None = None
    """The column that is not there, or that cannot be what it is asked for as: options may have named it."""
    argument: tuple[str, Any, str] | None = None
    """The argument that is refused, if it is one: its name, its value, and what is wrong, as it goes on behind that."""

    @classmethod
    def of_column(cls, message: str, column: str | None) -> Self:
        """Returns the error for a column that somebody has named.

        >>> curate.ConfigError.of_column("no column 'txet'; it has text", "txet").column
        'txet'
        """
        error = cls(message)
        error.column = column
        return error

    @classmethod
    def of_argument(cls, what: str, value: Any, problem: str) -> Self:
        """Returns the error for an argument: `what` it is called, behind who was given it, if that is told; `problem`
        goes on from there.

        >>> str(curate.ConfigError.of_argument("take: limit", -1, " is -1; give 0 or more"))
        'take: limit is -1; give 0 or more'
        """
        error = cls(what + problem)
        error.argument = (what.rpartition(": ")[2], value, problem)
        return error


class CannotBeMet(ConfigError):
    """What was asked for cannot be made of these rows, which is known once all of them were looked at: the job is taken
    back, so that it can be run with other parameters. Exit code 2."""


class MissingColumn(ConfigError):
    """A file lacks a column that was asked for."""


class StorageError(CurateError):
    """A storage call failed for good."""

    refused = ""
    """What was refused that may be refused to every shard: "read", or "write" of an output; empty: neither."""


class ObjectNotFound(StorageError):
    """The object does not exist (or not at the generation that was asked for)."""

    def __init__(self, message: str = "", uri: str = "") -> None:
        """`uri`: that of the object; empty if its store does not say it."""
        super().__init__(message)
        self.uri = uri


class DiskFull(StorageError):
    """A file cannot be written: the disk, or the quota of who writes, has no room for it."""

    def __init__(self, uri: str, written: int | None, free: int, inodes: int | None = None) -> None:
        """`written`: bytes of the file when that was found, those included that did not fit; None: not known.
        `inodes`: files for which there is room; None: not known, or not limited."""
        super().__init__(uri, written, free, inodes)
        self.uri = uri
        self.written = written
        self.free = free
        self.inodes = inodes

    def __str__(self) -> str:
        if self.inodes == 0:
            return (
                f"{self.uri} cannot be written: the file system takes no more files (0 inodes are free; {self.free:,} "
                "bytes are); remove files there, or choose another output, and run again"
            )
        needed = "" if self.written is None else f"this file needs {self.written:,} bytes or more, "
        return (
            f"{self.uri} cannot be written: the disk or its quota is full; free space and run again ({needed}"
            f"{self.free:,} are free)"
        )


class PermissionDenied(StorageError):
    """The store refused the call: credentials are missing or lack the right."""

    refused = "read"


class GenerationMismatch(StorageError):
    """The object is no longer the one that was seen: its generation differs from the expected one."""


class TransientStorageError(StorageError):
    """Throttled (429, 503), timed out or reset. Retried with full jitter until the call's deadline."""


class JobReplacedError(CurateError):
    """The job that a run works on was removed or overwritten meanwhile: nothing there is that run's any more."""


def interrupted_run() -> KeyboardInterrupt:
    """Returns the interrupt of a run that had begun: what is done is kept, and the next run resumes.

    Of no class of its own: only if nobody handles a KeyboardInterrupt itself does Python end as shells expect (130).
    """
    interrupt = KeyboardInterrupt("run it again to resume: finished shards are skipped")
    interrupt.__dict__[_BEGUN] = True
    return interrupt


def had_begun(interrupt: KeyboardInterrupt) -> bool:
    """Returns whether it is the interrupt of a run that had begun.

    >>> had_begun(interrupted_run()), had_begun(KeyboardInterrupt())
    (True, False)
    """
    return _BEGUN in interrupt.__dict__


_BEGUN = "run_had_begun"


class RetryLater(CurateError):
    """Raised by user code: a service that it needs is busy or down; make this call again later.

    The call of user code that raised is made again after at least `after_s` seconds: that of a batch (`process`,
    `map_batches`), of a row (`map`, `flat_map`, `filter`) or of a group (`map_groups`). Finished calls are not
    repeated. A shard without a finished call gives up its slot for waits of a second or more. A shard fails after 20
    such waits of one call in a row. No row is quarantined.

    `process_file` is one call for a whole file, so its shard runs again from the start.

    >>> raise curate.RetryLater(60, "HTTP 429")
    Traceback (most recent call last):
    curate.errors.RetryLater: run again in 60 s: HTTP 429
    """

    def __init__(self, after_s: float = 30.0, reason: str = "") -> None:
        super().__init__(after_s, reason)
        self.after_s = after_s
        """How many seconds to wait at least."""
        self.reason = reason
        """What is not there now; it is shown while the shard waits."""

    def __str__(self) -> str:
        return f"run again in {self.after_s:g} s{': ' if self.reason else ''}{self.reason}"


class BadRow(CurateError):
    """Raised by user code: one row of this batch is bad; it is quarantined, and the other rows are processed.

    `row` is its position in the batch; without it, curate finds the row by processing parts of the batch.

    >>> def checked(row):
    ...     if row["id"] == 1:
    ...         raise curate.BadRow("not a number that we like")
    ...     return row
    >>> checked({"id": 1})
    Traceback (most recent call last):
    curate.errors.BadRow: not a number that we like
    """

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason, row)
        self.reason = reason
        """Why it is bad; kept with the row in quarantine."""
        self.row = row
        """Its position in the batch, from 0; None if that is not known."""

    def __str__(self) -> str:
        return self.reason


class StreamFailed(CurateError):
    """A piece of a stream was given up: its worker died too often, or what it raised cannot be sent to the consumer."""


class WriteFailed(CurateError):
    """A dataset is not all written: shards failed. What is done stays, and calling the write again resumes it.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "in.jsonl").write_text('{"n": 1}\\n' + "{ no JSON\\n")
    >>> try:
    ...     curate.read_json(folder / "in.jsonl").write_parquet(folder / "out", backend="inline", max_bad_rows=0)
    ... except curate.WriteFailed as error:
    ...     print(error.summary.state, error.summary.done, error.summary.failed)
    failed 0 1
    """

    summary: Any
    """The `Summary` of the run."""


class CheckpointFailed(CurateError):
    """What is to be written to a checkpoint is not complete, so nothing can be read from there."""


class ExchangeFailed(CurateError):
    """A stage of rows that are consumed failed, so nothing can be read of what follows it."""


class PoolFailed(CurateError):
    """A pool of actors cannot be: what its actors run cannot be set up. The message has the traceback."""


class SetupFailed(CurateError):
    """No worker can be made ready for a job: its `setup` ends the process, or does not return."""


class ShardError(CurateError):
    """One shard cannot be finished; the others go on. Never retried: trying again would give the same."""


class CorruptInput(ShardError):
    """The input cannot be read: truncated gzip, a broken Parquet footer, an object that vanished or changed.

    >>> raise curate.CorruptInput("the archive has no index")
    Traceback (most recent call last):
    curate.errors.CorruptInput: the archive has no index
    """


class WrongRecord(CorruptInput):
    """The record of an output is whole, and says what no record of curate says."""


class DamagedRun(CorruptInput):
    """A run file of an exchange, `uri`, is cut, changed or gone: the map shard that wrote it must be run again."""

    def __init__(self, uri: str, problem: str) -> None:
        super().__init__(uri, problem)
        self.uri = uri
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.uri}: {self.problem}; delete it, and its map shard is run again"


class SumOverflow(ShardError):
    """The sum of a group of rows does not fit the type of sums of its column."""


class TooManyBadRows(ShardError):
    """More rows of a shard were quarantined than its budget (`max_bad_rows`) allows."""


class SchemaMismatch(ShardError):
    """A table does not have the schema that it is held to: an input, or what user code returned."""

    returned = False
    """Whether user code returned it: then it is that code's fault, and the shard is tried again as for any other."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Returns `"; did you mean 'x'?"` for the known word closest to `word`, or an empty string; also for no word.

    >>> did_you_mean("bach_size", ["batch_size", "version"])
    "; did you mean 'batch_size'?"
    >>> did_you_mean("zzz", ["batch_size"])
    ''
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7) if isinstance(word, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_column(name: str, names: Sequence[str]) -> str:
    """Returns the words for a column that is not among `names`, of which a wide table's first are told.

    >>> unknown_column("txt", ["id", "text"])
    "there is no column 'txt'; did you mean 'text'?; there are 'id', 'text'"
    """
    if not names:
        return f"there is no column {name!r}, nor any other, as where no input has a row; run it once there are rows"
    return f"there is no column {name!r}{did_you_mean(name, names)}; there are {listed(names)}"


def listed(names: Iterable[str]) -> str:
    """Returns names for a message: a wide table's first ones, and how many more there are.

    >>> listed(f"c{n}" for n in range(40))[-24:]
    "'c28', 'c29' and 10 more"
    """
    known = list(names)
    more = len(known) - MOST_LISTED
    return ", ".join(map(repr, known[:MOST_LISTED])) + (f" and {more:,} more" if more > 0 else "")


def refuse_other(what: str, value: object, known: Collection[str]) -> None:
    """Raises ConfigError, which names it `what`, for a value that is none of the known words.

    >>> refuse_other("keep", "frist", ("first", "last"))
    Traceback (most recent call last):
    curate.errors.ConfigError: keep='frist'; did you mean 'first'?; there are first and last
    """
    if value not in known:
        *others, last = known
        told = f"{', '.join(others)} and {last}" if others else last
        raise ConfigError.of_argument(what, value, f"={value!r}{did_you_mean(value, known)}; there are {told}")
