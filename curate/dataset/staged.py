"""A job of several stages: what comes before is run first, and kept for as long as the job can go on from it.

    <output>/_curate/inputs/<hash>.parquet   the inputs, as the job began with them
    <output>/_curate/stages/<key>/           a stage before the last one, with a ledger of its own

A stage's key is made of what it does and of what it reads, so that a stage that is there is the right one: a run that
comes later, or another job with the same beginning that overwrites this one, goes on from it. When the job is complete,
they are removed.

What an exchange gives depends on all of the inputs. So these are frozen when the job begins: a run that finds others
refuses, and says what is new, gone and changed. `job.json`, which is create-only, names them and has the seed: of two
drivers that begin at once, one adopts what the other wrote.

Whoever finds a run file that is damaged removes it (see `lazy.ranges`). What needed it fails. Then the stages are
looked at again: of each, the shards run that have no output, and after them what failed. Nothing else remembers what
was lost.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.clock import Clock
from curate.dataset.commit import refuse_other_job, remove_job
from curate.dataset.course import At, Course
from curate.dataset.earlier import earlier_of
from curate.dataset.inputs import list_inputs, understand
from curate.dataset.lazy.run_files import opened
from curate.dataset.ownership import OwnedStore
from curate.dataset.places import SCRATCH, may_be_scratch, scratch_of, stages_root, stages_roots
from curate.dataset.prepare import EXAMPLES, Prepared, Seen, Stores, job_of, overwritten, resolve_output
from curate.dataset.rivals import refuse_rivals
from curate.dataset.signals import Signals
from curate.dataset.spec import Before, RunOptions, StageSpec
from curate.errors import (
    ConfigError,
    DamagedRun,
    DiskFull,
    GenerationMismatch,
    JobReplacedError,
    ObjectNotFound,
    StorageError,
)
from curate.log import get_logger
from curate.runtime import make_backend
from curate.runtime.protocol import Backend, Resources
from curate.storage import is_local
from curate.storage.local import remove_scratch
from curate.storage.protocol import Object, Outcome, Store
from curate.tasks import layout
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import OutputListing, match
from curate.tasks.plan import Plan
from curate.tasks.stages import LAST, WRITE, StageReport, numbered
from curate.tasks.summary import RunState, Summary, together
from curate.units import format_bytes

MANIFEST = pa.schema([("uri", pa.string()), ("size", pa.int64()), ("generation", pa.string())])
MOST_MENDED = 3
"""How often a run makes a file again that a later stage found damaged or gone."""

A = TypeVar("A")
RunStage = Callable[[StageSpec, RunOptions], A | None]
"""Does a stage; returns None if all of it is done then, else what is to be said about that."""


class Runner(Protocol):
    """Runs one stage to its end."""

    def __call__(
        self, spec: StageSpec, options: RunOptions, *, seen: Seen | None = None, at: At | None = None
    ) -> Summary:
        """Returns its summary. `at` hears how it goes on. With `seen`, which says that nothing is left to do, raises
        WorkLeftError if that is not so."""
        ...


class WorkLeftError(Exception):
    """Something is to be done after all."""


# What stages are called, and where they are


def key_of(spec: StageSpec) -> str:
    """Returns what a stage is called: 16 hex digits of what it does and what it reads."""
    told = [spec.fingerprint, _reads(spec)]
    return hashlib.sha256(orjson.dumps(told)).hexdigest()[:16]


def _reads(spec: StageSpec) -> Any:
    if spec.before:
        return [key_of(one.spec) if one.path is None else _checkpoint(one) for one in spec.before]
    return spec.rows.manifest() if spec.rows is not None else None


def _checkpoint(before: Before) -> Any:
    # By what it is made of: where it lies, there may be another one by then.
    files = None if before.listing is None else before.listing.to_pylist()
    return [before.spec.fingerprint, _reads(before.spec), files]


def stages_of(spec: StageSpec) -> Iterator[StageSpec]:
    """Yields the job's own stages before this one, in the order in which they run."""
    for before in spec.before:
        if before.path is None:
            yield from stages_of(before.spec)
            yield before.spec


def planned(spec: StageSpec) -> tuple[StageReport, ...]:
    """Returns the job's stages, in the order in which they run, this one last; one that is read twice is there once."""
    found: dict[str, StageReport] = {}
    for stage in stages_of(spec):
        name = stage.name.removeprefix(f"{spec.name}: ")
        found.setdefault(key_of(stage), StageReport(key_of(stage), name, _feeding(stage)))
    return (*found.values(), StageReport(LAST, WRITE, _feeding(spec)))


