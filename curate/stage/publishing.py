"""Publishing beside computing: what short shards become is made visible by threads while the next ones are computed.

    compute 1 ─▶ compute 2 ─▶ compute 3 ─▶ ...          this thread
            └▶ publish 1     └▶ publish 3               threads
                     └▶ publish 2

To publish is to wait: an fsync of a small file takes a third of the time that making it takes, on a busy disk ten times
as long, and so does an upload. Of a local file, threads do the fsync alone (`Writer.settle`). Records come in the order
of the shards, each when its output is there. What a kill costs is what was in flight: a few short shards more.

Only where it pays, and nothing is lost by it: see `Beside.may`. A worker that dies has died of the first shard without
an output, or of one that was computed while that one was published: see `in_flight`. A task begins with some that are
published before the next one is computed, which finds at once what dies early; and shards that are tried again are
published so too, which finds the rest.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Self

from curate import log
from curate.dataclass import dataclass, field, replace
from curate.ledger import layout
from curate.ledger.fencing import FencedStore
from curate.objects.samples import encode_samples, shard_samples
from curate.pipeline.meters import Meters, Timed
from curate.pipeline.remote_error import CapturedError
from curate.pipeline.shard_books import ShardBooks
from curate.sources.protocol import StoreOf
from curate.stage.messages import TaskInput
from curate.stage.outputs import NameConflict, Outputs, writing
from curate.storage.protocol import Calls, Outcome, Published, Store
from curate.tasks.books import Books
from curate.tasks.failure import ShardRecord
from curate.tasks.shard import Shard

SHORT_S = 0.25
"""Seconds of computing above which a shard is published before the next one: there is nothing to gain, and a kill would
cost more."""
SMALL_BYTES = 1 << 20
"""Bytes of outputs above which it is, too: what waits is held, in memory where a store is no disk."""
FIRST_ALONE = 8
"""Short shards in a row after which those that follow in a task are published beside others."""
MOST_OPEN = 32
"""Shards that wait to be published, at most."""
MOST_UPLOADS = 8
"""Those that are uploaded at a time: one takes about as long as computing so many small shards."""
GATHER_S = 0.01
"""How long shards are gathered before a thread looks at them: to wake it for each takes as long as it spares."""


@dataclass(frozen=True, slots=True)
class ShardAttempt:
    """One attempt at one shard."""

    index: int
    """Rank of the shard in the plan."""
    shard: Shard
    given: Any
    """What the source of the rows gives for it."""
    task: TaskInput
    """What it is a part of."""
    store_of: StoreOf
    """Returns the store that a URI of an input lives in."""
    fence: FencedStore | None
    """What publishes nothing to an output that is another run's by now."""


@dataclass(slots=True)
class Aside:
    """What is published beside the outputs of a shard: no part of what makes these the same."""

    samples_uri: str
    samples: bytes | None = None
    """Some of the rows that were dropped."""
    quarantine: str | None = None
    """URI of what holds the rows that were set aside, which the record names."""
    bad_rows: bytes = b""
    replaces: bool = False
    """Whether there are samples of an earlier run, which may be of another input."""

    def set_aside(self, store: Store) -> None:
        """Publishes the rows that were set aside, if there are any, and they are not there."""
        if self.quarantine is not None:
            store.publish(self.quarantine, self.bad_rows)

    @writing
    def publish(self, store: Store) -> None:
        """Publishes the quarantine, and the samples in place of those of another input or another version."""
        self.set_aside(store)
        if self.samples is not None:
            if store.publish(self.samples_uri, self.samples).outcome is Outcome.DIFFERENT:
                store.replace(self.samples_uri, self.samples)
        elif self.replaces:
            store.delete(self.samples_uri)


