"""Existing outputs, as a worker finds them: those of its own job count; others are replaced, or the shard stops.

Of a shard whose input was replaced before anything was made of it, none counts: what there is may be of the old one.
"""

from __future__ import annotations

import contextlib

from curate import log
from curate.dataclass import dataclass, replace
from curate.errors import ConfigError, CorruptInput, GenerationMismatch, ObjectNotFound
from curate.ledger.fencing import FencedStore
from curate.ledger.ledger import Ledger
from curate.ledger.side_outputs import bare
from curate.objects.record import read_record
from curate.pipeline.classify import ForeignOutputError
from curate.stage.job_record import JobRecord
from curate.stage.outputs import NameConflict, books_of, writing
from curate.storage.protocol import Object, Published, Store
from curate.tasks.failure import ShardRecord


@dataclass(frozen=True, slots=True)
class ExistingOutputs:
    """What is there below the output prefix of a job.

    `over` are the generations of outputs that are out of date, by URI: such a one is none.
    """

    store: Store
    root: str
    job: JobRecord
    over: dict[str, str]
    next_part: str = ""
    """URI of the next part of the plan, of a shard that was planned anew: no output of it that is there is taken for
    the one that is to be. Empty: it was not."""
    fence: FencedStore | None = None
    """What knows whether the job is still that of this run."""

    def record(self, index: int, uri: str) -> ShardRecord | None:
        """Returns the record of a shard's output if there is one; a foreign one is removed first, and there is none."""
        return None if self.next_part else self._record(index, uri)

    @writing
    def _record(self, index: int, uri: str) -> ShardRecord | None:
        try:
            found = self.store.stat(uri)
        except ObjectNotFound:
            return None
        if self.over.get(uri) == found.generation:
            return None
        try:
            books = books_of(self.store, found, self.job, self.root)
        except ForeignOutputError as error:
            self._remove_foreign(found, error)
            return None
        except CorruptInput as error:
            if isinstance(error.__cause__, ObjectNotFound):
                return None  # since it was looked at
            raise
        return ShardRecord(index, 0.0, books=books, generation=found.generation, bytes_out=found.size, existed=True)

    def winner(self, index: int, uri: str) -> ShardRecord:
        """Returns the record of an output that was in the way of one of other bytes.

        Another attempt won with different bytes: its output counts, and the difference is reported."""
        done = self._record(index, uri)
        if done is None:
            raise ForeignOutputError(
                f"{uri} existed with other bytes when this shard published and does not exist now: an output of "
                "another identity was removed; the shard runs again"
            )
        return ShardRecord(index, 0.0, None, done.books, done.generation, done.bytes_out, existed=True, different=True)

    def _put_aside(self, found: ShardRecord, uri: str) -> None:
        """Has an output replaced that others made of a shard that was planned anew, against its generation.

        The order tells whose input is the later one: who plans a shard anew does so before it publishes it. So if there
        is no later part of the plan after the output was seen, it is of an input before this one's. Raises
        ForeignOutputError if there is.
        """
        if self.fence is not None:
            self.fence.confirm()
        with contextlib.suppress(ObjectNotFound):
            self.store.stat(self.next_part)
            raise ForeignOutputError(
                f"{uri} was made by a driver that has planned after this one, maybe of a later input, and is not "
                "replaced; the shard runs again, or with the next run"
            )
        self.over[uri] = found.generation
        log.get_logger().warning("an output is replaced that may be of an input before it changed", output=uri)

    def in_the_way(
        self, index: int, uri: str, taken: Published | NameConflict, replaced: dict[str, str]
    ) -> ShardRecord | None:
        """Returns the record of the main output, if that is in the way of this attempt's, or there is one; else None,
        with the extra ones in `replaced`, or the main one in `over`: the shard is to run again.

        Raises ConfigError if one was not written by curate, or the output is another job's now.
        """
        if isinstance(taken, Published):
            winner = self.winner(index, uri)
            if not self.next_part:
                return winner
            self._put_aside(winner, uri)
            return None
        done = self.record(index, uri)
        if done is not None:
            return replace(done, different=True)
        # The same order tells here as below: whoever overwrote the job did so before it published anything.
        self._refuse_if_overwritten()
        for found in taken.objects:
            if not self._written_by_curate(found):
                raise ConfigError(
                    f"{found.uri} was not written by curate, but it has the name of an extra output; move it, or use "
                    "another output"
                )
            replaced[found.uri] = found.generation
            log.get_logger().warning(
                "an extra output has other bytes and no main output; the shard runs again to replace it",
                output=found.uri,
            )
        return None

    def _written_by_curate(self, found: Object) -> bool:
        """Returns whether curate wrote what lies where another file of an output is to be."""
        if found.uri.endswith(bare(self.job.suffix)):
            return True
        try:
            return read_record(self.store, found, self.job.format, self.job.codec) is not None
        except CorruptInput:
            return False

    def _remove_foreign(self, found: Object, error: ForeignOutputError) -> None:
        """Removes what a zombie of a job that was overwritten had published, and nothing else.

        It might be the other way round: this worker may be the zombie. The order tells. A job takes a prefix over
        before it publishes outputs. So `job.json`, read after an output was seen, names a later job than this one if
        the output belongs to a later job. And what is removed is the generation that was seen.

        Raises ConfigError if the output is another job's now; ForeignOutputError if someone else was there first.
        """
        self._refuse_if_overwritten()
        try:
            self.store.delete(found.uri, found.generation)
        except GenerationMismatch:
            raise ForeignOutputError(f"{error}; it was replaced while curate read it; the shard runs again") from error
        log.get_logger().warning("an output of another identity was removed", output=found.uri, error=str(error))

    def _refuse_if_overwritten(self) -> None:
        """Raises ConfigError if the output is another job's now."""
        try:
            told = Ledger(self.store, self.root).read_job()
        except ObjectNotFound:
            told = {"fingerprint": "none: job.json is missing"}
        if not self.job.is_of(told):
            both = (told, self.job.mark)
            theirs, ours = (", seed ".join(str(one[name]) for name in self.job.mark if name in one) for one in both)
            raise ConfigError(
                f"{self.root} is now the output of another job (identity {theirs}, this worker's is {ours}): it was "
                "overwritten during this run; nothing was changed. Wait for the other run to end, or use another output"
            )