def _feeding(spec: StageSpec) -> tuple[str, ...]:
    return tuple(key_of(before.spec) for before in spec.before if before.path is None and before.feeds)


def _reports(stages: Sequence[StageReport], root: str) -> tuple[StageReport, ...]:
    """Returns the job's stages, of which all are done but the last one, as their ledgers tell of them."""
    *before, last = stages

    def read(one: StageReport) -> StageReport:
        output = f"{root}/{one.key}"
        told = Ledger(Stores("").of(output), output).read_json(layout.SUMMARY)
        return StageReport.of({**told, **one.planned(), "state": RunState.COMPLETE.value})

    return (*map(read, before), last)


def listed(spec: StageSpec, known: dict[tuple[str, ...], Any]) -> StageSpec:
    """Returns a stage with the files listed that its checkpoints are made of; each of `known` is listed once."""

    def of(before: Before) -> Before:
        if before.inputs and before.inputs not in known:
            patterns = [understand(text) for text in before.inputs]
            known[before.inputs] = list_inputs(patterns, Stores("").of).table.select(MANIFEST.names)
        return replace(before, spec=listed(before.spec, known), listing=known.get(before.inputs))

    return replace(spec, before=tuple(map(of, spec.before))) if spec.before else spec


def manifest_of(spec: StageSpec) -> Any:
    """Returns the files that the first stages of a job read, in their order: uri, size and generation."""
    tables = [MANIFEST.empty_table()]
    for before in spec.before:
        tables.append(manifest_of(before.spec))
        if before.listing is not None:
            tables.append(before.listing.cast(MANIFEST))
    if spec.rows is not None:
        tables.append(spec.rows.listing())
    return pa.concat_tables(tables)


# Running them


def run_before(spec: StageSpec, root: str, options: RunOptions, run_stage: RunStage[A]) -> StageSpec | A:
    """Runs the stages before this one, each in a folder of its own below `root`; what is there is not made again.

    Returns the stage as it reads them; or what is said about the first of them that is not done then. Raises DamagedRun
    if the end of a run file is damaged, which is removed.
    """
    found: list[Sequence[Object]] = []
    kept = tuple(before for before in spec.before if before.path is not None)
    for before in spec.before:
        if before.path is not None:
            continue
        own = f"{root}/{key_of(before.spec)}"
        bound = before.spec.bind is not None
        ready = run_before(before.spec, root, options, run_stage) if bound else before.spec
        if not isinstance(ready, StageSpec):
            return ready
        ended = run_stage(ready, _of_stage(options, own))
        if ended is not None:
            return ended
        found.append(_outputs(ready, own))
    assert spec.bind is not None
    ready = spec.bind(spec, found)
    if ready.bind is not None and ready.before is not spec.before:
        # What there is tells that there is one more stage to come before: run files are to be merged.
        merged = run_before(ready, root, options, run_stage)
        if not isinstance(merged, StageSpec):
            return merged
        ready = merged
    # A checkpoint is left to who runs the stage, which reads it as files are read.
    return replace(ready, before=kept, bind=None) if kept else ready


def _of_stage(options: RunOptions, output: str) -> RunOptions:
    """Returns how to run one of the stages before the last: whole, whatever part of that was asked for."""
    return replace(
        options,
        inputs=(),
        output=output,
        overwrite=False,
        retry_failed=False,
        redo_stale=False,
        limit=None,
        sample=None,
    )


def _outputs(spec: StageSpec, output: str) -> list[Object]:
    """Returns the outputs of a stage, in the order of its plan. Raises DamagedRun if one is gone, or all of it."""
    ledger = Ledger(Stores("").of(output), output)
    listing = ledger.list()
    if not listing.has_job:
        raise DamagedRun(output, "it is gone")
    plan = ledger.read_plan(listing)
    matched = match(plan, listing, spec.suffix)
    for rank in (~matched.done).nonzero()[0][:1].tolist():
        raise DamagedRun(ledger.uri(plan.shard_id(rank) + spec.suffix), "it is gone")
    names, sizes, generations = (
        column.take(pa.array(matched.position)).to_pylist()
        for column in (listing.names, listing.sizes, listing.generations)
    )
    return [Object(ledger.uri(name), size, own) for name, size, own in zip(names, sizes, generations, strict=True)]


