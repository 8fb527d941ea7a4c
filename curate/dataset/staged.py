"""A job of several stages: what comes before is run first, and kept for as long as the job can go on from it.

    <output>/_curate/inputs.parquet       the inputs, as the job began with them
    <output>/_curate/stages/<key>/        a stage before the last one, with a ledger of its own

A stage's key is made of what it does and of what it reads, so that a stage that is there is the right one: a run that
comes later, or another job with the same beginning that overwrites this one, goes on from it. When the job is complete,
they are removed.

What an exchange gives depends on all of the inputs. So these are frozen when the job begins: a run that finds others
refuses, and says what is new, gone and changed.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curate.clock import Clock
from curate.dataset.commit import refuse_other_job, remove_job
from curate.dataset.ownership import OwnedStore
from curate.dataset.prepare import EXAMPLES, Prepared, Stores, overwritten, resolve_output
from curate.dataset.spec import RunOptions, StageSpec
from curate.errors import ConfigError, ObjectNotFound
from curate.log import get_logger
from curate.runtime import make_backend
from curate.runtime.protocol import Resources
from curate.storage.protocol import Object, Outcome, Store
from curate.tasks import layout
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import match
from curate.tasks.plan import Plan
from curate.tasks.summary import RunState, Summary

MANIFEST = pa.schema([("uri", pa.string()), ("size", pa.int64()), ("generation", pa.string())])
MOST_MENDED = 3
"""How often a run makes again what the last stage found damaged or gone."""
SCRATCH = "CURATE_SCRATCH"
"""Environment variable: where stages are kept of rows that are consumed, not written."""

A = TypeVar("A")
RunStage = Callable[[StageSpec, RunOptions], A | None]
"""Does a stage; returns None if all of it is done then, else what is to be said about that."""


def key_of(spec: StageSpec) -> str:
    """Returns what a stage is called: 16 hex digits of what it does and what it reads."""
    told = [spec.fingerprint, _reads(spec)]
    return hashlib.sha256(orjson.dumps(told)).hexdigest()[:16]


def _reads(spec: StageSpec) -> Any:
    if spec.before:
        return [before.path or key_of(before.spec) for before in spec.before]
    return spec.rows.manifest() if spec.rows is not None else None


def stages_of(spec: StageSpec) -> Iterator[StageSpec]:
    """Yields the job's own stages before this one, in the order in which they run."""
    for before in spec.before:
        if before.path is None:
            yield from stages_of(before.spec)
            yield before.spec


def run_before(spec: StageSpec, root: str, options: RunOptions, run_stage: RunStage[A]) -> StageSpec | A:
    """Runs the stages before this one, each in a folder of its own below `root`; what is there is not made again.

    Returns the stage as it reads them; or what is said about the first of them that is not done then.
    """
    found: list[Sequence[Object]] = []
    for before in spec.before:
        own = f"{root}/{key_of(before.spec)}"
        ready = run_before(before.spec, root, options, run_stage) if before.spec.before else before.spec
        if not isinstance(ready, StageSpec):
            return ready
        ended = run_stage(ready, _of_stage(options, own))
        if ended is not None:
            return ended
        found.append(_outputs(ready, own))
    assert spec.bind is not None
    return spec.bind(spec, found)


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
    """Returns the outputs of a stage that is complete, in the order of its plan."""
    ledger = Ledger(Stores("").of(output), output)
    listing = ledger.list()
    plan = ledger.read_plan(listing)
    position = match(plan, listing, spec.suffix).position
    names, sizes, generations = (
        column.take(pa.array(position)).to_pylist() for column in (listing.names, listing.sizes, listing.generations)
    )
    return [Object(ledger.uri(name), size, own) for name, size, own in zip(names, sizes, generations, strict=True)]


def run_staged(
    spec: StageSpec, options: RunOptions, clock: Clock, run_stage: Callable[[StageSpec, RunOptions], Summary]
) -> Summary:
    """Runs a job of several stages until every shard is done or has failed, and returns the summary of the last stage,
    or of the one that did not end well.
    """
    output = resolve_output(options.output)
    root = f"{output}/{layout.STAGES.rstrip('/')}"
    with _connected(options.backend):
        spec, options, plan = _frozen(spec, options, output, clock)
        if plan is not None:
            ended = run_stage(replace(spec, rows=_Planned(plan)), options)
        else:
            ended = _all(spec, options, root, run_stage)
    if ended.state is RunState.COMPLETE and not options.keep_stages and ended.output == output:
        sweep(Stores("").of(output), root)
    return ended


def _all(
    spec: StageSpec, options: RunOptions, root: str, run_stage: Callable[[StageSpec, RunOptions], Summary]
) -> Summary:
    """Runs all stages; again, where the last one found files of another damaged, or gone."""

    def run(stage: StageSpec, how: RunOptions) -> Summary | None:
        ended = run_stage(stage, how)
        return None if ended.state is RunState.COMPLETE else ended

    for left in range(MOST_MENDED, -1, -1):
        ready = run_before(spec, root, options, run)
        if not isinstance(ready, StageSpec):
            return ready
        ended = run_stage(ready, options)
        if ended.state is not RunState.FAILED or not left or _whole(spec, root):
            return ended
        get_logger(job=spec.name).warning(
            "files of an earlier stage were damaged or gone; what made them runs again", stages=root
        )
    raise AssertionError("the last round returns")


def _whole(spec: StageSpec, root: str) -> bool:
    """Returns whether all outputs of all stages are there."""
    for stage in stages_of(spec):
        ledger = Ledger(Stores("").of(root), f"{root}/{key_of(stage)}")
        listing = ledger.list()
        plan = ledger.read_plan(listing)
        if match(plan, listing, stage.suffix).count < len(plan):
            return False
    return True


