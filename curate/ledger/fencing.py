"""Fences a driver that was paused, and its workers: they must not write to an output that another driver took over.

A driver may be paused for an hour at any point, between a check and a write, or during a write. Meanwhile another
driver may have found it silent and overwritten the job. Three rules protect the other's work:

- outputs, plan and summary are create-only, so nothing is ever replaced;
- every removal names the generation that was seen;
- and every write and removal of the driver goes through the store below, which first looks whether `job.json` is still
  the object that this run found or made; a write that took long is checked again afterwards, and undone if needed.

It checks only if the driver was silent for longer than `SURE_S`. A driver with a recent heartbeat is never taken for
gone (see `curate.driver.rivals`), so a run that is never paused makes no extra request.

Workers may outlive their driver, or be paused with it. What one publishes late is by its record of the same job: no
input is named there, nor code under a declared version, for the same rows are to be the same bytes. So a task says when
its driver was last sure, and a worker that publishes a shard more than `SURE_S` later looks first: one small request in
that time, however many shards it publishes. What they publish while another driver looks, waits and removes outputs is
theirs to publish: who overwrites removes it once its own `job.json` is there, and before its plan is, for without a
plan no output is of a job. What is left is a driver that is killed on the same machine, and taken for gone at once: its
workers end within two seconds. Of an overwrite that is killed when there is no `job.json` at all, the checksums tell
that it kept of what it removed (`replaced/`). Of a seed that a run has chosen, the record tells; of an input that was
replaced, the event: see `ShardPlan.came_back`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

from curate.around import contextmanager
from curate.clock import Clock
from curate.errors import GenerationMismatch, JobReplacedError, ObjectNotFound
from curate.folders.private import SCRATCH, is_scratch
from curate.ledger import layout
from curate.ledger.listing import OutputListing
from curate.ledger.run_log import HEARTBEAT_S
from curate.storage.protocol import Calls, Object, Outcome, Published, Store, Writer
from curate.units import shell_word

T = TypeVar("T")

SURE_S = 1.5 * HEARTBEAT_S
"""Less than the two heartbeats for which others wait."""


class FencedStore:
    """The store that a driver writes its ledger through: refuses to, once the output is another job's."""

    def __init__(self, inner: Store, root: str, clock: Clock, *, beats: bool = True) -> None:
        """`beats`: others see by heartbeats that this run is alive; else it is never sure, and looks each time."""
        self._inner = inner
        self._root = root
        self._clock = clock
        self._beats = beats
        self._job: str | None = None
        """Generation of `job.json`; None while there is none, and nothing to be another's."""
        self._sure = (0.0, 0.0)
        """When the job was last known to be this run's, by both clocks: one stands still while a machine sleeps."""
        self._lost: JobReplacedError | None = None
        self._was_sent = False
        """Whether this is what a worker was sent: it has no store."""

    def claim(self, generation: str | None, since: tuple[float, float]) -> None:
        """Takes the job of this generation for this run's own; None: there is none.

        `since` is a `moment` before it was seen or made.
        """
        self._job, self._sure = generation, since

    @property
    def job(self) -> str:
        """Generation of the `job.json` that is this run's own; empty while there is none."""
        return self._job or ""

    def in_worker(self, store: Store, clock: Clock, sure_at: float) -> FencedStore:
        """Returns the fence of a worker to which this one was sent, when its driver was last sure at that time; this
        one in the driver's own process, which its heartbeats keep sure."""
        if not self._was_sent:
            return self
        made = FencedStore(store, self._root, clock)
        made.claim(self._job, (sure_at, clock.monotonic()))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_job": self._job, "_was_sent": True}

    @property
    def sure_at(self) -> float:
        """When the job was last known to be this run's, by the clock that tells the time of day."""
        return self._sure[0]

    def moment(self) -> tuple[float, float]:
        """Returns the time by both clocks."""
        return self._clock.now(), self._clock.monotonic()

    def confirm(self) -> None:
        """Looks whether the job is still this run's own: one small request. Raises JobReplacedError."""
        if self._job is None:
            return
        now = self.moment()
        try:
            found = self._inner.stat(f"{self._root}/{layout.JOB}").generation
        except ObjectNotFound:
            found = ""
        self._compare(found, now)

    def confirm_by(self, listing: OutputListing, since: tuple[float, float] | None = None) -> None:
        """Does the same from a listing that was just made, or begun at the moment `since`. Raises JobReplacedError.

        A listing that says otherwise is not believed, but has the store asked: it may be older than it should be.
        """
        if self._job is not None and listing.job_generation != self._job:
            self.confirm()
        else:
            self._compare(listing.job_generation, since or self.moment())

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raises JobReplacedError where something is gone, or another, because the job is: reads are not fenced, and
        who overwrites a job removes what this run was about to read."""
        try:
            yield
        except (ObjectNotFound, GenerationMismatch):
            self.confirm()
            raise

    def raise_if_lost(self) -> None:
        """Raises JobReplacedError if any thread has found that out. Asks nobody."""
        if self._lost is not None:
            raise self._lost

    def _compare(self, found: str, now: tuple[float, float]) -> None:
        if self._job is not None and found != self._job:
            self._lost = JobReplacedError(
                f"{self._root}/{layout.JOB} was {'replaced' if found else 'removed'} while this run ran or was paused: "
                f"{self._meaning(removed=not found)}"
            )
            raise self._lost
        self._sure = now

    def _meaning(self, *, removed: bool) -> str:
        """Returns what that means, and what to do."""
        output, staged, _ = self._root.partition(f"/{layout.STAGES}")
        in_scratch = is_scratch(self._root)
        if removed and (staged or in_scratch):
            # No job's output, and nothing that could be looked at.
            where = f", and set {SCRATCH} to a folder from which nobody removes files" if in_scratch else ""
            return (
                "another run took its place, or somebody removes the intermediate files of the job. Run it again, "
                f"which makes anew what is missing{where}"
            )
        see = "" if in_scratch else f". See: curate status {shell_word(output)}"
        its = "this is now the output of another job, or of another run of it"
        return f"{its}, and this run changed nothing after that{see}"

    def was_paused_since(self, then: tuple[float, float]) -> bool:
        """Returns whether so much time passed since that moment that what was seen then may hold no more."""
        return not (0 <= self._clock.now() - then[0] <= SURE_S and 0 <= self._clock.monotonic() - then[1] <= SURE_S)

    def _is_sure(self) -> bool:
        return self._beats and not self.was_paused_since(self._sure)

    def _before_write(self) -> None:
        self.raise_if_lost()
        if not self._is_sure():
            self.confirm()

    def _after_write(self, written: Object | None) -> None:
        """Undoes a write in the middle of which this process was paused, if the job was lost by then."""
        if self._is_sure():
            return
        try:
            self.confirm()
        except JobReplacedError:
            if written is not None:
                with contextlib.suppress(GenerationMismatch):
                    self._inner.delete(written.uri, written.generation)
            raise

    def fenced(self, write: Callable[[], T]) -> T:
        """Does a write, and returns what it returns. Raises JobReplacedError, and then nothing is there of it."""
        self._before_write()
        done = write()
        created = done.object if isinstance(done, Published) and done.outcome is Outcome.CREATED else None
        self._after_write(created)
        return done

    # The store

    @property
    def calls(self) -> Calls:
        return self._inner.calls

    def list(self, prefix: str) -> Iterator[Object]:
        return self._inner.list(prefix)

    def stat(self, uri: str) -> Object:
        return self._inner.stat(uri)

    def read(self, uri: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._inner.read(uri, start, stop)

    def open(self, object: Object) -> BinaryIO:
        return self._inner.open(object)

    def writer(self, uri: str, *, durable: bool = True) -> Writer:
        self._before_write()
        return self._inner.writer(uri, durable=durable)

    def publish(self, uri: str, data: bytes) -> Published:
        return self.fenced(lambda: self._inner.publish(uri, data))

    def replace(self, uri: str, data: bytes) -> Object:
        """Writes a heartbeat: once it is there, nobody takes this run for gone for a while."""
        self._before_write()
        began = self.moment()
        written = self._inner.replace(uri, data)
        self._after_write(written)
        self._sure = max(self._sure, began)
        return written

    def delete(self, uri: str, generation: str | None = None) -> bool:
        self._before_write()
        return self._inner.delete(uri, generation)

    def may_delete(self, uri: str) -> bool:
        return self._inner.may_delete(uri)