def run_staged(
    spec: StageSpec,
    options: RunOptions,
    clock: Clock,
    run_stage: Runner,
    signals: Signals,
    backend: Backend | None = None,
) -> Summary:
    """Runs a job of several stages until every shard is done or has failed, and returns the summary of the last stage,
    or of the one that did not end well. Nothing is started, and no stage looked at, if the job is complete.
    """
    output = resolve_output(options.output)
    job = _look(spec, options, output, clock)
    if job.done:
        try:
            # It was not asked for what is there; and there is nothing else.
            ended = run_stage(_as_planned(job), options, seen=job.seen)
        except WorkLeftError:
            pass
        else:
            if ended.state is RunState.COMPLETE and not options.keep_stages:
                sweep(job.stores.of(output), output, known=job.listing.stages)
            return ended
    _refuse_mixed_keys(job)
    try:
        with _connected(options.backend, backend, signals) as alone:
            job.spec, options = _begin(job, options, clock)
            root = stages_root(output, alone=alone)
            with Course(job.spec, options, job.ledger, clock, planned(job.spec), lambda: job.stores.calls) as course:
                ended = _all(job.spec, replace(options, display=course.display), root, run_stage, signals, job, course)
                ended = course.summary(ended)
    finally:
        if is_local(output):
            remove_scratch(job.stores.scratch)
    if ended.state is RunState.COMPLETE and not options.keep_stages and _is_complete(job):
        sweep(job.stores.of(output), output)
    return ended


def _all(
    spec: StageSpec,
    options: RunOptions,
    root: str,
    run_stage: Runner,
    signals: Signals,
    job: _Job,
    course: Course,
) -> Summary:
    """Runs all stages; again, where a later one found files of an earlier one damaged, or gone. Returns the summary of
    the one that was run last."""
    log = get_logger(job=spec.name)
    rounds: list[Summary] = []
    mended: Counter[str] = Counter()
    while True:
        done: list[tuple[StageSpec, str]] = []

        def run(stage: StageSpec, how: RunOptions, done: list[tuple[StageSpec, str]] = done) -> Summary | None:
            key = how.output.rpartition("/")[2]
            ended = run_stage(stage, how, at=course.stage(key, stage.name))
            course.ended(key, ended)
            if ended.state is not RunState.COMPLETE:
                return ended
            if signals.interrupts.interrupts or signals.interrupts.terminated:
                # It came while the last of this stage ran. The next one would hear of it no more.
                return replace(ended, state=RunState.INTERRUPTED)
            done.append((stage, how.output))
            return None

        try:
            try:
                ready = run_before(spec, root, options, run)
                if isinstance(ready, StageSpec):
                    _refuse_other_shards(ready, job)
                    earlier = earlier_of(spec, partial(_place, root), job.ledger)
                    ready = replace(ready, earlier=earlier, reports=_reports(course.stages, root))
            except (JobReplacedError, ObjectNotFound):
                if not _complete_now(job):
                    raise
                # The driver beside this one has completed the job, and removed its stages.
                return run_stage(_as_planned(job), options, seen=job.seen)
            if isinstance(ready, StageSpec):
                ended = run_stage(ready, options, at=course.stage(LAST, spec.name))
                course.ended(LAST, ended)
                rounds.append(ended)
            else:
                ended = ready
        except DamagedRun as error:
            mended[error.uri] += 1
            if mended[error.uri] > MOST_MENDED:
                raise StorageError(_hopeless(error.uri)) from error
            problem = f"{error.uri}: {error.problem}"
        else:
            _tell_if_full(ended, spec)
            if rounds and ended is rounds[-1]:
                ended = together(rounds)
            if ended.state not in (RunState.FAILED, RunState.ABORTED) or not (lost := _lost(done)):
                return ended
            mended.update(lost)
            worst = max(lost, key=mended.__getitem__)
            if mended[worst] > MOST_MENDED:
                log.error(_hopeless(worst))
                return ended
            problem = f"{worst} is gone" + (f", and {len(lost) - 1:,} more" if len(lost) > 1 else "")
        log.warning("files of an earlier stage were damaged or gone; what made them runs again", problem=problem)
        if _complete_now(job):
            return run_stage(_as_planned(job), options, seen=job.seen)


