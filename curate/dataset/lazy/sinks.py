"""A plan as a stage over files: it is planned, run, resumed and looked at like any job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from curate.dataset.formats import DEFAULT_CODEC, OutputFormat, ReadAs, suffix
from curate.dataset.lazy.operators import Operator
from curate.dataset.lazy.plan import Apply, Checkpoint, Limit, Plan, Union
from curate.dataset.lazy.rules import First, Fusion, Local, Tasks, Zipped, lower
from curate.dataset.lazy.shards import SourceRows
from curate.dataset.lazy.sources import Files
from curate.dataset.pipeline import Pipeline, read_rows, task_cpus
from curate.dataset.spec import StageSpec
from curate.dataset.split import SHARD_BYTES
from curate.errors import ConfigError
from curate.runtime.protocol import Resources


def stage_of(plan: Plan, format: OutputFormat, codec: str | None) -> tuple[StageSpec, Sequence[str]]:
    """Returns the stage that writes a plan's rows, and the paths that it reads; those of its checkpoint, if it has one.

    Raises ConfigError for a plan whose outputs cannot be named after what it reads, and for one without an identity.
    """
    codec = codec or DEFAULT_CODEC
    suffix(format, codec)
    # As they were asked for: how they are rewritten changes no byte, and may change with the next version of curate.
    asked = tuple(_operators(plan))
    name = f"write_{'json' if format is OutputFormat.JSONL else format.value}"
    identity: dict[str, Any] = {
        "job": name,
        "version": None,
        "operators": [operator.identity() for operator in asked],
        "batch_size": read_rows(asked),
        "shard_bytes": SHARD_BYTES,
        "format": format.value,
        "codec": codec,
    }
    base = _base(plan)
    if isinstance(base, Limit):
        return _limited(base, asked, format, codec)
    paths: Sequence[str] = ()
    columns: Sequence[str] | None = None
    kept: tuple[StageSpec, str] | None = None
    rows: SourceRows | None = None
    how: ReadAs | None = None
    num_cpus: float | None = None
    if isinstance(base, Checkpoint):
        upstream, paths = stage_of(base.input, OutputFormat.PARQUET, None)
        operators, kept = asked, (upstream, base.path)
        identity["checkpoint"] = upstream.fingerprint
    else:
        fusions = _fusions(plan)
        operators, sources = fusions[0].operators, [one.source for one in fusions]
        if all(isinstance(source, Files) for source in sources):
            first, paths = cast(Files, sources[0]), [path for one in cast(list[Files], sources) for path in one.paths]
            columns, how = fusions[0].view.columns, first.reading(fusions[0].view)
            identity["read"] = how.identity()
            num_cpus = max(
                (one.num_cpus for one in cast(list[Files], sources) if one.num_cpus is not None), default=None
            )
        else:
            rows = SourceRows(sources, [one.view for one in fusions])
            identity["rows"] = [source.identity() for source in sources]
    spec = StageSpec(
        name=name,
        identity=identity,
        code_digest="",
        parameters={"operators": [operator.name for operator in asked]},
        operator=Pipeline(operators),
        columns=None if columns is None else dict.fromkeys(columns),
        required=frozenset(),
        output_schema=None,
        batch_rows=read_rows(operators),
        shard_bytes=SHARD_BYTES,
        format=format,
        codec=codec,
        resources=Resources(task_cpus(operators, num_cpus)),
        how=how,
        rows=rows,
        upstream=kept,
    )
    return spec, paths


def _limited(
    base: Limit, after: tuple[Operator, ...], format: OutputFormat, codec: str
) -> tuple[StageSpec, Sequence[str]]:
    """Returns the stage that writes what `after` makes of the first rows."""
    from curate.dataset.lazy.quota import FirstRows

    inner, paths = stage_of(base.input, format, codec)
    if inner.upstream is not None or inner.limit is not None:
        raise ConfigError(
            "a limit is written that is over files or rows in memory, not over another limit or a checkpoint: write "
            "what it is over first, and limit that"
        )
    fusions = tuple(_fusions(base.input))
    told = [operator.identity() for operator in after]
    spec = replace(
        inner,
        identity={**inner.identity, "limit": base.rows, "after": told},
        parameters={**inner.parameters, "limit": base.rows, "after": [operator.name for operator in after]},
        resources=Resources(task_cpus((*fusions[0].operators, *after))),
        # With a limit that is not decided yet: what pools there are is known from it.
        operator=Pipeline((*fusions[0].operators, *after)),
        limit=FirstRows(base.rows, fusions, after),
    )
    return spec, paths


def _base(plan: Plan) -> Plan:
    """Returns what a chain of operators begins with."""
    return _base(plan.input) if isinstance(plan, Apply) else plan


def _operators(plan: Plan) -> Iterator[Operator]:
    """Yields the operators of a plan, in the order in which rows go through them; of a union's parts, the first's."""
    if isinstance(plan, Apply):
        yield from _operators(plan.input)
        yield plan.operator
    elif isinstance(plan, Union):
        yield from _operators(plan.inputs[0])


def _fusions(plan: Plan) -> Sequence[Fusion]:
    """Returns what reads the plan's rows: several where it is a union of what is read and done in the same way."""
    physical = lower(plan)
    below = physical
    while isinstance(below, First | Local):
        below = below.input
    if isinstance(below, Zipped):
        raise ConfigError(
            "a zip cannot be written: its rows are put side by side in the consumer's process, and no file of the "
            "input is one of the output; write its to_arrow() with pyarrow"
        )
    if not isinstance(physical, Tasks) or not all(_alike(one, physical.fusions[0]) for one in physical.fusions):
        raise ConfigError(
            "a union is written if its parts are read and processed in the same way: files of one format, or rows in "
            "memory, of one schema, with the same operators; write the parts to checkpoints, or to outputs of their own"
        )
    return physical.fusions


def _alike(one: Fusion, other: Fusion) -> bool:
    if one is other:
        return True
    kinds = [source.how.identity() if isinstance(source, Files) else None for source in (one.source, other.source)]
    asked = [[operator.identity() for operator in fusion.operators] for fusion in (one, other)]
    return kinds[0] == kinds[1] and one.source.found.equals(other.source.found) and asked[0] == asked[1]