@contextmanager
def _connected(backend: str) -> Iterator[None]:
    """Stays connected to where tasks run, so that the stages do not each begin with that."""
    held = make_backend(backend)
    try:
        held.start(Resources(num_cpus=0.0))
        yield
    finally:
        held.close()


def dry_staged(
    spec: StageSpec, options: RunOptions, look: Callable[[StageSpec, RunOptions], tuple[Prepared, str]]
) -> tuple[Prepared, str]:
    """Returns what a run would begin with, and in words what it would do. Writes nothing."""
    output = resolve_output(options.output)
    ledger = Ledger(Stores("").of(output), output)
    listing = ledger.list()
    if listing.has_job and not options.overwrite:
        job = ledger.read_job()
        refuse_other_job(spec, ledger, job)
        _refuse_other_inputs(ledger, manifest_of(spec))
        spec = _with_seed(spec, job)
        plan = ledger.read_plan(listing)
        if len(plan) and match(plan, listing, spec.suffix).done.all():
            return look(replace(spec, rows=_Planned(plan)), options)
    done = 0

    def unfinished(stage: StageSpec, how: RunOptions) -> tuple[Prepared, str] | None:
        nonlocal done
        prepared, text = look(stage, how)
        if len(prepared.todo):
            return prepared, text
        done += 1
        return None

    total = len(list(stages_of(spec))) + 1
    ready = run_before(spec, f"{output}/{layout.STAGES.rstrip('/')}", options, unfinished)
    if isinstance(ready, StageSpec):
        prepared, text = look(ready, options)
    else:
        prepared, text = ready
    return prepared, f"stage    {done + 1} of {total}\n{text}"


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

    def parts(self, *_: Any) -> Iterator[Any]:
        raise AssertionError("nothing is left to do")

    def manifest(self) -> Any:
        return None

    def listing(self) -> Any:
        return MANIFEST.empty_table()


def _frozen(
    spec: StageSpec, options: RunOptions, output: str, clock: Clock
) -> tuple[StageSpec, RunOptions, Plan | None]:
    """Begins the job, or finds that it was begun: with the same identity, inputs and seed.

    Returns the stage with its seed, how to run it, and its plan if all that it names is there. Raises ConfigError.
    """
    stores = Stores(f"{output}/{layout.TMP}begin")
    owned = OwnedStore(stores.of(output), output, clock)
    ledger = Ledger(owned, output)
    listing = ledger.list()
    found = manifest_of(spec)
    job: dict[str, Any] | None = None
    if listing.has_job and options.overwrite:
        kept = {key_of(one) for one in stages_of(spec)} if spec.seeded is None else set()
        remove_job(ledger, spec.name, listing.run_ids, overwritten(spec, ledger, listing)[1], options, kept)
        options = replace(options, overwrite=False)
    elif listing.has_job:
        job = ledger.read_job()
        refuse_other_job(spec, ledger, job)
        _refuse_other_inputs(ledger, found)
    if job is None:
        job = {
            "format_version": layout.FORMAT_VERSION,
            "job": spec.name,
            "fingerprint": spec.fingerprint,
            "identity": dict(spec.identity),
            "parameters": dict(spec.parameters),
            "code_digest": spec.code_digest,
            "format": spec.format.value,
            "codec": spec.codec,
            "suffix": spec.suffix,
        }
        if spec.seeded is not None:
            job["seed"] = secrets.randbits(63)
        _publish_inputs(ledger, found)
        published = ledger.store.publish(ledger.uri(layout.JOB), orjson.dumps(job, option=orjson.OPT_INDENT_2))
        if published.outcome is Outcome.DIFFERENT:
            job = ledger.read_job()
            refuse_other_job(spec, ledger, job)
        _refuse_other_inputs(ledger, found)
        return _with_seed(spec, job), options, None
    plan = ledger.read_plan(listing)
    done = len(plan) and match(plan, listing, spec.suffix).done.all()
    return _with_seed(spec, job), options, plan if done else None


def _with_seed(spec: StageSpec, job: dict[str, Any]) -> StageSpec:
    return spec if spec.seeded is None else spec.seeded(job["seed"])


def manifest_of(spec: StageSpec) -> Any:
    """Returns the files that the first stages of a job read, in their order: uri, size and generation."""
    tables = [stage.rows.listing() for stage in (*stages_of(spec), spec) if stage.rows is not None]
    return pa.concat_tables([MANIFEST.empty_table(), *tables])


def _publish_inputs(ledger: Ledger, found: Any) -> None:
    sink = io.BytesIO()
    pq.write_table(found, sink, compression="zstd")
    ledger.store.publish(ledger.uri(layout.INPUTS), sink.getvalue())


def _refuse_other_inputs(ledger: Ledger, found: Any) -> None:
    """Raises ConfigError unless the inputs are those that the job began with."""
    try:
        data = ledger.store.read(ledger.uri(layout.INPUTS))
    except ObjectNotFound as error:
        raise ConfigError(
            f"{ledger.uri(layout.INPUTS)} is missing, which says what the job began with; the ledger was damaged from "
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


def sweep(store: Store, root: str) -> int:
    """Removes what stages made; returns how many objects that were."""
    removed = 0
    for item in list(store.list(f"{root}/")):
        removed += store.delete(item.uri)
    return removed


def scratch_root() -> str:
    """Returns where stages are kept of rows that are consumed: below $CURATE_SCRATCH, else the system's folder."""
    return os.environ.get(SCRATCH) or tempfile.gettempdir()