def _as_planned(job: _Job) -> StageSpec:
    """Returns the last stage of a job of which all outputs are there."""
    earlier = None
    reports: tuple[StageReport, ...] = ()
    if job.listing.summary is None:
        # A run ended between the last output and the summary: what the stages before say goes into that.
        for alone in (True, False):
            root = stages_root(job.ledger.root, alone=alone)
            with suppress(ObjectNotFound):
                earlier = earlier_of(job.spec, partial(_place, root), job.ledger)
                reports = _reports(planned(job.spec), root)
                break
    return replace(job.spec, rows=_Planned(job.plan), earlier=earlier, reports=reports)


def _place(root: str, stage: StageSpec) -> str:
    return f"{root}/{key_of(stage)}"


def _hopeless(uri: str) -> str:
    return (
        f"{uri} was found damaged or gone {MOST_MENDED + 1} times, each time after it had been made again: that disk "
        f"loses what is written, or somebody removes it. Look at it, or have stages elsewhere ({SCRATCH}, or another "
        "--output), and run this again"
    )


def _lost(done: Sequence[tuple[StageSpec, str]]) -> list[str]:
    """Returns the outputs that are gone of stages that were complete."""
    lost = []
    for stage, output in done:
        ledger = Ledger(Stores("").of(output), output)
        listing = ledger.list()
        if not listing.has_job:
            lost.append(output)
            continue
        plan = ledger.read_plan(listing)
        missing = (~match(plan, listing, stage.suffix).done).nonzero()[0]
        lost += [ledger.uri(plan.shard_id(rank) + stage.suffix) for rank in missing.tolist()]
    return lost


def _refuse_other_shards(spec: StageSpec, job: _Job) -> None:
    """Raises ConfigError if the last stage has other outputs than its plan says: outputs of both would be mixed."""
    if not len(job.plan):
        return
    assert spec.rows is not None
    now, then = set(spec.rows.inputs()["name"].to_pylist()), set(job.plan.ids.to_pylist())
    if now != then:
        raise ConfigError(
            f"{job.ledger.root} was planned as {len(then):,} outputs, and this curate makes other ones of the same "
            f"rows, {len(now):,} of them; go on with the version that began it, or start over with --overwrite"
        )


def _tell_if_full(ended: Summary, spec: StageSpec) -> None:
    """Says how much room a stage would have needed that has failed because a disk was full."""
    if not any(group.error.startswith(f"{DiskFull.__name__}:") for group in ended.failures):
        return
    ledger = Ledger(Stores("").of(ended.output), ended.output)
    listing = ledger.list()
    plan = ledger.read_plan(listing)
    stage = next((one for one in stages_of(spec) if ended.output.endswith(f"/{key_of(one)}")), spec)
    matched = match(plan, listing, stage.suffix)
    read = int(plan.sizes[matched.done].sum())
    written = sum(listing.sizes.take(pa.array(matched.position[matched.done])).to_pylist())
    left = int(plan.sizes[~matched.done].sum())
    # What was written of what was read, if that is known; else as if nothing grew.
    needed = round(left * (written / read if read else 1.0))
    free = shutil.disk_usage(_existing(ended.output)).free if is_local(ended.output) else 0
    get_logger(job=spec.name).error(
        "the disk is full",
        where=ended.output,
        written=format_bytes(written),
        needs=f"about {format_bytes(needed)} more",
        free=format_bytes(free),
        next=f"make room there, or give another place ({SCRATCH}, or --output), and run this again: it goes on",
    )


def _existing(path: str) -> str:
    while not os.path.exists(path):  # noqa: PTH110
        path = os.path.dirname(path)  # noqa: PTH120
    return path


@contextmanager
def _connected(name: str, given: Backend | None, signals: Signals) -> Iterator[bool]:
    """Stays connected to where tasks run, so that the stages do not each begin with that; tells whether that is this
    machine alone."""
    held = given or make_backend(name)
    try:
        try:
            held.start(Resources(num_cpus=0.0))
        except SystemExit as error:
            # Ray's handler of SIGTERM, while it starts.
            raise KeyboardInterrupt from error
        finally:
            signals.install()
        yield held.alone()
    finally:
        if not signals.interrupts.terminated:
            held.close()