def aside_of(output: str, shard: str, tally: ShardBooks, hide: Callable[[str], str], *, replaces: bool) -> Aside:
    """Returns what is published beside the outputs of a shard below an output.

    `hide` returns text without what must not be written down. `replaces`: there are samples of an earlier run.
    """
    aside = Aside(f"{output}/{layout.samples(shard_samples(shard))}", replaces=replaces)
    if tally.samples:
        aside.samples = encode_samples([replace(one, shard=shard, row=hide(one.row)) for one in tally.samples.rows()])
    if tally.quarantine is not None:
        digest, aside.bad_rows = tally.quarantine.finish()
        aside.quarantine = f"{output}/{layout.QUARANTINE}{digest}.jsonl.zst"
    return aside


@dataclass(slots=True)
class WholeShard:
    """A shard that is computed: all bytes of its outputs are written, and none is visible."""

    attempt: ShardAttempt
    outputs: Outputs
    books: Books
    meters: Meters
    publish_all: Callable[[], Published | NameConflict]
    """Publishes its outputs, and what lies beside them."""
    quarantine: str
    """Where its bad rows are, below the output; empty where there are none."""
    seconds: float = 0.0
    """What it took so far."""
    held_bytes: int = 0
    """Most memory that its process held for itself; 0 where that is not known."""
    _begun: Future[Published | NameConflict | None] | None = None
    _taken: threading.Lock = field(default_factory=threading.Lock)
    """Held from when a thread uploads it."""
    _ended: Published | NameConflict | Exception | None = None

    def publish(self) -> Published | NameConflict:
        """Publishes all of it, once; waits for the thread that has begun to."""
        if self._ended is None:
            try:
                begun = None if self._begun is None else self._begun.result()
                self._ended = begun or self._publish()
            except Exception as error:  # noqa: BLE001 - it is raised below, and again for whoever asks again
                self._ended = error
        if isinstance(self._ended, Exception):
            raise self._ended
        return self._ended

    def _publish(self) -> Published | NameConflict:
        with Timed(self.meters.write):
            fence = self.attempt.fence
            published = self.publish_all() if fence is None else fence.fenced(self.publish_all)
        self.meters.write.bytes_out = self.outputs.bytes_out
        return published

    def begin(self) -> None:
        """From now on, who publishes it waits for `go_ahead`."""
        self._begun = Future()

    def go_ahead(self, uploads: Executor, run: str) -> None:
        """Waits for what publishing would wait for, in a thread; `run` is the key of the run, for events."""
        assert self._begun is not None
        try:
            # Where a store can wait ahead, no more than that: each system call of a thread takes turns with another.
            if self.outputs.wait_ahead():
                self._begun.set_result(None)
                return
        except Exception as error:  # noqa: BLE001 - whoever publishes it raises it
            self._begun.set_exception(error)
            return
        try:
            uploads.submit(self._upload, run)
        except RuntimeError:
            # No further thread is to be had. If there are others, one of them may come first.
            self._upload(run)

    def _upload(self, run: str) -> None:
        assert self._begun is not None
        if not self._taken.acquire(blocking=False):
            return
        try:
            with log.bound(run=run, shard=self.attempt.shard.id, attempt=self.attempt.task.attempt):
                self._begun.set_result(self._publish())
        except Exception as error:  # noqa: BLE001 - as above
            self._begun.set_exception(error)

    def may_wait(self, seconds: float) -> bool:
        """Returns whether it may be published beside others, having taken so long."""
        return seconds < SHORT_S and self.outputs.size <= SMALL_BYTES

    @property
    def waits(self) -> bool:
        """Whether `publish` would wait for a thread."""
        return self._begun is not None and not self._begun.done()

    def told(self, calls: Callable[[], Calls]) -> ShardRecord | None:
        """Returns its record, once it is known what became of it, with the `calls` that were made by then; None if
        others are in the way: see `publish`."""
        started = time.perf_counter()
        found: Published | NameConflict | Exception
        try:
            found = self.publish()
        except Exception as error:  # noqa: BLE001 - as what computing a shard raises
            found = error
        else:
            if not isinstance(found, Published) or found.outcome is Outcome.DIFFERENT:
                return None
        with self:
            seconds = self.seconds + time.perf_counter() - started
            if isinstance(found, Published):
                return self.record(found, seconds, calls())
            failure = CapturedError.of(found).failure
            return ShardRecord(self.attempt.index, seconds, failure, calls=calls(), held_bytes=self.held_bytes)

    def record(self, published: Published, seconds: float = 0.0, calls: Calls | None = None) -> ShardRecord:
        """Returns what is told of it, which took so long, once the output is there as it was written."""
        return ShardRecord(
            self.attempt.index,
            seconds,
            books=self.books,
            generation=published.object.generation,
            bytes_out=published.object.size,
            calls=calls,
            meters=self.meters.packed(write=True),
            checksum=self.outputs.checksum,
            held_bytes=self.held_bytes,
            quarantine=self.quarantine,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._begun is not None:
            # Its files are closed by whoever publishes them.
            self._begun.exception()
        self.outputs.close()


def may_overlap(attempt: int, task_timeout_s: float | None) -> bool:
    """Returns whether shards of a task may be published beside others.

    A time limit counts from the record of the shard before, which is not to wait for anything; nor is a shard to share
    the way to the store. What is tried again may be there already, and is tried to find out what a worker died of.
    """
    return attempt == 1 and task_timeout_s is None


def in_flight(number: int, attempt: int, task_timeout_s: float | None) -> int:
    """Returns how many shards of a task, from the one of this number on, may have begun before that one is published.

    >>> in_flight(7, 1, None), in_flight(8, 1, None), in_flight(8, 2, None)
    (1, 32, 1)
    """
    return MOST_OPEN if number >= FIRST_ALONE and may_overlap(attempt, task_timeout_s) else 1


class Beside:
    """The shards of one task, in order, some of which are being published. Leaving the block waits for these."""

    def __init__(self, run: str, *, allowed: bool) -> None:
        """`run`: its key; `allowed`: whether any may be published beside others."""
        self._run = run
        self._allowed = allowed
        self._short = 0
        """Short shards in a row."""
        self._open: deque[ShardRecord | WholeShard] = deque()
        self._gathered: deque[WholeShard] = deque()
        self._thread: threading.Thread | None = None
        self._any, self._now = threading.Event(), threading.Event()
        """Whether any are gathered; whether they are wanted at once."""
        self._over = False

    @property
    def may(self) -> bool:
        """Whether the next shard may be published beside others, if it turns out short."""
        return self._allowed and self._short >= FIRST_ALONE

    def add(self, made: ShardRecord | WholeShard) -> None:
        """Takes the next shard, and begins to publish it if it is not done."""
        self._open.append(made)
        self._short = self._short + 1 if made.seconds < SHORT_S else 0
        if isinstance(made, WholeShard) and self._has_thread():
            made.begin()
            self._gathered.append(made)
            if not self._any.is_set():
                self._any.set()

    def _has_thread(self) -> bool:
        """Starts the thread. Where none is to be had, because a limit is reached, each shard is published in turn."""
        if self._thread is None and self._allowed:
            thread = threading.Thread(target=self._go_ahead, name="publish")
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:
                self.forbid()
        return self._thread is not None

    def _go_ahead(self) -> None:
        with ThreadPoolExecutor(MOST_UPLOADS, "publish") as uploads:
            over = False
            while not over:
                self._any.wait()
                self._now.wait(GATHER_S)
                self._any.clear()
                # Asked first: then all that is ever gathered is there.
                over = self._over
                while self._gathered:
                    self._gathered.popleft().go_ahead(uploads, self._run)

    def forbid(self) -> None:
        """From now on, each shard is published before the next one."""
        self._allowed = False

    def done(self, most_open: int = MOST_OPEN - 1) -> Iterator[ShardRecord | WholeShard]:
        """Yields those of the first shards that need no waiting for, and of the others until `most_open` are left."""
        if not most_open:
            self._now.set()
        while (first := next(iter(self._open), None)) is not None:
            if isinstance(first, WholeShard) and first.waits and len(self._open) <= most_open:
                return
            # Taken out when it is dealt with: what is left is closed.
            yield first
            self._open.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._over = True
            self._now.set()
            self._any.set()
            self._thread.join()
        for one in self._open:
            if isinstance(one, WholeShard):
                one.__exit__(None, None, None)