def dry_staged(
    spec: StageSpec, options: RunOptions, clock: Clock, look: Callable[[StageSpec, RunOptions], tuple[Prepared, str]]
) -> tuple[Prepared, str]:
    """Returns what a run would begin with, and in words what it would do. Writes nothing."""
    output = resolve_output(options.output)
    job = _look(spec, options, output, clock)
    spec = _with_seed(job, 0) if job.job is None else job.spec
    if job.done:
        return look(replace(spec, rows=_Planned(job.plan)), options)
    _refuse_mixed_keys(job)
    told = _told(spec, spec, options)

    def unfinished(stage: StageSpec, how: RunOptions) -> tuple[Prepared, str] | None:
        nonlocal told
        prepared, text = look(stage, how)
        if not len(prepared.todo):
            return None
        told = _told(spec, stage, how)
        return prepared, text

    # Where a run would have them it knows once it is connected; here, where they are.
    alone = may_be_scratch(output) and os.path.isdir(scratch_of(output))  # noqa: PTH112
    try:
        ready = run_before(spec, stages_root(output, alone=alone), options, unfinished)
    except DamagedRun as error:
        raise ConfigError(f"{error}: run this without --dry-run") from error
    prepared, text = look(ready, options) if isinstance(ready, StageSpec) else ready
    return prepared, f"{told}\n{text}"


def _told(last: StageSpec, stage: StageSpec, how: RunOptions) -> str:
    """Returns which stage of a job one is, as people are told."""
    key = LAST if stage.name == last.name else how.output.rpartition("/")[2]
    stages = planned(last)
    # One that merges run files was not planned.
    return numbered(stages, key) if key in {one.key for one in stages} else stage.name.removeprefix(f"{last.name}: ")


@dataclass(frozen=True, slots=True)
class _Reached:
    """The stage that was looked for."""

    spec: StageSpec


def as_run(spec: StageSpec, options: RunOptions, key: str, clock: Clock) -> StageSpec:
    """Returns a stage of a job that has begun, the last one or one before it, as runs have it. Writes nothing.

    Raises ConfigError if the job or its inputs are others by now, and if what the stage reads is not there.
    """
    output = resolve_output(options.output)
    if spec.from_inputs is not None:
        spec = spec.from_inputs(options)
    job = _look(spec, options, output, clock)
    again = f"run the job first, or with --keep-stages if it is complete; see: curate status {output}"

    def reached(stage: StageSpec, how: RunOptions) -> _Reached | None:
        found = how.output.rpartition("/")[2]
        if found == key:
            return _Reached(stage)
        if Ledger(Stores("").of(how.output), how.output).list().summary is None:
            raise ConfigError(f"what that shard reads is not there: {_told(job.spec, stage, how)} is not done; {again}")
        return None

    # Where they are is known to those who run the job alone; here, where the first of them is.
    roots = [*stages_roots(output, job.listing.stages), stages_root(output, alone=False)]
    try:
        ready = run_before(job.spec, roots[0], options, reached)
    except DamagedRun as error:
        raise ConfigError(f"what that shard reads is damaged: {error.uri}: {error.problem}; {again}") from error
    return ready.spec if isinstance(ready, _Reached) else ready


# The beginning of the job


class _Planned:
    """The shards of a job as its plan has them: that of a job of which nothing is left to do."""

    schema = pa.schema([])

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def inputs(self) -> Any:
        table = self._plan.table
        return pa.table(
            [table["uri"], table["id"], table["object_bytes"], table["generation"]],
            names=["uri", "name", "size", "generation"],
        )

    def refuse_keys(self, what: str, columns: Sequence[str]) -> None:
        """Nothing is read any more."""

    def given(self, uri: str) -> Any:
        raise AssertionError(f"nothing is left to do, nothing for {uri}")

    def parts(self, *_: Any) -> Iterator[Any]:
        raise AssertionError("nothing is left to do")

    def holder(self, rank: int) -> str:
        raise AssertionError(f"nothing is left to do, nothing for part {rank}")

    def manifest(self) -> Any:
        return None

    def listing(self) -> Any:
        return MANIFEST.empty_table()


@dataclass
class _Job:
    """A job as it was found."""

    spec: StageSpec
    """The last stage; with its seed, if the job has one already."""
    owned: OwnedStore
    ledger: Ledger
    seen: Seen
    manifest: Any
    """The files that it reads now."""
    known: dict[tuple[str, ...], Any]
    """What was listed for that."""
    job: dict[str, Any] | None
    """`job.json`; None: there is none, or it is to be removed."""
    plan: Plan
    """The outputs; empty if they are not planned yet."""
    done: bool
    """Whether all of them are there."""

    @property
    def listing(self) -> OutputListing:
        return self.seen.listing

    @property
    def stores(self) -> Stores:
        return self.seen.stores


def _look(spec: StageSpec, options: RunOptions, output: str, clock: Clock) -> _Job:
    """Looks at the job, one listing and a few small reads. Raises ConfigError if it is another one, or its inputs are
    not those that it began with."""
    stores = Stores(f"{output}/{layout.TMP}begin-{secrets.token_hex(4)}")
    owned = OwnedStore(stores.of(output), output, clock)
    ledger = Ledger(owned, output)
    known: dict[tuple[str, ...], Any] = {}
    spec = listed(spec, known)
    manifest = manifest_of(spec)
    _refuse_own_output(manifest, output)
    moment = owned.moment()
    listing = ledger.list()
    owned.claim(listing.job_generation or None, moment)
    seen = Seen(moment, listing, stores)
    found = _Job(spec, owned, ledger, seen, manifest, known, None, Plan.of([]), False)
    if options.overwrite:
        return found
    told = job_of(spec, ledger, listing)
    if listing.has_job:
        _refuse_other_inputs(ledger, told, manifest)
        found.job = told
        found.spec = _with_seed(found, told.get("seed", 0))
        found.plan = ledger.read_plan(listing)
        found.done = len(found.plan) > 0 and bool(match(found.plan, listing, spec.suffix).done.all())
    return found


def _complete_now(job: _Job) -> bool:
    """Returns whether all outputs are there by now, as another driver may have made them; looks again."""
    moment = job.owned.moment()
    job.seen = Seen(moment, job.ledger.list(), job.stores)
    job.plan = job.ledger.read_plan(job.listing)
    return len(job.plan) > 0 and bool(match(job.plan, job.listing, job.spec.suffix).done.all())


def _is_complete(job: _Job) -> bool:
    """Returns whether every output is there, and not only those that this run was asked for."""
    try:
        job.ledger.store.stat(job.ledger.uri(layout.SUMMARY))
    except ObjectNotFound:
        return False
    return True


def _begin(job: _Job, options: RunOptions, clock: Clock) -> tuple[StageSpec, RunOptions]:
    """Begins the job, or adopts how another driver began it. Returns its last stage, with its seed, and how to run it.

    In an order in which a kill between any two calls leaves what the next run can go on from. Raises ConfigError.
    """
    spec = job.spec
    if options.overwrite:
        if job.listing.has_job or job.listing.plan_parts:
            _overwrite(job, options, clock)
        options = replace(options, overwrite=False)
    if not job.listing.plan_parts:
        # What has failed was a stage before: of this one nothing was tried yet.
        options = replace(options, retry_failed=False)
    if job.job is not None:
        return spec, options
    return _with_seed(job, _publish_job(job).get("seed", 0)), options


def _publish_job(job: _Job) -> dict[str, Any]:
    """Writes down what the job is and reads; returns that, or what another driver wrote. Raises ConfigError."""
    spec, ledger = job.spec, job.ledger
    told = job_of(spec, ledger, OutputListing(None, None, None))
    if spec.seeded is not None:
        told["seed"] = secrets.randbits(63)
    told["inputs"] = _publish_inputs(ledger, job.manifest)
    told["stages"] = [one.planned() for one in planned(_with_seed(job, told.get("seed", 0)))]
    moment = job.owned.moment()
    published = ledger.store.publish(ledger.uri(layout.JOB), orjson.dumps(told, option=orjson.OPT_INDENT_2))
    if published.outcome is Outcome.DIFFERENT:
        told = ledger.read_job()
        refuse_other_job(spec, ledger, told)
        _refuse_other_inputs(ledger, told, job.manifest)
    job.owned.claim(published.object.generation, moment)
    return told


def _refuse_mixed_keys(job: _Job) -> None:
    """Raises ConfigError if a key has other types in some of the files that a job is about to begin with."""
    if job.job is None:
        for stage in stages_of(job.spec):
            if stage.rows is not None and stage.runs is not None:
                stage.rows.refuse_keys(stage.name, [key.column for key in stage.runs.order.keys])


def _with_seed(job: _Job, seed: int) -> StageSpec:
    spec = job.spec
    return spec if spec.seeded is None else listed(spec.seeded(seed), job.known)


def _publish_inputs(ledger: Ledger, found: Any) -> str:
    """Writes down the inputs; returns the name. Named by its content: one that no job names decides nothing."""
    sink = io.BytesIO()
    pq.write_table(found, sink, compression="zstd")
    name = layout.inputs_of(hashlib.sha256(sink.getvalue()).hexdigest()[:16])
    ledger.store.publish(ledger.uri(name), sink.getvalue())
    return name


def _refuse_own_output(manifest: Any, output: str) -> None:
    """Raises ConfigError if the job reads what it writes."""
    for uri in manifest["uri"].to_pylist():
        if uri.startswith(f"{output}/"):
            raise ConfigError(f"the input {uri} lies below the output {output}: choose another output")


def _refuse_other_inputs(ledger: Ledger, job: dict[str, Any], found: Any) -> None:
    """Raises ConfigError unless the inputs are those that the job began with."""
    name = job.get("inputs", layout.inputs_of("?"))
    try:
        data = ledger.store.read(ledger.uri(name))
    except ObjectNotFound as error:
        raise ConfigError(
            f"{ledger.uri(name)} is missing, which says what the job began with; the ledger was damaged from "
            "outside: choose another --output, or start over with --overwrite"
        ) from error
    before = dict(_rows(pq.read_table(io.BytesIO(data))))
    now = dict(_rows(found))
    if before == now:
        return
    lines = []
    for what, names in (
        ("new", [uri for uri in now if uri not in before]),
        ("gone", [uri for uri in before if uri not in now]),
        ("changed", [uri for uri in now if uri in before and now[uri] != before[uri]]),
    ):
        if names:
            more = f" and {len(names) - EXAMPLES:,} more" if len(names) > EXAMPLES else ""
            lines.append(f"  {what}: {', '.join(names[:EXAMPLES])}{more}")
    raise ConfigError(
        f"the inputs of {ledger.root} are not those that the job began with, and what an exchange gives depends on all "
        "of them:\n"
        + "\n".join(lines)
        + "\nWrite to another --output, or start over with --overwrite: stages whose inputs are the same are kept."
    )


def _rows(table: Any) -> Iterator[tuple[str, tuple[int, str]]]:
    columns = (table[name].to_pylist() for name in ("uri", "size", "generation"))
    return ((uri, (size, generation)) for uri, size, generation in zip(*columns, strict=True))


# The end of it


def _overwrite(job: _Job, options: RunOptions, clock: Clock) -> None:
    """Removes the job that is there; not the stages that the new one has too. Raises ConfigError if another driver is
    at work on it, or on one of its stages."""
    spec, ledger, listing = job.spec, job.ledger, job.listing
    refuse_rivals(ledger, listing.run_ids, clock, allow_concurrent=False, overwrite=True)
    running = set(listing.run_ids)
    for root in stages_roots(ledger.root, listing.stages):
        for key, run_ids in _runs_of_stages(job.stores.of(root), root).items():
            refuse_rivals(
                Ledger(job.stores.of(root), f"{root}/{key}"), run_ids, clock, allow_concurrent=False, overwrite=True
            )
            running |= run_ids
    kept = {key_of(one) for one in stages_of(spec)} if spec.seeded is None else set()
    outputs = overwritten(spec, ledger, listing)[1]
    remove_job(ledger, spec.name, running, outputs, options, kept)
    job.owned.claim(None, job.owned.moment())
    if may_be_scratch(ledger.root):
        for path in _folders(scratch_of(ledger.root)):
            if os.path.basename(path) not in kept:  # noqa: PTH119
                remove_scratch(path)


def _runs_of_stages(store: Store, root: str) -> dict[str, set[str]]:
    """Returns the runs that stages know, by the stage's key."""
    found: dict[str, set[str]] = {}
    for item in store.list(f"{root}/"):
        key, _, name = item.uri[len(root) + 1 :].partition("/")
        if run_id := layout.run_of(name):
            found.setdefault(key, set()).add(run_id)
    return found


def _folders(root: str) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def sweep(store: Store, output: str, known: set[str] | None = None) -> None:
    """Removes what stages made, wherever. `known`: stages of which something is in the output's store; None: that was
    not looked at."""
    # What this process has mapped into memory would take its room on the disk until it ends.
    opened.cache_clear()
    root = stages_root(output, alone=False)
    if is_local(root):
        remove_scratch(root)
    elif known is None or known:
        for item in list(store.list(f"{root}/")):
            try:
                store.delete(item.uri, item.generation)
            except GenerationMismatch:
                continue  # another driver makes it anew, and removes it at its own end
    if may_be_scratch(output):
        remove_scratch(scratch_of(output))
